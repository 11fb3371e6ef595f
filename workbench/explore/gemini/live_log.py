"""The log of a training in words, printed while the training runs.

What: one line an event that a reader wants to know of, with its second; iterations in a row share a line, which comes
when something else happens or enough of them are done.
Source: ours; the events are those of `workbench.techniques.gemini.runtime`.
Simplified: events are printed in the order in which they are heard, which is not always that in which they happened.
Left out: joining, checkpoints, results; `Training.events` has everything.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from workbench.techniques.gemini.runtime.control.events import Event, EventName

__all__ = ["LiveLog", "in_words"]

LOOK_S = 0.02  # between two looks at the log
SILENCE_S = 60.0  # without any event, after which nothing more is expected
ITERATION = "iteration"  # as ranks report it


class _Logged(Protocol):
    @property
    def events(self) -> Sequence[Event]: ...


class LiveLog:
    """Prints what happens in a training, as it happens.

    Args:
        training: one that was started.
        write: called with each line; None prints them.
        silence_s: seconds without any event after which waiting is given up.
    """

    def __init__(
        self, training: _Logged, *, write: Callable[[str], object] | None = None, silence_s: float = SILENCE_S
    ):
        self._training, self._silence_s = training, silence_s
        self._write = write or (lambda line: print(line, flush=True))
        self._num_seen, self._began_s = 0, 0.0
        self._counted: list[Event] = []  # iterations that are not written yet

    def until_iteration(self, iteration: int) -> None:
        """Print until rank 0 has done an iteration.

        Args:
            iteration: its number, which counts from here on: one that was done before and is done again counts anew.

        Raises:
            TimeoutError: if nothing is heard of the training for `silence_s`.
        """
        awaited = f"iteration {iteration}"
        self._until(lambda event: _is_counted(event) and event.details["iteration"] >= iteration, awaited)

    def until_end(self) -> None:
        """Print until all ranks have returned.

        Raises:
            TimeoutError: if nothing is heard of the training for `silence_s`.
        """
        self._until(lambda event: event.name == EventName.FINISHED, "the end")

    def _until(self, is_it: Callable[[Event], bool], awaited: str) -> None:
        heard_s = time.monotonic()
        while True:
            for event in self._training.events[self._num_seen :]:
                self._num_seen, heard_s = self._num_seen + 1, time.monotonic()
                self._show(event)
                if is_it(event):
                    return self._write_counted()
            if time.monotonic() - heard_s > self._silence_s:
                waited = f"nothing was heard of the training for {self._silence_s:g} s"
                raise TimeoutError(f"waiting for {awaited}, {waited}")
            time.sleep(LOOK_S)

    def _show(self, event: Event) -> None:
        if self._num_seen == 1:
            self._began_s = event.time_s
        if _is_counted(event):
            self._counted.append(event)
        elif words := in_words(event):
            self._write_counted()
            self._write_line(event, words)

    def _write_counted(self) -> None:
        if self._counted:
            first, last = (event.details["iteration"] for event in (self._counted[0], self._counted[-1]))
            words = f"iteration {first}" if first == last else f"iterations {first} to {last}"
            self._write_line(self._counted[0], words)
        self._counted = []

    def _write_line(self, event: Event, words: str) -> None:
        self._write(f"{event.time_s - self._began_s:6.2f} s  {words}")


def in_words(event: Event) -> str:
    """Say what happened.

    Args:
        event: of a training's log.

    Returns:
        A few words; empty for what goes without saying.
    """
    detail, machine = event.details, event.machine
    match event.name:
        case EventName.MACHINE_STARTED:
            return f"{machine} starts: process {detail['pid']}"
        case EventName.ROOT_ELECTED:
            return f"{machine} is elected root"
        case EventName.GENERATION_ORDERED:
            return f"generation {event.generation} begins: {detail['reason']}"
        case EventName.KILLED:
            return f"KILLED: {machine or 'the store'}" + (f", rank {event.rank}" if event.rank is not None else "")
        case EventName.RANK_FAILED:
            return f"rank {event.rank} of {machine}: {detail['kind']}"
        case EventName.HEARTBEAT_LOST:
            return f"{machine} has not been heard of for too long"
        case EventName.REPLACEMENT_ASKED:
            return f"the root asks for a machine in place of {machine}"
        case EventName.REPLACED:
            return f"{machine} takes number {event.number}"
        case "retrieve":
            return f"rank {event.rank}: iteration {detail['iteration']} from {detail['tier']}"
        case EventName.FINISHED:
            return "all ranks have returned"
    return ""


def _is_counted(event: Event) -> bool:
    return event.name == ITERATION and event.rank == 0
