"""Ranks that run cells: each keeps its names between them, also after an error, a time limit and an interrupt.

    ranks = CellRanks(4)
    outcomes = ranks.run_cell(Cell(name="<cell 1>", source="x = rank ** 2"))
    ranks["x"]                                     # [0, 1, 4, 9]

They live on unless one dies or does not stop when it is told to; then the next cell starts new ones, without names.
"""

import contextlib
import math
import os
import queue
import re
import shutil
import signal
import tempfile
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

from workbench.launch.calls import PerRank
from workbench.launch.failures import FailureKind, RankFailed, RankFailure
from workbench.launch.messages import Handle
from workbench.launch.ranks import Ranks
from workbench.notebook.names import PLACE_SIGNAL, Cell, Names, Outcome, Pulled, place

__all__ = ["CellFailed", "CellRanks", "RunsCells", "Wish"]

STOP_PATIENCE_S = 3.0  # seconds that ranks may need to stop before they are ended
PLACE_PATIENCE_S = 0.3  # seconds that a rank may need to print where it stands
POLL_S = 0.05  # seconds between two looks at a cell that runs
WROTE_PLACE = re.compile(r'File "(<cell \d+>)", line (\d+)')

LIVE_ON = "The ranks and their names live on."
NEW_GROUP = f"{LIVE_ON} Their process group is new: make DDP models and groups of your own again."
ENDED = "The ranks were ended; the next cell starts new ones, without the names of earlier cells."


class Wish(Enum):
    """What a user wants of a cell that runs."""

    INTERRUPT = "The cell was interrupted."
    RESTART = "The ranks were restarted."


class CellFailed(RankFailed):
    """A cell failed on a rank, or was stopped; a notebook shows the first failure, and a line for each other rank."""

    def __init__(self, failures: Iterable[RankFailure], note: str, why: str = ""):
        super().__init__(failures, note)
        self.why = why  # why it was stopped; empty if a rank failed by itself

    def _render_traceback_(self) -> list[str]:
        """Return the lines that IPython shows."""
        if self.why:
            by_rank = sorted(self.failures, key=lambda failure: failure.rank)
            return [self.why, *(f"rank {failure.rank} {failure.message}" for failure in by_rank), "", self.note]
        first, *rest = self.failures
        others = [f"rank {failure.rank} {failure.message}" for failure in rest]
        return [*str(first).splitlines(), "", *others, *([""] if others else []), self.note]


