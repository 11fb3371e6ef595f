"""Simulated items of SDPipe: the paper's cluster, with lengths of iterations that are a guess.

Tolerances were fixed before the first recorded run: a quarter of the effect, since the paper does not print what an
iteration takes. The rate of the parameter servers is calibrated on "close to HetPipe" for ResNet-50 on 4 x 4 workers.
"""

from workbench.reproduction import Bound, Evidence, Ordering, Reproduction, Trend, Whose, Within

ALL_REDUCE, AD_PSGD, HETPIPE, SDPIPE = "All-Reduce+Pipe", "AD-PSGD+Pipe", "HetPipe", "SDPipe"
MODELS, ITERATION = ["ResNet-50", "BERT-base"], "each iteration"
QUARTER = "a quarter of the effect: an iteration's length is a guess"
ORDER = "an order needs no tolerance"
BUSY = {"num_iterations": 300}
NOT_FOURFOLD = (
    "Section 5.2 says that delays B slow SDPipe down by 1.4, and that it is up to 4.3 times as fast as All-Reduce. No "
    "scheme avoids a delay in a worker's own pipeline. If these slow SDPipe down by 1.4, All-Reduce, which waits for "
    "the slowest of N pipelines, is slowed down by at most 1 + 0.4 N. Where both are equally fast without delays, "
    "SDPipe is then at most (1 + 0.4 N) / 1.4 times as fast: 3.0 with 8 pipelines, the most that figure 4 has."
)
EACH_PASS = (
    "The bound needs delays of which no two meet. The released code draws a delay in every pass, not in every "
    "iteration; then most of them meet."
)


def _simulated(
    item: str, title: str, notebook: str, claims: tuple, parameters: dict, smoke: dict, **more
) -> Reproduction:
    return Reproduction(
        technique="sdpipe",
        item=item,
        evidence=Evidence.SIMULATED,
        title=title,
        notebook=f"notebooks/sdpipe/{notebook}.ipynb",
        claims=claims,
        parameters={"smoke": parameters | smoke, "laptop": parameters},
        **more,
    )


def _largest(over: str, times: float) -> Within:
    return Within(
        f"SDPipe is up to {times} times as fast as {over}",
        quantity="largest_speedup",
        where={"over": over, "dose": ITERATION},
        expected=times,
        rel=0.25,
        no_effect=1.0,
        because=QUARTER,
        source="section 5.2",
        erratum=NOT_FOURFOLD if over == ALL_REDUCE else "",
        explanation=EACH_PASS if over == ALL_REDUCE else "",
    )


