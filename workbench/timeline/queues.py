"""Gradients that become ready one after another, and the chain of tasks of each on resources that serve in order.

Resource 0 is the device: it computes gradient i after gradient i - 1, for `gap_s[i]` seconds, and serves tasks between.
A resource serves one task at a time, whichever came first; of several that came at one moment, that of the gradient
that was ready first. A started task is never interrupted. `Queues` evaluates changes of one gradient's chain fast: it
begins where that gradient becomes ready.
"""

from collections.abc import Sequence
from math import inf

import numpy as np
from numba import njit

__all__ = ["DEVICE", "Chain", "Queues", "queues_by_definition"]

Chain = Sequence[tuple[int, float]]  # resource and seconds of each task, in order
DEVICE = 0
IDLE = -1


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


class Queues:
    """Gradients with a chain of tasks each, and when all of them are done.

    Args:
        gap_s: seconds that the device computes for each gradient, N of them.
        chains: of each gradient; at most `longest` tasks.
        num_resources: R, the device among them.
        longest: tasks of a chain.
    """

    def __init__(self, gap_s: Sequence[float], chains: Sequence[Chain], *, num_resources: int, longest: int = 16):
        num, width = len(gap_s), longest + 1
        if num == 0 or len(chains) != num:
            raise ValueError(f"gap_s has {num} values, chains {len(chains)}; it must be the same number, at least 1")
        self._gap_s, self._num_resources, self._longest = np.asarray(gap_s, float), num_resources, longest
        self._resource, self._seconds = np.zeros((num, width), np.int8), np.zeros((num, width))
        self._length = np.ones(num, np.int64)  # tasks, the computation among them
        self._seconds[:, 0] = self._gap_s
        self._start_s = np.zeros((num, width))
        # What runs and waits just before each gradient is computed: that is where a change of its chain begins.
        self._running, self._ends_s = np.full((num, num_resources), IDLE), np.full((num, num_resources), inf)
        self._counts = np.zeros((num, num_resources), np.int64)
        self._codes, self._came_s = np.zeros((num, num + 2), np.int64), np.zeros((num, num + 2))
        size = num_resources, num * width + 1
        self._scratch = np.zeros(size, np.int64), np.zeros(size), np.zeros((2, num_resources), np.int64)
        self._own = np.zeros(width, np.int8), np.zeros(width)
        for gradient, chain in enumerate(chains):
            self._put(gradient, chain)
        self.duration_s = self._run(IDLE, save_from=0)

    def duration_with(self, gradient: int, chain: Chain, limit_s: float = inf) -> float:
        """Return when all tasks would be done with another chain of one gradient; infinity if after `limit_s`."""
        resource, seconds = self._own
        self._check(chain)
        for number, (where, took_s) in enumerate(chain, 1):
            resource[number], seconds[number] = where, took_s
        seconds[0] = self._gap_s[gradient]
        return self._run(gradient, own_length=len(chain) + 1, limit_s=limit_s)

    def set_(self, gradient: int, chain: Chain) -> None:
        """Give a gradient another chain."""
        self._put(gradient, chain)
        self.duration_s = self._run(gradient, own_length=0, save_from=gradient)

    def placed(self) -> list[list[tuple[float, float]]]:
        """Return start and end of every gradient's tasks, as `queues_by_definition` does."""
        ends_s = self._start_s + self._seconds
        return [
            list(zip(self._start_s[g, :n].tolist(), ends_s[g, :n].tolist(), strict=True))
            for g, n in enumerate(self._length.tolist())
        ]

    def _check(self, chain: Chain) -> None:
        if len(chain) > self._longest:
            raise ValueError(f"chain has {len(chain)} tasks; it must have at most {self._longest}")

    def _put(self, gradient: int, chain: Chain) -> None:
        self._check(chain)
        for number, (resource, seconds) in enumerate(chain, 1):
            if not 0 <= resource < self._num_resources or not 0 <= seconds < inf:
                rule = f"the resource must be in 0..{self._num_resources - 1}, the time finite and not negative"
                raise ValueError(f"chain of gradient {gradient} has the task {(resource, seconds)}; {rule}")
            self._resource[gradient, number], self._seconds[gradient, number] = resource, seconds
        self._length[gradient] = len(chain) + 1

    def _run(self, gradient: int, *, own_length: int = 0, save_from: int = -1, limit_s: float = inf) -> float:
        return _run(
            *(self._resource, self._seconds, self._length, *self._own, own_length, gradient, save_from, limit_s),
            *(self._start_s, self._running, self._ends_s, self._counts, self._codes, self._came_s, *self._scratch),
        )


