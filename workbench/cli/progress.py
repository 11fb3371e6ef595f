"""A run as it goes, with the time spent and the time to go; a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from workbench.reproduction.report import about_text, seconds_text
from workbench.reproduction.runner import Event, ItemFinished, ItemOutcome, ItemStarted, Progress, Status, Stopping
from workbench.rows.progress import HowFar

from .common import reason_words, verdict_words

__all__ = ["BarDisplay", "LineDisplay", "display", "num_done", "running_words", "spent_words"]

REFRESH_PER_S = 4  # redraws of the bar a second
MOST_SHARE = 0.99  # of an item that has not ended
BAR_WIDTH = 12  # characters
HEARTBEAT_S = 60.0  # seconds between two lines of a log in which nothing else happens


def display(console: Any) -> LineDisplay | BarDisplay:
    """Return the display of a run on this console."""
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)


def _line_of(event: Event) -> str:
    """Return the line that an event leaves on a terminal and in a log alike; empty for none."""
    if isinstance(event, Stopping):
        ids = ", ".join(event.ids)
        waits = f"waiting for the processes of {ids} to end (at most {seconds_text(event.at_most_s)})"
        return f"Stopping: {waits}; press Ctrl-C again not to wait."
    if isinstance(event, ItemFinished) and event.outcome.status in (Status.RECORDED, Status.FAILED):
        return _ended_words(event.outcome)
    return ""


def _ended_words(outcome: ItemOutcome) -> str:
    took = seconds_text(round(outcome.seconds, 1))
    if outcome.status is Status.FAILED:
        return f"{outcome.id}  [bold red]failed[/] after {took}: {escape(outcome.reason)}"
    if not any(outcome.verdicts.values()):
        return f"{outcome.id}  ran in {took}; no verdicts"
    said = f"{outcome.id}  {outcome.status.value} in {took}  {verdict_words(outcome.verdicts)}"
    return "\n".join([said, *(f"    {words}" for words in reason_words(outcome.not_comparable))])


def spent_words(progress: Progress) -> str:
    """Say the time spent and the time to go."""
    return f"{seconds_text(round(progress.elapsed_s))} spent, {left_words(progress)}"


def left_words(progress: Progress) -> str:
    """Say the time to go."""
    to_go = round(progress.remaining_s)
    return f"about {seconds_text(to_go)} to go" if to_go else "longer than expected"


def running_words(progress: Progress) -> str:
    """Name the items under way, each with how far it is."""
    return ", ".join(f"{id}{_part_words(progress.parts.get(id))}" for id in progress.running)


def _part_words(far: HowFar | None) -> str:
    if far is None:
        return ""
    left = "" if far.remaining_s is None else f", about {about_text(far.remaining_s)} left"
    return f" ({far.num_done} of {far.num_parts} {far.what}{left})"


def num_done(progress: Progress) -> float:
    """Count the items that have ended, and of each under way the share that is done."""
    return progress.num_done + sum(_share(progress.parts.get(id), spent) for id, spent in progress.running.items())


def _share(far: HowFar | None, spent_s: float) -> float:
    if far is None:
        return 0.0
    if far.remaining_s is None:  # nobody expected it to take so long
        return MOST_SHARE * far.num_done / far.num_parts
    return min(spent_s / (spent_s + far.remaining_s), MOST_SHARE)


class LineDisplay:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Any) -> None:
        self.console, self.spoke_s = console, 0.0

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, event: Event) -> None:
        """Write a line for an event that deserves one."""
        if line := _line_of(event):
            self.console.print(line)
        if isinstance(event, ItemStarted):
            place, about = f"{event.number}/{event.num_items}", seconds_text(round(event.expected_s))
            self.console.print(f"{place} {event.id} starts; about {about}", markup=False)
        elif isinstance(event, Progress) and event.elapsed_s - self.spoke_s >= HEARTBEAT_S:
            self.spoke_s = event.elapsed_s
            done = f"{event.num_done}/{event.num_items} done"
            self.console.print(f"{done}, {spent_words(event)}; running: {running_words(event)}", markup=False)


class BarDisplay:
    """A bar at the foot of the terminal; finished items scroll above it."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self.bar = Bar(
            BarColumn(bar_width=BAR_WIDTH),
            MofNCompleteColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[left]}"),
            TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis")),
            console=console,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
            expand=True,
        )
        self.task = self.bar.add_task("starting", total=None, left="")

    def __enter__(self) -> BarDisplay:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Move the bar, or write how an item ended above it."""
        if line := _line_of(event):
            self.bar.console.print(line)
        if isinstance(event, ItemStarted):
            self.bar.update(self.task, total=event.num_items, description=event.id)
        elif isinstance(event, Progress):
            self.bar.update(
                self.task,
                total=event.num_items,
                completed=num_done(event),
                description=running_words(event),
                left=left_words(event),
            )
