"""Showing a run: the item, the time spent and the time to go; a bar on a terminal, plain lines elsewhere.

Source: none; rich draws.
Simplified: the time to go is the sum of what the remaining items are expected to take, corrected by how the finished ones did.
Left out: running anything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from workbench.reproduction.report.numbers import seconds_text

__all__ = ["BarDisplay", "LineDisplay", "Stopwatch"]

REFRESH_PER_S = 4  # redraws of the bar a second
UNKNOWN_S = 30.0  # what an item that states no time is taken to need, until it is known better
CORRECTION_RANGE = (0.2, 5.0)  # a single odd item must not make the estimate absurd


@dataclass(slots=True)
class Stopwatch:
    """Time spent and time to go of a run.

    Attributes:
        expected_s: by item id, the seconds it is expected to take; None where nobody knows.
        jobs: items that run side by side.
        clock: seconds, rising.
    """

    expected_s: Mapping[str, float | None]
    jobs: int = 1
    clock: Callable[[], float] = time.monotonic
    began: float = field(init=False)
    running: dict[str, float] = field(default_factory=dict, init=False)
    took_s: dict[str, float] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()

    def started(self, item_id: str) -> None:
        """Note that an item starts now."""
        self.running[item_id] = self.clock()

    def ended(self, item_id: str) -> float:
        """Note that an item ends now; return its seconds."""
        self.took_s[item_id] = self.clock() - self.running.pop(item_id, self.clock())
        return self.took_s[item_id]

    @property
    def spent_s(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.began

    @property
    def correction(self) -> float:
        """How much longer than expected the finished items took, as a factor."""
        expected = sum(self._expected(item) for item in self.took_s)
        low, high = CORRECTION_RANGE
        return min(high, max(low, sum(self.took_s.values()) / expected)) if expected else 1.0

    @property
    def to_go_s(self) -> float:
        """Seconds that the rest will probably take."""
        now, left = self.clock(), 0.0
        for item in self.expected_s:
            if item not in self.took_s:
                left += max(0.0, self._expected(item) * self.correction - (now - self.running.get(item, now)))
        return left / max(1, self.jobs)

    def _expected(self, item: str) -> float:
        known = self.expected_s.get(item)
        return UNKNOWN_S if known is None else known

    def words(self) -> str:
        """Say what runs, the time spent and the time to go."""
        names = ", ".join(self.running) or "between items"
        return f"{names}   {seconds_text(round(self.spent_s))} spent, about {seconds_text(round(self.to_go_s))} to go"


class LineDisplay:
    """Plain lines, for logs and pipes."""

    def __init__(self, console: Any, watch: Stopwatch) -> None:
        self.console, self.watch = console, watch

    def __enter__(self) -> LineDisplay:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def started(self, item_id: str) -> None:
        """Say that an item starts."""
        self.watch.started(item_id)
        self.console.print(f"[{self._place(len(self.watch.running))}] {item_id} starts; about "
                           f"{seconds_text(round(self.watch.to_go_s))} to go in all", markup=False)

    def ended(self, item_id: str, words: str) -> None:
        """Say how an item ended."""
        took_s = self.watch.ended(item_id)
        self.console.print(f"[{self._place(0)}] {item_id} {words} in {seconds_text(round(took_s, 1))}", markup=False)

    def said(self, text: str) -> None:
        """Pass a message on."""
        self.console.print(text, markup=False)

    def _place(self, running: int) -> str:
        return f"{len(self.watch.took_s) + running}/{len(self.watch.expected_s)}"


class BarDisplay:
    """A bar at the foot of the terminal; finished items scroll above it."""

    def __init__(self, console: Any, watch: Stopwatch) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        self.watch = watch
        columns = (MofNCompleteColumn(), BarColumn(bar_width=24), _words_column(TextColumn, watch))
        self.progress = Progress(*columns, console=console, refresh_per_second=REFRESH_PER_S, transient=True)
        self.task = self.progress.add_task("", total=len(watch.expected_s))

    def __enter__(self) -> BarDisplay:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def started(self, item_id: str) -> None:
        """Name the item at the bar."""
        self.watch.started(item_id)
        self.progress.refresh()

    def ended(self, item_id: str, words: str) -> None:
        """Move the bar and say how the item ended."""
        took_s = self.watch.ended(item_id)
        self.progress.console.print(f"{item_id} {words} in {seconds_text(round(took_s, 1))}", markup=False)
        self.progress.update(self.task, advance=1)

    def said(self, text: str) -> None:
        """Pass a message on, above the bar."""
        self.progress.console.print(text, markup=False)


def _words_column(base: type, watch: Stopwatch) -> Any:
    class WordsColumn(base):
        """The watch's words, read at each redraw."""

        def __init__(self) -> None:
            super().__init__("")

        def render(self, task: Any) -> Any:
            from rich.text import Text

            return Text(watch.words(), overflow="ellipsis", no_wrap=True)

    return WordsColumn()
