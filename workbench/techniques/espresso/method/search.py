"""Algorithms 4.1 and 4.2: options for GPUs tensor by tensor, the largest first; then compression moved to CPUs."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product

import numpy as np

from workbench.compression.costs import Processor
from workbench.timeline.queues import Chains

from .job import INTRA, Job
from .options import Option

__all__ = ["Found", "choose_options", "compress_on_gpus", "find_strategy", "improve", "offload", "offloaded"]

NUM_PAIRED = 4  # tensors of `improve`
MOST_TRAVERSED = 20_000  # combinations of algorithm 4.2; beyond it one group after the other is chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A strategy, and how it was found."""

    strategy: tuple[Option, ...]  # of the tensors, in the order of the job's gradients
    iteration_s: float  # F of it
    num_evaluated: int  # strategies
    is_traversed: bool = True  # algorithm 4.2 looked at all its combinations


@dataclass(frozen=True, slots=True)
class _Choices:
    """Options for tensors of one size, and their chains."""

    options: Sequence[Option]
    chains: Chains


class _Plan:
    """A strategy that is changed tensor by tensor, and its timeline."""

    def __init__(self, job: Job, strategy: Sequence[Option]):
        self.job, self.strategy, self.queues = job, list(strategy), job.queues(strategy)
        self.num_evaluated = 0

    def set_(self, tensor: int, option: Option) -> None:
        self.strategy[tensor] = option
        self.queues.set_(tensor, self.job.packed([option], [self.job.gradients.num_elements[tensor]]))

    def take_best_(self, tensor: int, choices: _Choices, *, must_change: bool = False) -> bool:
        """Give a tensor the option with the least F, if it is less than that of its own: GetBestOption()."""
        limit_s = math.inf if must_change else self.queues.duration_s
        best, _ = self.queues.best_chain(tensor, choices.chains, limit_s)
        self.num_evaluated += len(choices.options)
        if best >= 0:
            self.set_(tensor, choices.options[best])
        return best >= 0

    def take_best_pair_(self, pair: Sequence[int], choices: Sequence[_Choices]) -> bool:
        """Give two tensors the options with which F is least, if it is less than with their own."""
        (first, second), before = pair, self.strategy[pair[0]]
        best_s, best = self.queues.duration_s, None
        for option in choices[0].options:
            self.set_(first, option)
            number, found_s = self.queues.best_chain(second, choices[1].chains, best_s)
            if number >= 0:
                best_s, best = found_s, (option, choices[1].options[number])
        self.num_evaluated += len(choices[0].options) * len(choices[1].options)
        self.set_(first, before if best is None else best[0])
        if best is not None:
            self.set_(second, best[1])
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
    """Run algorithm 4.1 over the job's options on GPUs alone; see `choose_options`."""
    options = [option for option in _without_cpus(job.options) if option.is_compressed]
    return choose_options(job, options, is_pruned=is_pruned)


@cache
def _without_cpus(options: tuple[Option, ...]) -> tuple[Option, ...]:
    return tuple(option for option in options if Processor.CPU not in option.processors)


def choose_options(
    job: Job, options: Sequence[Option], *, must_compress: bool = False, is_pruned: bool = True
) -> Found:
    """Run algorithm 4.1.

    Args:
        job: whose tensors are to be compressed.
        options: that compress, and may be chosen.
        must_compress: every tensor gets the best of them, whether it gains or not, also before a bubble.
        is_pruned: of all options that use the resources in one order, leave out those that take at least as long as
            another one in every task. Without it all are looked at, as the algorithm is written.
    """
    sizes = job.gradients.num_elements
    plan = _Plan(job, [job.uncompressed] * len(sizes))
    choices = _choices(job, options, is_pruned=is_pruned)
    removed = set() if must_compress else _before_bubbles(plan)
    for tensor in _largest_first(job):
        if tensor in removed:
            continue
        is_changed = plan.take_best_(tensor, choices[sizes[tensor]], must_change=must_compress)
        if is_changed and not must_compress:
            removed |= _before_bubbles(plan)
    return plan.found()


def improve(job: Job, strategy: Sequence[Option]) -> Found:
    """Change one tensor's option after the other to the best one on GPUs, until none gains; not in the paper.

    Algorithm 4.1 looks at a tensor once, and never at those before a bubble. Each pass here looks at all, the largest
    first, and may take a compression back. Where none gains, the `NUM_PAIRED` largest are changed two at a time: of two
    large gradients in a row, compressing one alone may gain nothing.
    """
    plan = _Plan(job, strategy)
    choices, order = _choices(job, [job.uncompressed, *_without_cpus(job.options)]), _largest_first(job)
    of = [choices[size] for size in job.gradients.num_elements]
    is_better = True
    while is_better:
        num_changed = sum(plan.take_best_(tensor, of[tensor]) for tensor in order)
        pairs = combinations(order[:NUM_PAIRED], 2)
        is_better = num_changed > 0 or any(plan.take_best_pair_(pair, [of[t] for t in pair]) for pair in pairs)
    return plan.found()


def _largest_first(job: Job) -> list[int]:
    """Sort tensors by size; of one size, the gradient that comes last goes first: it overlaps least (property 2)."""
    sizes = job.gradients.num_elements
    return sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], -tensor))


