"""The lesson on semi-decentralised synchronisation: the scheduler, trainings on another clock, exercises."""

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from workbench.explore.code_exercises import check_on_cases, check_on_ranks
from workbench.explore.exercises import Exercise, Feedback, Mistake
from workbench.explore.explorer import Explorer, choice, steps
from workbench.plots import figure, gantt, training_curves
from workbench.plots.style import BLUE, INK, VERMILION
from workbench.techniques.sdpipe.cost import Scheme, drawn_delays_s, simulate
from workbench.techniques.sdpipe.method import Group, Scheduler, certify, connects_by_definition, synchronization_matrix
from workbench.techniques.sdpipe.simulated import PAPER, workload_of
from workbench.timeline import Action, Kind, Timeline

__all__ = ["Played", "check_average", "check_is_valid", "draw_graph", "draw_played", "explore_candidates"]
__all__ += ["explore_replay", "explore_scheduler", "groups_of_window", "mean_of_group", "play", "smallest_valid_group"]
__all__ += ["variance_of_mean"]

REPLAYED = 60  # mini-batches that are simulated
NUM_TRACES = 200  # on which a reader's validation is checked


@dataclass(frozen=True, kw_only=True, slots=True)
class Played:
    """The groups of one stage, and who waited when."""

    groups: tuple[Group, ...]
    timeline: Timeline  # a row a worker
    num_workers: int  # N
    history: int  # P
    connected: float  # share of the runs of P groups that connect all workers


def play(*, history: int, window: float, late: int, num_workers: int = 4, num_rounds: int = 8) -> Played:
    """Let one stage's workers train for a second an iteration, one of them late in every second iteration.

    Args:
        history, window: P, and T in seconds.
        late: seconds that the last worker loses.
        num_workers, num_rounds: N, and iterations after which the first worker ends it.
    """
    scheduler, draw = Scheduler(1, num_workers, history, window), random.Random(0)
    left = dict.fromkeys(range(num_workers), num_rounds)
    events = [(_length_s(draw, worker, 0, late, num_workers), worker) for worker in left]
    since: dict[int, float] = {}
    actions, groups = [], []
    while min(left.values()) > 0:
        deadline_s = scheduler.next_deadline_s()
        events.sort()
        if events and (deadline_s is None or events[0][0] <= deadline_s):
            now_s, worker = events.pop(0)
            since[worker] = now_s
            formed = scheduler.signal(0, worker, now_s)
        else:
            assert deadline_s is not None  # all workers wait for it
            now_s, formed = deadline_s, scheduler.expire(deadline_s)
        for group in formed:
            groups.append(group)
            for worker in sorted(group.members):
                place = {"resource": f"worker {worker}"}
                if now_s > since[worker]:
                    actions.append(Action(start_s=since[worker], end_s=now_s, kind=Kind.WAIT, **place))
                label = str(len(groups))
                actions.append(Action(start_s=now_s, end_s=now_s + 0.15, kind=Kind.COMMUNICATE, label=label, **place))
                left[worker] -= 1
                seconds = _length_s(draw, worker, num_rounds - left[worker], late, num_workers)
                events.append((now_s + seconds, worker))
    names = tuple(f"worker {worker}" for worker in range(num_workers))
    timeline = Timeline(actions=tuple(actions), resources=names)
    share = certify(groups, num_pipelines=num_workers, history=history).share
    return Played(groups=tuple(groups), timeline=timeline, num_workers=num_workers, history=history, connected=share)


def _length_s(draw: random.Random, worker: int, iteration: int, late: int, num_workers: int) -> float:
    return 1 + draw.uniform(0, 0.2) + (late if worker == num_workers - 1 and iteration % 2 else 0)


def draw_graph(groups: Sequence[Collection[int]], num_workers: int, ax: Axes, title: str) -> None:
    """Draw workers on a circle and a line between any two that shared a group."""
    angles = np.pi / 2 - 2 * np.pi * np.arange(num_workers) / num_workers
    x, y = np.cos(angles), np.sin(angles)
    for group in groups:
        members = sorted(group)
        for worker in members:
            for other in members:
                if worker < other:
                    ax.plot(x[[worker, other]], y[[worker, other]], color=BLUE, linewidth=2, zorder=1)
    is_connected = connects_by_definition(map(frozenset, groups), range(num_workers))
    ax.scatter(x, y, s=500, color="white", edgecolors=BLUE if is_connected else VERMILION, linewidths=2, zorder=2)
    for worker in range(num_workers):
        ax.text(x[worker], y[worker], str(worker), ha="center", va="center", color=INK, zorder=3)
    ax.set(xlim=(-1.4, 1.4), ylim=(-1.4, 1.4), aspect="equal", title=title)
    ax.axis("off")


