"""Gradients that become ready one after another, and the chain of tasks of each on resources that serve in order.

Resource 0 is the device: it computes gradient i after gradient i - 1, for `gap_s[i]` seconds, and serves tasks between.
A resource serves one task at a time, whichever came first; of several that came at one moment, that of the gradient
that was ready first. A started task is never interrupted. `Queues` evaluates changed chains fast: it begins where the
first changed gradient becomes ready, and stops where the work that is left takes longer than allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numba import njit

__all__ = ["DEVICE", "Chain", "Chains", "Queues", "Spans", "queues_by_definition"]

Chain = Sequence[tuple[int, float]]  # resource and seconds of each task, in order
DEVICE = 0
IDLE = -1
ROUNDING = 1e-12  # sums of the same times in another order differ by a smaller part


def queues_by_definition(gap_s: Sequence[float], chains: Sequence[Chain]) -> list[list[tuple[float, float]]]:
    """Return start and end of every gradient's tasks, its computation first, going from moment to moment."""
    tasks = [[(DEVICE, gap), *chain] for gap, chain in zip(gap_s, chains, strict=True)]
    placed: list[list[tuple[float, float]]] = [[] for _ in tasks]
    waiting = [(0.0, 0, 0)]  # when it came, gradient, number of the task
    running: dict[int, tuple[float, int, int]] = {}  # resource -> end, gradient, number
    now_s = 0.0
    while waiting or running:
        for resource in sorted({tasks[gradient][number][0] for _, gradient, number in waiting} - running.keys()):
            came = min(task for task in waiting if tasks[task[1]][task[2]][0] == resource)
            waiting.remove(came)
            _, gradient, number = came
            end_s = now_s + tasks[gradient][number][1]
            placed[gradient].append((now_s, end_s))
            running[resource] = end_s, gradient, number
        now_s = min(running.values())[0]
        for resource in [name for name, (end_s, *_) in running.items() if end_s == now_s]:
            _, gradient, number = running.pop(resource)
            if number == 0 and gradient + 1 < len(tasks):
                waiting.append((now_s, gradient + 1, 0))
            if number + 1 < len(tasks[gradient]):
                waiting.append((now_s, gradient, number + 1))
    return placed


@dataclass(frozen=True, slots=True)
class Chains:
    """C chains as arrays; task 0 of each is the computation of its gradient, and is not filled in."""

    resource: np.ndarray  # [C, W]
    seconds: np.ndarray  # [C, W]
    length: np.ndarray  # [C], with the computation
    num_resources: int

    @classmethod
    def of(cls, chains: Sequence[Chain], *, num_resources: int, longest: int) -> "Chains":
        """Check and pack chains of at most `longest` tasks; ValueError names the task that cannot be."""
        shape = len(chains), longest + 1
        packed = cls(np.zeros(shape, np.int8), np.zeros(shape), np.ones(len(chains), int), num_resources)
        for index, chain in enumerate(chains):
            if len(chain) > longest:
                raise ValueError(f"chain {index} has {len(chain)} tasks; it must have at most {longest}")
            for number, (resource, seconds) in enumerate(chain, 1):
                if not 0 <= resource < num_resources or not 0 <= seconds < inf:
                    rule = f"the resource must be in 0..{num_resources - 1}, the time finite and not negative"
                    raise ValueError(f"chain {index} has the task {(resource, seconds)}; {rule}")
                packed.resource[index, number], packed.seconds[index, number] = resource, seconds
            packed.length[index] = len(chain) + 1
        return packed

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.resource, self.seconds, self.length


@dataclass(frozen=True, slots=True)
class Spans:
    """When tasks are served [N, W]; a gradient's computation is its task 0."""

    resource: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    is_task: np.ndarray  # elsewhere the others say nothing


