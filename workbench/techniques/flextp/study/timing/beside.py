"""Which other variant of a study a variant is compared with, round by round.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V: speedups over Baseline
under the same stragglers, PriDiffR over Pri, broadcast-reduce over scatter-gather.
Simplified: stragglers are the same if their skewness is, in rank order.
Left out: numbers, which are `rows`' matter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from enum import Enum

from ...method.plan import Scheme, Solution
from ...method.priority import Selection
from ..variant import Variant

__all__ = ["Beside", "baseline_of", "beside", "plain_baseline"]

Variants = Mapping[str, Variant | None]


class Beside(Enum):
    """What is compared."""

    BASELINE = "speedup over Baseline with the same stragglers"
    SAVED = "share of its time that is saved"
    PRI = "time that differentiated ratios save over equal ones"
    RANDOM = "time over that of dropping columns at random"
    SCATTER = "by how much scatter-gather takes longer than broadcast-reduce"
    UNBALANCED = "time over that of the model as it is"


def beside(variants: Variants, name: str) -> Iterator[tuple[Beside, str]]:
    """List what a variant is compared in, each with the name of the other variant, as far as that was timed.

    Args:
        variants: all of the study, by name; None is a model that nobody balances.
        name: of one of them.
    """
    unbalanced = next((each for each, variant in variants.items() if variant is None), None)
    if unbalanced is not None:
        yield Beside.UNBALANCED, unbalanced
    variant = variants[name]
    if variant is None:
        return
    slow = baseline_of(variants, name)
    if slow is not None:
        yield Beside.BASELINE, slow
        yield Beside.SAVED, slow
    for what, twin in _twins(variant):
        other = _name_of(variants, twin)
        if other is not None:
            yield what, other


def baseline_of(variants: Variants, name: str) -> str | None:
    """Return the name of the Baseline with the same stragglers, if it was timed."""
    variant = variants[name]
    return None if variant is None else _name_of(variants, Variant(skewness=variant.skewness, moves=variant.moves))


def plain_baseline(variants: Variants) -> str | None:
    """Return the name of the Baseline without stragglers, if it was timed."""
    return _name_of(variants, Variant())


def _twins(variant: Variant) -> Iterator[tuple[Beside, Variant]]:
    if variant.solution == Solution.ZERO and variant.selection == Selection.DIFFERENTIATED.value:
        yield Beside.PRI, replace(variant, selection=Selection.PRIORITY.value)
    if variant.solution == Solution.ZERO and variant.selection == Selection.PRIORITY.value:
        yield Beside.RANDOM, replace(variant, selection=Selection.RANDOM.value)
    if variant.migrated is not None and variant.scheme == Scheme.BROADCAST_REDUCE:
        yield Beside.SCATTER, replace(variant, scheme=Scheme.SCATTER_GATHER)


def _name_of(variants: Variants, wanted: Variant) -> str | None:
    wanted = _without_idle_stragglers(wanted)
    found = (name for name, each in variants.items() if each is not None and _without_idle_stragglers(each) == wanted)
    return next(found, None)


def _without_idle_stragglers(variant: Variant) -> Variant:
    """A straggler that is no slower than others is none."""
    slow = variant.skewness if any(each > 1 for each in variant.skewness) else ()
    return replace(variant, skewness=slow, moves=variant.moves and bool(slow))
