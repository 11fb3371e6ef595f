"""The exact probability that training recovers from memory when k machines are lost at once, and the paper's bounds.

What: for any placement, one's own included, as a fraction.
Source: thesis, chapter 6 (Gemini), section 6.4: corollary 6.1, theorem 6.1, Eq. 6.3.
Simplified: every set of k machines is as likely as any other (`racks` has the other case).
Left out: how likely k is.

The paper proves the gap of the mixed placement below (2m - 3)/C(N, m); at N mod m = m - 1 it equals it.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

from .placement import Placement
from .surviving import num_surviving, num_surviving_by_definition

__all__ = [
    "gap_bound",
    "gap_to_upper_bound",
    "group_bound",
    "recovery_probability",
    "recovery_probability_by_definition",
    "upper_bound",
]


def recovery_probability_by_definition(placed: Placement, k: int) -> Fraction:
    """Try every set of k failed machines."""
    _check_k(k, placed.num_machines)
    surviving = num_surviving_by_definition(placed.holders, placed.num_machines, k)
    return Fraction(surviving, comb(placed.num_machines, k))


def recovery_probability(placed: Placement, k: int) -> Fraction:
    """Count the exact probability that training recovers from memory when k machines are lost at once.

    Raises:
        TooTangled: for a placement of one's own that has no exact way in reasonable time; it is never estimated
            silently: `estimate_recovery_probability` does that, and says how far it may be off.
    """
    _check_k(k, placed.num_machines)
    surviving = num_surviving(placed.holders, placed.num_machines, k)
    return Fraction(surviving, comb(placed.num_machines, k))


def group_bound(num_machines: int, num_replicas: int, k: int) -> Fraction:
    """Bound the probability of the group placement from below (corollary 6.1, Eq. 6.4).

    Returns:
        1 for k < m, else max(0, 1 - (N/m) C(N-m, k-m) / C(N, k)); the probability itself where k < 2m.
    """
    _check_sizes(num_machines, num_replicas)
    if num_machines % num_replicas:
        raise ValueError(f"num_machines is {num_machines}; it must be a multiple of num_replicas, {num_replicas}")
    _check_k(k, num_machines)
    if k < num_replicas:
        return Fraction(1)
    num_fatal = num_machines // num_replicas * comb(num_machines - num_replicas, k - num_replicas)
    return max(Fraction(0), 1 - Fraction(num_fatal, comb(num_machines, k)))


def upper_bound(num_machines: int, num_replicas: int) -> Fraction:
    """Bound the probability of every placement from above at k = m: 1 - ceil(N/m) / C(N, m) (theorem 6.1, its proof)."""
    _check_sizes(num_machines, num_replicas)
    return 1 - Fraction(-(-num_machines // num_replicas), comb(num_machines, num_replicas))


def gap_to_upper_bound(placed: Placement) -> Fraction:
    """Return by how much a placement misses the upper bound at k = m."""
    bound = upper_bound(placed.num_machines, placed.num_replicas)
    return bound - recovery_probability(placed, placed.num_replicas)


def gap_bound(num_machines: int, num_replicas: int) -> Fraction:
    """Return the paper's bound of the gap of the mixed placement, (2m - 3) / C(N, m) (theorem 6.1, Eq. 6.3)."""
    _check_sizes(num_machines, num_replicas)
    if num_machines % num_replicas == 0:
        raise ValueError(f"num_machines is {num_machines}, a multiple of num_replicas, {num_replicas}: there is no gap")
    return Fraction(2 * num_replicas - 3, comb(num_machines, num_replicas))


def _check_sizes(num_machines: int, num_replicas: int) -> None:
    if not 1 <= num_replicas <= num_machines:
        raise ValueError(f"num_replicas is {num_replicas}; it must be 1 to num_machines, {num_machines}")


def _check_k(k: int, num_machines: int) -> None:
    if isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= num_machines:
        raise ValueError(f"k is {k!r}; it must be a whole number from 0 to num_machines, {num_machines}")
