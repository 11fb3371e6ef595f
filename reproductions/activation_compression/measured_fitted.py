"""Fits of "Does compressing activations help model parallel training?", made to iterations measured on this machine.

A small BERT on real ranks over a shaped link, as in the measured tables.
"""

from workbench.reproduction import Evidence, Reproduction, Trend, Whose, Within

__all__ = ["CATALOGUE"]

TENSOR_SHARE = 150.72 / 646.14  # table 4, w/o: tensor communication over total time
CODES = ["w/o", "A1", "T1", "Q1"]
TENSOR_MESHES = [[4, 1], [2, 2]]
FIT = {
    "fit_on": [
        {"methods": CODES, "meshes": [[4, 1]], "micro_batch": 6, "sequence": 128, "hidden": 256},
        {"methods": ["w/o"], "meshes": [[2, 2]], "micro_batch": 6, "sequence": 128, "hidden": 256},
        {"methods": CODES, "meshes": TENSOR_MESHES, "micro_batch": 2, "sequence": 128, "hidden": 256},
        {"methods": ["w/o", "A2", "T4", "Q2"], "meshes": [[4, 1]], "micro_batch": 4, "sequence": 64, "hidden": 128},
        {"methods": ["w/o", "A2"], "meshes": [[4, 1]], "micro_batch": 4, "sequence": 64, "hidden": 512},
    ],
    "held_out": [  # the first one is the setting of tables 2 to 4
        {
            "methods": ["w/o", "A1", "A2", "T4", "Q2"],
            "meshes": TENSOR_MESHES,
            "micro_batch": 4,
            "sequence": 128,
            "hidden": 256,
        },
        {"methods": ["w/o", "A2"], "meshes": [[4, 1]], "micro_batch": 4, "sequence": 64, "hidden": 256},
    ],
    "faster": [1.0, 2.0, 8.0],
    "share": TENSOR_SHARE,
    "num_hosts": 4,
    "num_iterations": 6,
    "seed": 0,
}
GOODNESS = "5 %: a line that explains less than 95 % of the weighted variation does not carry to other sizes"

SHORT_CODING = (
    "Coding a message takes a few tenths of a millisecond here. Starting the operations and waking up on a shared core "
    "take as long. Coding is a small share of an iteration, so predictions hardly depend on it."
)

NEAR_BREAK_EVEN = (
    "The model is fitted over one link. Over faster links the processor's copying stays, which the fit counts as link. "
    "Predictions are therefore worst where compression just pays or just does not."
)

SMALL_MODELS = (
    "In the smallest models the constant cost of coding weighs most. The paper's models are far wider: there "
    "multiplication grows with the square of the width and hides all else."
)

CATALOGUE = (
    Reproduction(
        technique="activation_compression",
        item="fig-5",
        evidence=Evidence.MEASURED,
        title="Computation, communication and coding fitted on this machine, and what they predict",
        notebook="notebooks/activation_compression/fit.ipynb",
        # Not in smoke: a fit to messages that small would fit noise.
        parameters={"full": FIT},
        expected_s={"full": 100},
        times=True,
        tags=("real ranks", "shaped links", "small BERT"),
        claims=(
            Within(
                "The fitted model predicts held-out settings within 10 % in the median",
                quantity="median_error",
                where={"settings": "held out"},
                expected=0.0,
                abs=0.10,
                because="10 %: this study's reading of 'close'",
                source="section 4.7: the prediction is close to the measured time",
            ),
            Within(
                "The fitted model predicts the share of an iteration that A1 saves over faster links, to 4 points",
                quantity="saved_share_error",
                where={"method": "A1"},
                expected=0.0,
                abs=0.04,
                because="4 points: a code saves some 15 % over the slowest link, so that predicting no gain fails",
                source="section 4.7, figure 5d: prediction and measurement are close",
                explanation=NEAR_BREAK_EVEN,
                changed="Before the first recorded run it replaced 10 % of the speedup, which no gain at all passed.",
            ),
            Within(
                "Break-even: where the measurement tells that a code pays or does not, the model says the same",
                quantity="same_side",
                where={"method": "A1"},
                expected=1.0,
                abs=0.0,
                because="a side needs no tolerance",
                source="beyond the paper: the break-even map checked at measured points",
                explanation=NEAR_BREAK_EVEN,
                whose=Whose.OURS,
                changed="Before the first recorded run it replaced 10 % of the speedup, which no gain at all passed.",
            ),
            Within(
                "Figure 5a: the time of computation is a line in the operations",
                quantity="r_squared",
                where={"of": "computation"},
                expected=1.0,
                rel=0.05,
                because=GOODNESS,
                source="section 4.7",
            ),
            Within(
                "Figure 5b: the time of communication is a line in the bytes",
                quantity="r_squared",
                where={"of": "communication"},
                expected=1.0,
                rel=0.05,
                because=GOODNESS,
                source="section 4.7",
            ),
            Within(
                "Figure 5c: the time of coding is a line in the elements",
                quantity="r_squared",
                where={"of": "coding, learned linear code"},
                expected=1.0,
                rel=0.05,
                because=GOODNESS,
                source="section 4.7",
                explanation=SHORT_CODING,
            ),
            Within(
                "A fit of computation to small hidden sizes predicts large ones 30 times too slow",
                quantity="small_fit_error",
                expected=30.0,
                rel=0.5,
                because="half: the text says 'can result in a 30x higher prediction time'",
                source="section 4.7: fitting alpha on smaller hidden sizes",
                explanation="Hidden sizes span 128 to 512 here; processors are near their peak rate at the smallest. "
                "The paper's GPUs idle while small kernels are launched.",
                changed="Added with the other results known, before this one was measured.",
            ),
            Trend(
                "Figure 5d: larger models gain less from the same code",
                quantity="speedup",
                along="hidden",
                direction="decreasing",
                where={"method": "A2", "tp": 4, "micro_batch": 4, "sequence": 64},
                because="differences inside the interval are no finding",
                source="section 4.7, figure 5d",
                explanation=SMALL_MODELS,
            ),
            Trend(
                "Table 10 with this machine's constants: the gain falls as model and cluster grow",
                quantity="table_10_speedup",
                along="hidden",
                direction="decreasing",
                because="an order needs no tolerance",
                source="section 4.7, table 10; there it falls up to a hidden size of 16384",
            ),
        ),
    ),
)
