"""The schedule of gradients and of each gradient's chain of tasks, on resources that serve first come, first served.

Resource 0 is the device: it computes the gradients in order, gradient i for `gap_s[i]` seconds, and serves other tasks
in between. A resource serves one task at a time; tasks that arrive together are served in the order of their gradients.
A started task is never interrupted. `Queues` evaluates a changed chain fast: it begins where the first changed gradient
is computed, and stops as soon as the remaining work cannot end within the limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numba import njit

__all__ = ["DEVICE", "IS_COMPILED", "Chain", "Chains", "Queues", "Spans", "queues_by_definition"]

Chain = Sequence[tuple[int, float]]  # (resource, seconds) of each task, in order
DEVICE = 0
IDLE = -1
ROUNDING = 1e-12  # bound on the relative difference between sums of the same times in another order


def queues_by_definition(gap_s: Sequence[float], chains: Sequence[Chain]) -> list[list[tuple[float, float]]]:
    """Return start and end of every gradient's tasks, its computation first, by stepping from event to event."""
    tasks = [[(DEVICE, gap), *chain] for gap, chain in zip(gap_s, chains, strict=True)]
    placed: list[list[tuple[float, float]]] = [[] for _ in tasks]
    waiting = [(0.0, 0, 0)]  # arrival time, gradient, task number
    running: dict[int, tuple[float, int, int]] = {}  # resource -> end, gradient, task number
    now_s = 0.0
    while waiting or running:
        for resource in sorted({tasks[gradient][number][0] for _, gradient, number in waiting} - running.keys()):
            first = min(task for task in waiting if tasks[task[1]][task[2]][0] == resource)
            waiting.remove(first)
            _, gradient, number = first
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
    """C chains as arrays; task 0 stands for the computation of the gradient, and its entries stay zero."""

    resource: np.ndarray  # [C, W]
    seconds: np.ndarray  # [C, W]
    length: np.ndarray  # [C], task 0 included
    num_resources: int

    @classmethod
    def of(cls, chains: Sequence[Chain], *, num_resources: int, longest: int) -> "Chains":
        """Check chains of at most `longest` tasks and pack them; ValueError names an invalid task."""
        shape = len(chains), longest + 1
        packed = cls(np.zeros(shape, np.int8), np.zeros(shape), np.ones(len(chains), int), num_resources)
        for index, chain in enumerate(chains):
            if len(chain) > longest:
                raise ValueError(f"chain {index} has {len(chain)} tasks; it must have at most {longest}")
            for number, (resource, seconds) in enumerate(chain, 1):
                if not 0 <= resource < num_resources or not 0 <= seconds < inf:
                    rule = f"the resource must be in 0..{num_resources - 1}, the time finite and not negative"
                    raise ValueError(f"chain {index} has the task {(resource, seconds)}; {rule}")
                packed.resource[index, number] = resource
                packed.seconds[index, number] = seconds
            packed.length[index] = len(chain) + 1
        return packed

    @property
    def arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return self.resource, self.seconds, self.length


@dataclass(frozen=True, slots=True)
class Spans:
    """Start and end of all tasks, [N, W]; task 0 of a gradient is its computation."""

    resource: np.ndarray
    start_s: np.ndarray
    end_s: np.ndarray
    is_task: np.ndarray  # False where the other arrays hold no task


