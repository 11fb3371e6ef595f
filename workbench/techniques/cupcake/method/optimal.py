"""The optimal fusion, exactly, by dynamic programming over prefixes of the tensors.

In the paper's model the first j tensors in k groups are encoded at time C, which depends only on j and k:

    C(j, k) = A + B(0..j) + k α_h + β_h X_j                       X_j: bytes of the first j tensors

The following tensors depend only on D, the time when the last of the k groups has been sent. Its least value is

    D(j, k) = min over i < j of  max(C(j, k), D(i, k - 1)) + α_g + β_g (X_j - X_i)

For one k the best i only rises with j. All j together take O(N) steps, and the whole takes O(N²) instead of the
O(2^N) of algorithm 5.1. With other costs or more resources, C also depends on the groups. Then several fusions of a
prefix are kept as labels: all fusions that no other fusion beats on every resource.
"""

from math import inf

import numpy as np
from numba import njit

from .problem import FREE, ROUNDED_UP, FusionProblem, Linear, iteration_time
from .rivals import each, even_split

__all__ = ["link_free_by_definition", "optimal_fusion", "optimal_fusion_by_labels"]

WIDTHS = (2, 2**62)  # most labels kept for a prefix: few in a first, inexact pass, then all
FIRST_SPLITS = (2, 4, 8, 16, 32)  # groups of the even splits whose best is the first fusion known
NOISE = 1e-13  # share of an iteration; labels that differ by less are equal


def optimal_fusion(problem: FusionProblem) -> tuple[int, ...]:
    """Return a fusion with the shortest iteration.

    If encoding on the device and sending are the only costs, and both are linear, this takes O(N²) time and returns
    the fewest groups. Other problems go to `optimal_fusion_by_labels`.
    """
    compress, communicate = problem.compress, problem.communicate
    is_more = problem.on_cpu or problem.decode != FREE or problem.onward != FREE
    if is_more or not isinstance(compress, Linear) or not isinstance(communicate, Linear):
        return optimal_fusion_by_labels(problem)
    encoding = compress.startup_s, compress.s_per_byte
    sending = communicate.startup_s, communicate.s_per_byte
    largest_bytes = problem.largest_bytes * ROUNDED_UP
    num_groups, starts = _best_groups(problem.ready_s, problem.until_bytes, encoding, sending, largest_bytes)
    end = problem.num_tensors
    ends = []
    for k in range(num_groups, 0, -1):
        ends.append(int(end))
        end = starts[k, end]
    return tuple(reversed(ends))


def link_free_by_definition(problem: FusionProblem) -> dict[tuple[int, int], float]:
    """Return D(j, k), the time when the link is free after j tensors in k groups, by the recurrence above."""
    compress, ready_s, until_bytes = problem.compress, problem.ready_s, problem.until_bytes
    assert isinstance(compress, Linear)
    free_s = {(0, 0): 0.0}
    for k in range(1, problem.num_tensors + 1):
        for j in range(k, problem.num_tensors + 1):
            encoded_s = ready_s[j] + k * compress.startup_s + compress.s_per_byte * until_bytes[j]
            free_s[j, k] = min(
                max(encoded_s, free_s[i, k - 1]) + problem.communicate(until_bytes[j] - until_bytes[i])
                for i in range(k - 1, j)
                if (i, k - 1) in free_s
            )
    return free_s


