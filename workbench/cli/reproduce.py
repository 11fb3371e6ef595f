"""`workbench reproduce`: run the items that are not up to date, keep the report current, end with a table."""

from __future__ import annotations

import logging
import re
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from . import common

__all__ = ["Run", "jobs", "minutes_of", "register", "reproduce"]

CLUSTERS = ("slurm", "local")
TIME = re.compile(r"(?:(?:(\d+)-)?(\d+):(?=\d+:))?(\d+)?(?::(\d+))?")
LEAST_BETWEEN_S = 5.0  # seconds from one report of a run under way to the next; its page reloads every 15
REASON_SHOWN = 40  # characters of a failure's reason in the table; all of it was printed as the item ended
COSTS_BETWEEN = 2  # and as many times what the last one cost, since it is written where items are scheduled


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("reproduce", rich_help_panel=common.RUN)(reproduce)
    app.command("jobs", rich_help_panel=common.RUN)(jobs)


def _cluster(word: str) -> str:
    return word and common.choose(word, CLUSTERS, "place")


def reproduce(
    patterns: common.Patterns = None,
    profile: common.OneProfile = "",
    kernel: Annotated[str | None, Option(metavar="NAME", help="Jupyter kernel; see workbench kernels list.")] = None,
    jobs: Annotated[
        int | None,
        Option(
            "--jobs",
            "-j",
            min=1,
            metavar="N",
            help="Items side by side, by default one a core, in smoke one more; timed ones run alone.",
        ),
    ] = None,
    timeout_s: Annotated[
        float | None, Option("--timeout", min=0.1, metavar="SECONDS", help="Longest time for one item.")
    ] = None,
    fresh: Annotated[bool, Option("--fresh", help="Run items that are up to date too; cells are reused.")] = False,
    keep_cells: Annotated[
        bool,
        Option(
            "--keep-cells",
            help="Accept finished cells of another library, version, machine or commit, "
            "those in the repository too; the record says how many.",
        ),
    ] = False,
    on: Annotated[
        str,
        Option(
            "--on",
            metavar="|".join(CLUSTERS),
            callback=_cluster,
            help="Run items and cells as jobs of Slurm, or as processes of this machine in the same way.",
        ),
    ] = "",
    partition: Annotated[str, Option("--partition", metavar="NAME", help="Of Slurm.")] = "",
    account: Annotated[str, Option("--account", metavar="NAME", help="Of Slurm.")] = "",
    gpus_per_node: Annotated[int, Option("--gpus-per-node", min=0, metavar="N", help="Asked of Slurm.")] = 0,
    max_jobs: Annotated[int, Option("--max-jobs", min=0, metavar="N", help="Under way at once, by default 100.")] = 0,
    time: Annotated[
        str, Option("--time", metavar="H:MM:SS", help="Asked of Slurm for each job, by default what is expected.")
    ] = "",
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would run, and why.")] = False,
    as_json: Annotated[bool, Option("--json", help="With --dry-run: machine-readable.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Nothing before the table at the end.")] = False,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Say of each item why it runs or not.")] = False,
    results: common.Results = None,
) -> int:
    """Run items and write the report. What is up to date is not run again.

    Without ids the profile is quick, the headline findings of all papers in ten minutes; with ids it is laptop.

    \b
    Examples
      workbench reproduce
      workbench reproduce table-1 --dry-run
      workbench reproduce 'activation-*' --profile smoke --jobs 2
      workbench reproduce --profile full --on slurm --partition batch --max-jobs 50
    """
    from workbench.reproduction import UsageError
    from workbench.reproduction.jobs import Engine
    from workbench.reproduction.runner import plan

    project, catalogue = common.load(results)
    chosen = common.pick(catalogue, patterns or [])
    quick = tuple(item for item in chosen if "quick" in item.parameters)
    profile = profile or ("quick" if quick and not patterns else "laptop")
    if profile == "quick" and not patterns:
        chosen = quick
    if dry_run:
        of_node = gpus_per_node if on == "slurm" else None
        planned = plan(project, chosen, profile, kernel=kernel, fresh=fresh, keep_cells=keep_cells, gpus=of_node)
        common.print_json([_plan_json(item) for item in planned]) if as_json else _print_plan(planned, profile)
        return 0
    if as_json or (quiet and verbose):
        raise UsageError("--json goes with --dry-run" if as_json else "--quiet and --verbose exclude each other")
    asked: dict[str, Any] = {"partition": partition, "account": account, "gpus_per_node": gpus_per_node}
    asked |= {"max_jobs": max_jobs, "minutes": minutes_of(time)}
    if any(asked.values()) and not on:
        raise UsageError("--partition, --account, --gpus-per-node, --max-jobs and --time go with --on")
    return Run(project, catalogue, chosen, profile, quiet=quiet, verbose=verbose).go(
        kernel=kernel,
        jobs=jobs,
        timeout_s=timeout_s,
        fresh=fresh,
        keep_cells=keep_cells,
        engine=Engine(cluster=on, **asked) if on else None,
    )


