"""From turns to rows: medians with intervals, speedups within rounds, and what was the best possible.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V (runtime per epoch, and
speedup over Baseline); the bound of Eq. 1 is `method.ratio.speedup_bound`, the ideal `method.model.ideal_s`.
Simplified: rounds are taken to be independent.
Left out: the drawing.

Where a Baseline without stragglers was timed too, its other and transfer time over its product time is o, in the same
round, and with one straggler of skewness chi among N ranks the ideal speedup is (o + chi) / (o + N / (N - 1 + 1 / chi)).
What its ranks wait for each other because they scatter is not in o: with it the ideal would be easier to reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean, median
from types import MappingProxyType

from workbench.timeline.stragglers import Dose
from workbench.training.measuring import median_interval

from ...method.costs import ideal_s
from ...method.plan import RankTimes, Solution
from ...method.planners import Reference, speedup_bound
from ..variant import Variant
from .beside import Beside, baseline_of, beside, plain_baseline
from .breakdown import Breakdown
from .rank import Recording

__all__ = ["Turn", "rows_of"]

PARTS = ("product_s", "waiting_s", "other_s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of one variant on all ranks.

    Attributes:
        recordings: of each rank, in rank order.
        parts: where its time went.
    """

    recordings: tuple[Recording, ...]
    parts: Breakdown

    @property
    def dropped_share(self) -> float:
        """Share of all ranks' products that nobody computed."""
        return fmean(recording.dropped_share for recording in self.recordings)

    @property
    def cpu_s(self) -> float:
        """Seconds of processor that all ranks took together."""
        return fsum(recording.cpu_s for recording in self.recordings)

    @property
    def migrated_share(self) -> float:
        """Share of all ranks' products that another rank computed."""
        plan = self.recordings[0].plan
        return 0.0 if plan is None else plan.migrated / plan.num_ranks


def rows_of(
    variants: Mapping[str, Variant | None],
    found: Mapping[str, Sequence[Turn]],
    *,
    keys: Mapping[str, Mapping],
    iterations_per_epoch: int,
    turn: int = 1,
) -> list[dict]:
    """Return the rows of a study.

    Args:
        variants: what was timed, by name.
        found: their turns, round by round.
        keys: key columns of each variant's rows.
        iterations_per_epoch: of an epoch of the data set, for `epoch_s`.
        turn: iterations of a turn.
    """
    rows = []
    for name in variants:
        mine = found[name]
        rows += [_row(*column, keys[name]) for column in _columns(mine, iterations_per_epoch, turn)]
        rows += [_row(*column, keys[name]) for column in _ratios(variants, found, name)]
        rows += _by_rank(mine, keys[name])
        rows += _doses(mine, keys[name])
    return rows


def _by_rank(turns: Sequence[Turn], keys: Mapping) -> list[dict]:
    """Return what each rank dropped and gave away, round by round, of a variant that is balanced."""
    plans = [each.recordings[0].plan for each in turns]
    if None in plans:
        return []
    rows = []
    for rank in range(len(turns[0].recordings)):
        dropped = [each.recordings[rank].dropped_share for each in turns]
        migrated = [plan.ranks[rank].migrated for plan in plans]
        rows += [
            _row("rank_drops", dropped, "1", {**keys, "rank": rank}),
            _row("rank_migrates", migrated, "1", {**keys, "rank": rank}),
        ]
    return rows


def _columns(turns: Sequence[Turn], iterations_per_epoch: int, turn: int) -> list[tuple[str, list[float], str]]:
    """Return quantity, value round by round, and unit, of what a variant says by itself."""
    iterations = [each.parts.iteration_s / turn for each in turns]
    columns = [("iteration_s", iterations, "s"), ("epoch_s", [iterations_per_epoch * each for each in iterations], "s")]
    columns.append(("cpu_s", [each.cpu_s / turn for each in turns], "s"))
    if any(fsum(each.parts.product_s) for each in turns):  # beside a model as it is no products are recorded
        columns += [(part, [fmean(getattr(each.parts, part)) / turn for each in turns], "s") for part in PARTS]
        columns.append(("transfer_s", [each.parts.transfer_s / turn for each in turns], "s"))
        shares = [fmean(each.parts.product_s) / each.parts.iteration_s for each in turns]
        columns.append(("product_share", shares, "1"))
    columns.append(("dropped_share", [each.dropped_share for each in turns], "1"))
    columns.append(("migrated_share", [each.migrated_share for each in turns], "1"))
    return columns


