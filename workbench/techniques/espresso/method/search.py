"""Algorithm 4.1 chooses options for GPUs, tensor by tensor; algorithm 4.2 then moves compression to CPUs."""

import math
import time
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

__all__ = ["Found", "before_bubbles", "brute_force", "choose_options", "compress_on_gpus", "find_strategy", "improve"]
__all__ += ["offload", "offloaded"]

NUM_PAIRED = 4  # largest tensors, which `improve` changes in pairs
MOST_TRAVERSED = 20_000  # combinations that algorithm 4.2 tries; with more, it optimises one group at a time


@dataclass(frozen=True, kw_only=True, slots=True)
class Found:
    """A strategy, its iteration time, and the effort of the search."""

    strategy: tuple[Option, ...]  # an option for each tensor, in the order of the job's gradients
    iteration_s: float  # F
    num_evaluated: int  # strategies
    is_traversed: bool = True  # algorithm 4.2 tried all combinations


@dataclass(frozen=True, slots=True)
class _Choices:
    """Options for tensors of one size, and their chains of tasks."""

    options: Sequence[Option]
    chains: Chains


class _Plan:
    """A strategy that changes tensor by tensor, and its timeline."""

    def __init__(self, job: Job, strategy: Sequence[Option]):
        self.job = job
        self.strategy = list(strategy)
        self.queues = job.queues(strategy)
        self.num_evaluated = 0

    def set_(self, tensor: int, option: Option) -> None:
        self.strategy[tensor] = option
        self.queues.set_(tensor, self.job.packed([option], [self.job.gradients.num_elements[tensor]]))

    def take_best_(self, tensor: int, choices: _Choices, *, must_change: bool = False) -> bool:
        """Give a tensor the option with the least F if this lowers F; say whether it changed: GetBestOption()."""
        limit_s = math.inf if must_change else self.queues.duration_s
        best, _ = self.queues.best_chain(tensor, choices.chains, limit_s)
        self.num_evaluated += len(choices.options)
        if best >= 0:
            self.set_(tensor, choices.options[best])
        return best >= 0

    def take_best_pair_(self, pair: Sequence[int], choices: Sequence[_Choices]) -> bool:
        """Give two tensors the options with the least F if these lower F; say whether they changed."""
        first, second = pair
        before = self.strategy[first]
        best_s, best = self.queues.duration_s, None
        for option in choices[0].options:
            self.set_(first, option)
            number, duration_s = self.queues.best_chain(second, choices[1].chains, best_s)
            if number >= 0:
                best_s, best = duration_s, (option, choices[1].options[number])
        self.num_evaluated += len(choices[0].options) * len(choices[1].options)
        self.set_(first, before if best is None else best[0])
        if best is not None:
            self.set_(second, best[1])
        return best is not None

    def result(self, **more: bool) -> Found:
        iteration_s = self.job.gradients.forward_s + self.queues.duration_s
        return Found(strategy=tuple(self.strategy), iteration_s=iteration_s, num_evaluated=self.num_evaluated, **more)


def find_strategy(job: Job) -> Found:
    """Run algorithm 4.1, then 4.2: Espresso's strategy for a job."""
    on_gpus = compress_on_gpus(job)
    on_both = offload(job, on_gpus.strategy)
    return replace(on_both, num_evaluated=on_gpus.num_evaluated + on_both.num_evaluated)


def compress_on_gpus(job: Job, *, is_pruned: bool = True) -> Found:
    """Run algorithm 4.1 with the options that use GPUs only; see `choose_options`."""
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
        job: the job with the tensors to compress.
        options: the compressing options to choose from.
        must_compress: compress every tensor with its best option, even without a gain and before a bubble.
        is_pruned: skip an option if another option with the same order of resources is at least as fast in every
            task. If false, try all options, as the paper does.
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
    return plan.result()


def improve(job: Job, strategy: Sequence[Option]) -> Found:
    """Give tensors their best GPU options in turn until no change gains; not in the paper.

    Algorithm 4.1 visits a tensor once and skips tensors before a bubble. Here each pass visits all tensors, the largest
    first, and may undo a compression. If no single change gains, the `NUM_PAIRED` largest tensors change in pairs: with
    two large gradients in a row, compressing only one may gain nothing.
    """
    plan = _Plan(job, strategy)
    by_size = _choices(job, [job.uncompressed, *_without_cpus(job.options)])
    choices = [by_size[size] for size in job.gradients.num_elements]
    order = _largest_first(job)
    is_better = True
    while is_better:
        num_changed = sum(plan.take_best_(tensor, choices[tensor]) for tensor in order)
        pairs = combinations(order[:NUM_PAIRED], 2)
        is_better = num_changed > 0 or any(plan.take_best_pair_(pair, [choices[t] for t in pair]) for pair in pairs)
    return plan.result()


def _largest_first(job: Job) -> list[int]:
    """Sort tensors by size; of equal tensors, the latest gradient comes first since it overlaps least (property 2)."""
    sizes = job.gradients.num_elements
    return sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], -tensor))