def jobs(
    ids: Annotated[list[str] | None, Argument(metavar="JOB", help="Numbers of jobs; all by default.")] = None,
    cancel: Annotated[bool, Option("--cancel", help="Cancel them.")] = False,
    results: common.Results = None,
) -> int:
    """List the jobs that --on has started and that are under way, or cancel them.

    \b
    Examples
      workbench jobs
      workbench jobs --cancel
    """
    from workbench.reproduction import Project
    from workbench.reproduction import jobs as cluster

    folders = Project(results=results).results.glob(f"*/{cluster.JOBS_FOLDER}")
    noted = [(path.parent.name, job) for path in sorted(folders) for job in cluster.noted(path)]
    states = cluster.states_of(job for _, job in noted)
    chosen = [(profile, job) for profile, job in noted if states.get(job.id) and (not ids or job.id in ids)]
    if cancel:
        cluster.cancel(job for _, job in chosen)
    table = common.table("job", "state", "profile", "submitted", "runs")
    for profile, job in chosen:
        state = "cancelled" if cancel else states[job.id].lower()
        table.add_row(job.tag, state, profile, job.submitted, escape(job.name))
    common.console().print(table if chosen else "No job is under way.")
    return 0


def minutes_of(time: str) -> int:
    """Return minutes of a time as Slurm writes it: M, M:SS, H:MM:SS or D-H:MM:SS; 0 for none."""
    from workbench.reproduction import UsageError

    if not (match := TIME.fullmatch(time)):
        raise UsageError(f"--time is {time!r}; it must read M, M:SS, H:MM:SS or D-H:MM:SS")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return (days * 24 + hours) * 60 + minutes + (seconds > 0)


def _print_plan(planned: Sequence[Any], profile: str) -> None:
    from workbench.reproduction.report import about_text

    table = common.table("id", "would", "time", "why")
    running = [item for item in planned if item.action == "run"]
    for item in planned:
        why = item.why if item.cells is None else f"{item.why}; {item.cells}"
        time = f"about {about_text(item.expected_s)}" if item in running else ""
        table.add_row(item.id, str(item.action), time, escape(why))
    out, total = common.console(), about_text(sum(item.expected_s for item in running))
    out.print(table)
    count = f"{len(running)} of {common.counted(len(planned), 'item')} would run in the profile {profile}"
    out.print(f"\n{count}, about {total} one after the other.")


def _plan_json(item: Any) -> dict[str, Any]:
    copied = {name: getattr(item, name) for name in ("id", "why", "times", "expected_s")}
    return copied | {"action": str(item.action), "cells": None if item.cells is None else str(item.cells)}


