"""Figure 2 of the activation-compression paper: are gradients low-rank, and activations not?

Source: "Does compressing activations help model parallel training?", figure 2 and section 2.2.
Simplified: the figure's curves are not available as numbers, so the claims read its caption and the text; the
tolerances below were fixed before the first run.
Left out: the paper's own model below the profile `paper`.
"""

from workbench.reproduction import Evidence, Ordering, Reproduction, Within

__all__ = ["SPECTRUM"]

COMPARED = {"depth": "middle", "sentences": 480}  # the paper's layer is the 12th of 24
BETWEEN = (
    "The curve has no knee, so no small number of directions holds most of the sum: not low-rank, as the paper says. But "
    "it bends more than \"nearly linear\" was read: the weights of the directions fall off steadily, and leaving out the "
    "mean or the strongest few hardly straightens it. A random matrix of the same shape is recorded beside it. Whether "
    "BERT-large is straighter than this small encoder, the profile `paper` tells."
)
BY_DEPTH = (
    "How low the gradient's rank looks depends on the depth and on the batch. The loss reads one token a sentence: in the "
    "last layer the gradient is close to rank one, and the attention of each layer below spreads it over more tokens. "
    "With 32 sentences, recorded too, the middle layer's gradient is lower in rank than with 480."
)
ALL_TOKENS = (
    "Half-way up the encoder the gradient has reached all tokens, and with padding left out it needs as many dimensions "
    "as the activation. In the last layer, recorded too, it is all but rank one, since the loss reads one token a sentence."
)
QUARTER = "a quarter of the way from a straight line (area 0) to a matrix of rank one (area 0.5); the text gives no number"
EARLIER = "the text gives no number, so the order of the two shares is compared, over seeds"

_PARAMETERS = {"encoder": "all-MiniLM-L6-v2", "task": "sst2", "sentences": [32, 480], "tensor_ranks": 2}

SPECTRUM = (
    Reproduction(
        technique="activation_compression",
        item="fig-2",
        evidence=Evidence.MEASURED,
        title="Singular values of gradients and of activations",
        notebook="notebooks/activation_compression/spectrum.ipynb",
        published="fig-2.csv",
        parameters={
            "smoke": {**_PARAMETERS, "encoder": "stand-in", "sentences": [8], "seeds": [0], "in_full": False},
            "laptop": {**_PARAMETERS, "seeds": [0, 1, 2], "in_full": False},
            "full": {**_PARAMETERS, "seeds": [0, 1, 2, 3, 4, 5, 6, 7, 8, 9], "in_full": True},
            "paper": {**_PARAMETERS, "encoder": "bert-large-uncased", "seeds": [0, 1, 2], "in_full": True},
        },
        expected_s={"smoke": 6, "laptop": 45, "full": 200},
        times=False,
        claims=(
            Within(
                "The activation is not low-rank: its curve is nearly linear",
                quantity="area_above_diagonal",
                where={**COMPARED, "matrix": "activation"},
                abs=0.125,
                because=QUARTER,
                needs_real_data=True,
                explanation=BETWEEN,
                source="section 2.2, figure 2",
            ),
            Within(
                "The gradient is low-rank: its curve is nearly that of a matrix of rank one",
                quantity="area_above_diagonal",
                where={**COMPARED, "matrix": "weight gradient"},
                abs=0.125,
                because=QUARTER,
                needs_real_data=True,
                explanation=BY_DEPTH,
                source="figure 2",
            ),
            Ordering(
                "The gradient reaches 90 % of its sum in fewer dimensions than the activation",
                quantity="dimension_share_for_90",
                where=COMPARED,
                along="matrix",
                order=["weight gradient", "activation"],
                because=EARLIER,
                needs_real_data=True,
                source="figure 2",
            ),
            Ordering(
                "The gradient reaches half of its sum in fewer dimensions than the activation",
                quantity="dimension_share_for_50",
                where=COMPARED,
                along="matrix",
                order=["weight gradient", "activation"],
                because=EARLIER,
                needs_real_data=True,
                source="figure 2",
            ),
            Ordering(
                "So does the gradient of the activation, the other thing the paper may mean by gradient",
                quantity="dimension_share_for_90",
                where=COMPARED,
                along="matrix",
                order=["activation gradient", "activation"],
                because=EARLIER,
                needs_real_data=True,
                explanation=ALL_TOKENS,
                source="figure 2",
            ),
        ),
    ),
)
