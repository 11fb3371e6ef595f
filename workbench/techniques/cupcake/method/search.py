"""Algorithm 5.1: recursive search with two prunings, and brute force over all fusions.

As printed the algorithm never considers one group of all tensors: `Main` hands it on with nothing left to fuse, and
lines 91 to 93, which remember the best fusion, are only reached with something left. `as_printed` keeps that.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Flag, auto
from itertools import combinations, pairwise
from math import inf
from time import monotonic

import numpy as np
from numba import njit

from .problem import FREE, FusionProblem, fits, iteration_time

__all__ = ["Pruning", "Searched", "brute_force_fusion", "search", "search_fusion"]

AT_ONCE = 2_000_000  # groups looked at between two looks at the clock


class Pruning(Flag):
    """What algorithm 5.1 leaves out; with other costs than α + β·x the optimum can be among it."""

    NONE = 0
    OUTCOME = auto()  # fusions whose optimistic outcome is no better than the best found (pruning 1, equation 5.4)
    OVERLAP = auto()  # groups that end before the previous one is sent (pruning 2, equation 5.5)
    BOTH = OUTCOME | OVERLAP


def brute_force_fusion(problem: FusionProblem) -> tuple[int, ...]:
    """Return a best fusion of all 2^(N - 1), with the fewest groups: the definition."""
    num = problem.num_tensors
    fusions = ((*ends, num) for count in range(num) for ends in combinations(range(1, num), count))
    allowed = (ends for ends in fusions if all(fits(problem, *pair) for pair in pairwise((0, *ends))))
    return min(allowed, key=lambda fusion: iteration_time(problem, fusion))


@dataclass(frozen=True, kw_only=True, slots=True)
class Searched:
    """What algorithm 5.1 found."""

    fusion: tuple[int, ...]  # the best so far; empty if there is none
    num_groups: int  # that were looked at
    is_complete: bool  # whether the search ended


def search_fusion(
    problem: FusionProblem, prune: Pruning = Pruning.BOTH, *, as_printed: bool = False
) -> tuple[int, ...]:
    """Return the fusion that algorithm 5.1 finds; without pruning it takes O(2^N)."""
    return search(problem, prune, as_printed=as_printed).fusion


def search(
    problem: FusionProblem,
    prune: Pruning = Pruning.BOTH,
    *,
    as_printed: bool = False,
    counts_last: bool = False,
    limit_s: float = inf,
    first: Sequence[int] = (),
) -> Searched:
    """Run algorithm 5.1, for so many seconds at most, from a first fusion on if one is given.

    With `counts_last` pruning 1 counts that the last gradient is sent when all is encoded; equation 5.4 does not.

    The algorithm's local best only repeats what its deepest call has compared, so one global best is kept. Forward
    seconds are counted in the optimistic outcome as in the iteration.

    Raises:
        ValueError: if the problem has decoding, a second link, a CPU that encodes, or a limit of bytes, or if `prune`
            is not a Pruning.
    """
    if not isinstance(prune, Pruning):
        raise ValueError(f"prune is {prune!r}; it must be a Pruning, such as Pruning.BOTH")
    for field, known in (("decode", FREE), ("onward", FREE), ("on_cpu", False), ("largest_bytes", inf)):
        if (value := getattr(problem, field)) != known:
            raise ValueError(f"{field} is {value}; algorithm 5.1 only knows {known}: use optimal_fusion")
    num, until_bytes = problem.num_tensors, problem.until_bytes
    sizes = np.maximum(until_bytes[None, :] - until_bytes[:, None], 0.0)
    is_group = np.arange(num + 1)[None, :] > np.arange(num + 1)[:, None]  # nothing takes no time
    costs = np.where(is_group, problem.compress(sizes), 0.0), np.where(is_group, problem.communicate(sizes), 0.0)
    calls, seconds = np.zeros((2, num + 1), np.int64), np.zeros((2, num + 1))
    seconds[0, 0], best, depth, count = problem.forward_s, np.zeros(num, np.int64), 0, 0
    best[: len(first)], best_s = first, iteration_time(problem, first) if first else inf
    flags, began_s = (Pruning.OUTCOME in prune, Pruning.OVERLAP in prune, as_printed, counts_last), monotonic()
    while depth >= 0 and (not count or monotonic() - began_s < limit_s):
        depth, best_s, looked_at = _find(problem.ready_s, costs, flags, calls, seconds, depth, best, best_s)
        count += looked_at
    ends = [int(end) for end in best if end]
    return Searched(fusion=tuple(ends), num_groups=count, is_complete=depth < 0)


@njit(cache=True)
def _find(ready_s, costs, flags, calls, seconds, depth, best, best_s):
    """Run `FindOptFusion` until it ends or has looked at `AT_ONCE` groups.

    Call d has the first tensor k = calls[0, d], the next end to try calls[1, d] + 1, and M.comp and the moment in which
    M is sent, seconds[:, d]. Call 0 is `Main`, which prunes nothing.
    """
    (encode_s, send_s), num = costs, len(ready_s) - 1
    starts, following = calls
    encoded_s, sent_s = seconds
    for count in range(AT_ONCE):
        if depth < 0:
            return depth, best_s, count
        start, end = starts[depth], following[depth] + 1
        if end > num:
            depth -= 1
            continue
        following[depth] = end
        done_s, free_s = encoded_s[depth] + ready_s[end] - ready_s[start] + encode_s[start, end], sent_s[depth]
        last_s = max(done_s, free_s) + send_s[start, end]
        if depth > 0 and flags[0]:
            computed_s = done_s + ready_s[num] - ready_s[end] + encode_s[end, num]
            if flags[3]:
                computed_s += send_s[num - 1, num]
            if max(computed_s, last_s + send_s[end, num]) > best_s:
                continue
        if end == num:
            if last_s < best_s and not (depth == 0 and flags[2]):
                best_s = last_s
                best[:] = 0
                best[: depth + 1] = following[: depth + 1]
            continue
        depth += 1
        starts[depth], encoded_s[depth], sent_s[depth], following[depth] = end, done_s, last_s, end
        while flags[1] and following[depth] + 2 <= num:
            wider = following[depth] + 2  # it may be skipped only if the next one fits too
            if ready_s[wider] - ready_s[end] + encode_s[end, wider] > last_s - done_s:
                break
            following[depth] = wider - 1
    return depth, best_s, AT_ONCE
