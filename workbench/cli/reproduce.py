"""`workbench reproduce`: run what is not up to date, keep the report current, end with a table.

Source: `workbench.reproduction.runner` runs; the report follows the starts and ends of items, within a tenth of the time.
Simplified: nothing.
Left out: the running itself.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from time import monotonic
from typing import Annotated, Any

import typer

from . import common

__all__ = ["Run", "register", "reproduce"]

LEAST_BETWEEN_S = 5.0  # seconds from one report of a run under way to the next; its page reloads every 15
REASON_SHOWN = 40  # characters of a failure's reason in the table; the whole of it was told as the item ended
COSTS_BETWEEN = 10  # and as many times what the last one cost, since it is written where items are scheduled


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("reproduce", rich_help_panel=common.RUN)(reproduce)


def reproduce(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids or globs; all items by default.")
    ] = None,
    profile: common.OneProfile = "laptop",
    kernel: Annotated[
        str | None, typer.Option(metavar="NAME", help="Jupyter kernel; see workbench kernels list.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, help="Items side by side, one a core by default; those that measure times run alone."
        ),
    ] = None,
    timeout_s: Annotated[
        float | None, typer.Option("--timeout", min=0.1, metavar="SECONDS", help="Longest time for one item.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Run also items that are up to date; finished cells are reused.")
    ] = False,
    keep_cells: Annotated[
        bool,
        typer.Option(
            "--keep-cells",
            help="Accept finished cells of another library, version, machine or commit, "
            "those in the repository too; the record says how many.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would run, and why.")] = False,
) -> int:
    """Run items and write the report. What is up to date is not run again.

    \b
    Examples
      workbench reproduce
      workbench reproduce table-1 --dry-run
      workbench reproduce 'activation-*' --profile smoke --jobs 2
    """
    from workbench.reproduction.runner import plan

    project, catalogue = common.load()
    chosen = common.pick(catalogue, patterns or [])
    if dry_run:
        _print_plan(plan(project, chosen, profile, kernel=kernel, fresh=fresh, keep_cells=keep_cells), profile)
        return 0
    return Run(project, catalogue, chosen, profile).go(
        kernel=kernel, jobs=jobs, timeout_s=timeout_s, fresh=fresh, keep_cells=keep_cells
    )


def _print_plan(planned: Sequence[Any], profile: str) -> None:
    from rich.markup import escape
    from rich.table import Table

    from workbench.reproduction.report.numbers import about_text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("id", "would", "time", "why"):
        table.add_column(name, no_wrap=name == "id")
    for item in planned:
        runs = item.action == "run"
        table.add_row(
            item.id, str(item.action), f"about {about_text(item.expected_s)}" if runs else "", escape(_why(item))
        )
    out, running = common.console(), [item for item in planned if item.action == "run"]
    out.print(table)
    total = about_text(sum(item.expected_s for item in running))
    out.print(
        f"\n{len(running)} of {len(planned)} items would run in the profile {profile}, about {total} one after the other."
    )


def _why(item: Any) -> str:
    return item.why if item.cells is None else f"{item.why}; {item.cells}"


class Run:
    """One call of `workbench reproduce`: what is shown, the report, the table at the end."""

    def __init__(self, project: Any, catalogue: Sequence[Any], chosen: Sequence[Any], profile: str) -> None:
        self.project, self.catalogue, self.chosen, self.profile = project, catalogue, chosen, profile
        self.out = common.console()
        self.running: set[str] = set()
        self.kept: list[str] = []
        self.progress = ""
        self.report_trouble = ""
        self.num_cells = 0  # done, of the items under way
        self.behind = False  # whether the report has yet to tell of a start or an end
        self.next_report_s = 0.0  # on the monotonic clock

    def go(self, **options: Any) -> int:
        """Run, and return the exit code."""
        import logging

        from workbench.reproduction.runner import run

        from .progress import display

        logging.getLogger("papermill").setLevel(logging.CRITICAL)  # an item's failure is told once, by us
        try:
            with display(self.out) as shown:
                outcome = run(
                    self.project,
                    self.chosen,
                    self.profile,
                    on_event=lambda event: self.on_event(event, shown),
                    **options,
                )
        except KeyboardInterrupt:
            self.interrupted()
            return common.INTERRUPTED
        self.finished(outcome)
        return outcome.exit_code

    def on_event(self, event: Any, shown: Any) -> None:
        """Show an event and bring the report up to date with it."""
        from workbench.reproduction.runner import events

        from .progress import running_words, spent_words

        if isinstance(event, events.Planned):
            self.announce(event)
        elif isinstance(event, events.ItemStarted):
            self.running.add(event.id)
            self.behind = True
        elif isinstance(event, events.ItemFinished):
            self.running.discard(event.outcome.id)
            self.kept += [event.outcome.id] if event.outcome.status is events.Status.RECORDED else []
            self.behind = True
        elif isinstance(event, events.Progress):
            self.progress = f"{event.num_done} of {event.num_items} items are done, {spent_words(event)}; running: {running_words(event)}."
            num_cells = sum(cells.num_done for cells in event.cells.values())
            self.behind, self.num_cells = self.behind or num_cells != self.num_cells, num_cells
        if self.behind and monotonic() >= self.next_report_s:
            self.update_report()
        shown(event)

    def update_report(self) -> None:
        """Write the report of a run under way, and say when it may be written again."""
        began = monotonic()
        self.write_report(under_way=True)
        ended = monotonic()
        self.behind, self.next_report_s = False, ended + max(LEAST_BETWEEN_S, COSTS_BETWEEN * (ended - began))

    def announce(self, planned: Any) -> None:
        """Say before anything starts how long the run will take."""
        from workbench.reproduction.report.numbers import seconds_text

        actions = [str(item.action) for item in planned.items]
        rest = [
            f"; {actions.count(action)} {words}"
            for action, words in (("nothing", "up to date"), ("skip", "not declared for it"))
            if action in actions
        ]
        if "run" in actions:
            self.out.print(
                f"{actions.count('run')} of {len(actions)} items to run in the profile {self.profile}: "
                f"about {seconds_text(round(planned.expected_s))}{''.join(rest)}.",
                markup=False,
            )

    def write_report(self, under_way: bool = False) -> Any:
        """Write the report; a report that cannot be written does not stop the run, and is told of at its end."""
        from workbench.reproduction.report import report_path, write_report

        try:
            return write_report(
                self.project,
                self.catalogue,
                self.profile,
                running=tuple(self.running),
                progress=self.progress,
                under_way=under_way,
                notebooks=not under_way,
            )
        except Exception as error:  # hours of items are worth more than a page
            self.report_trouble = f"the report could not be written: {type(error).__name__}: {error}"
            return report_path(self.project, self.profile)

    def finished(self, outcome: Any) -> None:
        """Print the table and the report's path."""
        self.running.clear()
        path = self.write_report()
        if outcome.did_nothing:
            self.out.print(f"Nothing to do: {_up_to_date(outcome)}. (--fresh runs it again.)", markup=False)
        self.out.print(_table(self.project, self.chosen, self.profile, outcome))
        for told in _failed_lines(self.project, self.chosen, outcome):
            self.out.print(told, markup=False, soft_wrap=True)
        self.out.print(f"\nReport: {path}", markup=False)
        if self.report_trouble:
            print(f"workbench: {self.report_trouble}", file=sys.stderr)

    def interrupted(self) -> None:
        """Say what is kept and how to go on."""
        self.running.clear()
        self.write_report()
        kept = f"{len(self.kept)} item{'s' if len(self.kept) != 1 else ''} of this run" if self.kept else "nothing new"
        cells = ", every finished cell" if self.num_cells else ""
        print(
            f"\nInterrupted. Kept: {kept}{cells}, and every earlier record. The same command goes on with what is missing.",
            file=sys.stderr,
        )