class Queues:
    """Gradients with a chain of tasks each, and when all of them are done.

    Args:
        gap_s: seconds that the device computes for each gradient, N of them.
        chains: of each gradient.
    """

    def __init__(self, gap_s: Sequence[float], chains: Chains):
        (num, width), num_resources = chains.resource.shape, chains.num_resources
        if num == 0 or len(gap_s) != num:
            raise ValueError(f"gap_s has {len(gap_s)} values, chains {num}; it must be the same number, at least 1")
        self._tasks, self._num_resources = tuple(array.copy() for array in chains.arrays), num_resources
        self._tasks[1][:, 0] = gap_s
        self._start_s = np.zeros((num, width))
        # What runs, waits and was begun when each gradient is computed: that is where a change of its chain begins.
        shape = num, num_resources
        ends_s, counts, begun_s = np.full(shape, inf), np.zeros(shape, np.int64), np.zeros(shape)
        waiting = np.zeros((num, num + 2), np.int64), np.zeros((num, num + 2))
        self._saved = np.full(shape, IDLE), ends_s, begun_s, counts, *waiting
        size = num_resources, num * width + 1
        self._scratch = np.zeros(size, np.int64), np.zeros(size), np.zeros((2, num_resources), np.int64)
        self.duration_s = self._run_from(IDLE)

    def best_chain(self, gradient: int, chains: Chains, limit_s: float = inf) -> tuple[int, float]:
        """Return which chain of one gradient lets all tasks be done first, and when; (-1, limit_s) if none before."""
        return _best_chain(self._tasks, self._saved, self._scratch, gradient, chains.arrays, limit_s)

    def set_(self, gradient: int, chain: Chains) -> None:
        """Give a gradient another chain."""
        resource, seconds, length = chain.arrays
        self._tasks[0][gradient], self._tasks[1][gradient, 1:] = resource[0], seconds[0, 1:]
        self._tasks[2][gradient] = length[0]
        self.duration_s = self._run_from(gradient)

    def take_best_(self, others: Chains, choices: np.ndarray) -> int:
        """Let gradients exchange their chains for others.

        Args:
            others: N chains, one a gradient.
            choices: [C, N] whether each gradient exchanges its chain. In lexicographic order they are fast.

        Returns:
            the first choice with which all tasks are done earliest, if earlier than without one; or -1.
        """
        args = self._tasks, self._saved, self._scratch, others.arrays, choices
        best = _best_choice(*args, self.duration_s, self._start_s)
        self.duration_s = self._run_from(IDLE)
        return best

    @property
    def spans(self) -> "Spans":
        """Start and end of every gradient's tasks, its computation first, as arrays."""
        resource, seconds, lengths = self._tasks
        is_task = np.arange(resource.shape[1]) < lengths[:, None]
        return Spans(resource, self._start_s, self._start_s + seconds, is_task)

    def placed(self) -> list[list[tuple[float, float]]]:
        """Return start and end of every gradient's tasks, as `queues_by_definition` does."""
        spans, lengths = self.spans, self._tasks[2].tolist()
        pairs = np.stack([spans.start_s, spans.end_s], axis=2).tolist()
        return [
            [(start_s, end_s) for start_s, end_s in row[:length]] for row, length in zip(pairs, lengths, strict=True)
        ]

    def _run_from(self, gradient: int) -> float:
        loads_s = _loads(self._tasks, self._num_resources)
        return _run(self._tasks, self._saved, self._scratch, loads_s, gradient, inf, self._start_s)[0]


# A state is (running, ends_s, begun_s, queues, came_s, heads, tails): by resource the code of what runs, when it ends,
# the work that was begun, and the codes of what waits and when they came. A code is gradient * W + number of the task,
# number 0 its computation. Saved states, a row a gradient, are (running, ends_s, begun_s, counts, codes, came_s), codes
# resource by resource. Tasks are (resources [N, W], seconds [N, W], lengths [N]).


@njit(cache=True)
def _loads(tasks, num_resources):
    """Return the work on each resource."""
    resources, seconds, lengths = tasks
    loads_s = np.zeros(num_resources)
    for gradient in range(len(lengths)):
        for number in range(lengths[gradient]):
            loads_s[resources[gradient, number]] += seconds[gradient, number]
    return loads_s


