"""Certificates of optimality: a lower bound of F by linear programming, and the optimum of small jobs.

x[j, o] is the share of tensor j that has option o. For every resource r and tensor i, the work of r for tensors
i, i + 1, ... begins after the gradient of i is ready:

    T >= ready_i + sum over j >= i and o of x[j, o] seconds[r, j, o]

The device also computes the gradients, so that its sum begins at tensor 0 and includes all gaps. Every tensor j also
gives T >= ready_j + all tasks of j. The smallest T over all shares is a lower bound for strategies, whose
shares are 0 or 1.
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

ROUNDED = 9  # digits that are equal in sums of another order


def lower_bound_s(job: Job) -> float:
    """Return a lower bound of F for all strategies of the job's options.

    Raises:
        RuntimeError: if the linear program is not solved.
    """
    sizes = job.gradients.num_elements
    num_resources = len(RESOURCES)
    loads = _loads(job)  # by size [options, R + 1]
    counts = [len(loads[size]) for size in sizes]
    starts = np.concatenate([[0], np.cumsum(counts)])
    num_tensors, num_shares = len(sizes), int(starts[-1])
    # Variables: the shares; the work of each resource from each tensor on; T.
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
    solution = linprog(
        objective, A_ub=limits.matrix(last + 1), b_ub=limits.right, A_eq=equal.matrix(last + 1), b_eq=equal.right
    )
    if not solution.success:
        raise RuntimeError(f"the lower bound of {job.gradients.name} was not found: {solution.message}")
    return job.gradients.forward_s + float(solution.fun)


def best_by_exhaustion(job: Job, options: Sequence[Option]) -> tuple[tuple[Option, ...], float]:
    """Return the best strategy of these options and its F by trying all |options| ** tensors strategies."""
    *sizes, last = job.gradients.num_elements
    chains = {size: [job.packed([option], [size]) for option in options] for size in set(sizes)}
    lasts = job.packed(options, [last] * len(options))
    queues = job.queues([options[0]] * (len(sizes) + 1))
    best_s = math.inf
    best: tuple[int, ...] = ()
    for chosen in product(range(len(options)), repeat=len(sizes)):
        for tensor, (size, number) in enumerate(zip(sizes, chosen, strict=True)):
            queues.set_(tensor, chains[size][number])
        last_number, duration_s = queues.best_chain(len(sizes), lasts, best_s)
        if last_number >= 0:
            best, best_s = (*chosen, last_number), duration_s
    return tuple(options[number] for number in best), job.gradients.forward_s + best_s


def _loads(job: Job) -> dict[int, np.ndarray]:
    """Return, by size, the times of undominated options on each resource, then the time of their whole chain."""
    different: dict[frozenset, Option] = {}  # options with equal work in another order count once
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
    """Return the rows that no other row is below in all columns; rows are distinct, in lexicographic order."""
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
