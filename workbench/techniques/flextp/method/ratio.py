"""How much a straggler drops: Eq. 1, on un-resized equivalents of what was measured.

What: gamma_i = (T_i - T_ref) / M_i, clipped to [0, 1), T the own time of a rank and M its time in matrix products,
both as they would be with all its columns.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-A, Eq. 1 (T_ref the
mean over ranks), and IV-B (T_ref the least). Section III-A does not say that T_i and M_i are un-resized; taken
literally (`printed_ratio`) the ratio swings, because a straggler that drops columns looks no longer like one.
Simplified: dropping a share of the columns is taken to save that share of the product time, extraction costing nothing.
Where layers are so small that it saves much less, a rank that drops columns looks slower than it is, and may go on
dropping some when it has become fast again; where a pre-test has found what products take however narrow, that part is
no product time here (`costs.Costs.proportional`).
Left out: which columns, and layers with different ratios (`priority`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum

from workbench.techniques.flextp.method.plan import RankTimes

__all__ = [
    "MOST_REMOVED",
    "SIGNIFICANT_CHANGE",
    "Reference",
    "has_moved",
    "printed_ratio",
    "pruning_ratio",
    "pruning_ratios",
    "ranks_that_moved",
    "reference_s",
    "speedup_bound",
]

# Largest share of its columns that a rank gives up. Ours: Eq. 1 leaves the end of [0, 1) open, and a rank must go on
# multiplying something, or nobody could measure that it has become fast again.
MOST_REMOVED = 0.99
SIGNIFICANT_CHANGE = 0.10  # share of a rank's own time, section III-A
STILL_SLOW = 0.25  # of that share, by which a straggler that drops columns may stay behind; ours


class Reference(Enum):
    """The time that stragglers are to come down to."""

    MEAN = "mean"  #: of the un-resized own times; Eq. 1
    CURRENT_MEAN = "current mean"  #: of the own times as they are now, under the current plan
    MIN = "min"  #: the least un-resized own time; inside SEMI


def pruning_ratio(own_s: float, reference_s: float, product_s: float) -> float:
    """Return the share of its columns that brings a rank's own time down to the reference.

    Args:
        own_s: T_i, un-resized.
        reference_s: T_ref.
        product_s: M_i, un-resized.

    Returns:
        0 for a rank that is no slower than the reference, or spends no time in products; at most `MOST_REMOVED`.

    Raises:
        ValueError: if a time is negative or not finite, or product_s exceeds own_s.
    Source: Eq. 1.
    """
    RankTimes(own_s=own_s, product_s=product_s)
    if not 0 <= reference_s < math.inf:
        raise ValueError(f"reference_s is {reference_s!r}; it must be finite and not negative")
    if own_s <= reference_s or product_s == 0:
        return 0.0
    return min((own_s - reference_s) / product_s, MOST_REMOVED)


def reference_s(times: Sequence[RankTimes], reference: Reference) -> float:
    """Return the time that stragglers are to come down to, in seconds."""
    if reference is Reference.CURRENT_MEAN:
        return math.fsum(each.own_s for each in times) / len(times)
    own_s = [each.unresized().own_s for each in times]
    return min(own_s) if reference is Reference.MIN else math.fsum(own_s) / len(own_s)


def pruning_ratios(times: Sequence[RankTimes], reference: Reference) -> list[float]:
    """Return Eq. 1 for every rank.

    With MEAN, planning again under the plan gives the same ratios: un-resized times do not depend on the plan. With
    CURRENT_MEAN every further planning asks for more, until the straggler is as fast as the others.

    Args:
        times: of all ranks, as measured.
        reference: what a rank is compared with.
    """
    target_s = reference_s(times, reference)
    return [pruning_ratio(each.own_s, target_s, each.product_s) for each in (each.unresized() for each in times)]


def printed_ratio(rank: int, times: Sequence[RankTimes], reference: Reference = Reference.MEAN) -> float:
    """Return Eq. 1 for one rank as it is printed: with T and M as measured, whatever was dropped while measuring.

    Right only while nothing is dropped. Repeated, it swings: towards a worse ratio with the mean, for ever with the
    least time.
    """
    measured = [RankTimes(own_s=each.own_s, product_s=each.product_s) for each in times]
    return pruning_ratios(measured, reference)[rank]


def speedup_bound(skewness: float, num_ranks: int, *, other: float = 0.0) -> float:
    """Return the largest speedup that Eq. 1 with the mean can reach with one straggler.

    The straggler comes down to the mean, other + (skewness + N - 1) / N, and no further.

    Args:
        skewness: of the straggler, at least 1.
        num_ranks: N.
        other: time outside products, in units of a normal rank's product time.

    Returns:
        (other + skewness) / (other + (skewness + N - 1) / N); without other time, skewness N / (skewness + N - 1).

    Raises:
        ValueError: for a skewness below 1, no rank, or a negative other time.
    """
    if not 1 <= skewness < math.inf:
        raise ValueError(f"skewness is {skewness!r}; it must be finite and at least 1")
    if num_ranks < 1:
        raise ValueError(f"num_ranks is {num_ranks!r}; it must be at least 1")
    if not 0 <= other < math.inf:
        raise ValueError(f"other is {other!r}; it must be finite and not negative")
    return (other + skewness) / (other + (skewness + num_ranks - 1) / num_ranks)


def has_moved(
    now: Sequence[RankTimes],
    planned_from: Sequence[RankTimes],
    threshold: float = SIGNIFICANT_CHANGE,
    *,
    reference: Reference = Reference.MIN,
) -> bool:
    """Return whether a new plan is due: whether any rank has moved (`ranks_that_moved`, with the same arguments)."""
    return bool(ranks_that_moved(now, planned_from, threshold, reference=reference))


def ranks_that_moved(
    now: Sequence[RankTimes],
    planned_from: Sequence[RankTimes],
    threshold: float = SIGNIFICANT_CHANGE,
    *,
    reference: Reference = Reference.MIN,
) -> set[int]:
    """Return the ranks whose own time differs from that of the current plan by more than a share.

    All ranks see the same numbers and so decide alike, which a rank's own decision about an all-reduce could not.
    Un-resized times are compared; against the current mean, which the plan itself moves, times as they are, and there
    a rank that drops columns has moved, too, while it is still slower than the mean by a quarter of the threshold:
    dropping may save less time than it should.

    Args:
        now: of all ranks.
        planned_from: what the current plan was made from, of as many ranks.
        threshold: share of the time planned from.
        reference: what stragglers come down to.

    Source: section III-A, where it is an increase and each rank's own decision.
    """
    own_s, still_slow = _unresized, set()
    if reference is Reference.CURRENT_MEAN:
        own_s, slow_s = _as_it_is, reference_s(now, reference) * (1 + STILL_SLOW * threshold)
        still_slow = {rank for rank, each in enumerate(now) if each.work < 1 and each.own_s > slow_s}
    pairs = enumerate((own_s(new), own_s(old)) for new, old in zip(now, planned_from, strict=True))
    return still_slow | {rank for rank, (new_s, old_s) in pairs if abs(new_s - old_s) > threshold * old_s}


def _as_it_is(times: RankTimes) -> float:
    return times.own_s


def _unresized(times: RankTimes) -> float:
    return times.unresized().own_s
