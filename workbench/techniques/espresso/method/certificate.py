"""A lower bound of F over all strategies, by linear programming: how far a strategy can be from the best at most.

Let x[j, o] say that tensor j has option o; a share is allowed. For every resource r and tensor i, all that r does for
tensors i, i + 1, ... happens after the gradient of i is ready:

    T >= ready_i + sum over j >= i and o of x[j, o] seconds[r, j, o]

The device computes besides, so that its sum begins at 0 and holds all gaps. And T >= ready_j + all tasks of j. The
smallest T that shares allow is at most that of any strategy.
"""

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array

from workbench.timeline.queues import DEVICE

from ..cost import RESOURCES, Job

__all__ = ["lower_bound_s"]


def lower_bound_s(job: Job) -> float:
    """Return a time below which no strategy of the job's options brings F.

    Raises:
        RuntimeError: if the linear program is not solved.
    """
    sizes, num_resources = job.gradients.num_elements, len(RESOURCES)
    loads = {size: _loads(job, size) for size in set(sizes)}  # [options, R + 1]
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


def _loads(job: Job, size: int) -> np.ndarray:
    """Return seconds on each resource, and of the whole chain, of the options that no other one is below in all."""
    found = set()
    for option in (job.uncompressed, *job.options):
        seconds = [0.0] * len(RESOURCES)
        for resource, took_s in job.chain(option, size):
            seconds[resource] += took_s
        found.add((*seconds, sum(seconds)))
    loads = np.array(sorted(found))
    kept: list[np.ndarray] = []
    for load in loads:  # sorted: none is below an earlier one in all
        if not any((other <= load).all() for other in kept):
            kept.append(load)
    return np.array(kept)


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