class Queues:
    """The schedule of N gradients, each with a chain of tasks, and its duration.

    Args:
        gap_s: seconds that the device computes for each gradient, [N].
        chains: one chain a gradient.
    """

    def __init__(self, gap_s: Sequence[float], chains: Chains):
        (num, width), num_resources = chains.resource.shape, chains.num_resources
        if num == 0 or len(gap_s) != num:
            raise ValueError(f"gap_s has {len(gap_s)} values, chains {num}; both must have the same number, at least 1")
        self._tasks = tuple(array.copy() for array in chains.arrays)
        self._num_resources = num_resources
        self._tasks[1][:, 0] = gap_s
        self._start_s = np.zeros((num, width))
        # The state at the moment when each gradient is computed: a changed chain is evaluated from there on.
        shape = num, num_resources
        ends_s, counts, begun_s = np.full(shape, inf), np.zeros(shape, np.int64), np.zeros(shape)
        waiting = np.zeros((num, num + 2), np.int64), np.zeros((num, num + 2))
        self._saved = np.full(shape, IDLE), ends_s, begun_s, counts, *waiting
        size = num_resources, num * width + 1
        self._scratch = np.zeros(size, np.int64), np.zeros(size), np.zeros((2, num_resources), np.int64)
        self.duration_s = self._run_from(IDLE)

    def best_chain(self, gradient: int, chains: Chains, limit_s: float = inf) -> tuple[int, float]:
        """Return the index and the duration of a gradient's best chain; (-1, limit_s) if none is below the limit."""
        return _best_chain(self._tasks, self._saved, self._scratch, gradient, chains.arrays, limit_s)

    def set_(self, gradient: int, chain: Chains) -> None:
        """Replace the chain of a gradient."""
        resource, seconds, length = chain.arrays
        self._tasks[0][gradient] = resource[0]
        self._tasks[1][gradient, 1:] = seconds[0, 1:]
        self._tasks[2][gradient] = length[0]
        self.duration_s = self._run_from(gradient)

    def take_best_(self, others: Chains, choices: np.ndarray) -> int:
        """Exchange chains of gradients for others where this shortens the schedule.

        Args:
            others: one other chain a gradient; it receives the chain that it replaces.
            choices: [C, N], whether each gradient exchanges its chain; fastest in lexicographic order.

        Returns:
            the index of the first choice with the shortest duration; -1 if no choice shortens it.
        """
        args = self._tasks, self._saved, self._scratch, others.arrays, choices
        best = _best_choice(*args, self.duration_s, self._start_s)
        self.duration_s = self._run_from(IDLE)
        return best

    @property
    def spans(self) -> "Spans":
        """Start and end of every task, as arrays."""
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


# The code of a task is gradient * W + task number. A state is (running, ends_s, begun_s, queues, came_s, heads, tails).
# It holds by resource: the code of the running task, its end, the seconds of all started tasks, the codes of waiting
# tasks, their arrivals, and the bounds of the queue. Saved states, a row a gradient, are (running, ends_s, begun_s,
# counts, codes, came_s), with codes resource by resource. Tasks are (resources [N, W], seconds [N, W], lengths [N]).


@njit(cache=True)
def _loads(tasks, num_resources):
    """Return the seconds of work on each resource."""
    resources, seconds, lengths = tasks
    loads_s = np.zeros(num_resources)
    for gradient in range(len(lengths)):
        for number in range(lengths[gradient]):
            loads_s[resources[gradient, number]] += seconds[gradient, number]
    return loads_s


IS_COMPILED = hasattr(_loads, "py_func")  # not in a browser, where a search of a hundred tensors takes minutes


@njit(cache=True)
def _best_chain(tasks, saved, scratch, gradient, chains, limit_s):
    """Try chains of one gradient; return the index of the first best chain and its duration."""
    original = tasks[0][gradient].copy(), tasks[1][gradient].copy(), tasks[2][gradient]
    loads_s = _loads(tasks, scratch[0].shape[0])
    _move_load_(loads_s, original, -1.0)
    best, best_s = -1, limit_s
    nowhere = np.empty((0, 0))  # `_run` then saves neither starts nor states
    for index in range(len(chains[2])):
        chain = chains[0][index], chains[1][index], chains[2][index]
        _put_(tasks, gradient, chain)
        _move_load_(loads_s, chain, 1.0)
        duration_s, _ = _run(tasks, saved, scratch, loads_s, gradient, best_s, nowhere)
        _move_load_(loads_s, chain, -1.0)
        if duration_s < best_s:
            best, best_s = index, duration_s
    _put_(tasks, gradient, original)
    return best, best_s


