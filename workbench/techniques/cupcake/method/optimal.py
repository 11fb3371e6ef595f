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
from .rivals import each, even_split

__all__ = ["link_free_by_definition", "optimal_fusion", "optimal_fusion_by_labels"]

NARROW = 4  # ways that the first, inexact pass follows for each prefix


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
    """Return an optimal fusion for any costs and resources of a problem.

    Every prefix keeps the ways to fuse it that no other beats on all resources. Ways whose optimistic outcome, with all
    other tensors in one group, is no better than a fusion already found are dropped, as in algorithm 5.1's first
    pruning. The number of ways kept, and with it the time, is not bounded by a polynomial.
    """
    counts = (1, 2, 4, 8, 16, 32) if problem.largest_bytes == inf else ()
    fusions = [even_split(problem, count) for count in counts if count <= problem.num_tensors]
    found = min((iteration_time(problem, fusion), fusion) for fusion in (*fusions, each(problem)))
    for width in (NARROW, None):
        found = _followed(problem, *found, width)
    return found[1]


def _followed(
    problem: FusionProblem, best_s: float, best: tuple[int, ...], width: int | None
) -> tuple[float, tuple[int, ...]]:
    """Follow at most `width` ways from prefix to prefix; return the best fusion of theirs and `best`."""
    num, until_bytes = problem.num_tensors, problem.until_bytes
    ways = np.array([[0.0 if problem.on_cpu else problem.forward_s, 0.0, 0.0, 0.0, 0.0]])
    prefix, parent = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for end in range(1, num + 1):
        chosen = np.flatnonzero(until_bytes[end] - until_bytes[prefix] <= problem.largest_bytes * ROUNDED_UP)
        extended = _extended(problem, ways[chosen], prefix[chosen], end)
        bounds = _optimistic_s(problem, extended, end)
        order = np.flatnonzero(bounds < best_s)
        order = order[np.lexsort(extended[order].T[::-1])]
        order = order[_unbeaten(extended[order])]
        order = order[np.argsort(bounds[order], kind="stable")[:width]]
        ways, prefix = np.concatenate([ways, extended[order]]), np.append(prefix, np.full(len(order), end))
        parent = np.append(parent, chosen[order])
    if prefix[-1] < num:
        return best_s, best
    way, ends = int(np.searchsorted(prefix, num)), []
    while way:
        ends.append(int(prefix[way]))
        way = parent[way]
    fusion = tuple(reversed(ends))
    return iteration_time(problem, fusion), fusion


CODER, LINK, SECOND, DECODED, DECODING = range(5)  # when each is free; decoded all that was sent; seconds of decoding


def _extended(problem: FusionProblem, ways: np.ndarray, prefix: np.ndarray, end: int) -> np.ndarray:
    """Append the group from `prefix` to `end` to each way [W, 5]."""
    size, ready_s, extended = problem.until_bytes[end] - problem.until_bytes[prefix], problem.ready_s, ways.copy()
    coder_s = np.maximum(ways[:, CODER], ready_s[end]) if problem.on_cpu else ways[:, CODER] + ready_s[end]
    extended[:, CODER] = coder_s + problem.compress(size) - (0.0 if problem.on_cpu else ready_s[prefix])
    extended[:, LINK] = np.maximum(ways[:, LINK], extended[:, CODER]) + problem.communicate(size)
    extended[:, SECOND] = np.maximum(ways[:, SECOND], extended[:, LINK]) + problem.onward(size)
    extended[:, DECODED] = np.maximum(ways[:, DECODED], extended[:, SECOND]) + problem.decode(size)
    extended[:, DECODING] = ways[:, DECODING] + problem.decode(size)
    return extended


def _optimistic_s(problem: FusionProblem, ways: np.ndarray, prefix: int) -> np.ndarray:
    """Return a lower bound of the iteration of every way [W]; at the last tensor, the iteration."""
    coder_s, link_s, second_s, decoded_s, decoding_s = ways.T
    if prefix == problem.num_tensors:
        return np.maximum(decoded_s, coder_s + decoding_s)
    rest, following = problem.until_bytes[-1] - problem.until_bytes[prefix], problem.size_bytes[prefix]
    ready_s, encode, decode_s = problem.ready_s, problem.compress, problem.decode.at_least(rest)
    if problem.on_cpu:
        next_s = np.maximum(coder_s, ready_s[prefix + 1]) + encode(following)
        encoded_s = np.maximum(coder_s + encode.at_least(rest), ready_s[-1] + encode(0.0))
    else:
        next_s = coder_s + problem.backward_s[prefix] + encode(following)
        encoded_s = coder_s + ready_s[-1] - ready_s[prefix] + encode.at_least(rest)
    least_s = problem.onward(0.0) + problem.decode(0.0)
    ends_s = (
        encoded_s + decoding_s + decode_s,
        np.maximum(link_s, next_s) + problem.communicate.at_least(rest) + least_s,
        encoded_s + problem.communicate(0.0) + least_s,
        second_s + problem.onward.at_least(rest),
        decoded_s + decode_s,
    )
    return np.max(ends_s, axis=0)


@njit(cache=True)
def _unbeaten(ways):
    """Mark the rows, in lexicographic order, of which no other is as small in all columns."""
    marks, kept, count = np.zeros(len(ways), np.bool_), np.empty(len(ways), np.int64), 0
    for row in range(len(ways)):
        beaten = False
        for index in range(count - 1, -1, -1):
            beaten = True
            for column in range(ways.shape[1]):
                if ways[kept[index], column] > ways[row, column]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            marks[row], kept[count] = True, row
            count += 1
    return marks
