"""The optimal fusion, exactly, by dynamic programming over what a prefix of tensors leaves behind.

In the paper's model a prefix of j tensors in k groups is encoded at one moment, whatever the groups are:

    C(j, k) = A + B(0..j) + k α_h + β_h X_j                       X_j: bytes of the first j tensors

So it leaves behind only when its last group has been sent, and the earlier the better:

    D(j, k) = min over i < j of  max(C(j, k), D(i, k - 1)) + α_g + β_g (X_j - X_i)

For one k, as j grows, the best i only moves to the right, so all j together take O(N) steps, and the whole O(N²)
instead of the O(2^N) of algorithm 5.1. With other costs or more resources, the encoding's end depends on the groups
too: then a prefix leaves behind several ways, none of which is earlier on all resources, and all of them are followed.
"""

from math import inf

import numpy as np
from numba import njit

from .problem import FREE, ROUNDED_UP, FusionProblem, Linear, iteration_time
from .rivals import GROUPS, each, even_split

__all__ = ["link_free_by_definition", "optimal_fusion", "optimal_fusion_by_labels"]

NARROW, ALL = 2, 2**62  # ways followed for each prefix, first in an inexact pass
NOISE = 1e-13  # of an iteration: ways that differ by less are equal


def optimal_fusion(problem: FusionProblem) -> tuple[int, ...]:
    """Return a fusion with which the iteration takes least.

    O(N²) time, and the fewest groups, with linear costs of encoding and sending alone, on the device; else see
    `optimal_fusion_by_labels`.
    """
    is_linear = isinstance(problem.compress, Linear) and isinstance(problem.communicate, Linear)
    if not is_linear or problem.on_cpu or problem.decode != FREE or problem.onward != FREE:
        return optimal_fusion_by_labels(problem)
    encoding = problem.compress.startup_s, problem.compress.s_per_byte
    sending = problem.communicate.startup_s, problem.communicate.s_per_byte
    last, before = _best_groups(
        problem.ready_s, problem.until_bytes, encoding, sending, problem.largest_bytes * ROUNDED_UP
    )
    return _ends(before, last)


def _ends(before: np.ndarray, num_groups: int) -> tuple[int, ...]:
    end, ends = before.shape[1] - 1, []
    for k in range(num_groups, 0, -1):
        ends.append(int(end))
        end = before[k, end]
    return tuple(reversed(ends))


def link_free_by_definition(problem: FusionProblem) -> dict[tuple[int, int], float]:
    """Return D(j, k), when the link is free after the first j tensors in k groups: the recurrence as it is written."""
    ready_s, until_bytes = problem.ready_s, problem.until_bytes
    free_s = {(0, 0): 0.0}
    for k in range(1, problem.num_tensors + 1):
        for j in range(k, problem.num_tensors + 1):
            encoded_s = ready_s[j] + k * problem.compress.startup_s + problem.compress.s_per_byte * until_bytes[j]
            free_s[j, k] = min(
                max(encoded_s, free_s[i, k - 1]) + problem.communicate(until_bytes[j] - until_bytes[i])
                for i in range(k - 1, j)
                if (i, k - 1) in free_s
            )
    return free_s


@njit(cache=True)
def _best_groups(ready_s, until_bytes, encoding, sending, largest_bytes):
    """Return the best number of groups, and for k groups that end at j where the last begins [k, j].

    Starts i wait in a queue by D(i, k - 1) - β_g X_i, which rises; a start that is not better than a later one is
    dropped. At its front stands the last start whose prefix is sent before j is encoded: of those it is the best,
    because it leaves least to send; of the others the best is the next in the queue.
    """
    (startup_s, s_per_byte), num = sending, len(ready_s) - 1
    before, queue = np.zeros((num + 1, num + 1), np.int32), np.empty(num, np.int64)
    previous = np.full(num + 1, np.inf)
    previous[0] = 0.0
    best_s, best_k = np.inf, 0
    for k in range(1, num + 1):
        encoded_s = ready_s + k * encoding[0] + encoding[1] * until_bytes
        if max(encoded_s[num], ready_s[1] + encoding[0] + k * startup_s + s_per_byte * until_bytes[num]) >= best_s:
            break  # more groups take longer, whatever they are
        late_s, free_s = previous - s_per_byte * until_bytes, np.full(num + 1, np.inf)
        front, back = 0, 0
        for j in range(k, num + 1):
            if previous[j - 1] < np.inf:
                while back > front and late_s[queue[back - 1]] >= late_s[j - 1]:
                    back -= 1
                queue[back] = j - 1
                back += 1
            while front < back and until_bytes[j] - until_bytes[queue[front]] > largest_bytes:
                front += 1
            while back - front > 1 and previous[queue[front + 1]] <= encoded_s[j]:
                front += 1
            if front == back:
                continue
            start = queue[front]
            least_s = max(encoded_s[j] - s_per_byte * until_bytes[start], late_s[start])
            if back - front > 1 and late_s[queue[front + 1]] < least_s:
                start = queue[front + 1]
                least_s = late_s[start]
            free_s[j], before[k, j] = least_s + startup_s + s_per_byte * until_bytes[j], start
        if free_s[num] < best_s:
            best_s, best_k = free_s[num], k
        previous = free_s
    return best_k, before


