"""The probability of recovery from memory by sampling, with its confidence interval, where no exact way is feasible.

Source: ours; the interval: Clopper and Pearson (1934).
Simplified: independent samples, seeded.
Left out: anything cleverer; `probability` is exact for every placement of the paper.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from .placement import Placement, is_recoverable

__all__ = ["RecoveryEstimate", "clopper_pearson", "estimate_recovery_probability"]


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
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= placed.num_machines:
        raise ValueError(f"k is {k!r}; it must be a whole number from 0 to num_machines, {placed.num_machines}")
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