def draw_played(played: Played) -> Figure:
    """Draw who waited and averaged when, and the graph of the last P groups."""
    drawn, axes = figure(1, 2, figsize=(11, 3.2), width_ratios=[3, 1])
    gantt(played.timeline, ax=axes[0])
    last = [group.members for group in played.groups[-played.history :]]
    draw_graph(last, played.num_workers, axes[1], f"the last {len(last)} groups")
    return drawn


def _describe(played: Played) -> str:
    sizes = [len(group.members) for group in played.groups]
    enforced = sum(group.enforced for group in played.groups)
    return (
        f"{len(sizes)} groups of {np.mean(sizes):.1f} workers, {enforced} of them enforced, done after "
        f"{played.timeline.end_s:.1f} s; {100 * played.connected:.0f} % of the runs of P groups connect all workers."
    )


def explore_scheduler() -> Explorer[Played]:
    """Return the control: P, T, and how late the last worker is."""
    return Explorer(
        play,
        draw_played,
        describe=_describe,
        history=steps("P", (1, 2, 3, 5, 10), value=3, help="How many groups in a row must connect all workers."),
        window=steps("T (s)", (0.0, 0.05, 0.2, 0.5, 1.0, 3.0), value=0.2, help="How long the scheduler collects."),
        late=steps("late by (s)", (0, 1, 2, 4), value=2, help="What worker 3 loses in every second iteration."),
    )


def replay(
    results: Sequence[Mapping[str, Any]], clock: str, *, delay_s: float, history: int
) -> list[Mapping[str, Any]]:
    """Put the losses of trainings on the clock that another delay and P give their schemes.

    Args:
        results: of virtual ranks, each with its `setting` and its `curve`.
        clock: the model whose iterations count, of `simulated.MODELS`.
        delay_s: what a worker loses in one of ten mini-batches.
        history: P.
    """
    replayed: list[Mapping[str, Any]] = []
    for result in results:
        setting = result["setting"]
        shape = REPLAYED, setting["num_stages"], setting["num_pipelines"]
        late_s, workload = drawn_delays_s(*shape, delay_s=delay_s), workload_of(clock, setting["num_stages"])
        flush = setting["scheme"] != Scheme.SDPIPE or setting.get("flush") == "all"
        run = simulate(setting["scheme"], workload, PAPER, late_s, history=history, flush=flush)
        replayed.append({**result, "curve": [[at * run.iteration_s, at, loss] for _, at, loss in result["curve"]]})
    return replayed


def explore_replay(results: Sequence[Mapping[str, Any]], clock: str, target: float) -> Explorer[list]:
    """Return the control that replays trainings with another delay and another P; their losses stay as they were."""
    return Explorer(
        partial(replay, results, clock),
        partial(training_curves, target=target, steps="mini-batches of a mean pipeline"),
        describe=lambda replayed: (
            "Seconds until the end: "
            + ", ".join(f"{result['setting']['scheme']} {result['curve'][-1][0]:.0f}" for result in replayed)
        ),
        delay_s=steps(
            "delay (s)", (0.0, 0.1, 0.3, 0.6), value=0.3, help="What a worker loses in one of ten mini-batches."
        ),
        history=steps("P", (1, 2, 5, 10, 50), value=10, help="How many groups in a row must connect all workers."),
    )


