"""Showing a run: the item, the time spent and the time to go; a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from typing import Any

from rich.markup import escape

from workbench.reproduction.cells import CellProgress
from workbench.reproduction.report import about_text, seconds_text
from workbench.reproduction.runner import Event, ItemFinished, ItemOutcome, ItemStarted, Progress, Status

from .common import verdict_words

__all__ = ["BarDisplay", "LineDisplay", "display", "running_words", "spent_words"]

REFRESH_PER_S = 4  # redraws of the bar a second
HEARTBEAT_S = 60.0  # seconds between two lines of a log in which nothing else happens


def display(console: Any) -> LineDisplay | BarDisplay:
    """Return the display of a run on this console."""
    return BarDisplay(console) if console.is_terminal else LineDisplay(console)


def _ended_words(outcome: ItemOutcome) -> str:
    took = seconds_text(round(outcome.seconds, 1))
    if outcome.status is Status.FAILED:
        return f"{outcome.id}  [bold red]failed[/] after {took}: {escape(outcome.reason)}"
    if not any(outcome.verdicts.values()):
        return f"{outcome.id}  ran in {took}; no verdicts"
    return f"{outcome.id}  {outcome.status.value} in {took}  {verdict_words(outcome.verdicts)}"


def spent_words(progress: Progress) -> str:
    """Say the time spent and the time to go."""
    return f"{seconds_text(round(progress.elapsed_s))} spent, about {seconds_text(round(progress.remaining_s))} to go"


def running_words(progress: Progress) -> str:
    """Name the items under way, each with how far its cells are."""
    return ", ".join(f"{id}{_cells(progress.cells.get(id))}" for id in progress.running)


def _cells(cells: CellProgress | None) -> str:
    if cells is None:
        return ""
    left = "" if cells.remaining_s is None else f", about {about_text(cells.remaining_s)} left"
    return f" ({cells.num_done} of {cells.num_cells} cells{left})"


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
        if isinstance(event, ItemStarted):
            place, about = f"{event.number}/{event.num_items}", seconds_text(round(event.expected_s))
            self.console.print(f"{place} {event.id} starts; about {about}", markup=False)
        elif isinstance(event, ItemFinished) and event.outcome.status in (Status.RECORDED, Status.FAILED):
            self.console.print(_ended_words(event.outcome))
        elif isinstance(event, Progress) and event.elapsed_s - self.spoke_s >= HEARTBEAT_S:
            self.spoke_s = event.elapsed_s
            done = f"{event.num_done}/{event.num_items} done"
            self.console.print(f"{done}, {spent_words(event)}; running: {running_words(event)}", markup=False)


class BarDisplay:
    """A bar at the foot of the terminal; finished items scroll above it."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        self.bar = Bar(
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TextColumn("{task.description}"),
            console=console,
            refresh_per_second=REFRESH_PER_S,
            transient=True,
        )
        self.task = self.bar.add_task("starting", total=None)

    def __enter__(self) -> BarDisplay:
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def __call__(self, event: Event) -> None:
        """Move the bar, or write how an item ended above it."""
        if isinstance(event, ItemStarted):
            self.bar.update(self.task, total=event.num_items, description=event.id)
        elif isinstance(event, Progress):
            words = f"{spent_words(event)}  {running_words(event)}"
            self.bar.update(self.task, completed=event.num_done, total=event.num_items, description=words)
        elif isinstance(event, ItemFinished) and event.outcome.status in (Status.RECORDED, Status.FAILED):
            self.bar.console.print(_ended_words(event.outcome))
