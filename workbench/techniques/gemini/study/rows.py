"""Rows of a record from observed recoveries.

Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", figure 6.14.
Simplified: of a few repetitions the median, and the least and the largest as the spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from ..method.recovery import Tier
from .gpt2_training import Size
from .recovery import PHASES, RecoveryObserved, digests, observe_recovery, train

__all__ = ["observe_all", "recovery_rows"]


def observe_all(
    kinds: Sequence[str],
    repeats: int,
    *,
    size: Size,
    num_machines: int,
    at_iteration: int,
    options: Mapping[str, Any],
    **more: Any,
) -> list[RecoveryObserved]:
    """Observe each kind of failure several times, beside one undisturbed training.

    Args:
        kinds: "software", "hardware".
        repeats: of each.
        size, num_machines, at_iteration, options, more: as for `observe_recovery`.

    Raises:
        ValueError: for no repetition.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}, must be at least 1")
    undisturbed = digests(train(size, num_machines, options, **more))
    common = {"size": size, "num_machines": num_machines, "at_iteration": at_iteration, "options": options}
    return [observe_recovery(kind, undisturbed=undisturbed, **common, **more) for _ in range(repeats) for kind in kinds]


def recovery_rows(observed: Sequence[RecoveryObserved]) -> list[dict[str, Any]]:
    """Return quantities by kind of failure: seconds by phase and in all, what was lost, and whether all is as it was.

    Args:
        observed: any number of each kind.

    Returns:
        `phase_s`, `total_s`, `lost_iterations`, `lost_s`, `from_memory` (share of ranks that memory served),
        `different_ranks` (that ended with other bits than undisturbed).
    """
    rows = []
    for kind in dict.fromkeys(each.kind for each in observed):
        mine = [each for each in observed if each.kind == kind]
        for phase in PHASES:
            rows.append(_row("phase_s", [each.phases.seconds[phase] for each in mine], "s", failure=kind, phase=phase))
        rows.append(_row("total_s", [each.phases.total_s for each in mine], "s", failure=kind))
        rows.append(_row("lost_iterations", [each.phases.lost_iterations for each in mine], "1", failure=kind))
        rows.append(_row("lost_s", [each.phases.lost_s for each in mine], "s", failure=kind))
        rows.append(_row("from_memory", [_from_memory(each) for each in mine], "1", failure=kind))
        rows.append(_row("different_ranks", [each.different_ranks for each in mine], "1", failure=kind))
    return rows


def _from_memory(observed: RecoveryObserved) -> float:
    served = [tier in (Tier.LOCAL, Tier.PEER) for tier in observed.phases.tiers]
    return sum(served) / len(served)


def _row(quantity: str, values: Sequence[float], unit: str, **place: str) -> dict[str, Any]:
    spread = {"value": median(values), "low": min(values), "high": max(values)}
    return {"quantity": quantity, **place, **spread, "unit": unit}
