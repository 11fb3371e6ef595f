"""The probability that training recovers from memory when k machines are lost at once: exact, sampled, and bounded."""

import random
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product
from math import comb

from .placement import Placement, is_recoverable
from .surviving import num_surviving, num_surviving_by_definition

__all__ = ["BestPlacement", "RecoveryEstimate", "best_placement", "clopper_pearson", "estimate_recovery_probability"]
__all__ += ["gap_bound", "gap_to_upper_bound", "group_bound", "recovery_probability"]
__all__ += ["recovery_probability_by_definition", "upper_bound"]

MOST_PLACEMENTS = 300_000  # Tried in some seconds


def recovery_probability_by_definition(placed: Placement, k: int) -> Fraction:
    """Try every set of k failed machines."""
    _check_k(k, placed.num_machines)
    surviving = num_surviving_by_definition(placed.holders, placed.num_machines, k)
    return Fraction(surviving, comb(placed.num_machines, k))


def recovery_probability(placed: Placement, k: int) -> Fraction:
    """Count the exact probability of recovery when k machines are lost at once; TooTangled where it takes too long."""
    _check_k(k, placed.num_machines)
    surviving = num_surviving(placed.holders, placed.num_machines, k)
    return Fraction(surviving, comb(placed.num_machines, k))


def group_bound(num_machines: int, num_replicas: int, k: int) -> Fraction:
    """Bound the probability of the group placement from below (corollary 6.1, Eq. 6.4): exact where k < 2m."""
    _check_sizes(num_machines, num_replicas)
    if num_machines % num_replicas:
        raise ValueError(f"num_machines is {num_machines}; it must be a multiple of num_replicas, {num_replicas}")
    _check_k(k, num_machines)
    if k < num_replicas:
        return Fraction(1)
    num_fatal = num_machines // num_replicas * comb(num_machines - num_replicas, k - num_replicas)
    return max(Fraction(0), 1 - Fraction(num_fatal, comb(num_machines, k)))


