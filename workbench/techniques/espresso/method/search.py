"""Algorithms 4.1 and 4.2: options for GPUs tensor by tensor, the largest first; then compression moved to CPUs."""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from workbench.timeline.queues import Queues

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


def find_strategy(job: Job) -> Found:
    """Run algorithm 4.1, then 4.2: Espresso's strategy for a job."""
    on_gpus = compress_on_gpus(job)
    found = offload(job, on_gpus.strategy)
    return Found(
        strategy=found.strategy,
        iteration_s=found.iteration_s,
        num_evaluated=on_gpus.num_evaluated + found.num_evaluated,
        is_traversed=found.is_traversed,
    )


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
    strategy = [job.uncompressed] * len(sizes)
    queues, num_evaluated = job.queues(strategy), 0
    # Of one size, the gradient that comes last goes first: it overlaps least.
    left = sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], -tensor))
    removed = _before_bubbles(queues, strategy)
    for tensor in left:
        if tensor in removed:
            continue
        best_s, best = queues.duration_s, None
        for chain, option in chains[sizes[tensor]]:
            found_s = queues.duration_with(tensor, chain, best_s)
            num_evaluated += 1
            if found_s < best_s:
                best_s, best = found_s, (chain, option)
        if best is not None:
            queues.set_(tensor, best[0])
            strategy[tensor] = best[1]
            removed |= _before_bubbles(queues, strategy)
    iteration_s = job.gradients.forward_s + queues.duration_s
    return Found(strategy=tuple(strategy), iteration_s=iteration_s, num_evaluated=num_evaluated)


def improve(job: Job, strategy: Sequence[Option]) -> Found:
    """Change one tensor's option after the other to the best one on GPUs, until none gains; not in the paper.

    Algorithm 4.1 looks at a tensor once, and never at those before a bubble. Each pass here looks at all, the largest
    first, and may take a compression back.
    """
    sizes = job.gradients.num_elements
    options = [option for option in job.options if Processor.CPU not in option.processors]
    chains = {size: _chains(job, [job.uncompressed, *options], size, True) for size in set(sizes)}
    queues, plan, num_evaluated = job.queues(strategy), list(strategy), 0
    before_s = math.inf
    while queues.duration_s < before_s:
        before_s = queues.duration_s
        for tensor in sorted(range(len(sizes)), key=lambda tensor: (-sizes[tensor], -tensor)):
            best_s, best = queues.duration_s, None
            for chain, option in chains[sizes[tensor]]:
                found_s = queues.duration_with(tensor, chain, best_s)
                num_evaluated += 1
                if found_s < best_s:
                    best_s, best = found_s, (chain, option)
            if best is not None:
                queues.set_(tensor, best[0])
                plan[tensor] = best[1]
    iteration_s = job.gradients.forward_s + queues.duration_s
    return Found(strategy=tuple(plan), iteration_s=iteration_s, num_evaluated=num_evaluated)


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


def _before_bubbles(queues: Queues, strategy: Sequence[Option]) -> set[int]:
    """Return the uncompressed tensors whose communication is over when a bubble begins.

    A bubble is a time in which no link works, because the next tensor is not ready for its first communication.
    """
    spans = []  # start, end, tensor, whether it is the tensor's first communication
    for tensor, tasks in enumerate(queues.placed()):
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
    groups = defaultdict(list)
    for tensor, (option, size) in enumerate(zip(strategy, job.gradients.num_elements, strict=True)):
        if option.is_compressed:
            groups[size, option].append(tensor)
    members = [groups[key] for key in sorted(groups, key=lambda key: -key[0])]
    queues, plan, num_evaluated = job.queues(strategy), list(strategy), 0

    def move(group: int, count: int, counts: list[int]) -> None:
        """Let the first `count` tensors of a group be on CPUs."""
        low, high = sorted((count, counts[group]))
        for tensor in members[group][low:high]:
            plan[tensor] = offloaded(strategy[tensor]) if count > counts[group] else strategy[tensor]
            queues.set_(tensor, job.chain(plan[tensor], job.gradients.num_elements[tensor]))
        counts[group] = count

    counts = [0] * len(members)
    best_s, best = queues.duration_s, list(counts)
    is_traversed = math.prod(len(group) + 1 for group in members) <= MOST_TRAVERSED
    for wanted in product(*(range(len(group) + 1) for group in members)) if is_traversed else ():
        for group, count in enumerate(wanted):
            if count != counts[group]:
                move(group, count, counts)
        num_evaluated += 1
        if queues.duration_s < best_s:
            best_s, best = queues.duration_s, list(counts)
    is_better = not is_traversed
    while is_better:
        is_better = False
        for group, others in enumerate(members):
            for count in range(len(others) + 1):
                move(group, count, counts)
                num_evaluated += 1
                if queues.duration_s < best_s:
                    best_s, best, is_better = queues.duration_s, list(counts), True
            move(group, best[group], counts)
    for group, count in enumerate(best):
        move(group, count, counts)
    return Found(
        strategy=tuple(plan),
        iteration_s=job.gradients.forward_s + best_s,
        num_evaluated=num_evaluated,
        is_traversed=is_traversed,
    )