def _ratios(
    variants: Mapping[str, Variant | None], found: Mapping[str, Sequence[Turn]], name: str
) -> list[tuple[str, list[float], str]]:
    """Return what a variant says beside others of the same round."""
    mine, columns = _iterations(found[name]), []
    for quantity, other in beside(variants, name):
        theirs = _iterations(found[other])
        columns.append(_COMPARED[quantity](theirs, mine))
        if quantity is Beside.UNBALANCED:
            cpu_s = [[each.cpu_s for each in found[one]] for one in (name, other)]
            columns.append(("cpu_over_unbalanced", _over(*cpu_s), "1"))
    slow, plain = baseline_of(variants, name), plain_baseline(variants)
    if slow is not None and plain is not None and variants[name].skewness:
        speedups = _over(_iterations(found[slow]), mine)
        columns += _best_possible(variants[name], speedups, found[plain])
    return columns


def _best_possible(variant: Variant, speedups: Sequence[float], plain: Sequence[Turn]) -> list:
    """Return what balance for nothing would gain, and, for ZERO, what its criterion allows."""
    others = [(fmean(each.parts.other_s) + each.parts.transfer_s) / fmean(each.parts.product_s) for each in plain]
    num_ranks = len(plain[0].recordings)
    ideals = [_ideal(variant.skewness, num_ranks, other) for other in others]
    columns = [("ideal_speedup", ideals, "1"), ("share_of_ideal", _over(speedups, ideals), "1")]
    if variant.solution == Solution.ZERO and variant.pruning_ratio is None and len(variant.skewness) == 1:
        bounds = [_bound(variant, num_ranks, other) for other in others]
        columns += [("bound", bounds, "1"), ("share_of_bound", _over(speedups, bounds), "1")]
    return columns


def _ideal(skewness: Sequence[float], num_ranks: int, other: float) -> float:
    chis = [*skewness, *[1.0] * (num_ranks - len(skewness))]
    times = [RankTimes(own_s=other + each, product_s=each) for each in chis]
    return (other + max(chis)) / ideal_s(times)


def _bound(variant: Variant, num_ranks: int, other: float) -> float:
    """Return the largest speedup of Eq. 1: down to the first mean, or, asked again and again, to the other ranks."""
    (skewness,) = variant.skewness
    if variant.policy(num_ranks).reference is Reference.MEAN:
        return speedup_bound(skewness, num_ranks, other=other)
    return (other + skewness) / (other + 1)


def _doses(turns: Sequence[Turn], keys: Mapping) -> list[dict]:
    """Return a mean turn's dose of each rank, and by how much what was slept misses what was to be slept."""
    rows = []
    for rank in range(len(turns[0].recordings)):
        doses = [each.recordings[rank].dose.as_record() for each in turns]
        dose = Dose(**{name: fsum(each[name] for each in doses) for name in doses[0]})
        place = {**keys, "rank": rank}
        for name, seconds in dose.as_record().items():
            rows.append({"quantity": f"dose_{name}", **place, "value": seconds / len(doses), "unit": "s"})
        rows.append({"quantity": "dose_error", **place, "value": dose.error, "unit": "1"})
    return rows


def _iterations(turns: Sequence[Turn]) -> list[float]:
    return [turn.parts.iteration_s for turn in turns]


def _over(above: Sequence[float], below: Sequence[float]) -> list[float]:
    """Divide round by round."""
    return [a / b for a, b in zip(above, below, strict=True)]


def _saved(theirs: Sequence[float], mine: Sequence[float]) -> list[float]:
    return [100 * (1 - each) for each in _over(mine, theirs)]


_COMPARED = MappingProxyType(
    {
        Beside.BASELINE: lambda theirs, mine: ("speedup", _over(theirs, mine), "1"),
        Beside.SAVED: lambda theirs, mine: ("epoch_saved", _saved(theirs, mine), "%"),
        Beside.PRI: lambda theirs, mine: ("epoch_saved_over_pri", _saved(theirs, mine), "%"),
        Beside.RANDOM: lambda theirs, mine: ("over_random", _over(mine, theirs), "1"),
        Beside.SCATTER: lambda theirs, mine: ("gap", [each - 1 for each in _over(theirs, mine)], "1"),
        Beside.UNBALANCED: lambda theirs, mine: ("over_unbalanced", _over(mine, theirs), "1"),
    }
)
"""What is compared -> its column, from the other's iterations and a variant's own, round by round."""


def _row(quantity: str, values: Sequence[float], unit: str, keys: Mapping) -> dict:
    low, high = median_interval(values)
    return {"quantity": quantity, **keys, "value": median(values), "low": low, "high": high, "unit": unit}