def _choices(job: Job, options: Sequence[Option], *, is_pruned: bool = True) -> dict[int, _Choices]:
    """Return the options of each size; pruned: only those that no other of the same order beats in all tasks."""
    orders = defaultdict(list)
    for number, option in enumerate(options):
        orders[job.resources(option)].append(number)
    kept = np.ones((len(job.sizes), len(options)), bool)
    for numbers in orders.values() if is_pruned else ():
        seconds = np.stack([job.seconds(options[number]).T for number in numbers])  # [n, sizes, tasks]
        is_below = (seconds[:, None] <= seconds[None]).all(axis=3)  # [n, n, sizes]: the first, in all tasks
        is_first = np.tri(len(numbers), k=-1, dtype=bool).T[:, :, None]  # of equal ones
        kept[:, numbers] = ~(is_below & (is_first | ~is_below.swapaxes(0, 1))).any(axis=0).T
    found = {}
    for row, size in enumerate(job.sizes):
        of_size = [options[number] for number in np.flatnonzero(kept[row])]
        found[size] = _Choices(of_size, job.packed(of_size, [size] * len(of_size)))
    return found


def _before_bubbles(plan: _Plan) -> set[int]:
    """Return the uncompressed tensors whose communication is over when a bubble begins: Remove().

    A bubble is a time in which no link works, because the next tensor is not ready for its first communication.
    """
    spans = plan.queues.spans
    is_sent = spans.is_task & (spans.resource >= INTRA)
    tensors, numbers = np.nonzero(is_sent)
    start_s, end_s = spans.start_s[is_sent], spans.end_s[is_sent]
    is_first = numbers == is_sent.argmax(axis=1)[tensors]
    order = np.lexsort((end_s, start_s))
    busy_until_s = np.concatenate([[-math.inf], np.maximum.accumulate(end_s[order])[:-1]])
    begins = is_first[order] & (start_s[order] > busy_until_s)
    last_s = start_s[order][begins].max(initial=-math.inf)  # when the last bubble ended
    ends_s = np.where(is_sent, spans.end_s, 0.0).max(axis=1)
    return {int(tensor) for tensor in np.flatnonzero(ends_s < last_s) if not plan.strategy[tensor].is_compressed}


def offloaded(option: Option) -> Option:
    """Return the option that does on CPUs what this one does on GPUs."""
    text = str(option).replace(f".{Processor.GPU}", f".{Processor.CPU}")
    return Option.parse(text)


def offload(job: Job, strategy: Sequence[Option]) -> Found:
    """Run algorithm 4.2 on a strategy of GPUs: how many tensors of each group go to CPUs, the earliest gradients first.

    A group is of one size and one option. All combinations of numbers are traversed; where they are more than
    `MOST_TRAVERSED`, the groups choose their number in turn, the largest first, until none gains.
    """
    groups = defaultdict(list)
    for tensor, (option, size) in enumerate(zip(strategy, job.gradients.num_elements, strict=True)):
        if option.is_compressed:
            groups[-size, option].append(tensor)
    groups = [groups[key] for key in sorted(groups, key=lambda key: key[0])]
    plan = _Offloading(job, strategy, groups)
    is_traversed = math.prod(len(group) + 1 for group in groups) <= MOST_TRAVERSED
    is_better = not is_traversed
    if is_traversed and groups:
        plan.take_best_counts_(range(len(groups)))
    while is_better:
        is_better = False
        for group in range(len(groups)):
            is_better |= plan.take_best_counts_([group])
    return plan.found(is_traversed=is_traversed)


class _Offloading(_Plan):
    """A strategy of GPUs, of whose groups the first so many tensors each are on CPUs."""

    def __init__(self, job: Job, strategy: Sequence[Option], groups: Sequence[Sequence[int]]):
        super().__init__(job, strategy)
        self._groups, self._counts = groups, [0] * len(groups)
        self._places = tuple(strategy), tuple(map(offloaded, strategy))

    def take_best_counts_(self, chosen: Iterable[int]) -> bool:
        """Move to the best numbers of the chosen groups, if it is better than now."""
        ranges = [(count,) for count in self._counts]
        # The groups whose tensors come last vary fastest: that changes the end of the timeline.
        for group in chosen:
            ranges[group] = range(len(self._groups[group]) + 1)
        order = sorted(range(len(ranges)), key=lambda group: self._groups[group][0])
        counts = np.array(list(product(*(ranges[group] for group in order))), int).reshape(-1, len(order))
        on_cpus = np.zeros((len(counts), len(self.strategy)), bool)
        for place, group in enumerate(order):
            tensors = self._groups[group]
            on_cpus[:, tensors] = np.arange(len(tensors)) < counts[:, place, None]
        now = np.array([option is not on_gpus for option, on_gpus in zip(self.strategy, self._places[0], strict=True)])
        others = [self._places[int(not is_on_cpu)][tensor] for tensor, is_on_cpu in enumerate(now)]
        packed = self.job.packed(others, self.job.gradients.num_elements)
        best = self.queues.take_best_(packed, on_cpus ^ now)
        self.num_evaluated += len(counts)
        if best >= 0:
            for place, group in enumerate(order):
                self._counts[group] = int(counts[best, place])
            self.strategy = [self._places[int(on_cpus[best, t])][t] for t in range(len(self.strategy))]
        return best >= 0
