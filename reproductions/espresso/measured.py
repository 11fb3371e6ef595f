"""Measured items of Espresso: how long it takes to select a strategy, in one process on the CPU.

All rules were fixed before the first result.
"""

from workbench.reproduction import Bound, Evidence, Reproduction, Whose, Within

MODELS = ["vgg16", "resnet101", "ugatit", "bert_base", "gpt2", "lstm"]
TESTBEDS = ["nvlink", "pcie"]
NUM_TENSORS = dict(zip(MODELS, (32, 314, 148, 207, 148, 10), strict=True))
SELECTED_MS = dict(zip(MODELS, (17, 179, 84, 125, 99, 1), strict=True))  # table 4.5
OFFLOADED_MS = dict(zip(MODELS, (1, 30, 12, 44, 18, 1), strict=True))  # table 4.6
DAY_S, LOG10_DAY_S = 86400.0, 4.9365
MACHINE = "another machine and language; at most the paper's time, on both clusters, as the text has it"
CHANGED = "At first NVLink alone, where the search has few tensors to look at, so that the claims said little."
SEARCH = (
    "The paper does not say which options its search looks at. Here it is all of the tree that are not beaten by "
    "another one in every task. For ten tensors most of the time goes into listing them."
)
FEW = (
    "Table 4.6's lengths of computation and communication are not in the text. With the released ones and networks of "
    "the nominal rate, FP32 already hides most of the communication, and fewer compressions gain something."
)


def _measured(item: str, title: str, claims: tuple, parameters: dict) -> Reproduction:
    return Reproduction(
        technique="espresso",
        item=item,
        evidence=Evidence.MEASURED,
        title=title,
        notebook="notebooks/espresso/selection.ipynb",
        claims=claims,
        parameters={"smoke": parameters | {"models": ["lstm"], "num_runs": 6}, "laptop": parameters},
        expected_s={"smoke": 10, "laptop": 40},
        published=f"{item}.csv",
        times=True,
        tags=("one process", "needs the authors' release"),
    )


def _in_time(model: str, milliseconds: int, source: str, explanation: str = "") -> Bound:
    return Bound(
        f"{model} takes at most {milliseconds} ms",
        quantity="milliseconds",
        where={"model": model},
        at_most=float(milliseconds),
        because=MACHINE,
        source=source,
        explanation=explanation,
        changed=CHANGED,
    )


def _ours(at_most_ms: int) -> Bound:
    return Bound(
        f"ResNet101 takes at most {at_most_ms} ms here",
        quantity="milliseconds",
        where={"model": "resnet101"},
        at_most=float(at_most_ms),
        because="so short that nobody waits",
        changed=CHANGED,
        source="a promise of this project",
        whose=Whose.OURS,
    )


CATALOGUE = (
    _measured(
        "table-4-5",
        "The time to select compression strategies",
        (
            *(_in_time(model, ms, "table 4.5", SEARCH if model == "lstm" else "") for model, ms in SELECTED_MS.items()),
            _ours(100),
            Bound(
                "Brute force takes more than 24 hours for every model",
                quantity="brute_force_log10_s",
                where={"model": MODELS},
                at_least=LOG10_DAY_S,
                because="as the table says it; base-10 logarithm of seconds",
                source="table 4.5",
                explanation="An estimate: all options of all tensors, each as fast as one strategy in the search.",
            ),
        ),
        {"models": MODELS, "testbeds": TESTBEDS, "num_runs": 21, "algorithm": "4.1", "most_brute": 17},
    ),
    _measured(
        "table-4-6",
        "The time to find the best CPU offloading, and the tensors that are left for it",
        (
            *(_in_time(model, ms, "table 4.6") for model, ms in OFFLOADED_MS.items()),
            _ours(30),
            *(
                Within(
                    f"For {model} the search leaves as many tensors for offloading as table 4.6 says",
                    quantity="to_offload",
                    where={"model": model, "testbed": "nvlink"},
                    rel=0.25,
                    neutral=float(number),
                    because="a quarter: times of computation, compression and networks are not the paper's",
                    explanation=FEW,
                )
                for model, number in NUM_TENSORS.items()
            ),
            Within(
                "Where brute force can be run, it finds no better offloading",
                quantity="found_over_brute_force",
                expected=1.0,
                abs=1e-9,
                because="the same optimum, up to rounding",
                source="theorem 4.1",
                explanation="Lemma 4.1 does not hold for F: see the certificate.",
                changed="At first for at most twelve tensors, no two of one group: there both are the same.",
            ),
            Bound(
                "For BERT-base there are only a few thousand combinations",
                quantity="combinations",
                where={"model": "bert_base", "testbed": "nvlink"},
                at_most=9999.0,
                neutral=2.0**54,
                because="a few thousand: below ten thousand",
                source="section 4.8.3",
                explanation="Tensors of one size got different options here, so that there are more groups than sizes.",
            ),
            Bound(
                "Brute force takes more than 24 hours for ResNet101 and BERT-base",
                quantity="brute_force_s",
                where={"model": ["resnet101", "bert_base"], "testbed": "nvlink"},
                at_least=DAY_S,
                because="as the table says it",
                source="table 4.6",
                explanation="Where few tensors are left, as here for ResNet101, brute force is fast. For more than "
                "seventeen it is an estimate.",
            ),
        ),
        {"models": MODELS, "testbeds": TESTBEDS, "num_runs": 21, "algorithm": "4.2", "most_brute": 17},
    ),
)