def optimal_fusion_by_labels(problem: FusionProblem) -> tuple[int, ...]:
    """Return an optimal fusion for any costs and resources of a problem, to within rounding.

    Every prefix keeps the ways to fuse it that no other beats on all resources. Ways whose optimistic outcome is no
    better than a fusion already found are dropped, as in algorithm 5.1's first pruning. The number of ways kept, and
    with it the time, is not bounded by a polynomial.
    """
    fusions = [even_split(problem, count) for count in GROUPS] if problem.largest_bytes == inf else [each(problem)]
    found = min((iteration_time(problem, fusion), fusion) for fusion in fusions)
    costs = tuple(cost.numbers for cost in (problem.compress, problem.communicate, problem.onward, problem.decode))
    times, largest_bytes = (problem.ready_s, problem.until_bytes, costs), problem.largest_bytes * ROUNDED_UP
    least_s = _least_s(*times[1:], largest_bytes)
    for width in (NARROW, ALL):
        origin, way = _followed(*times, problem.on_cpu, largest_bytes, least_s, found[0], width)
        ends = []
        while way:
            ends.append(int(origin[way, PREFIX]))
            way = origin[way, PARENT]
        if ends:
            found = iteration_time(problem, ends[::-1]), tuple(reversed(ends))
    return found[1]


# Of a way: when each resource is free, when all that was sent is decoded, and seconds of decoding; then the bound.
# Of the tensors that follow: the least seconds of a chain of operations, from that resource on to the end.
CODER, LINK, SECOND, DECODED, DECODING, BOUND = range(6)
ENCODING, MIXED = 5, 6
PREFIX, PARENT = range(2)  # of a way: tensors, and the way without its last group
SHARES = (0.03, 0.1, 0.3)  # of the chain from the coder in a mean with that of encoding and decoding everything


@njit(cache=True)
def _takes(cost, size_bytes):
    return cost[0] + cost[2] * max(0.0, size_bytes - cost[1])


@njit(cache=True)
def _least_s(until_bytes, costs, largest_bytes):
    """Return the least seconds of chains of operations for the tensors from each one on [N + 1, chains].

    CODER: encode all groups, then send the last one, send it on and decode it. LINK: send all, then send on and decode
    the last. SECOND: send on all, decode the last. DECODED: decode all. DECODING: encode and decode all. ENCODING:
    encode all. MIXED: means of the first and the fifth, since one fusion has to make both of them short.
    """
    num, chains = len(until_bytes) - 1, np.empty(MIXED + len(SHARES))
    least_s = np.full((num + 1, len(chains)), np.inf)
    least_s[num] = 0.0
    for start in range(num - 1, -1, -1):
        for end in range(start + 1, num + 1):
            size = until_bytes[end] - until_bytes[start]
            if size > largest_bytes:
                break
            encode_s, send_s = _takes(costs[0], size), _takes(costs[1], size)
            onward_s, decode_s = _takes(costs[2], size), _takes(costs[3], size)
            last = 1.0 if end == num else 0.0
            chains[CODER] = encode_s + last * (send_s + onward_s + decode_s)
            chains[LINK] = send_s + last * (onward_s + decode_s)
            chains[SECOND] = onward_s + last * decode_s
            chains[DECODED], chains[DECODING], chains[ENCODING] = decode_s, encode_s + decode_s, encode_s
            for index, share in enumerate(SHARES):
                chains[MIXED + index] = share * chains[CODER] + (1 - share) * chains[DECODING]
            for chain in range(len(chains)):
                least_s[start, chain] = min(least_s[start, chain], chains[chain] + least_s[end, chain])
    return least_s


