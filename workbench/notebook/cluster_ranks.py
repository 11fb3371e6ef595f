"""Cells on the engines of an ipyparallel cluster, one rank an engine, which may be on other machines.

Names are those of the engines, which `%%px` sees, too. Signals travel through ipyparallel.
"""

import signal
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist

from workbench.launch.calls import own_part
from workbench.launch.engines import OUTPUT_PATIENCE_S, IPyParallelRanks, _failure_of
from workbench.launch.failures import FailureKind, RankFailed, RankFailure
from workbench.notebook.cell_ranks import CellFailed, RunsCells
from workbench.notebook.names import Cell, Names, Outcome, tcp_connections

__all__ = ["ClusterRanks"]

NAMES_KEY = "_workbench_names"  # where an engine keeps its `Names`, among its own names
KILL_PATIENCE_S = 30.0  # seconds until the cluster knows that an engine has ended
ENDED = "Engines were ended, with their names: start the engines of the cluster anew, then say %ranks --cluster again."


class EngineNames:
    """Arrives on an engine as its names."""

    def __reduce__(self) -> tuple[Callable[[], Names], tuple]:
        """Stand for a call that finds them."""
        return names_of_engine, ()


def names_of_engine() -> Names:
    """Return the names of the engine that this process is."""
    names = vars(sys.modules["__main__"])[NAMES_KEY]
    signal.signal(signal.SIGINT, names.stop)  # ipykernel sets its own before every call
    return names


def enter_engine() -> frozenset[int]:
    """Leave a process group of earlier ranks; return the connections of the engine to its cluster."""
    if dist.is_initialized():
        dist.destroy_process_group()
    return frozenset(tcp_connections())


def make_names(spared: frozenset[int]) -> None:
    """Make the names of an engine, whose process group is there."""
    vars(sys.modules["__main__"])[NAMES_KEY] = Names(spared)


class ClusterRanks(RunsCells, IPyParallelRanks):
    """The engines of the cluster that runs in an IPython profile, as ranks that run cells."""

    ended_note = ENDED
    pids = ()

    def __init__(self, profile: str):
        import ipyparallel

        self.cluster = profile
        self._run: EngineRun | None = None
        client = ipyparallel.Client(profile=profile)
        try:
            self._join(client)
        except BaseException:
            client.close()
            raise

    def close(self) -> None:
        """Clear the names, and let go of the engines, which stay."""
        if not self.closed:
            self.closed = True
            self._client.clear(block=True)
            self._client.close()

    def run(self, function: Callable[..., Any], /, *args: Any, **options: Any) -> list[Any]:
        """Call a function on every engine and wait for all, as `Ranks.run`."""
        if self._broken:  # by a function that failed
            self._rejoin()
        return super().run(function, *args, **options)

    def start(self, function: Callable[..., Any], /, *args: Any) -> "EngineRun":
        """Call a function on every engine without waiting."""
        if self._broken:
            self._rejoin()
        calls = [own_part(rank, args, {}, self.num_ranks)[0] for rank in range(self.num_ranks)]
        answers = [engine.apply_async(function, *args) for engine, args in zip(self._engines, calls, strict=True)]
        self._run = EngineRun(answers, self._signal)
        return self._run

    def run_cell(
        self, cell: Cell, *args: Any, on_wait: Callable[[], None] = lambda: None, **options: Any
    ) -> dict[int, Outcome]:
        """Run a cell as `RunsCells` does; when it fails on an engine, the others are stopped from here."""

        def stop_peers() -> None:
            if self._run is not None and self._run.needs_stop():
                self._signal(signal.SIGINT)
            on_wait()

        try:
            return super().run_cell(cell, *args, on_wait=stop_peers, **options)
        except CellFailed as error:
            if error.note == ENDED:
                self.closed = True
                self._client.close()
            raise

    def _names_on_ranks(self) -> EngineNames:
        return EngineNames()

    def _signal(self, number: int) -> None:
        if number in (signal.SIGINT, signal.SIGKILL) and self._run is not None:  # engines cannot print where they stand
            self._client.send_signal(number, [self._engines[rank].targets for rank in self._run.pending()], block=False)

    def _rejoin(self) -> None:
        self._join(self._client)

    def _join(self, client: Any) -> None:
        spared = client[:].apply_sync(enter_engine)
        IPyParallelRanks.__init__(self, client)
        for engine, connections in zip(self._engines, spared, strict=True):
            engine.apply_sync(make_names, connections)


class EngineRun:
    """A call on every engine that was started and not waited for."""

    def __init__(self, answers: Sequence[Any], send: Callable[[int], None]):
        self._answers, self._send = answers, send
        self._shown = dict.fromkeys(((rank, name) for rank in range(len(answers)) for name in ("stdout", "stderr")), 0)
        self._was_stopped, self._ended = False, list[int]()  # the ranks whose engines were ended

    def pending(self) -> list[int]:
        """Return the ranks that have not answered."""
        return [rank for rank, answer in enumerate(self._answers) if not answer.ready()]

    def done(self) -> bool:
        """Show the output that has arrived, and return whether every engine has answered."""
        is_done = not self.pending()
        for answer in self._answers if is_done else ():
            answer.wait_for_output(OUTPUT_PATIENCE_S)  # it travels apart from the result
        for (rank, name), position in self._shown.items():
            text = getattr(self._answers[rank], name)[position:]
            text = text if is_done else text[: 1 + max(text.rfind("\n"), text.rfind("\r"))]
            self._shown[rank, name] += len(text)
            for line in text.splitlines(keepends=True):
                end = "" if line.endswith(("\r", "\n")) else "\n"
                getattr(sys, name).write(f"[rank {rank}] {line}{end}")
        return is_done

    def needs_stop(self) -> bool:
        """Say once, when an engine has failed, that the others must be stopped."""
        ended = [answer for answer in self._answers if answer.ready()]
        failed = any(not answer.successful() or getattr(answer.get(), "error", "") for answer in ended)
        self._was_stopped, before = self._was_stopped or failed, self._was_stopped
        return failed and not before

    def stop(self) -> None:
        """End the engines that have not answered."""
        self._ended = self.pending()
        self._send(signal.SIGKILL)
        for rank in self._ended:
            self._answers[rank].wait(KILL_PATIENCE_S)

    def result(self) -> list[Any]:
        """Return the values in rank order; RankFailed if it failed."""
        if self._ended:
            words, now_s = "did not stop, and was ended", time.time()
            silent = FailureKind.SILENT
            raise RankFailed([RankFailure(rank=rank, kind=silent, time_s=now_s, message=words) for rank in self._ended])
        if failures := list(filter(None, map(_failure_of, range(len(self._answers)), self._answers))):
            raise RankFailed(failures)
        return [answer.get() for answer in self._answers]