class RunsCells(ABC):
    """Ranks with names, which `ranks["x"]` pulls from all and `ranks["x"] = value` pushes to all."""

    cluster = ""  # profile of the ipyparallel cluster whose engines they are
    ended_note = ENDED  # what a user reads when they had to be ended
    closed = False
    num_ranks: int
    pids: Any  # of ranks that may stop one another, in rank order
    run: Callable[..., list[Any]]
    start: Callable[..., Any]
    close: Callable[[], None]

    def __getitem__(self, name: str) -> list[Any]:
        """Return the values of a name, in rank order; KeyError names the first rank that cannot give it."""
        pulled: list[Pulled] = self.run(Names.pull, self._names_on_ranks(), name)
        for answer in pulled:
            if answer.trouble:
                raise KeyError(answer.trouble)
        return [answer.value for answer in pulled]

    def __setitem__(self, name: str, value: Any) -> None:
        """Give a name a value on every rank; PerRank gives each its own."""
        self.run(Names.push, self._names_on_ranks(), name, value)

    def run_cell(
        self,
        cell: Cell,
        members: Sequence[int] | None = None,
        *,
        timeout_s: float | None = None,
        wishes: queue.SimpleQueue | None = None,
        on_wait: Callable[[], None] = lambda: None,
        text_of: Callable[[int], str] = lambda rank: "",
    ) -> dict[int, Outcome]:
        """Run a cell on some ranks, by default on all, and return the outcomes by rank.

        Args:
            cell: its name and source.
            members: the ranks.
            timeout_s: seconds after which it is stopped; None for no limit.
            wishes: a queue that brings a `Wish` from another thread or a signal handler.
            on_wait: called again and again while it runs.
            text_of: what a rank has written, in which the place of one that does not stop is looked for.

        Raises:
            SyntaxError: before anything runs.
            CellFailed: if it failed on a rank or was stopped.
        """
        cell.parts()
        cell.remember()
        members = range(self.num_ranks) if members is None else members
        takes_part = PerRank([rank in members for rank in range(self.num_ranks)])
        names = self._names_on_ranks()
        run = self.start(Names.run, names, cell, takes_part, self.pids)
        why = self._wait_for_cell(run, timeout_s, wishes or queue.SimpleQueue(), on_wait)
        try:
            outcomes = {rank: outcome for rank, outcome in enumerate(run.result()) if outcome is not None}
        except KeyboardInterrupt:
            silent = [_silent(rank, text_of(rank)) for rank in members]
            raise CellFailed(silent, self.ended_note, why) from None
        except RankFailed as error:
            raise CellFailed(error.failures, self.ended_note, why) from None
        if any(outcome.error for outcome in outcomes.values()):
            note = self._mended(outcomes)
            raise CellFailed(_failures(outcomes, why), note, why) from None
        return outcomes

    @abstractmethod
    def _names_on_ranks(self) -> Any:
        """Return what arrives on every rank as its `Names`."""

    @abstractmethod
    def _signal(self, number: int) -> None:
        """Send the ranks a signal."""

    @abstractmethod
    def _rejoin(self) -> None:
        """Make the process group anew; RankFailed where that is not safe."""

    def _wait_for_cell(
        self, run: Any, timeout_s: float | None, wishes: queue.SimpleQueue, on_wait: Callable[[], None]
    ) -> str:
        """Wait for a cell and stop it when that is wished or it is time; return why it was stopped."""
        why, gives_up_s = "", math.inf
        ends_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while not run.done() and time.monotonic() < gives_up_s:
            wish = None
            with contextlib.suppress(queue.Empty):
                wish = wishes.get(timeout=POLL_S)
            if wish is Wish.RESTART:
                why, gives_up_s = wish.value, 0.0
            elif not why and (wish or time.monotonic() >= ends_s):
                why = wish.value if wish else f"The cell was stopped after its time limit of {timeout_s:g} s."
                gives_up_s = time.monotonic() + STOP_PATIENCE_S
                self._signal(signal.SIGINT)
            on_wait()
        if not run.done():
            self._signal(PLACE_SIGNAL)
            time.sleep(PLACE_PATIENCE_S)
            run.stop()
            on_wait()
        return why

    def _mended(self, outcomes: dict[int, Outcome]) -> str:
        """Make a process group anew where the ranks may differ in what they have sent; say what lives on."""
        ends = {(outcome.error, outcome.place) for outcome in outcomes.values()}
        if len(ends) == 1 and not any(outcome.stopped for outcome in outcomes.values()):
            return LIVE_ON
        try:
            self._rejoin()
        except RankFailed:
            return self.ended_note
        return NEW_GROUP


class CellRanks(RunsCells, Ranks):
    """Ranks of this machine that run cells."""

    def __init__(self, num_ranks: int | None = None, **options: Any):
        self._names: Handle | None = None
        self._pids_of_names: Sequence[int] = ()  # of the ranks that hold them
        super().__init__(num_ranks, **options)

    def close(self) -> None:
        """End the ranks; calling it again does nothing."""
        self.closed = True
        super().close()

    def _names_on_ranks(self) -> Handle:
        if self._names is None or not self.pids or self.pids != self._pids_of_names:
            self._names = self.put("names", Names)
            self._pids_of_names = self.pids
        return self._names

    def _signal(self, number: int) -> None:
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _rejoin(self) -> None:
        folder = tempfile.mkdtemp(prefix="workbench-ranks-")
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)  # not before: later groups meet there, too
        self.run(Names.join_anew, self._names, os.path.join(folder, "meeting"), timeout_s=STOP_PATIENCE_S)


def _failures(outcomes: dict[int, Outcome], why: str) -> Iterator[RankFailure]:
    """Return the failures of a cell, and where the ranks stood that were stopped or lost a peer."""
    for rank, outcome in outcomes.items():
        if outcome.error or why:
            stood = f"stood in {outcome.place}" if outcome.error else "had ended"
            yield RankFailure(
                rank=rank,
                kind=outcome.kind or FailureKind.PEER_LOST,
                time_s=outcome.time_s,
                message=f"raised {outcome.error}" if outcome.kind is FailureKind.RAISED else stood,
                traceback=outcome.traceback,
            )


def _silent(rank: int, text: str) -> RankFailure:
    """Describe a rank that did not stop, by what it has written last."""
    match = WROTE_PLACE.search(text.rpartition("(most recent call first):")[2])
    where = f", it stood in {place(match[1], int(match[2]))}" if match else ""
    return RankFailure(rank=rank, kind=FailureKind.SILENT, time_s=time.monotonic(), message=f"did not stop{where}")