@njit(cache=True)
def _best_groups(ready_s, until_bytes, encoding, sending, largest_bytes):
    """Return the best number of groups, and [k, j]: where the last of k groups starts if it ends at j.

    The queue holds starts i in rising order of D(i, k - 1) - β_g X_i. A start that is no better than a later start is
    dropped. The front is the latest start whose prefix is sent before j is encoded. It beats all earlier starts, since
    it leaves fewer bytes to send. The best start whose prefix is sent later is the second in the queue.
    """
    startup_s, s_per_byte = sending
    num = len(ready_s) - 1
    starts = np.zeros((num + 1, num + 1), np.int32)
    queue = np.empty(num, np.int64)
    previous = np.full(num + 1, np.inf)  # D(i, k - 1)
    previous[0] = 0.0
    best_s, best_k = np.inf, 0
    for k in range(1, num + 1):
        encoded_s = ready_s + k * encoding[0] + encoding[1] * until_bytes
        if max(encoded_s[num], ready_s[1] + encoding[0] + k * startup_s + s_per_byte * until_bytes[num]) >= best_s:
            break  # any k groups, or more, take at least as long
        late_s = previous - s_per_byte * until_bytes
        free_s = np.full(num + 1, np.inf)  # D(j, k)
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
            free_s[j] = least_s + startup_s + s_per_byte * until_bytes[j]
            starts[k, j] = start
        if free_s[num] < best_s:
            best_s, best_k = free_s[num], k
        previous = free_s
    return best_k, starts


def optimal_fusion_by_labels(problem: FusionProblem) -> tuple[int, ...]:
    """Return an optimal fusion for any costs and resources, to within rounding.

    A label is one fusion of a prefix. A prefix keeps the labels that no other label beats on all resources. A label
    is dropped if its optimistic outcome is no better than a known fusion, as in the first pruning of algorithm 5.1.
    The number of labels, and so the time, is not bounded by a polynomial.
    """
    is_limited = problem.largest_bytes < inf
    fusions = [each(problem)] if is_limited else [even_split(problem, count) for count in FIRST_SPLITS]
    best_s, best = min((iteration_time(problem, fusion), fusion) for fusion in fusions)
    costs = tuple(cost.numbers for cost in (problem.compress, problem.communicate, problem.onward, problem.decode))
    ready_s, until_bytes = problem.ready_s, problem.until_bytes
    largest_bytes = problem.largest_bytes * ROUNDED_UP
    rest_s = _least_rest_s(until_bytes, costs, largest_bytes)
    for width in WIDTHS:
        origin, label = _grow(ready_s, until_bytes, costs, problem.on_cpu, largest_bytes, rest_s, best_s, width)
        ends = []
        while label:
            ends.append(int(origin[label, PREFIX]))
            label = origin[label, PARENT]
        if ends:
            best = tuple(reversed(ends))
            best_s = iteration_time(problem, best)
    return best


# Columns of a label: when each resource is free, when everything sent is decoded, the total time of decoding, a bound.
# Columns of `rest_s`: the least time of a chain of operations for the remaining tensors, from a resource to the end.
CODER, LINK, SECOND, DECODED, DECODING, BOUND = range(6)
ENCODING, MIXED = 5, 6
PREFIX, PARENT = range(2)  # columns of `origin`: number of tensors, and the label without the last group
SHARES = (0.03, 0.1, 0.3)  # weight of chain CODER in its means with chain DECODING


@njit(cache=True)
def _cost_s(cost, size_bytes):
    return cost[0] + cost[2] * max(0.0, size_bytes - cost[1])


@njit(cache=True)
def _least_rest_s(until_bytes, costs, largest_bytes):
    """Return the least time of each chain of operations for the tensors from each start on, [N + 1, chains].

    CODER: encode all groups; send, send on and decode the last. LINK: send all; send on and decode the last. SECOND:
    send on all; decode the last. DECODED: decode all. DECODING: encode and decode all. ENCODING: encode all. MIXED:
    weighted means of CODER and DECODING, because one fusion has to shorten both.
    """
    num = len(until_bytes) - 1
    chains_s = np.empty(MIXED + len(SHARES))
    rest_s = np.full((num + 1, len(chains_s)), np.inf)
    rest_s[num] = 0.0
    for start in range(num - 1, -1, -1):
        for end in range(start + 1, num + 1):
            size = until_bytes[end] - until_bytes[start]
            if size > largest_bytes:
                break
            encode_s, send_s = _cost_s(costs[0], size), _cost_s(costs[1], size)
            onward_s, decode_s = _cost_s(costs[2], size), _cost_s(costs[3], size)
            last = 1.0 if end == num else 0.0
            chains_s[CODER] = encode_s + last * (send_s + onward_s + decode_s)
            chains_s[LINK] = send_s + last * (onward_s + decode_s)
            chains_s[SECOND] = onward_s + last * decode_s
            chains_s[DECODED], chains_s[DECODING], chains_s[ENCODING] = decode_s, encode_s + decode_s, encode_s
            for index, share in enumerate(SHARES):
                chains_s[MIXED + index] = share * chains_s[CODER] + (1 - share) * chains_s[DECODING]
            for chain in range(len(chains_s)):
                rest_s[start, chain] = min(rest_s[start, chain], chains_s[chain] + rest_s[end, chain])
    return rest_s


