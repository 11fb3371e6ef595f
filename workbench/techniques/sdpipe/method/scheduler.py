"""Group the workers that average their models: algorithm 2, group validation, deadlock prevention (section 3.4).

Events go in and groups come out. Time is an argument, so that the simulator and the server use the same class.
"""

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any

from workbench.checks import require_counts, require_positive

__all__ = ["Certificate", "Group", "Scheduler", "Settings", "certify", "connects_by_definition"]


@dataclass(frozen=True, slots=True)
class Group:
    """Workers of one stage that average their models."""

    stage: int
    members: frozenset[int]  # numbers of their pipelines
    enforced: bool = False  # the scheduler waited for more workers, because earlier groups did not connect all


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Settings that the paper leaves open, or that differ in its released scheduler.

    Section 4 enlarges the window "slightly" if too few workers are ready. The default factors are our choice.
    """

    wanted: int = 2  # workers; a smaller group enlarges its stage's window, any other group shortens it
    enlarge: float = 1.1  # factor that enlarges a window
    shorten: float = 0.9  # factor that shortens a window
    least: float = 1.0  # shortest window, as a multiple of the first window
    most: float = 2.0  # longest window, as a multiple of the first window
    start_s: float | None = None  # default T; None is the paper's, 1/N of an iteration
    by_signals: bool = False  # check after every P signals a worker, over all groups since the last check
    exclusive: bool = True  # only one stage enforces at a time; otherwise stages deadlock (figure 3)

    def __post_init__(self) -> None:
        require_counts(1, wanted=self.wanted)
        require_positive(enlarge=self.enlarge, shorten=self.shorten, least=self.least, most=self.most)
        if self.start_s is not None:
            require_positive(start_s=self.start_s)
        if not (self.shorten <= 1 <= self.enlarge and self.least <= 1 <= self.most):
            values = f"{self.shorten}, {self.enlarge}, {self.least}, {self.most}"
            rule = "the first and third must be at most 1, the others at least 1"
            raise ValueError(f"shorten, enlarge, least, most are {values}; {rule}")

    @classmethod
    def released(cls) -> "Settings":
        """Return the settings of the authors' released scheduler."""
        return cls(start_s=0.001, enlarge=2.0, least=0.01, most=10.0, by_signals=True)


_KEPT = ("window_s", "num_signals", "is_due")  # attributes of a stage that are saved, beside its history


@dataclass(slots=True)
class _Stage:
    """The scheduler's state of one stage; sets of workers are bits of an integer."""

    everyone: int  # all workers that have not left
    history: deque[int]
    window_s: float
    waiting: list[int] = field(default_factory=list)
    ready: int = 0
    deadline_s: float = math.inf
    num_signals: int = 0  # in all formed groups
    is_due: bool = False  # only with `by_signals`: a check is due until a group passes it