FIGURE_4 = _simulated(
    "fig-4",
    "Throughput on 16 workers in three meshes, homogeneous and with delays A and B (figures 4a to 4f)",
    "throughput",
    (
        _largest(ALL_REDUCE, 4.3),
        _largest(AD_PSGD, 2.8),
        Within(
            "Delays B slow SDPipe down by 1.4",
            quantity="slowdown",
            where={"setting": "B", "mesh": "4 x 4", "dose": ITERATION},
            expected=1.4,
            rel=0.25,
            no_effect=1.0,
            because=QUARTER,
            source="section 5.2",
            explanation="Per cent of what a pipeline takes without delays, so that it follows from the guessed length.",
        ),
        Ordering(
            "With delays B on 4 x 4 and 2 x 8 workers SDPipe is faster than AD-PSGD, and AD-PSGD than All-Reduce",
            quantity="examples_per_s",
            along="scheme",
            where={"setting": "B", "mesh": ["4 x 4", "2 x 8"], "dose": ITERATION},
            order=[ALL_REDUCE, AD_PSGD, SDPIPE],
            because=ORDER,
            source="section 5.2: significantly outperforms all baselines",
        ),
        Ordering(
            "Without delays HetPipe is slower than SDPipe",
            quantity="examples_per_s",
            along="scheme",
            where={"setting": "homogeneous", "dose": ITERATION},
            order=[HETPIPE, SDPIPE],
            because=ORDER,
            source="section 5.2, figures 4a and 4d",
            explanation="On 8 x 2 workers averaging crosses the network before the next mini-batch begins, whereas "
            "pushes and pulls overlap with computing, and of two pipelines the servers just keep up with them.",
        ),
        Ordering(
            "With delays B SDPipe is faster than HetPipe on every mesh",
            quantity="examples_per_s",
            along="scheme",
            where={"setting": "B", "dose": ITERATION},
            order=[HETPIPE, SDPIPE],
            because=ORDER,
            source="section 5.2: significantly outperforms all baselines",
            explanation="With two pipelines SDPipe waits for its window in vain whenever one of them is late.",
            changed="Added after the first results, in which SDPipe was behind on 8 x 2.",
        ),
        Within(
            "With delays B on 4 x 4 workers SDPipe trains BERT-base 1.6 times as fast as HetPipe",
            quantity="speedup",
            where={"over": HETPIPE, "model": "BERT-base", "setting": "B", "mesh": "4 x 4", "dose": ITERATION},
            expected=1.6,
            rel=0.25,
            no_effect=1.0,
            because=QUARTER,
            source="section 5.3",
            explanation="The paper's is of the time to a loss, ours of throughput. The servers' rate is calibrated on "
            "ResNet-50; how much larger BERT-base is decides here.",
            changed="Added after the first results, with the tolerance of the others.",
        ),
        Ordering(
            "The more delay, the more SDPipe gains over All-Reduce",
            quantity="speedup",
            along="setting",
            where={"over": ALL_REDUCE, "dose": ITERATION, "mesh": ["4 x 4", "2 x 8"]},
            order=["homogeneous", "A", "B"],
            because=ORDER,
            source="section 5.2: All-Reduce is heavily affected",
        ),
    ),
    {
        "models": MODELS,
        "settings": ["homogeneous", "A", "B"],
        "meshes": [[8, 2], [4, 4], [2, 8]],
        "doses": [ITERATION, "each pass"],
        "seeds": 5,
    }
    | BUSY,
    {"num_iterations": 20, "seeds": 1},
    expected_s={"smoke": 8, "laptop": 60},
)

FIGURE_6 = _simulated(
    "fig-6",
    "Speedups over HetPipe from 16 to 4,096 workers",
    "scaling",
    (
        Trend(
            "SDPipe gains more over HetPipe on 64 workers than on 16",
            quantity="over_hetpipe",
            along="workers",
            where={"scheme": SDPIPE, "workers": [16, 64]},
            direction="increasing",
            because=ORDER,
            source="section 5.4, figure 6",
            whose=Whose.CONSTRUCTION,
            explanation="Follows from one server of a fixed rate, of which a worker's share falls with their number.",
            changed="It was the paper's claim until it was seen that the calibrated rate decides it.",
        ),
        Ordering(
            "With delays B on 64 workers SDPipe gains most",
            quantity="over_hetpipe",
            along="scheme",
            where={"setting": "B", "workers": 64},
            order=[ALL_REDUCE, AD_PSGD, SDPIPE],
            because=ORDER,
            source="section 5.4",
        ),
        Trend(
            "And more still on 1,024 and 4,096",
            quantity="over_hetpipe",
            along="workers",
            where={"scheme": SDPIPE, "workers": [64, 1024, 4096]},
            direction="increasing",
            because=ORDER,
            source="beyond the figure",
            whose=Whose.OURS,
        ),
    ),
    {
        "models": MODELS,
        "settings": ["homogeneous", "B"],
        "pipelines": [4, 16, 256, 1024],
        "num_stages": 4,
        "num_iterations": 100,
    },
    {"pipelines": [4, 16], "num_iterations": 10},
    expected_s={"smoke": 7, "laptop": 90},
)


