"""Algorithms 4.1 and 4.2: options for GPUs tensor by tensor, the largest first; then compression moved to CPUs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import product

from workbench.timeline.queues import Chain

from ..cost import Job
from .options import Comm, Option, Processor

__all__ = ["Found", "compress_on_gpus", "find_strategy", "improve", "offload", "offloaded"]

MOST_TRAVERSED = 20_000  # combinations of algorithm 4.2; beyond it one group after the other is chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A strategy, and how it was found."""

    strategy: tuple[Option, ...]  # of the tensors, in the order of the job's gradients
    iteration_s: float  # F of it
    num_evaluated: int  # strategies
    is_traversed: bool = True  # algorithm 4.2 looked at all its combinations


class _Plan:
    """A strategy that is changed tensor by tensor, and its timeline."""

    def __init__(self, job: Job, strategy: Sequence[Option]):
        self.job, self.strategy, self.queues = job, list(strategy), job.queues(strategy)
        self.num_evaluated = 0

    def set_(self, tensor: int, option: Option) -> None:
        self.strategy[tensor] = option
        self.queues.set_(tensor, self.job.chain(option, self.job.gradients.num_elements[tensor]))

    def take_best_(self, tensor: int, chains: Sequence[tuple[Chain, Option]]) -> bool:
        """Give a tensor the option with the least F, if it is less than that of its own: GetBestOption()."""
        best_s, best = self.queues.duration_s, None
        for chain, option in chains:
            found_s = self.queues.duration_with(tensor, chain, best_s)
            if found_s < best_s:
                best_s, best = found_s, option
        self.num_evaluated += len(chains)
        if best is not None:
            self.set_(tensor, best)
        return best is not None

    def found(self, **more: bool) -> Found:
        iteration_s = self.job.gradients.forward_s + self.queues.duration_s
        return Found(strategy=tuple(self.strategy), iteration_s=iteration_s, num_evaluated=self.num_evaluated, **more)


def find_strategy(job: Job) -> Found:
    """Run algorithm 4.1, then 4.2: Espresso's strategy for a job."""
    on_gpus = compress_on_gpus(job)
    found = offload(job, on_gpus.strategy)
    return replace(found, num_evaluated=on_gpus.num_evaluated + found.num_evaluated)


def compress_on_gpus(job: Job, *, is_pruned: bool = True) -> Found:
    """Run algorithm 4.1.

    Args:
        job: whose options on GPUs alone are considered.
        is_pruned: of all options that use the resources in one order, leave out those that take at least as long as
            another one in every task. Without it all are looked at, as the algorithm is written.
    """
    sizes = job.gradients.num_elements
    options = [option for option in job.options if option.is_compressed and Processor.CPU not in option.processors]
    chains = {size: _chains(job, options, size, is_pruned) for size in set(sizes)}
    plan = _Plan(job, [job.uncompressed] * len(sizes))
    removed = _before_bubbles(plan)
    for tensor in _largest_first(job):
        if tensor not in removed and plan.take_best_(tensor, chains[sizes[tensor]]):
            removed |= _before_bubbles(plan)
    return plan.found()


def improve(job: Job, strategy: Sequence[Option]) -> Found:
    """Change one tensor's option after the other to the best one on GPUs, until none gains; not in the paper.

    Algorithm 4.1 looks at a tensor once, and never at those before a bubble. Each pass here looks at all, the largest
    first, and may take a compression back.
    """
    sizes, plan = job.gradients.num_elements, _Plan(job, strategy)
    options = [job.uncompressed, *(option for option in job.options if Processor.CPU not in option.processors)]
    chains = {size: _chains(job, options, size, is_pruned=True) for size in set(sizes)}
    is_better = True
    while is_better:
        is_better = False
        for tensor in _largest_first(job):
            is_better |= plan.take_best_(tensor, chains[sizes[tensor]])
    return plan.found()


def _largest_first(job: Job) -> list[int]:
    """Sort tensors by size; of one size, the gradient that comes last goes first: it overlaps least (property 2)."""
    sizes = job.gradients.num_elements
    return sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], -tensor))