@njit(cache=True)
def _followed(ready_s, until_bytes, costs, on_cpu, largest_bytes, least_s, best_s, width):
    """Follow at most `width` ways from prefix to prefix; return where all came from, and the best: 0 if all are slower.

    A way's next group grows from prefix to prefix until sending it, and all that follows, is sure to end too late, or
    until a way whose last group began later beats it. It stays beaten then: both groups grow by the same tensors, and
    costs are convex, so the larger group's rise by no less.
    """
    num, limit_s, kept, num_growing, count = len(ready_s) - 1, best_s * (1 - NOISE), 0, 1, 1
    ways, origin, growing = np.zeros((64, 6)), np.zeros((64, 2), np.int64), np.zeros(64, np.int64)
    ways[0, CODER] = 0.0 if on_cpu else ready_s[0]
    for end in range(1, num + 1):
        while count + num_growing > len(ways):
            ways, origin = np.concatenate((ways, ways)), np.concatenate((origin, origin))
            growing = np.concatenate((growing, growing))
        still = 0
        for way in growing[:num_growing]:
            start, coder_s, new = origin[way, PREFIX], ways[way, CODER], count + still
            size = until_bytes[end] - until_bytes[start]
            coder_s = max(coder_s, ready_s[end]) if on_cpu else coder_s + ready_s[end] - ready_s[start]
            coder_s += _takes(costs[0], size)
            link_s, decode_s = max(ways[way, LINK], coder_s), _takes(costs[3], size)
            if size > largest_bytes or link_s + least_s[start, LINK] >= limit_s:
                continue
            growing[still], still = way, still + 1
            origin[new, PREFIX], origin[new, PARENT] = end, way
            ways[new, CODER], ways[new, LINK] = coder_s, link_s + _takes(costs[1], size)
            ways[new, SECOND] = max(ways[way, SECOND], ways[new, LINK]) + _takes(costs[2], size)
            ways[new, DECODED] = max(ways[way, DECODED], ways[new, SECOND]) + decode_s
            ways[new, DECODING] = ways[way, DECODING] + decode_s
        added = slice(count, count + still)
        _bound_(ways[added], ready_s, until_bytes, costs, least_s, end, on_cpu)
        kept, still = _unbeaten_(ways[added], origin[added], growing, limit_s, best_s * NOISE, width)
        growing[kept : still + kept] = growing[:still].copy()  # groups that begin later come first
        growing[:kept] = np.arange(count, count + kept)
        num_growing, count = still + kept, count + kept
    return origin, count - kept + np.argmin(ways[count - kept : count, BOUND]) if kept else 0


@njit(cache=True)
def _bound_(ways, ready_s, until_bytes, costs, least_s, end, on_cpu):
    """Write the optimistic outcome of each way; at the last tensor it is the iteration."""
    num, rest_s = len(ready_s) - 1, least_s[end]
    following = until_bytes[min(end + 1, num)] - until_bytes[end]
    encode_s, send_s, onward_s = _takes(costs[0], following), _takes(costs[1], following), _takes(costs[2], following)
    computing_s = 0.0 if on_cpu else ready_s[num] - ready_s[end]
    for way in ways:
        coder_s, decoding_s = way[CODER], way[DECODING]
        if end == num:
            way[BOUND] = max(way[DECODED], coder_s + decoding_s)
            continue
        if on_cpu:
            coder_s = max(coder_s, ready_s[end + 1])
        last_s = coder_s + computing_s
        encoded_s = last_s + rest_s[ENCODING]
        link_s = max(way[LINK], encode_s + (coder_s if on_cpu else coder_s + ready_s[end + 1] - ready_s[end]))
        second_s = max(way[SECOND], link_s + send_s)
        decoded_s = max(way[DECODED], second_s + onward_s, encoded_s + decoding_s)
        bound_s = max(last_s + rest_s[CODER], last_s + decoding_s + rest_s[DECODING], decoded_s + rest_s[DECODED])
        bound_s = max(bound_s, link_s + rest_s[LINK], second_s + rest_s[SECOND])
        for index, share in enumerate(SHARES):
            bound_s = max(bound_s, last_s + (1 - share) * decoding_s + rest_s[MIXED + index])
        way[BOUND] = bound_s


@njit(cache=True)
def _unbeaten_(ways, origin, growing, limit_s, slack_s, width):
    """Move ways that no other beats, and that may end before `limit_s`, to the front, `width` at most; count them.

    Likewise with the ways `growing` that they come from, unless an earlier one beats them; count those too.
    """
    kept, still = 0, 0
    for new in range(len(ways)):
        growing[still] = growing[new]
        is_late, beaten, index = ways[new, BOUND] >= limit_s, False, kept - 1
        while index >= 0 and not is_late and not beaten:
            beaten, index = _beats(ways, index, new, slack_s), index - 1
        if beaten:
            continue
        still += 1
        if is_late:
            continue
        left = 0
        for index in range(kept):
            if not _beats(ways, new, index, 0.0):
                _move_(ways, origin, index, left)
                left += 1
        _move_(ways, origin, new, left)
        kept = left + 1
    if kept > width:
        best = np.argsort(ways[:kept, BOUND])[:width]
        ways[:width], origin[:width], kept = ways[best], origin[best], width
    return kept, still


@njit(cache=True)
def _beats(ways, way, other, slack_s):
    """Say whether a way is as early as another on all resources."""
    beats, resource = True, 0
    while beats and resource < BOUND:
        beats, resource = ways[way, resource] <= ways[other, resource] + slack_s, resource + 1
    return beats


@njit(cache=True)
def _move_(ways, origin, index, place):
    if index != place:
        for column in range(ways.shape[1]):
            ways[place, column] = ways[index, column]
        for column in range(origin.shape[1]):
            origin[place, column] = origin[index, column]
