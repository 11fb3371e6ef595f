"""A small training that a reader can kill and see go on, and its log in words while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import nn

from workbench.rows.progress import say_progress
from workbench.techniques.gemini.control.service import Event, EventName, RankContext
from workbench.techniques.gemini.control.training import Training
from workbench.techniques.gemini.measured.training import digest_of, shard, train_gpt2
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD as OF_CHECKPOINTS

__all__ = ["PRELOAD", "LiveLog", "SmallTraining", "in_words"]

PRELOAD = (*OF_CHECKPOINTS, train_gpt2.__module__, __name__)  # for machines that the lesson keeps warm
WIDTH, NUM_LAYERS, BATCH = 32, 3, 8  # of the model; examples of a rank
LEARNING_RATE = 1e-2  # chosen: weights move visibly in a few iterations
PAUSE_S = 0.1  # of an iteration, so that there is time to look on and to strike
MOST_RANKS = 10_000  # that draw different batches
LOOK_S = 0.02  # between two looks at the log
SILENCE_S = 60.0  # without any event, after which nothing more is expected
ITERATION = "iteration"  # as ranks report it


class SmallTraining:
    """Model, optimizer and updates of one rank of a training that a reader can kill and see go on.

    A few linear layers are sharded over the ranks as the paper's models are (ZeRO-3), with Adam. A batch is drawn from
    the number of its iteration, so a resumed training sees the batches that the interrupted one would have seen.
    """

    def __init__(self, context: RankContext, num_iterations: int = 0, *, pause_s: float = PAUSE_S, seed: int = 0):
        self._rank, self._num_iterations = context.rank, num_iterations  # 0: no end is known
        self._pause_s, self._seed = pause_s, seed
        draw = torch.Generator().manual_seed(seed)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=WIDTH**-0.5, generator=draw)
            nn.init.zeros_(layer.bias)
        self.model = nn.Sequential(*layers)
        shard(*layers, self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def update(self, iteration: int) -> None:
        """Do an iteration."""
        time.sleep(self._pause_s)
        draw = torch.Generator().manual_seed((self._seed + iteration) * MOST_RANKS + self._rank)
        x = torch.randn(BATCH, WIDTH, generator=draw)
        loss = (self.model(x) - x.flip(1)).square().mean()  # learn to turn rows round
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        say_progress(iteration + 1, self._num_iterations, "iterations", loss=loss.detach())

    def digest(self) -> str:
        """Return a digest of every bit of this rank's parameters and of Adam's moments."""
        return digest_of(self.model, self.optimizer)


class LiveLog:
    """Prints the log of a training in words while it runs, a line an event; iterations in a row share a line."""

    def __init__(
        self, training: Training, *, write: Callable[[str], object] | None = None, silence_s: float = SILENCE_S
    ):
        self._training, self._silence_s = training, silence_s
        self._write = write or (lambda line: print(line, flush=True))
        self._num_seen, self._began_s = 0, 0.0
        self._counted: list[Event] = []  # iterations that are not written yet

    def until_iteration(self, iteration: int) -> None:
        """Print until rank 0 has done an iteration, counted from here on: one that is done again counts anew."""
        awaited = f"iteration {iteration}"
        self._until(lambda event: _is_counted(event) and event.details["iteration"] >= iteration, awaited)

    def until_end(self) -> None:
        """Print until all ranks have returned."""
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
    """Say in a few words what happened; events that go without saying are empty."""
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