@njit(cache=True)
def _grow(ready_s, until_bytes, costs, on_cpu, largest_bytes, rest_s, best_s, width):
    """Extend at most `width` labels from prefix to prefix; return all origins and the best label, 0 if none gains.

    The next group of a label grows tensor by tensor. It stops when the group is too large, when sending it and all
    later tensors ends too late, or when a label whose last group starts later beats it. The label then stays beaten:
    both groups grow by the same tensors, and with convex costs the larger group's cost rises at least as fast.
    """
    num = len(ready_s) - 1
    limit_s = best_s * (1 - NOISE)
    labels = np.zeros((64, 6))
    origin = np.zeros((64, 2), np.int64)
    growing = np.zeros(64, np.int64)  # labels whose next group still grows
    labels[0, CODER] = 0.0 if on_cpu else ready_s[0]
    kept, num_growing, count = 0, 1, 1
    for end in range(1, num + 1):
        while count + num_growing > len(labels):
            labels, origin, growing = _doubled(labels, origin, growing)
        still = 0
        starts = np.empty(num_growing, np.int64)
        for label in growing[:num_growing]:
            start = origin[label, PREFIX]
            coder_s = labels[label, CODER]
            new = count + still
            size = until_bytes[end] - until_bytes[start]
            coder_s = max(coder_s, ready_s[end]) if on_cpu else coder_s + ready_s[end] - ready_s[start]
            coder_s += _cost_s(costs[0], size)
            link_s = max(labels[label, LINK], coder_s)
            sent_s = link_s + _cost_s(costs[1], size)
            onward_s, decode_s = _cost_s(costs[2], size), _cost_s(costs[3], size)
            least_s = max(link_s + rest_s[start, LINK], sent_s + rest_s[start, SECOND])
            if size > largest_bytes or max(least_s, sent_s + onward_s + rest_s[start, DECODED]) >= limit_s:
                continue
            growing[still] = label
            still += 1
            origin[new, PREFIX], origin[new, PARENT] = end, label
            labels[new, CODER] = coder_s
            labels[new, LINK] = sent_s
            labels[new, SECOND] = max(labels[label, SECOND], sent_s) + onward_s
            labels[new, DECODED] = max(labels[label, DECODED], labels[new, SECOND]) + decode_s
            labels[new, DECODING] = labels[label, DECODING] + decode_s
        added = slice(count, count + still)
        _write_bounds_(labels[added], ready_s, until_bytes, costs, rest_s, end, on_cpu)
        for new in range(still):
            starts[new] = origin[growing[new], PREFIX]
        kept, still = _keep_unbeaten_(labels[added], origin[added], growing, starts, limit_s, best_s * NOISE, width)
        for place in range(still - 1, -1, -1):
            growing[kept + place] = growing[place]
        for new in range(kept):
            growing[new] = count + new
        num_growing = still + kept
        count += kept
    best = count - kept if kept else 0
    for label in range(count - kept, count):
        if labels[label, BOUND] < labels[best, BOUND]:
            best = label
    return origin, best


@njit(cache=True)
def _doubled(labels, origin, growing):
    """Return the arrays with room for twice as many labels. Loops compile in a tenth of the time of NumPy's calls."""
    room = 2 * len(labels)
    more_labels = np.zeros((room, 6))
    more_origin = np.zeros((room, 2), np.int64)
    more_growing = np.zeros(room, np.int64)
    for label in range(len(labels)):
        more_growing[label] = growing[label]
        for column in range(6):
            more_labels[label, column] = labels[label, column]
        for column in range(2):
            more_origin[label, column] = origin[label, column]
    return more_labels, more_origin, more_growing