class Run:
    """One call of `workbench reproduce`: its display, its report, the table at the end."""

    def __init__(
        self,
        project: Any,
        catalogue: Sequence[Any],
        chosen: Sequence[Any],
        profile: str,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        self.project, self.catalogue, self.chosen, self.profile = project, catalogue, chosen, profile
        self.quiet, self.verbose = quiet, verbose
        self.out = common.console()
        self.running: set[str] = set()
        self.changed: set[str] | None = None  # techniques whose pages are not up to date; None for all
        self.num_recorded = 0
        self.progress = ""
        self.report_trouble = ""
        self.num_cells = 0  # done, of the items under way
        self.behind = False  # whether a start or an end is not yet on the report
        self.next_report_s = 0.0  # on the monotonic clock

    def go(self, **options: Any) -> int:
        """Run, and return the exit code."""
        from workbench.reproduction import run

        from .progress import display

        logging.getLogger("papermill").setLevel(logging.CRITICAL)  # an item's failure is printed once, by us
        try:
            with nullcontext(lambda event: None) if self.quiet else display(self.out) as shown:
                options["on_event"] = lambda event: self.on_event(event, shown)
                outcome = run(self.project, self.chosen, self.profile, **options)
        except KeyboardInterrupt:
            self.interrupted()
            return common.INTERRUPTED
        self.finished(outcome)
        return outcome.exit_code

    def on_event(self, event: Any, shown: Any) -> None:
        """Show an event and bring the report up to date with it."""
        from workbench.reproduction import runner as events

        from .progress import running_words, spent_words

        if isinstance(event, events.Stopping):
            shown(event)  # at once, and nothing else
            return
        if isinstance(event, events.Planned):
            if not self.quiet:
                self.announce(event)
        elif isinstance(event, events.ItemStarted):
            self.running.add(event.id)
            self.fell_behind(event.id)
        elif isinstance(event, events.ItemFinished):
            self.running.discard(event.outcome.id)
            self.num_recorded += event.outcome.status is events.Status.RECORDED
            self.fell_behind(event.outcome.id)
        elif isinstance(event, events.Progress):
            done = f"{event.num_done} of {event.num_items} items are done"
            self.progress = f"{done}, {spent_words(event)}; running: {running_words(event)}."
            num_cells = sum(far.num_done for far in event.parts.values() if far.what == "cells")
            self.behind, self.num_cells = self.behind or num_cells != self.num_cells, num_cells
        shown(event)
        if isinstance(event, events.ItemFinished):
            self.tell(event.outcome)
        if self.behind and monotonic() >= self.next_report_s:
            began = monotonic()
            self.write_report(under_way=True, whole=False)
            ended = monotonic()
            self.behind, self.next_report_s = False, ended + max(LEAST_BETWEEN_S, COSTS_BETWEEN * (ended - began))

    def fell_behind(self, id: str) -> None:
        """Note that the report does not show an item's state any more."""
        self.behind = True
        if self.changed is not None:
            self.changed.add(id.partition("/")[0].replace("-", "_"))

    def tell(self, outcome: Any) -> None:
        """Print what an item has found, in sentences."""
        from workbench.reproduction.findings import news_of

        if self.quiet or self.profile == "smoke" or outcome.status != "recorded":
            return
        for line in news_of(self.project, self.catalogue, outcome.id, self.profile):
            self.out.print(f"    {line}", markup=False)

    def announce(self, planned: Any) -> None:
        """Print before anything starts how long the run will take."""
        from workbench.reproduction.report import report_path, seconds_text

        for item in planned.items if self.verbose else ():
            self.out.print(f"{item.id}: {item.action}, {item.why}", markup=False, soft_wrap=True)
        actions = Counter(str(item.action) for item in planned.items)
        lacking = [item for item in planned.items if item.action == "skip" and item.is_declared]
        counts = {"up to date": actions["nothing"], "not declared for it": actions["skip"] - len(lacking)}
        counts["skipped"] = len(lacking)
        rest = [f"; {number} {words}" for words, number in counts.items() if number]
        for item in lacking:
            self.out.print(f"{item.id} is skipped: it {item.why}", markup=False, soft_wrap=True)
        if actions["run"]:
            count = (
                f"{actions['run']} of {common.counted(len(planned.items), 'item')} to run in the profile {self.profile}"
            )
            about = seconds_text(round(planned.expected_s))
            self.out.print(f"{count}: about {about}{''.join(rest)}.", markup=False)
            path = report_path(self.project, self.profile)
            self.out.print(f"The report grows as it runs: {path}", markup=False, soft_wrap=True)

    def write_report(self, under_way: bool = False, whole: bool = True) -> Path:
        """Write the report, whole or what has changed; a report that cannot be written is named at the run's end."""
        from workbench.reproduction.report import report_path, write_report

        options: dict[str, Any] = {"running": tuple(self.running), "progress": self.progress, "under_way": under_way}
        # Rendering takes a core for a moment, which only a run that times nothing can spare before its end.
        options |= {"changed": None if whole else self.changed, "notebooks": whole or self.profile == "smoke"}
        try:
            path = write_report(self.project, self.catalogue, self.profile, **options)
            self.changed = set()
            return path
        except Exception as error:  # hours of items are worth more than a page
            self.report_trouble = f"the report could not be written: {type(error).__name__}: {error}"
            return report_path(self.project, self.profile)

    def finished(self, outcome: Any) -> None:
        """Print the table, the logs of failed items and the report's path."""
        from workbench.reproduction import ItemRun

        self.running.clear()
        with self.out.status("Writing the report"):
            path = self.write_report()
        if outcome.did_nothing:
            counts = Counter(item.status.value for item in outcome.items)
            words = ", ".join(f"{number} {name}" for name, number in counts.items())
            self.out.print(
                f"Nothing to do: {words} in the profile {outcome.profile}. (--fresh runs it again.)", markup=False
            )
        self.out.print(_table(self.project, self.chosen, self.profile, outcome))
        by_id = {item.id: item for item in self.chosen}
        for item in outcome.failed:
            folder = ItemRun(self.project, by_id[item.id], outcome.profile).folder
            logs = [folder / name for name in ("failure.txt", "failure.json") if (folder / name).is_file()]
            self.out.print(f"{item.id} failed: {(logs or [folder])[0]}", markup=False, soft_wrap=True)
        self.out.print(f"\nReport: {path}", markup=False)
        if self.report_trouble:
            print(f"workbench: {self.report_trouble}", file=sys.stderr)

    def interrupted(self) -> None:
        """Print what is kept and how to go on, then say on the report that the run has ended."""
        self.running.clear()
        number = self.num_recorded
        kept = f"{common.counted(number, 'item')} of this run" if number else "nothing new"
        cells = ", every finished cell" if self.num_cells else ""
        rest = "The same command goes on with what is missing."
        print(f"\nInterrupted. Kept: {kept}{cells}, and every earlier record. {rest}", file=sys.stderr)
        if self.changed is not None:  # else no page says yet that the run is under way
            self.write_report(whole=False)


def _table(project: Any, chosen: Sequence[Any], profile: str, outcome: Any) -> Any:
    from workbench.reproduction.report import gather

    ended = {item.id: item for item in outcome.items}
    failed = {item.id: item for item in outcome.failed}
    table = common.table("item", "evidence", "verdicts", "seconds", right="seconds")
    for technique in gather(project, chosen, profile).techniques:
        for view in technique.items:
            seconds = f"{view.seconds:.1f}" if view.has_record else ""
            if view.id in failed:  # the time of a record beside it is that of another run
                seconds = f"{failed[view.id].seconds:.1f}"
            table.add_row(view.id, view.evidence, _verdicts(view, failed.get(view.id), view.id in ended), seconds)
    return table


def _verdicts(view: Any, failed: Any, has_ended: bool) -> str:
    if failed is not None:
        reason = failed.reason if len(failed.reason) <= REASON_SHOWN else f"{failed.reason[: REASON_SHOWN - 1]}…"
        return f"[bold red]failed[/] {escape(reason)}"
    if view.has_record:
        return common.verdict_words(view.counts) if any(view.counts.values()) else "[dim]ran; no verdicts[/]"
    if view.refused:
        return f"[bold red]refused[/] {escape(view.refused[0])}"
    return "[dim]not declared for this profile[/]" if has_ended else ""