class Scheduler:
    """Forms groups of every stage from its workers' ready signals.

    The first signal opens a window T. At its end, or when all workers of the stage are ready, the ready workers are a
    candidate group. A candidate is valid if it and the last P - 1 groups connect all workers, or if there are not yet
    P - 1 groups. If it is invalid, the stage enforces: it waits for more workers. While one stage enforces, candidates
    of other stages pass without validation; `num_unchecked` counts those that are invalid.

    Args:
        num_stages: M, at least 1.
        num_pipelines: N, at least 2; a worker has the number of its pipeline.
        history: P, the number of groups that must connect all workers of a stage, at least 1.
        window_s: T, seconds; 0 makes groups of one worker, infinity waits for all workers.
        settings: None for the paper's.
    """

    def __init__(
        self, num_stages: int, num_pipelines: int, history: int, window_s: float, *, settings: Settings | None = None
    ):
        require_counts(1, num_stages=num_stages, history=history)
        require_counts(2, num_pipelines=num_pipelines)
        self._settings = settings or Settings()
        self._num_pipelines, self._history = num_pipelines, history
        kept = None if self._settings.by_signals else history - 1
        everyone = (1 << num_pipelines) - 1
        self._stages = [_Stage(everyone, deque(maxlen=kept), window_s) for _ in range(num_stages)]
        self.set_window(window_s)
        self.enforcing: set[int] = set()  # stages that wait because their groups do not connect all workers
        self.num_unchecked = 0  # invalid groups that passed because another stage enforced

    def set_window(self, window_s: float) -> None:
        """Set T for all stages; an open window keeps its end."""
        if not window_s >= 0:
            raise ValueError(f"window_s is {window_s!r}; it must be at least 0, or infinity")
        self._least_s, self._most_s = self._settings.least * window_s, self._settings.most * window_s
        for state in self._stages:
            state.window_s = window_s

    def signal(self, stage: int, worker: int, now_s: float) -> list[Group]:
        """Take a worker's ready signal; return the groups that it completes.

        Raises:
            ValueError: if the stage or the worker is unknown, or if the worker already waits.
        """
        bit = self._known(stage, worker)
        state = self._stages[stage]
        if state.ready & bit:
            raise ValueError(f"worker is {worker!r}; it waits in stage {stage} already")
        if state.deadline_s == math.inf:
            state.deadline_s = now_s + state.window_s
        state.ready |= bit
        state.waiting.append(worker)
        return self._close(stage) if state.ready == state.everyone or now_s >= state.deadline_s else []

    def expire(self, now_s: float) -> list[Group]:
        """Close the windows that have ended; return their groups."""
        due = [stage for stage, state in enumerate(self._stages) if state.deadline_s <= now_s]
        return [group for stage in due for group in self._close(stage)]

    def next_deadline_s(self) -> float | None:
        """Return the time when `expire` is due; None if no window is open."""
        deadline_s = min(state.deadline_s for state in self._stages)
        return None if deadline_s == math.inf else deadline_s

    def leave(self, stage: int, worker: int) -> list[Group]:
        """Remove a worker from its stage; return the group that waited only for it, or that is valid without it."""
        bit = self._known(stage, worker)
        state = self._stages[stage]
        state.everyone &= ~bit
        if state.ready & bit:
            state.ready &= ~bit
            state.waiting.remove(worker)
        if not state.ready:
            state.deadline_s = math.inf
            self.enforcing.discard(stage)
        is_free = state.ready == state.everyone or (stage in self.enforcing and self._is_valid(state))
        return self._close(stage) if state.ready and is_free else []

    def join(self, stage: int, worker: int) -> None:
        """Add a worker that had left."""
        self._stages[stage].everyone |= 1 << worker

    def state_dict(self, stage: int) -> dict[str, Any]:
        """Return the state of a stage without waiting workers, as plain values."""
        state = self._stages[stage]
        saved = {"history": list(state.history), "bounds_s": [self._least_s, self._most_s]}
        return saved | {name: getattr(state, name) for name in _KEPT}

    def load_state_dict(self, stage: int, saved: dict[str, Any]) -> None:
        """Load the state of a stage from another scheduler's `state_dict`."""
        state = self._stages[stage]
        state.history.extend(saved["history"])
        self._least_s, self._most_s = saved["bounds_s"]
        for name in _KEPT:
            setattr(state, name, saved[name])

    def _known(self, stage: int, worker: int) -> int:
        """Return the bit of a worker that has not left."""
        if not 0 <= stage < len(self._stages):
            raise ValueError(f"stage is {stage!r}; it must be in 0..{len(self._stages) - 1}")
        if not 0 <= worker < self._num_pipelines or not self._stages[stage].everyone >> worker & 1:
            rule = f"it must be in 0..{self._num_pipelines - 1} and not have left"
            raise ValueError(f"worker is {worker!r}; {rule}")
        return 1 << worker

    def _close(self, stage: int) -> list[Group]:
        """Form the group of a stage's ready workers, or wait for more workers."""
        state, settings = self._stages[stage], self._settings
        state.deadline_s = math.inf
        was_enforcing = stage in self.enforcing
        is_valid = self._is_valid(state)
        if not is_valid:
            if not self.enforcing or was_enforcing or not settings.exclusive:
                self.enforcing.add(stage)
                return []
            self.num_unchecked += 1
        self.enforcing.discard(stage)
        state.history.append(state.ready)
        if settings.by_signals:
            if state.is_due and is_valid:
                state.history.clear()
                state.is_due = False
            between = self._history * max(1, state.everyone.bit_count())
            before, state.num_signals = state.num_signals, state.num_signals + len(state.waiting)
            state.is_due |= state.num_signals // between > before // between
        if len(state.waiting) < settings.wanted:
            state.window_s = min(state.window_s * settings.enlarge, self._most_s)
        elif state.window_s > self._least_s:
            state.window_s = max(state.window_s * settings.shorten, self._least_s)
        group = Group(stage, frozenset(state.waiting), was_enforcing)
        state.waiting, state.ready = [], 0
        return [group]

    def _is_valid(self, state: _Stage) -> bool:
        is_checked = state.is_due if self._settings.by_signals else len(state.history) >= self._history - 1
        if state.ready == state.everyone or not is_checked:
            return True
        return _connects((*state.history, state.ready), state.everyone)


def _connects(groups: Sequence[int], everyone: int) -> bool:
    """Whether groups, as bits, connect all workers: grow the set that a worker reaches until it stays the same."""
    if reduce(or_, groups) & everyone != everyone:
        return False
    reached, before = groups[-1] & everyone, 0
    while reached != before:
        before = reached
        for group in groups:
            if group & reached:
                reached |= group & everyone
    return reached == everyone


def connects_by_definition(groups: Iterable[frozenset[int]], everyone: Iterable[int]) -> bool:
    """Whether the graph whose edges join all members of each group is connected, by a disjoint set (section 4)."""
    parent = {worker: worker for worker in everyone}

    def root(worker: int) -> int:
        while parent[worker] != worker:
            worker = parent[worker]
        return worker

    for group in groups:
        members = [worker for worker in group if worker in parent]
        for a in members:
            for b in members:
                parent[root(a)] = root(b)
    return len({root(worker) for worker in parent}) <= 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Certificate:
    """How often the groups of a training kept assumption 1, over all stages."""

    num_groups: int
    num_runs: int  # runs of P consecutive groups of a stage
    num_connected: int  # runs that connect all workers

    @property
    def share(self) -> float:
        """Share of the runs that connect all workers; 1 if there is no complete run."""
        return self.num_connected / self.num_runs if self.num_runs else 1.0


def certify(groups: Iterable[Group], *, num_pipelines: int, history: int) -> Certificate:
    """Check every run of P consecutive groups of each stage."""
    everyone = (1 << num_pipelines) - 1
    by_stage: dict[int, list[int]] = defaultdict(list)
    for group in groups:
        by_stage[group.stage].append(sum(1 << worker for worker in group.members))
    runs = [masks[end - history : end] for masks in by_stage.values() for end in range(history, len(masks) + 1)]
    num_connected = sum(_connects(run, everyone) for run in runs)
    num_groups = sum(map(len, by_stage.values()))
    return Certificate(num_groups=num_groups, num_runs=len(runs), num_connected=num_connected)