BEFORE = {
    "{0, 1}": ({0, 1},),
    "{0, 1}, {2}": ({0, 1}, {2}),
    "{0, 1}, {2, 3}": ({0, 1}, {2, 3}),
    "{0}, {1}, {2}": ({0}, {1}, {2}),
}  # of four workers


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A candidate and the groups before it."""

    before: tuple[set[int], ...]
    members: frozenset[int]

    @property
    def is_valid(self) -> bool:
        """Whether all together connect four workers."""
        return connects_by_definition([*map(frozenset, self.before), self.members], range(4))


def _candidate(*, before: str, members: tuple[int, ...]) -> Candidate:
    return Candidate(before=BEFORE[before], members=frozenset(members))


def _draw_candidate(candidate: Candidate) -> Figure:
    drawn, axes = figure(1, 2, figsize=(7, 3.2))
    draw_graph(candidate.before, 4, axes[0], "before")
    draw_graph([*candidate.before, candidate.members], 4, axes[1], "with the candidate")
    return drawn


def _describe_candidate(candidate: Candidate) -> str:
    if candidate.is_valid:
        return "valid: all four workers are connected, and the group may average."
    return "not valid: the scheduler waits for more workers."


def explore_candidates() -> Explorer[Candidate]:
    """Return the control in which a reader forms the next group of four workers by hand."""
    several = [tuple(w for w in range(4) if mask >> w & 1) for mask in range(1, 16)]
    return Explorer(
        _candidate,
        _draw_candidate,
        describe=_describe_candidate,
        before=choice("groups before", list(BEFORE), value="{0, 1}, {2}", help="The last P - 1 groups."),
        members=choice(
            "candidate", {str(set(group)): group for group in several}, value=(2,), help="Who averages next."
        ),
    )


Groups = list[set[int]]


def _is_valid(groups: Groups, candidate: set[int], num_workers: int) -> bool:
    return connects_by_definition(map(frozenset, [*groups, candidate]), range(num_workers))


def _is_reached_at_once(groups: Groups, candidate: set[int], num_workers: int) -> bool:
    """Go through the groups once, by mistake."""
    reached = {0}
    for group in (*groups, candidate):
        reached |= group if group & reached else set()
    return len(reached) == num_workers


IS_VALID_HINTS = {
    "Everybody is in some group, but are all of these groups connected with one another?": (
        lambda groups, candidate, num_workers: len(candidate.union(*groups)) == num_workers
    ),
    "A later group may lead back to an earlier one: go through them until nothing is reached any more.": (
        _is_reached_at_once
    ),
    "The candidate connects workers, too.": lambda groups, _, num_workers: _is_valid(groups, set(), num_workers),
    "The groups before count, too. With the candidate alone it is All-Reduce.": (
        lambda _, candidate, num_workers: len(candidate) == num_workers
    ),
}


def check_is_valid(is_valid: Callable | None) -> Feedback:
    """Check a reader's `is_valid(groups, candidate, num_workers)` on random histories."""
    draw, cases = random.Random(0), []
    for _ in range(NUM_TRACES):
        num_workers = draw.randint(2, 7)
        groups = [set(draw.sample(range(num_workers), draw.randint(1, min(3, num_workers)))) for _ in range(4)]
        *before, candidate = groups[: draw.randint(1, 4)]
        cases.append((before, candidate, num_workers))
    reason = (
        f"It is right on {NUM_TRACES} random histories. The scheduler keeps sets as bits and grows what one reaches."
    )
    expected = [_is_valid(*case) for case in cases]
    return check_on_cases(is_valid, cases, expected, mistakes=IS_VALID_HINTS, reason=reason)


MEMBERS = (0, 2, 3)  # of four workers
MODELS = np.outer([1.0, 10.0], [1.0, 2.0, 3.0, 4.0])  # theirs, in columns


def _by_equation_2(_model, rank: int, members: set[int], _add_up) -> np.ndarray:
    return (MODELS @ synchronization_matrix(MODELS.shape[1], members))[:, rank]


def _average(model, rank: int, members: set[int], add_up_: Callable, *, mistake: str):
    """Average with a usual mistake."""
    if rank not in members:
        return model * (mistake != "zero")
    if mistake != "alone":
        add_up_(model)
    return model / {"sum": 1, "all": MODELS.shape[1]}.get(mistake, len(members))


AVERAGE_HINTS = {
    "sum": "That is the sum. Asked is the mean.",
    "all": "Only the members were added up: divide by their number.",
    "alone": "Nothing was added up: call `add_up_` before you divide.",
    "zero": "A worker that is not in the group keeps its model.",
}