def upper_bound(num_machines: int, num_replicas: int) -> Fraction:
    """Bound the probability of every placement at k = m from above: 1 - ceil(N/m) / C(N, m) (proof of theorem 6.1)."""
    _check_sizes(num_machines, num_replicas)
    return 1 - Fraction(-(-num_machines // num_replicas), comb(num_machines, num_replicas))


def gap_to_upper_bound(placed: Placement) -> Fraction:
    """Return by how much a placement misses the upper bound at k = m."""
    bound = upper_bound(placed.num_machines, placed.num_replicas)
    return bound - recovery_probability(placed, placed.num_replicas)


def gap_bound(num_machines: int, num_replicas: int) -> Fraction:
    """Return the paper's bound of the mixed placement's gap, (2m - 3) / C(N, m) (Eq. 6.3); N mod m = m - 1 meets it."""
    _check_sizes(num_machines, num_replicas)
    if num_machines % num_replicas == 0:
        raise ValueError(f"num_machines is {num_machines}, a multiple of num_replicas, {num_replicas}: there is no gap")
    return Fraction(2 * num_replicas - 3, comb(num_machines, num_replicas))


@dataclass(frozen=True, kw_only=True, slots=True)
class RecoveryEstimate:
    """What sampling found; not a probability but an estimate of one."""

    num_samples: int  # sets of failed machines that were drawn
    num_recovered: int  # after how many of them every shard had a living replica
    confidence: float  # how often an interval made in this way holds the probability, at least
    low: float  # lower end of the interval
    high: float  # upper end
    seed: int  # of the samples

    @property
    def share(self) -> float:
        """Share of the samples that recovered."""
        return self.num_recovered / self.num_samples


def estimate_recovery_probability(
    placed: Placement, k: int, *, num_samples: int, seed: int, confidence: float = 0.95
) -> RecoveryEstimate:
    """Draw sets of k failed machines, count after how many training recovers from memory, and bound the share."""
    _check_k(k, placed.num_machines)
    clopper_pearson(0, num_samples, confidence)  # refuses both before any work
    generator, machines = random.Random(seed), range(placed.num_machines)
    num_recovered = sum(is_recoverable(placed, generator.sample(machines, k)) for _ in range(num_samples))
    low, high = clopper_pearson(num_recovered, num_samples, confidence)
    return RecoveryEstimate(
        num_samples=num_samples, num_recovered=num_recovered, confidence=confidence, low=low, high=high, seed=seed
    )


def clopper_pearson(num_hits: int, num_samples: int, confidence: float) -> tuple[float, float]:
    """Return the interval of shares of which each end is missed with probability (1 - confidence)/2 at most."""
    from scipy.special import betaincinv  # 0.2 s to import, and only an estimate needs it

    if num_samples < 1 or not 0 <= num_hits <= num_samples:
        raise ValueError(f"num_hits is {num_hits} of {num_samples}; it must be 0 to num_samples, and that 1 or more")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; it must lie between 0 and 1")
    outside = (1 - confidence) / 2
    num_misses = num_samples - num_hits
    low = betaincinv(num_hits, num_misses + 1, outside) if num_hits else 0.0
    high = betaincinv(num_hits + 1, num_misses, 1 - outside) if num_misses else 1.0
    return float(low), float(high)


@dataclass(frozen=True, kw_only=True, slots=True)
class BestPlacement:
    """The best probability, and one placement that has it."""

    probability: Fraction  # that training recovers from memory when k machines are lost
    example: Placement  # the first best placement that was met
    num_best: int  # how many placements have it
    num_tried: int  # of how many


def best_placement(num_machines: int, num_replicas: int, k: int, *, balanced: bool = False) -> BestPlacement:
    """Try every placement, or only those in which every machine keeps m replicas, as in a group or a ring."""
    _check_sizes(num_machines, num_replicas)
    _check_k(k, num_machines)
    num_placements = comb(num_machines - 1, num_replicas - 1) ** num_machines
    if num_placements > MOST_PLACEMENTS:
        sizes = (
            f"num_machines is {num_machines} and num_replicas {num_replicas}, which makes {num_placements:,} placements"
        )
        raise ValueError(f"{sizes}; it must be at most {MOST_PLACEMENTS:,}")
    losses = [frozenset(lost) for lost in combinations(range(num_machines), k)]
    choices = [_choices(machine, num_machines, num_replicas, losses) for machine in range(num_machines)]
    fewest, example, num_best, num_tried = len(losses) + 1, None, 0, 0
    for rows in product(*choices):
        kept = Counter(holder for row, _ in rows for holder in row)
        if balanced and set(kept.values()) != {num_replicas}:
            continue
        num_tried += 1
        fatal = 0
        for _, lost in rows:
            fatal |= lost
        num_fatal = fatal.bit_count()
        if num_fatal < fewest:
            fewest, example, num_best = num_fatal, rows, 0
        num_best += num_fatal == fewest
    return BestPlacement(
        probability=1 - Fraction(fewest, len(losses)),
        example=Placement.own([row for row, _ in example]),
        num_best=num_best,
        num_tried=num_tried,
    )


def _check_sizes(num_machines: int, num_replicas: int) -> None:
    if not 1 <= num_replicas <= num_machines:
        raise ValueError(f"num_replicas is {num_replicas}; it must be 1 to num_machines, {num_machines}")


def _check_k(k: int, num_machines: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= num_machines:
        raise ValueError(f"k is {k!r}; it must be a whole number from 0 to num_machines, {num_machines}")


def _choices(
    machine: int, num_machines: int, num_replicas: int, losses: list[frozenset[int]]
) -> list[tuple[tuple[int, ...], int]]:
    """List a machine's possible holders, each with the losses (as bits) that take all of them."""
    others = [other for other in range(num_machines) if other != machine]
    rows = [(machine, *chosen) for chosen in combinations(others, num_replicas - 1)]
    return [(row, sum(1 << bit for bit, lost in enumerate(losses) if lost.issuperset(row))) for row in rows]
