"""The rows of figure 4.15: what VGG16 loses where one of the four dimensions of the search is left out."""

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from workbench.study.rows import value_row

from .cost import Job
from .method.baselines import ALL, MYOPIC, ON_CPUS, ON_GPUS, crippled_strategy
from .method.search import find_strategy, improve
from .simulated import ESPRESSO, FP32, IMPROVED, WHOLE, job_of, scaling_factor

__all__ = ["PANELS", "space_rows"]

PANELS = MappingProxyType(
    {
        "a": (ALL, MYOPIC),
        "b": (ON_GPUS, ON_CPUS),
        "c": ("Inter Allgather", "Inter Alltoall"),
        "d": ("Inter Alltoall", "Alltoall+Alltoall"),
    }
)
"""Panel n of the figure leaves out dimension n, in two ways."""


def space_rows(*, panel: str, algorithms: Sequence[str], testbeds: Sequence[str]) -> list[dict[str, Any]]:
    """Return VGG16's scaling factors on 64 GPUs with Espresso and in the two crippled spaces of a panel.

    `espresso_over` is how many times as fast Espresso trains; `second_over_first` compares the two spaces.
    """
    rows, (first, second) = [], PANELS[panel]
    for testbed in testbeds:
        ratios = []
        for algorithm in algorithms:
            factors = _factors(job_of("vgg16", WHOLE, algorithm, testbed=testbed), panel)
            keys = {"testbed": testbed, "algorithm": algorithm}
            ratios.append(factors[second] / factors[first])
            rows.append(value_row("second_over_first", ratios[-1], **keys))
            for space, factor in factors.items():
                rows.append(value_row("scaling_factor", factor, space=space, **keys))
                if space in PANELS[panel]:
                    rows.append(value_row("espresso_over", factors[ESPRESSO] / factor, space=space, **keys))
        for name, extreme in (("least", min(ratios)), ("largest", max(ratios))):
            rows.append(value_row(f"{name}_second_over_first", extreme, testbed=testbed))
    return rows


def _factors(job: Job, panel: str) -> dict[str, float]:
    found = {space: crippled_strategy(job, space) for space in PANELS[panel]}
    found[ESPRESSO] = find_strategy(job).strategy
    found[IMPROVED] = improve(job, found[ESPRESSO]).strategy
    return {FP32: scaling_factor(job)} | {name: scaling_factor(job, strategy) for name, strategy in found.items()}
