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


@njit(cache=True)
def _run(
    resources,  # [N, W] of tasks; the first is the computation
    seconds,  # [N, W]
    lengths,  # [N]
    own_resources,  # [W] of the changed gradient
    own_seconds,
    own_length,  # 0: the changed gradient's chain is in `resources`
    changed,  # gradient, from whose computation on the run begins; -1: at the start
    save_from,  # gradient, from which on states are saved; -1: none
    limit_s,
    starts_s,  # [N, W], written where states are saved
    saved_running,  # [N, R] what runs just before a gradient's computation ends, and until when
    saved_ends_s,
    saved_counts,  # [N, R] how many wait; the codes follow each other, resource by resource
    saved_codes,  # [N, N + 2]
    saved_came_s,
    queues,  # [R, Q] scratch: codes of tasks that wait, gradient * W + number, and when they came
    came_s,
    ends_of_queues,  # [2, R] heads and tails
):
    num_gradients, width = resources.shape
    num_resources = queues.shape[0]
    heads, tails = ends_of_queues[0], ends_of_queues[1]
    running, ends_s = np.empty(num_resources, np.int64), np.empty(num_resources)
    heads[:] = 0
    if changed < 0:
        tails[:] = 0
        tails[0] = 1
        queues[0, 0], came_s[0, 0] = 0, 0.0
        running[:], ends_s[:] = -1, np.inf
        now_s = 0.0
    else:
        place = 0
        for r in range(num_resources):
            running[r], ends_s[r], tails[r] = saved_running[changed, r], saved_ends_s[changed, r], 0
            for _ in range(saved_counts[changed, r]):
                queues[r, tails[r]], came_s[r, tails[r]] = saved_codes[changed, place], saved_came_s[changed, place]
                tails[r] += 1
                place += 1
        now_s = -1.0
    last_s = 0.0
    while True:
        if now_s >= 0.0:
            for r in range(num_resources):
                if running[r] < 0 and heads[r] < tails[r]:
                    code = queues[r, heads[r]]
                    heads[r] += 1
                    gradient, number = code // width, code % width
                    if gradient == changed and own_length > 0:
                        took_s = own_seconds[number]
                    else:
                        took_s = seconds[gradient, number]
                    running[r], ends_s[r] = code, now_s + took_s
                    if save_from >= 0:
                        starts_s[gradient, number] = now_s
        now_s = np.inf
        for r in range(num_resources):
            now_s = min(now_s, ends_s[r])
        if now_s == np.inf:
            return last_s
        if now_s > limit_s:
            return np.inf
        last_s = now_s
        if save_from >= 0 and running[0] >= 0 and ends_s[0] == now_s and running[0] % width == 0:
            gradient = running[0] // width
            if gradient >= save_from:
                place = 0
                for r in range(num_resources):
                    saved_running[gradient, r], saved_ends_s[gradient, r] = running[r], ends_s[r]
                    saved_counts[gradient, r] = tails[r] - heads[r]
                    for q in range(heads[r], tails[r]):
                        saved_codes[gradient, place], saved_came_s[gradient, place] = queues[r, q], came_s[r, q]
                        place += 1
        for r in range(num_resources):
            if ends_s[r] != now_s:
                continue
            gradient, number = running[r] // width, running[r] % width
            running[r], ends_s[r] = -1, np.inf
            is_own = gradient == changed and own_length > 0
            length = own_length if is_own else lengths[gradient]
            for step in range(2):
                if step == 0 and number + 1 < length:
                    code = gradient * width + number + 1
                    target = own_resources[number + 1] if is_own else resources[gradient, number + 1]
                elif step == 1 and number == 0 and gradient + 1 < num_gradients:
                    code, target = (gradient + 1) * width, 0
                else:
                    continue
                at = tails[target]
                while at > heads[target] and came_s[target, at - 1] == now_s and queues[target, at - 1] > code:
                    queues[target, at], came_s[target, at] = queues[target, at - 1], came_s[target, at - 1]
                    at -= 1
                queues[target, at], came_s[target, at] = code, now_s
                tails[target] += 1