def _chains(job: Job, options: Sequence[Option], num_elements: int, is_pruned: bool) -> list[tuple]:
    """Return the different chains of a size, with the first option of each."""
    chains: dict[tuple, Option] = {}
    for option in options:
        chains.setdefault(job.chain(option, num_elements), option)
    if not is_pruned:
        return list(chains.items())
    by_order = defaultdict(list)
    for chain in chains:
        by_order[tuple(resource for resource, _ in chain)].append([seconds for _, seconds in chain])
    kept = []
    for order, all_seconds in by_order.items():
        for seconds in all_seconds:
            better = (all(a <= b for a, b in zip(other, seconds, strict=True)) for other in all_seconds)
            if sum(better) == 1:  # only itself
                chain = tuple(zip(order, seconds, strict=True))
                kept.append((chain, chains[chain]))
    return kept


def _before_bubbles(plan: _Plan) -> set[int]:
    """Return the uncompressed tensors whose communication is over when a bubble begins: Remove().

    A bubble is a time in which no link works, because the next tensor is not ready for its first communication.
    """
    strategy, spans = plan.strategy, []  # start, end, tensor, whether it is the tensor's first communication
    for tensor, tasks in enumerate(plan.queues.placed()):
        sent = [span for span, task in zip(tasks[1:], strategy[tensor].tasks, strict=True) if isinstance(task, Comm)]
        spans += [(*span, tensor, number == 0) for number, span in enumerate(sent)]
    spans.sort()
    last_s, busy_until_s = -math.inf, -math.inf  # when the last bubble ended
    ends_s = [0.0] * len(strategy)
    for start_s, end_s, tensor, is_first in spans:
        if start_s > busy_until_s and is_first:
            last_s = start_s
        busy_until_s = max(busy_until_s, end_s)
        ends_s[tensor] = max(ends_s[tensor], end_s)
    return {tensor for tensor, end_s in enumerate(ends_s) if end_s < last_s and not strategy[tensor].is_compressed}


def offloaded(option: Option) -> Option:
    """Return the option that does on CPUs what this one does on GPUs."""
    text = str(option).replace(f".{Processor.GPU}", f".{Processor.CPU}")
    return Option.parse(text)


def offload(job: Job, strategy: Sequence[Option]) -> Found:
    """Run algorithm 4.2 on a strategy of GPUs: how many tensors of each group go to CPUs, the earliest gradients first.

    A group is of one size and one option. All combinations of numbers are traversed; where they are more than
    `MOST_TRAVERSED`, the groups choose their number in turn, the largest first, until none gains.
    """
    plan = _Offloading(job, strategy)
    choices = [range(len(group) + 1) for group in plan.groups]
    is_traversed = math.prod(map(len, choices)) <= MOST_TRAVERSED
    if is_traversed:
        plan.take_best_counts_(product(*choices))
    is_better = not is_traversed
    while is_better:
        is_better = False
        for group, counts in enumerate(choices):
            others = plan.counts[:group], plan.counts[group + 1 :]
            is_better |= plan.take_best_counts_((*others[0], count, *others[1]) for count in counts)
    return plan.found(is_traversed=is_traversed)


class _Offloading(_Plan):
    """A strategy of GPUs, of whose groups the first so many tensors each are on CPUs."""

    def __init__(self, job: Job, strategy: Sequence[Option]):
        super().__init__(job, strategy)
        groups = defaultdict(list)
        for tensor, (option, size) in enumerate(zip(strategy, job.gradients.num_elements, strict=True)):
            if option.is_compressed:
                groups[-size, option].append(tensor)
        self.groups = [groups[key] for key in sorted(groups, key=lambda key: key[0])]
        self.counts = (0,) * len(self.groups)
        self._on_gpus = tuple(strategy)

    def take_best_counts_(self, choices: Iterable[tuple[int, ...]]) -> bool:
        """Move to the best of the choices, if it is better than now."""
        before_s = best_s = self.queues.duration_s
        best = self.counts
        for counts in choices:
            self._move_to_(counts)
            self.num_evaluated += 1
            if self.queues.duration_s < best_s:
                best_s, best = self.queues.duration_s, counts
        self._move_to_(best)
        return best_s < before_s

    def _move_to_(self, counts: tuple[int, ...]) -> None:
        for group, now, wanted in zip(self.groups, self.counts, counts, strict=True):
            for tensor in group[wanted:now]:
                self.set_(tensor, self._on_gpus[tensor])
            for tensor in group[now:wanted]:
                self.set_(tensor, offloaded(self._on_gpus[tensor]))
        self.counts = counts