@njit(cache=True)
def _write_bounds_(labels, ready_s, until_bytes, costs, rest_s, end, on_cpu):
    """Write the optimistic outcome of each label; at the last tensor it is the time of the iteration."""
    num = len(ready_s) - 1
    chains_s = rest_s[end]
    following = until_bytes[min(end + 1, num)] - until_bytes[end]
    encode_s = _cost_s(costs[0], following)
    send_s = _cost_s(costs[1], following)
    onward_s = _cost_s(costs[2], following)
    computing_s = 0.0 if on_cpu else ready_s[num] - ready_s[end]
    for label in labels:
        coder_s = label[CODER]
        decoding_s = label[DECODING]
        if end == num:
            label[BOUND] = max(label[DECODED], coder_s + decoding_s)
            continue
        if on_cpu:
            coder_s = max(coder_s, ready_s[end + 1])
        last_s = coder_s + computing_s
        encoded_s = last_s + chains_s[ENCODING]
        link_s = max(label[LINK], encode_s + (coder_s if on_cpu else coder_s + ready_s[end + 1] - ready_s[end]))
        second_s = max(label[SECOND], link_s + send_s)
        decoded_s = max(label[DECODED], second_s + onward_s, encoded_s + decoding_s)
        bound_s = max(last_s + chains_s[CODER], last_s + decoding_s + chains_s[DECODING], decoded_s + chains_s[DECODED])
        bound_s = max(bound_s, link_s + chains_s[LINK], second_s + chains_s[SECOND])
        for index, share in enumerate(SHARES):
            bound_s = max(bound_s, last_s + (1 - share) * decoding_s + chains_s[MIXED + index])
        label[BOUND] = bound_s


@njit(cache=True)
def _keep_unbeaten_(labels, origin, growing, starts, limit_s, slack_s, width):
    """Move unbeaten labels that may end before `limit_s` to the front, at most `width`; count them.

    Also move the parents in `growing` to its front, without those whose new label is beaten by a label whose last group
    starts no earlier; count them. A label can only be beaten by labels with a smaller sum of times, which come first.
    """
    unbeaten = np.empty(len(labels), np.int64)
    is_growing = np.ones(len(labels), np.bool_)
    kept = 0
    sums_s = np.zeros(len(labels))
    for new in range(len(labels)):
        for resource in range(BOUND):
            sums_s[new] += labels[new, resource]
    for new in np.argsort(sums_s):
        if labels[new, BOUND] >= limit_s:
            continue
        is_beaten = False
        for index in unbeaten[:kept]:
            if _beats(labels, index, new, slack_s):
                is_beaten = True
                if starts[index] >= starts[new]:
                    is_growing[new] = False
                    break
        if not is_beaten:
            unbeaten[kept] = new
            kept += 1
    still = 0
    for new in range(len(labels)):
        if is_growing[new]:
            growing[still] = growing[new]
            still += 1
    if kept > width:
        bounds_s = np.empty(kept)
        for place in range(kept):
            bounds_s[place] = labels[unbeaten[place], BOUND]
        unbeaten = unbeaten[np.argsort(bounds_s)]
        kept = width
    before = labels.copy(), origin.copy()
    for place in range(kept):
        for column in range(len(labels[0])):
            labels[place, column] = before[0][unbeaten[place], column]
        for column in range(len(origin[0])):
            origin[place, column] = before[1][unbeaten[place], column]
    return kept, still


@njit(cache=True)
def _beats(labels, label, other, slack_s):
    """Say whether a label is at least as early as another label on all resources."""
    beats, resource = True, 0
    while beats and resource < BOUND:
        beats = labels[label, resource] <= labels[other, resource] + slack_s
        resource += 1
    return beats