@njit(cache=True)
def _best_chain(tasks, saved, scratch, gradient, chains, limit_s):
    """Try chains of one gradient; return the first of the best and its duration."""
    own = tasks[0][gradient].copy(), tasks[1][gradient].copy(), tasks[2][gradient]
    loads_s = _loads(tasks, scratch[0].shape[0])
    _move_load_(loads_s, own, -1.0)
    best, best_s, nowhere = -1, limit_s, np.empty((0, 0))
    for index in range(len(chains[2])):
        chain = chains[0][index], chains[1][index], chains[2][index]
        _put_(tasks, gradient, chain)
        _move_load_(loads_s, chain, 1.0)
        found_s, _ = _run(tasks, saved, scratch, loads_s, gradient, best_s, nowhere)
        _move_load_(loads_s, chain, -1.0)
        if found_s < best_s:
            best, best_s = index, found_s
    _put_(tasks, gradient, own)
    return best, best_s


@njit(cache=True)
def _best_choice(tasks, saved, scratch, others, choices, limit_s, starts_s):
    """Try which gradients exchange their chains for others, and leave the first of the best; return its index."""
    num_gradients = len(tasks[2])
    loads_s = _loads(tasks, scratch[0].shape[0])
    now, wanted = np.zeros(num_gradients, np.bool_), np.zeros(num_gradients, np.bool_)
    best, best_s, valid = -1, limit_s, num_gradients - 1  # states are saved of gradients up to `valid`
    for index in range(len(choices) + 1):
        if index < len(choices):
            wanted = choices[index]
        elif best >= 0:
            wanted = choices[best]
        else:
            wanted = np.zeros(num_gradients, np.bool_)
        first = num_gradients
        for gradient in range(num_gradients - 1, -1, -1):
            if now[gradient] != wanted[gradient]:
                first, now[gradient] = gradient, wanted[gradient]
                _exchange_(tasks, others, loads_s, gradient)
        if index < len(choices):
            start = min(first, valid)
            found_s, valid = _run(tasks, saved, scratch, loads_s, start, best_s, starts_s)
            if found_s < best_s:
                best, best_s = index, found_s
    return best


@njit(cache=True)
def _exchange_(tasks, others, loads_s, gradient):
    """Let a gradient exchange its chain for the other."""
    own = tasks[0][gradient].copy(), tasks[1][gradient].copy(), tasks[2][gradient]
    other = others[0][gradient], others[1][gradient], others[2][gradient]
    _move_load_(loads_s, own, -1.0)
    _move_load_(loads_s, other, 1.0)
    _put_(tasks, gradient, other)
    others[0][gradient], others[1][gradient], others[2][gradient] = own


@njit(cache=True, inline="always")
def _put_(tasks, gradient, chain):
    """Let a gradient have a chain, after its computation."""
    length = chain[2]
    for number in range(1, length):
        tasks[0][gradient, number], tasks[1][gradient, number] = chain[0][number], chain[1][number]
    tasks[2][gradient] = length


@njit(cache=True, inline="always")
def _move_load_(loads_s, chain, sign):
    for number in range(1, chain[2]):
        loads_s[chain[0][number]] += sign * chain[1][number]