# A state is (running, ends_s, queues, came_s, heads, tails): by resource the code of what runs and when it ends, and
# the codes of what waits and when they came. A code is gradient * W + number of the task, number 0 its computation.
# Saved states, a row a gradient, are (running, ends_s, counts, codes, came_s), codes resource by resource.


@njit(cache=True)
def _run(
    resources,
    seconds,
    lengths,
    own_resources,
    own_seconds,
    own_length,
    changed,
    save_from,
    limit_s,
    starts_s,
    saved_running,
    saved_ends_s,
    saved_counts,
    saved_codes,
    saved_came_s,
    queues,
    came_s,
    heads_tails,
):
    """Serve all tasks from the start, or from where a changed gradient is computed; return when the last one ends.

    Args:
        resources, seconds, lengths: of all tasks [N, W], and how many each gradient has [N].
        own_resources, own_seconds, own_length: the changed gradient's instead [W]; length 0 leaves it as it is.
        changed, save_from: gradients; -1 for none. States and `starts_s` [N, W] are written from `save_from` on.
    """
    (num_gradients, width), num_resources = resources.shape, queues.shape[0]
    state = np.full(num_resources, -1), np.full(num_resources, np.inf), queues, came_s, heads_tails[0], heads_tails[1]
    saved = saved_running, saved_ends_s, saved_counts, saved_codes, saved_came_s
    running, ends_s, _, _, heads, tails = state
    heads[:], tails[:] = 0, 0
    if changed >= 0:
        _restore(state, saved, changed)
    else:
        _push(state, DEVICE, 0, 0.0)
    now_s, is_ready = 0.0, changed < 0
    while True:
        for r in range(num_resources):
            if is_ready and running[r] < 0 and heads[r] < tails[r]:
                running[r] = queues[r, heads[r]]
                heads[r] += 1
                gradient, number = running[r] // width, running[r] % width
                is_own = gradient == changed and own_length > 0
                ends_s[r] = now_s + (own_seconds[number] if is_own else seconds[gradient, number])
                if save_from >= 0:
                    starts_s[gradient, number] = now_s
        next_s = ends_s.min()
        if next_s == np.inf:
            return now_s
        now_s, is_ready = next_s, True
        if now_s > limit_s:
            return np.inf
        is_computed = ends_s[DEVICE] == now_s and running[DEVICE] % width == 0
        if save_from >= 0 and is_computed and running[DEVICE] // width >= save_from:
            _save(state, saved, running[DEVICE] // width)
        for r in range(num_resources):
            if ends_s[r] == now_s:
                gradient, number = running[r] // width, running[r] % width
                running[r], ends_s[r] = -1, np.inf
                is_own = gradient == changed and own_length > 0
                if number + 1 < (own_length if is_own else lengths[gradient]):
                    target = own_resources[number + 1] if is_own else resources[gradient, number + 1]
                    _push(state, target, gradient * width + number + 1, now_s)
                if number == 0 and gradient + 1 < num_gradients:
                    _push(state, DEVICE, (gradient + 1) * width, now_s)


@njit(cache=True, inline="always")
def _push(state, resource, code, now_s):
    """Let a task wait, behind all that came before and, of those that come now, behind smaller codes."""
    _, _, queues, came_s, heads, tails = state
    at = tails[resource]
    while at > heads[resource] and came_s[resource, at - 1] == now_s and queues[resource, at - 1] > code:
        queues[resource, at], came_s[resource, at] = queues[resource, at - 1], came_s[resource, at - 1]
        at -= 1
    queues[resource, at], came_s[resource, at] = code, now_s
    tails[resource] += 1


@njit(cache=True)
def _save(state, saved, gradient):
    running, ends_s, queues, came_s, heads, tails = state
    saved_running, saved_ends_s, counts, codes, saved_came_s = saved
    saved_running[gradient], saved_ends_s[gradient], counts[gradient] = running, ends_s, tails - heads
    place = 0
    for r in range(len(running)):
        for at in range(heads[r], tails[r]):
            codes[gradient, place], saved_came_s[gradient, place] = queues[r, at], came_s[r, at]
            place += 1


@njit(cache=True)
def _restore(state, saved, gradient):
    running, ends_s, queues, came_s, _, tails = state
    saved_running, saved_ends_s, counts, codes, saved_came_s = saved
    running[:], ends_s[:], tails[:] = saved_running[gradient], saved_ends_s[gradient], counts[gradient]
    place = 0
    for r in range(len(running)):
        for at in range(tails[r]):
            queues[r, at], came_s[r, at] = codes[gradient, place], saved_came_s[gradient, place]
            place += 1