def _cloud(item: str, model: str, times: float) -> Reproduction:
    return _simulated(
        item,
        f"{model} on 4 x 4 workers that replay the speeds of 16 shared GPUs",
        "cloud",
        (
            Within(
                f"SDPipe is {times} times as fast as All-Reduce",
                quantity="speedup",
                where={"over": ALL_REDUCE},
                expected=times,
                rel=0.25,
                no_effect=1.0,
                because=QUARTER,
                source="section 5.5: speedups of 2.3 on BERT-base and 1.6 on ResNet-50",
                explanation="Two of the sixteen GPUs run at less than half their speed most of the time. A worker that "
                "is always late is waited for whenever the last P groups lack it: no scheme that keeps all workers "
                "connected outruns it by much.",
            ),
        ),
        {"model": model, "num_iterations": 400},
        {"num_iterations": 20},
        expected_s={"smoke": 7, "laptop": 8},
    )


GROUP_SIZES = _simulated(
    "fig-9",
    "Sizes of groups by P, with the paper's settings and with those of the released scheduler",
    "group_sizes",
    (
        Within(
            "Median sizes are those of the artifact's figure 9",
            quantity="group_size",
            where={"settings": "paper", "P": [1, 2, 5]},
            rel=0.25,
            because="read off a box plot of another cluster",
            source="artifact, figure 9, 8 pipelines",
        ),
        Bound(
            "With P = 1 every group is all workers",
            quantity="group_size",
            where={"settings": "paper", "P": 1},
            at_least=8.0,
            because="a count",
            source="section 3.3: P = 1 connects all in each group",
            explanation="While one stage enforces, groups of the other stages are not checked: P = 1 is no All-Reduce "
            "where there are several stages.",
        ),
        *(
            Ordering(
                f"With the released scheduler's settings {what} than with the paper's",
                quantity=quantity,
                along="settings",
                where={"P": 10},
                order=["paper", "released"],
                because=ORDER,
                source="the released scheduler's window of 1 ms, and its check after every P signals of each worker",
                whose=Whose.OURS,
                changed="Added after the first results.",
            )
            for what, quantity in (
                ("SDPipe is faster", "over_all_reduce"),
                ("updates spread more slowly", "spread_iterations"),
            )
        ),
    ),
    {"histories": [1, 2, 5, 10, 20, 50], "num_pipelines": 8, "num_stages": 2} | BUSY,
    {"num_iterations": 20},
    expected_s={"smoke": 6, "laptop": 8},
    published="fig-9.csv",
)

MAP = _simulated(
    "map",
    "What P and T do: speed, how fast updates spread, and how often the last P groups connect all workers",
    "map",
    (
        Trend(
            "A larger P makes SDPipe faster, with a window of a quarter of an iteration",
            quantity="over_all_reduce",
            along="P",
            where={"T": 0.25},
            direction="increasing",
            because=ORDER,
            source="section 3.3: P bounds how long a straggler may be left behind",
            whose=Whose.OURS,
        ),
        Trend(
            "And lets updates spread more slowly",
            quantity="spread_iterations",
            along="P",
            where={"T": 0.25, "P": [5, 20, 50]},
            direction="increasing",
            because=ORDER,
            source="section 3.3",
            whose=Whose.OURS,
        ),
        Bound(
            "With P = 10 and T = 1/N at least 9 in 10 runs of P groups connect all workers",
            quantity="connected_share",
            where={"P": 10, "T": 0.125},
            at_least=0.9,
            because="most are performed without conflict: nine in ten",
            source="section 3.4",
        ),
    ),
    {
        "model": "ResNet-50",
        "setting": "B",
        "histories": [1, 2, 5, 10, 20, 50],
        "windows": [0.0, 0.05, 0.125, 0.25, 0.5, 1.0],
        "mesh": [4, 8],
    }
    | BUSY,
    {"num_iterations": 20, "histories": [1, 10], "windows": [0.0, 0.25]},
    expected_s={"smoke": 6, "laptop": 20},
)

CATALOGUE = (
    FIGURE_4,
    FIGURE_6,
    _cloud("fig-7b", "BERT-base", 2.3),
    _cloud("fig-7c", "ResNet-50", 1.6),
    GROUP_SIZES,
    MAP,
)