def _up_to_date(outcome: Any) -> str:
    counts = Counter(item.status.value for item in outcome.items)
    return f"{', '.join(f'{number} {name}' for name, number in counts.items())} in the profile {outcome.profile}"


def _failed_lines(project: Any, chosen: Sequence[Any], outcome: Any) -> list[str]:
    """Say of each item that failed where its log lies; why it failed was said as it ended."""
    failed, by_id = (
        [item.id for item in outcome.items if item.status.value == "failed"],
        {item.id: item for item in chosen},
    )
    folders = {id: project.folder(by_id[id], outcome.profile) for id in failed}
    logs = {
        id: next((folder / name for name in ("failure.txt", "failure.json") if (folder / name).is_file()), folder)
        for id, folder in folders.items()
    }
    return [f"{id} failed: {log}" for id, log in logs.items()]


def _table(project: Any, chosen: Sequence[Any], profile: str, outcome: Any) -> Any:
    from rich.markup import escape
    from rich.table import Table

    from workbench.reproduction.report import gather

    ended = {item.id: item for item in outcome.items}
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name, justify in (("item", "left"), ("evidence", "left"), ("verdicts", "left"), ("seconds", "right")):
        table.add_column(name, justify=justify, no_wrap=name == "item")
    for technique in gather(project, chosen, profile).techniques:
        for view in technique.items:
            table.add_row(
                view.id, view.evidence, _verdicts(view, ended.get(view.id), escape), _seconds(view, ended.get(view.id))
            )
    return table


def _seconds(view: Any, ended: Any) -> str:
    if _failed(ended):  # the time of a record beside it is that of another run
        return f"{ended.seconds:.1f}"
    return f"{view.seconds:.1f}" if view.has_record else ""


def _failed(ended: Any) -> bool:
    return ended is not None and ended.status.value == "failed"


def _verdicts(view: Any, ended: Any, escape: Any) -> str:
    if _failed(ended):
        reason = ended.reason if len(ended.reason) <= REASON_SHOWN else f"{ended.reason[: REASON_SHOWN - 1]}…"
        return f"[bold red]failed[/] {escape(reason)}"
    if view.refused and not view.has_record:
        return f"[bold red]refused[/] {escape(view.refused[0])}"
    if not view.has_record:
        return "[dim]not declared for this profile[/]" if ended is not None else ""
    return (
        common.verdict_words(dict(view.counts))
        if view.counts and any(view.counts.values())
        else "[dim]ran; no verdicts[/]"
    )
