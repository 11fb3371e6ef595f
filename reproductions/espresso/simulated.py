"""Simulated items of Espresso: the paper's two clusters, with what its authors released.

The tolerances were chosen after trial runs of the model, before the lengths of iterations were calibrated.
"""

from workbench.reproduction import Bound, Evidence, Reproduction, Within

FP32, HIPRESS, HITOPK, BYTEPS = "FP32", "HiPress", "HiTopKComm", "BytePS-Compress"
CHANGED = (
    "Tolerances were chosen after trial runs in which networks had 80 % of their rate and iterations their released "
    "length; then both were changed, and no tolerance."
)
NUM_GPUS = [8, 16, 32, 64]
CPUS = "How many cores BytePS-Compress has is not said; here a machine's CPUs serve its 8 GPUs one after the other."
GREEDY = (
    "Algorithm 4.1 leaves out gradients sent before a bubble and changes one at a time: it stops early on two large "
    "gradients of one size."
)


def _gain(model: str, over: str, times: float, explanation: str = "") -> Within:
    return Within(
        f"On 64 GPUs Espresso trains {model} {times} times as fast as {over}",
        quantity="gain",
        where={"model": model, "over": over, "gpus": 64},
        expected=times,
        rel=0.33,
        no_effect=1.0,
        because="a third of the effect: constants of the authors' planner, nominal networks",
        source="sections 4.8.2 and 4.8.4",
        explanation=explanation or (CPUS if over == BYTEPS else ""),
        changed=CHANGED,
    )


def _near_bound(model: str) -> Bound:
    return Bound(
        f"Espresso's throughput of {model} is less than 10 % below the upper bound",
        quantity="below_bound",
        where={"model": model, "gpus": 64},
        at_most=10.0,
        because="as the text says it",
        source="section 4.8.5: always less than 10 %",
        explanation="The bound has no cost of compression at all: no strategy need reach it.",
    )


def _figure(item: str, testbed: str, models: dict[str, dict[str, float]]) -> Reproduction:
    claims = [_gain(model, over, times) for model, gains in models.items() for over, times in gains.items()]
    parameters = {"models": [*models], "num_gpus": NUM_GPUS, "certified": True}
    return Reproduction(
        technique="espresso",
        item=item,
        evidence=Evidence.SIMULATED,
        title=f"Throughput of three models on 8 to 64 GPUs, {testbed}",
        notebook="notebooks/espresso/throughput.ipynb",
        claims=(*claims, *(_near_bound(model) for model in models)),
        parameters={
            "smoke": parameters | {"models": [next(iter(models))], "num_gpus": [64], "certified": False},
            "laptop": parameters,
        },
        expected_s={"smoke": 10, "laptop": 60},
        tags=("needs the authors' release",),
    )


CATALOGUE = (
    _figure(
        "fig-4-12",
        "NVLink and 100 Gbit/s (figures 4.12a to 4.12c)",
        {
            "bert_base": {BYTEPS: 1.31, HITOPK: 1.54, HIPRESS: 1.40},
            "gpt2": {BYTEPS: 1.42, HIPRESS: 1.33},
            "ugatit": {FP32: 2.49, BYTEPS: 3.05, HITOPK: 1.50, HIPRESS: 1.35},
        },
    ),
    _figure(
        "fig-4-13",
        "PCIe and 25 Gbit/s (figures 4.13a to 4.13c)",
        {
            "vgg16": {FP32: 3.69, BYTEPS: 4.57, HIPRESS: 1.55},
            "lstm": {BYTEPS: 2.01, HITOPK: 1.73, HIPRESS: 1.77},
            "resnet101": {FP32: 1.20, BYTEPS: 1.18, HIPRESS: 1.24},
        },
    ),
)
