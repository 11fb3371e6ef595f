"""How far a strategy can be from the best: a lower bound of F by linear programming, and the optimum of small jobs.

Let x[j, o] say that tensor j has option o; a share is allowed. For every resource r and tensor i, all that r does for
tensors i, i + 1, ... happens after the gradient of i is ready:

    T >= ready_i + sum over j >= i and o of x[j, o] seconds[r, j, o]

The device computes besides, so that its sum begins at 0 and holds all gaps. And T >= ready_j + all tasks of j. The
smallest T that shares allow is at most that of any strategy.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from itertools import product

import numpy as np
from numba import njit
from scipy.optimize import linprog
from scipy.sparse import coo_array

from workbench.timeline.queues import DEVICE

from .job import RESOURCES, Job
from .options import Option

__all__ = ["best_by_exhaustion", "lower_bound_s"]

ROUNDED = 9  # digits of a number of messages: sums in another order differ in later ones


def lower_bound_s(job: Job) -> float:
    """Return a time below which no strategy of the job's options brings F.

    Raises:
        RuntimeError: if the linear program is not solved.
    """
    sizes, num_resources = job.gradients.num_elements, len(RESOURCES)
    loads = _loads(job)  # by size [options, R + 1]
    counts = [len(loads[size]) for size in sizes]
    starts = np.concatenate([[0], np.cumsum(counts)])
    num_tensors, num_shares = len(sizes), int(starts[-1])
    # Variables: shares; then for each resource and tensor the work from this tensor on; then T.
    work = num_shares + np.arange(num_resources * (num_tensors + 1)).reshape(num_resources, num_tensors + 1)
    last = int(work[-1, -1]) + 1
    ready_s = np.cumsum(job.gradients.gap_s)
    equal, limits = _Rows(), _Rows()
    for tensor, size in enumerate(sizes):
        shares = np.arange(starts[tensor], starts[tensor + 1])
        equal.add([(shares, 1.0)], 1.0)
        for resource in range(num_resources):
            terms = [(work[resource, tensor], 1.0), (work[resource, tensor + 1], -1.0)]
            equal.add([*terms, (shares, -loads[size][:, resource])], 0.0)
            begins_s = ready_s[-1] if resource == DEVICE else ready_s[tensor]
            if resource != DEVICE or tensor == 0:
                limits.add([(work[resource, tensor], 1.0), (last, -1.0)], -begins_s)
        limits.add([(shares, loads[size][:, -1]), (last, -1.0)], -ready_s[tensor])
    for resource in range(num_resources):
        equal.add([(work[resource, -1], 1.0)], 0.0)
    objective = np.zeros(last + 1)
    objective[last] = 1.0
    found = linprog(
        objective, A_ub=limits.matrix(last + 1), b_ub=limits.right, A_eq=equal.matrix(last + 1), b_eq=equal.right
    )
    if not found.success:
        raise RuntimeError(f"the lower bound of {job.gradients.name} was not found: {found.message}")
    return job.gradients.forward_s + float(found.fun)


def best_by_exhaustion(job: Job, options: Sequence[Option]) -> tuple[tuple[Option, ...], float]:
    """Return the best strategy of these options, and its F, by trying all: |options| ** tensors evaluations."""
    *sizes, last = job.gradients.num_elements
    chains = {size: [job.packed([option], [size]) for option in options] for size in set(sizes)}
    lasts = job.packed(options, [last] * len(options))
    queues, best_s, best = job.queues([options[0]] * (len(sizes) + 1)), math.inf, ()
    for chosen in product(range(len(options)), repeat=len(sizes)):
        for tensor, (size, number) in enumerate(zip(sizes, chosen, strict=True)):
            queues.set_(tensor, chains[size][number])
        found, found_s = queues.best_chain(len(sizes), lasts, best_s)
        if found >= 0:
            best, best_s = (*chosen, found), found_s
    return tuple(options[number] for number in best), job.gradients.forward_s + best_s


def _loads(job: Job) -> dict[int, np.ndarray]:
    """Return by size the seconds on each resource, and of the whole chain, of options that none is below in all."""
    different: dict[frozenset, Option] = {}  # options that do equal work in another order count once
    for option in (job.uncompressed, *job.options):
        work: dict[tuple, np.ndarray] = defaultdict(lambda: np.zeros(2))
        for step in job.steps(option):
            work[step.resource, step.kind, step.part] += (step.times, step.startups)
        key = frozenset((place, *amounts.round(ROUNDED).tolist()) for place, amounts in work.items())
        different.setdefault(key, option)
    loads = np.zeros((len(job.sizes), len(different), len(RESOURCES) + 1))
    for number, option in enumerate(different.values()):
        seconds = job.seconds(option).T
        for resource, taken_s in zip(job.resources(option), seconds.T, strict=True):
            loads[:, number, resource] += taken_s
        loads[:, number, -1] = seconds.sum(axis=1)
    return {size: _undominated(np.unique(of_size, axis=0)) for size, of_size in zip(job.sizes, loads, strict=True)}


@njit(cache=True)
def _undominated(loads):
    """Return the rows that no other is below in all columns, of rows in lexicographic order without equal ones."""
    kept = np.empty(len(loads), np.int64)
    num_kept = 0
    for row in range(len(loads)):
        is_below = False
        for place in range(num_kept):
            is_below = True
            for column in range(loads.shape[1]):
                if loads[kept[place], column] > loads[row, column]:
                    is_below = False
                    break
            if is_below:
                break
        if not is_below:
            kept[num_kept] = row
            num_kept += 1
    return loads[kept[:num_kept]]


class _Rows:
    """Rows of a sparse matrix and their right sides."""

    def __init__(self):
        self._row, self._column, self._value, self.right = [], [], [], []

    def add(self, terms, right: float) -> None:
        for columns, values in terms:
            columns = np.atleast_1d(columns)
            self._column.append(columns)
            self._value.append(np.broadcast_to(values, columns.shape))
            self._row.append(np.full(columns.shape, len(self.right)))
        self.right.append(right)

    def matrix(self, width: int) -> coo_array:
        place = np.concatenate(self._row), np.concatenate(self._column)
        return coo_array((np.concatenate(self._value), place), shape=(len(self.right), width)).tocsr()