@njit(cache=True)
def _run(tasks, saved, scratch, loads_s, changed, limit_s, starts_s):
    """Serve all tasks from the start (changed = -1), or from where a changed gradient is computed.

    One loop: taken apart into functions it takes five times as long.

    Args:
        loads_s: work on each resource [R].
        starts_s: [N, W], written together with the states; an empty array keeps both as they are.

    Returns:
        when the last task ends, or infinity if after limit_s; and the last gradient whose saved state is true.
    """
    resources, seconds, lengths = tasks
    (num_gradients, width), num_resources = resources.shape, scratch[0].shape[0]
    running, ends_s, begun_s = np.full(num_resources, -1), np.full(num_resources, np.inf), np.zeros(num_resources)
    heads, tails = scratch[2][0], scratch[2][1]
    state = running, ends_s, begun_s, scratch[0], scratch[1], heads, tails
    heads[:], tails[:] = 0, 0
    if changed >= 0:
        _restore(state, saved, changed)
    else:
        _push(state, DEVICE, 0, 0.0)
    saves, now_s, is_ready = len(starts_s) > 0, 0.0, changed < 0
    last = changed
    while True:
        if is_ready:
            for r in range(num_resources):
                if running[r] < 0 and heads[r] < tails[r]:
                    code = state[3][r, heads[r]]
                    heads[r] += 1
                    gradient, number = code // width, code % width
                    running[r], ends_s[r] = code, now_s + seconds[gradient, number]
                    begun_s[r] += seconds[gradient, number]
                    if saves:
                        starts_s[gradient, number] = now_s
        next_s = np.inf
        for r in range(num_resources):
            next_s = min(next_s, ends_s[r])
        if next_s == np.inf:
            return now_s, num_gradients - 1
        now_s, is_ready = next_s, True
        if ends_s[DEVICE] == now_s and running[DEVICE] % width == 0:
            gradient = running[DEVICE] // width
            if saves and gradient > last:
                _save(state, saved, gradient)
                last = gradient
            if _is_too_late(state, loads_s, now_s, limit_s):
                return np.inf, last
        if now_s > limit_s:
            return np.inf, last
        for r in range(num_resources):
            if ends_s[r] == now_s:
                gradient, number = running[r] // width, running[r] % width
                running[r], ends_s[r] = -1, np.inf
                if number + 1 < lengths[gradient]:
                    _push(state, resources[gradient, number + 1], gradient * width + number + 1, now_s)
                if number == 0 and gradient + 1 < num_gradients:
                    _push(state, DEVICE, (gradient + 1) * width, now_s)


@njit(cache=True)
def _is_too_late(state, loads_s, now_s, limit_s):
    """Return whether the work that is left of a resource takes longer than until the limit."""
    running, ends_s, begun_s = state[:3]
    for r in range(len(running)):
        left_s = loads_s[r] * (1 - ROUNDING) - begun_s[r]
        if left_s > 0 and (now_s if running[r] < 0 else ends_s[r]) + left_s > limit_s:
            return True
    return False


@njit(cache=True, inline="always")
def _push(state, resource, code, now_s):
    """Let a task wait, behind all that came before and, of those that come now, behind smaller codes."""
    _, _, _, queues, came_s, heads, tails = state
    at = tails[resource]
    while at > heads[resource] and came_s[resource, at - 1] == now_s and queues[resource, at - 1] > code:
        queues[resource, at], came_s[resource, at] = queues[resource, at - 1], came_s[resource, at - 1]
        at -= 1
    queues[resource, at], came_s[resource, at] = code, now_s
    tails[resource] += 1


@njit(cache=True)
def _save(state, saved, gradient):
    running, ends_s, begun_s, queues, came_s, heads, tails = state
    saved_running, saved_ends_s, saved_begun_s, counts, codes, saved_came_s = saved
    saved_running[gradient], saved_ends_s[gradient], saved_begun_s[gradient] = running, ends_s, begun_s
    counts[gradient] = tails - heads
    place = 0
    for r in range(len(running)):
        for at in range(heads[r], tails[r]):
            codes[gradient, place], saved_came_s[gradient, place] = queues[r, at], came_s[r, at]
            place += 1


@njit(cache=True)
def _restore(state, saved, gradient):
    running, ends_s, begun_s, queues, came_s, _, tails = state
    saved_running, saved_ends_s, saved_begun_s, counts, codes, saved_came_s = saved
    running[:], ends_s[:], begun_s[:] = saved_running[gradient], saved_ends_s[gradient], saved_begun_s[gradient]
    tails[:] = counts[gradient]
    place = 0
    for r in range(len(running)):
        for at in range(tails[r]):
            queues[r, at], came_s[r, at] = codes[gradient, place], saved_came_s[gradient, place]
            place += 1