@njit(cache=True)
def _best_choice(tasks, saved, scratch, others, choices, limit_s, starts_s):
    """Try choices of gradients that exchange their chains, and apply the first best choice; return its index."""
    num_gradients = len(tasks[2])
    loads_s = _loads(tasks, scratch[0].shape[0])
    now, wanted = np.zeros(num_gradients, np.bool_), np.zeros(num_gradients, np.bool_)
    best, best_s = -1, limit_s
    valid = num_gradients - 1  # last gradient with a valid saved state
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
                first = gradient
                now[gradient] = wanted[gradient]
                _exchange_(tasks, others, loads_s, gradient)
        if index < len(choices):
            start = min(first, valid)
            duration_s, valid = _run(tasks, saved, scratch, loads_s, start, best_s, starts_s)
            if duration_s < best_s:
                best, best_s = index, duration_s
    return best


@njit(cache=True)
def _exchange_(tasks, others, loads_s, gradient):
    """Exchange the chain of a gradient for its other one."""
    current = tasks[0][gradient].copy(), tasks[1][gradient].copy(), tasks[2][gradient]
    other = others[0][gradient], others[1][gradient], others[2][gradient]
    _move_load_(loads_s, current, -1.0)
    _move_load_(loads_s, other, 1.0)
    _put_(tasks, gradient, other)
    for number in range(len(current[0])):  # not by slices, which take seconds to compile
        others[0][gradient, number] = current[0][number]
        others[1][gradient, number] = current[1][number]
    others[2][gradient] = current[2]


@njit(cache=True, inline="always")
def _put_(tasks, gradient, chain):
    """Set the chain of a gradient; its computation stays."""
    length = chain[2]
    for number in range(1, length):
        tasks[0][gradient, number] = chain[0][number]
        tasks[1][gradient, number] = chain[1][number]
    tasks[2][gradient] = length


@njit(cache=True, inline="always")
def _move_load_(loads_s, chain, sign):
    for number in range(1, chain[2]):
        loads_s[chain[0][number]] += sign * chain[1][number]


@njit(cache=True)
def _run(tasks, saved, scratch, loads_s, changed, limit_s, starts_s):
    """Serve all tasks from the start (changed = -1), or from the saved state of a changed gradient.

    It is one loop, since split into functions it takes five times as long.

    Args:
        loads_s: work on each resource [R].
        starts_s: [N, W], written together with the saved states; an empty array leaves both unchanged.

    Returns:
        the end of the last task, or infinity if it is after limit_s; and the last gradient with a valid saved state.
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
    """Return whether the remaining work of a resource ends after the limit."""
    running, ends_s, begun_s = state[:3]
    for r in range(len(running)):
        left_s = loads_s[r] * (1 - ROUNDING) - begun_s[r]
        if left_s > 0 and (now_s if running[r] < 0 else ends_s[r]) + left_s > limit_s:
            return True
    return False


@njit(cache=True, inline="always")
def _push(state, resource, code, now_s):
    """Queue a task behind all earlier arrivals; tasks that arrive at the same moment are queued by their codes."""
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
    place = 0
    for r in range(len(running)):
        saved_running[gradient, r] = running[r]
        saved_ends_s[gradient, r] = ends_s[r]
        saved_begun_s[gradient, r] = begun_s[r]
        counts[gradient, r] = tails[r] - heads[r]
        for at in range(heads[r], tails[r]):
            codes[gradient, place], saved_came_s[gradient, place] = queues[r, at], came_s[r, at]
            place += 1


@njit(cache=True)
def _restore(state, saved, gradient):
    running, ends_s, begun_s, queues, came_s, _, tails = state
    saved_running, saved_ends_s, saved_begun_s, counts, codes, saved_came_s = saved
    place = 0
    for r in range(len(running)):
        running[r] = saved_running[gradient, r]
        ends_s[r] = saved_ends_s[gradient, r]
        begun_s[r] = saved_begun_s[gradient, r]
        tails[r] = counts[gradient, r]
        for at in range(tails[r]):
            queues[r, at], came_s[r, at] = codes[gradient, place], saved_came_s[gradient, place]
            place += 1