def _choices(job: Job, options: Sequence[Option], *, is_pruned: bool = True) -> dict[int, _Choices]:
    """Return the options of each size, pruned as in `choose_options`."""
    orders = defaultdict(list)
    for number, option in enumerate(options):
        orders[job.resources(option)].append(number)
    kept = np.ones((len(job.sizes), len(options)), bool)
    for numbers in orders.values() if is_pruned else ():
        seconds = np.stack([job.seconds(options[number]).T for number in numbers])  # [n, sizes, tasks]
        # [n, n, sizes]: whether the first option is at most the second in all tasks
        is_below = np.all(seconds[:, None] <= seconds[None], axis=3)
        is_first = np.tri(len(numbers), k=-1, dtype=bool).T[:, :, None]  # the first of equal options stays
        kept[:, numbers] = ~(is_below & (is_first | ~is_below.swapaxes(0, 1))).any(axis=0).T
    choices = {}
    for row, size in enumerate(job.sizes):
        kept_options = [options[number] for number in np.flatnonzero(kept[row]).tolist()]
        choices[size] = _Choices(kept_options, job.packed(kept_options, [size] * len(kept_options)))
    return choices


def before_bubbles(job: Job) -> set[int]:
    """Return the tensors whose communication ends before a bubble when none is compressed (property 1)."""
    return _before_bubbles(_Plan(job, [job.uncompressed] * job.gradients.num_tensors))


def _before_bubbles(plan: _Plan) -> set[int]:
    """Return the uncompressed tensors whose communication ends before a bubble: Remove().

    In a bubble no link works because the next tensor is not ready for its first communication.
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
    """Return the option with all compression moved from GPUs to CPUs."""
    return Option.parse(str(option).replace(f".{Processor.GPU}", f".{Processor.CPU}"))


def offload(job: Job, strategy: Sequence[Option]) -> Found:
    """Run algorithm 4.2: choose how many tensors of each group move from GPUs to CPUs, the earliest gradients first.

    The tensors of a group have the same size and option. All combinations of counts are tried. If these are more than
    `MOST_TRAVERSED`, the counts of single groups are optimised in turn, the largest tensors first, until none gains.
    """
    by_kind = defaultdict(list)
    for tensor, (option, size) in enumerate(zip(strategy, job.gradients.num_elements, strict=True)):
        if option.is_compressed:
            by_kind[-size, option].append(tensor)
    groups = [by_kind[kind] for kind in sorted(by_kind, key=lambda kind: kind[0])]
    plan = _Offloading(job, strategy, groups)
    is_traversed = math.prod(len(group) + 1 for group in groups) <= MOST_TRAVERSED
    is_better = not is_traversed
    if is_traversed and groups:
        plan.take_best_counts_(range(len(groups)))
    while is_better:
        is_better = False
        for group in range(len(groups)):
            is_better |= plan.take_best_counts_([group])
    return plan.result(is_traversed=is_traversed)


class _Offloading(_Plan):
    """A GPU strategy; the first k tensors of each group run on CPUs."""

    def __init__(self, job: Job, strategy: Sequence[Option], groups: Sequence[Sequence[int]]):
        super().__init__(job, strategy)
        self._groups = groups
        self._counts = [0] * len(groups)  # k of each group
        self._places = tuple(strategy), tuple(map(offloaded, strategy))  # each tensor's options on GPUs and on CPUs

    def take_best_counts_(self, chosen: Iterable[int]) -> bool:
        """Give the chosen groups their best counts if these lower F; say whether they changed."""
        ranges: list[Sequence[int]] = [(count,) for count in self._counts]
        for group in chosen:
            ranges[group] = range(len(self._groups[group]) + 1)
        # Groups with the latest tensors vary fastest, because they change only the end of the timeline.
        order = sorted(range(len(ranges)), key=lambda group: self._groups[group][0])
        counts = np.array(list(product(*(ranges[group] for group in order))), int).reshape(-1, len(order))
        on_cpus = np.zeros((len(counts), len(self.strategy)), bool)
        for place, group in enumerate(order):
            tensors = self._groups[group]
            on_cpus[:, tensors] = np.arange(len(tensors)) < counts[:, place, None]
        now = np.array([option is not on_gpus for option, on_gpus in zip(self.strategy, self._places[0], strict=True)])
        flipped = [self._places[int(not is_on_cpu)][tensor] for tensor, is_on_cpu in enumerate(now)]
        packed = self.job.packed(flipped, self.job.gradients.num_elements)
        best = self.queues.take_best_(packed, on_cpus ^ now)
        self.num_evaluated += len(counts)
        if best >= 0:
            for place, group in enumerate(order):
                self._counts[group] = int(counts[best, place])
            self.strategy = [self._places[int(on_cpus[best, t])][t] for t in range(len(self.strategy))]
        return best >= 0


def brute_force(job: Job, on_gpus: Sequence[Option], chosen: Sequence[int]) -> tuple[float, float]:
    """Try to compress each chosen tensor on GPUs and on CPUs; return the seconds it took and the least F."""
    others = job.packed(list(map(offloaded, on_gpus)), job.gradients.num_elements)
    choices = np.zeros((2 ** len(chosen), len(on_gpus)), bool)
    choices[:, chosen] = list(product((False, True), repeat=len(chosen)))
    queues = job.queues(on_gpus)
    began_s = time.perf_counter()
    queues.take_best_(others, choices)
    return time.perf_counter() - began_s, job.gradients.forward_s + queues.duration_s