def _average_on_rank(average: Callable) -> object:
    """Return this rank's model after an average of a group."""
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import _get_default_group

    rank = dist.get_rank()
    others = [member for member in MEMBERS if member != rank]

    def add_up_(tensor: torch.Tensor) -> None:
        if rank not in MEMBERS:
            raise ValueError(f"rank {rank} is not in the group {MEMBERS}; it must not call add_up_")
        received, sent = [torch.empty_like(tensor) for _ in others], tensor.clone()
        sending = [_get_default_group().send([sent], other, 0) for other in others]
        for other, part in zip(others, received, strict=True):
            dist.recv(part, other)
        for work in sending:
            work.wait()
        tensor += sum(received)

    return average(torch.from_numpy(MODELS[:, rank].copy()), rank, set(MEMBERS), add_up_)


def check_average(average: Callable | None) -> Feedback:
    """Check a reader's `average(model, rank, members, add_up_)` on four ranks, three of them in the group."""
    return check_on_ranks(
        average,
        _by_equation_2,
        _average_on_rank,
        num_ranks=4,
        mistakes={hint: partial(_average, mistake=name) for name, hint in AVERAGE_HINTS.items()},
        of="model",
        reason="The three members have their mean, as Eq. 2 says, and the fourth rank was not disturbed.",
    )


def groups_of_window() -> Exercise:
    """Return the exercise on algorithm 2: two numbers, the sizes of two groups."""
    scheduler, sizes = Scheduler(1, 4, history=10, window_s=1.0), []
    for now_s, worker in ((0.0, 2), (0.6, 0), (1.5, 1), (2.0, 3)):
        if (deadline_s := scheduler.next_deadline_s()) is not None and deadline_s <= now_s:
            sizes += [len(group.members) for group in scheduler.expire(deadline_s)]
        sizes += [len(group.members) for group in scheduler.signal(0, worker, now_s)]
    sizes += [len(group.members) for group in scheduler.expire(9.0)]
    return Exercise(
        question="T = 1 s, P = 10. Workers 2, 0, 1, 3 signal at 0, 0.6, 1.5, 2.0 s. How large are the two groups?",
        answer=tuple(map(float, sizes)),
        hint="When does the first window end, and who is ready then?",
        reason="The window of worker 2 ends at 1.0 s with 2 and 0; that of worker 1 ends at 2.5 s with 1 and 3.",
        mistakes=(Mistake(answer=(1.0, 3.0), hint="Worker 0 comes before the first window ends."),),
    )


def smallest_valid_group() -> Exercise:
    """Return the exercise on validation: how many workers the next group needs."""
    before = ({0, 1}, {1, 2}, {3}, {4, 5})
    needed = 1
    while not any(
        connects_by_definition([*map(frozenset, before), frozenset(w for w in range(6) if mask >> w & 1)], range(6))
        for mask in range(64)
        if mask.bit_count() == needed
    ):
        needed += 1
    return Exercise(
        question="Six workers, P = 5; the last four groups were {0, 1}, {1, 2}, {3} and {4, 5}. How many workers must "
        "the next group have at least?",
        answer=float(needed),
        hint="Into how many parts do the four groups cut the workers?",
        reason="0, 1, 2 are together, 3 is alone, 4 and 5 are together: one worker of each of these parts joins them.",
        mistakes=(Mistake(answer=6.0, hint="That would do. Is every worker needed?"),),
    )


def mean_of_group() -> Exercise:
    """Return the exercise on Eq. 2: the models of four workers after a synchronisation."""
    return Exercise(
        question="Four workers hold the models 1, 2, 6 and 8 and average in the group {0, 2}. What do they hold then?",
        answer=(3.5, 2.0, 3.5, 8.0),
        hint="Members take the mean of members; the others keep theirs.",
        reason="(1 + 6) / 2 = 3.5 for the members. The mean of all four models, 4.25, has not changed.",
        mistakes=(Mistake(answer=(4.25, 4.25, 4.25, 4.25), hint="That is All-Reduce."),),
    )


def variance_of_mean() -> Exercise:
    """Return the exercise on Adam's second moment."""
    mean, square, workers = 2.0, 5.0, 4
    return Exercise(
        question="A worker's gradients have the mean 2 and the mean square 5. What mean square has the mean gradient "
        "of four such workers?",
        answer=mean**2 + (square - mean**2) / workers,
        hint="What is the variance, and what becomes of it when four independent gradients are averaged?",
        reason="The variance 5 - 4 = 1 becomes 1/4, and the mean stays: 4 + 1/4. Plain Adam goes on with 5.",
        mistakes=(Mistake(answer=square / workers, hint="The mean does not become smaller, only the variance does."),),
    )
