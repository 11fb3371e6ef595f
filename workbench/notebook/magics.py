"""The magics: `%%ranks` and `%%rank` run cells on ranks, `%workbench` runs and shows items in place."""

import contextlib
import importlib.util
import os
import queue
import shlex
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, cell_magic, line_cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from workbench.launch.ranks import NUM_RANKS_VARIABLE
from workbench.notebook.cell_ranks import CellRanks, RunsCells, Wish
from workbench.notebook.names import Cell, Outcome
from workbench.notebook.panel import Panel

__all__ = ["RanksMagics", "WorkbenchMagics"]

NO_RANKS = "no ranks run; begin with %%ranks and their number, such as %%ranks 4"


@magics_class
class RanksMagics(Magics):
    """Cells on the ranks of one warm pool, which the notebook has as `ranks`."""

    _pool: RunsCells | None = None

    @magic_arguments()
    @argument("num_ranks", type=int, nargs="?", help="how many; by default those that run, else the kernel's number")
    @argument("--timeout", type=float, metavar="SECONDS", help="stop the cell after this time; no limit by default")
    @argument("--restart", action="store_true", help="end the ranks and their names first, and start new ones")
    @argument("--hosts", metavar="NAME", help="variable with the ShapedHosts to start them on")
    @argument("--cluster", metavar="PROFILE", help="take the engines of the ipyparallel cluster of this profile")
    @line_cell_magic
    def ranks(self, line: str, cell: str | None = None) -> None:
        """Run a cell on all ranks, which keep their names; without a cell only start them.

        A cell finds `rank` and `num_ranks`. In other cells `ranks["x"]` is the list of the values of x.
        """
        options = parse_argstring(self.ranks, line)
        pool = self._pool_for(options)
        if cell is not None:
            self._run(pool, cell, range(pool.num_ranks), options.timeout)

    @magic_arguments()
    @argument("member", type=int, metavar="RANK", help="the rank")
    @argument("--timeout", type=float, metavar="SECONDS", help="stop the cell after this time; no limit by default")
    @cell_magic
    def rank(self, line: str, cell: str) -> None:
        """Run a cell on one rank."""
        options = parse_argstring(self.rank, line)
        pool = self._pool
        if pool is None or pool.closed:
            raise UsageError(NO_RANKS)
        if not 0 <= options.member < pool.num_ranks:
            raise UsageError(f"rank is {options.member}; it must be from 0 to {pool.num_ranks - 1}")
        self._run(pool, cell, [options.member], options.timeout)

    def _pool_for(self, options: Any) -> RunsCells:
        """Return the ranks that run, or start those that are asked for."""
        pool = None if self._pool is None or self._pool.closed else self._pool
        if pool is not None and not options.restart:
            same = options.num_ranks in (None, pool.num_ranks) and options.cluster in (None, pool.cluster)
            if not same or options.hosts:
                running = f"{pool.num_ranks} ranks run already"
                raise UsageError(f"{running}; --restart ends them with their names, and starts those asked for")
            return pool
        cluster = options.cluster or (pool.cluster if pool and not (options.num_ranks or options.hosts) else "")
        if cluster:
            self._pool = self._engines(cluster, options, pool)
            self.shell.push({"ranks": self._pool})
            return self._pool
        number = pool.num_ranks if pool and options.num_ranks is None else options.num_ranks
        if number is None and NUM_RANKS_VARIABLE not in os.environ:
            raise UsageError(NO_RANKS)
        hosts = None if options.hosts is None else self.shell.user_ns.get(options.hosts)
        if options.hosts and hosts is None:
            raise UsageError(f"hosts is {options.hosts!r}; it must be a variable that holds ShapedHosts")
        try:
            self._pool = CellRanks(number, hosts=hosts)
        except ValueError as error:
            raise UsageError(str(error)) from None
        if pool is not None:
            pool.close()
        usual = os.environ.get(NUM_RANKS_VARIABLE, "")
        if usual not in ("", str(self._pool.num_ranks)):
            print(f"{number} ranks, as the cell says; this kernel's own number, {usual}, is for cells without one.")
        self.shell.push({"ranks": self._pool})
        return self._pool

    def _engines(self, cluster: str, options: Any, pool: RunsCells | None) -> RunsCells:
        if options.hosts or options.num_ranks:
            raise UsageError("--cluster takes all engines that there are: it goes without a number and without --hosts")
        if importlib.util.find_spec("ipyparallel") is None:
            raise UsageError("--cluster needs ipyparallel: pip install ipyparallel")
        from workbench.notebook.cluster_ranks import ClusterRanks

        if pool is not None:
            pool.close()
        try:
            return ClusterRanks(cluster)
        except (OSError, ValueError) as error:  # a TimeoutError is an OSError
            raise UsageError(f"the cluster of profile {cluster!r}: {error}") from None

    def _run(self, pool: RunsCells, source: str, members: Sequence[int], timeout_s: float | None) -> None:
        cell = Cell(name=f"<cell {self.shell.displayhook.prompt_count}>", source=f"\n{source}")
        cell.parts()  # a syntax error is shown before anything else
        if timeout_s is not None and not timeout_s > 0:
            raise UsageError(f"timeout is {timeout_s:g}; it must be above 0")
        wishes: queue.SimpleQueue[Wish] = queue.SimpleQueue()
        is_live = getattr(self.shell, "kernel", None) is not None and importlib.util.find_spec("ipywidgets") is not None
        panel, began_s = Panel(members, wishes.put, live=is_live), time.monotonic()
        outcomes: dict[int, Outcome] = {}
        try:
            with _interrupt_wishes(wishes), panel.collecting():
                outcomes = pool.run_cell(
                    cell, members, timeout_s=timeout_s, wishes=wishes, on_wait=panel.redraw, text_of=panel.text
                )
        finally:
            where = f"{pool.num_ranks} ranks" if len(members) > 1 else f"rank {members[0]} of {pool.num_ranks}"
            ended = "" if outcomes else "failed after "
            shown = {rank: outcome.shown for rank, outcome in outcomes.items()}
            panel.close(shown, f"{where}, {ended}{time.monotonic() - began_s:.2f} s")


@contextlib.contextmanager
def _interrupt_wishes(wishes: queue.SimpleQueue) -> Iterator[None]:
    """Make the kernel's interrupt a wish, so that the ranks stop in order and keep their names."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, lambda number, frame: wishes.put(Wish.INTERRUPT))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@magics_class
class WorkbenchMagics(Magics):
    """Items of the catalogue, run and shown in place."""

    @line_magic
    def workbench(self, line: str) -> None:
        """Run an item or show its verdicts: `%workbench reproduce ID`, `%workbench report ID`, both with `--profile P`.

        Any other command is the command line's own, such as `%workbench list`.
        """
        from workbench.cli import exit_code
        from workbench.notebook.verdicts import report, reproduce
        from workbench.reproduction import UsageError as WrongUse

        words = shlex.split(line)
        commands = {"reproduce": reproduce, "report": report}
        if not words or words[0] not in commands:
            exit_code(words or ["--help"])
            return
        try:
            commands[words[0]](*_item_and_profile(words))
        except WrongUse as error:
            raise UsageError(str(error)) from None


def _item_and_profile(words: Sequence[str]) -> tuple[str, str]:
    """Read `COMMAND ID [--profile P]`."""
    match words[1:]:
        case [identity]:
            return identity, "laptop"
        case [identity, "--profile" | "-p", profile] | ["--profile" | "-p", profile, identity]:
            return identity, profile
    raise UsageError(f"%workbench {words[0]} takes an item's id and --profile P, such as table-1 --profile smoke")
