"""What one rank does while checkpointing is timed: trainings with and without it, in turn.

What: every scheme has a model, an optimizer and `InMemoryCheckpoints` of its own, starts from the same weights and sees
the same tokens. Beside them may stand torch's own async_save, to files, and torchft, without checkpoints. All take
turns in an order drawn anew for each round. A turn's first iteration is not timed: it begins the checkpoint that
travels in the first timed one, and no checkpoint travels in it, so that it also says how long the network is idle
without one. What is still travelling when the clock has stopped is finished before the next turn, so each timed
iteration has exactly one checkpoint to pay for, and no scheme pays for another's.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", sections 6.7.2 and 6.7.4.
Simplified: without dropout. Profiling is done in one go before the first turn.
Left out: garbage collection, which is switched off within turns.
"""

from __future__ import annotations

import gc
import random
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict

from ..method.interleaving import Scheme
from ..method.profiling import Operation, ProfiledIteration, idle_spans_s
from ..runtime.checkpoints import InMemoryCheckpoints
from .gpt2_training import LEARNING_RATE, Size, Tokens, digest_of
from .pool_context import PoolContext
from .voting_replicas import VotingReplicas

__all__ = ["ASYNC_SAVE", "TORCHFT", "AsyncSave", "Facts", "Turn", "Turns", "checked_way", "idle_s", "record_turns"]

ASYNC_SAVE = "async_save"  # torch.distributed.checkpoint's, beside the names of `Scheme`
TORCHFT = "torchft"  # see `voting_replicas`; only for models that are not sharded

SETTLING = 4  # iterations of the first turn beside the profiled ones: the skipped one, and some with chunks in spans


@dataclass(frozen=True, kw_only=True, slots=True)
class Turns:
    """How often schemes take turns.

    Attributes:
        rounds: turns of each.
        length: timed iterations of a turn.
        num_profiled: iterations whose idle spans are measured.
        reserved_bytes: of sub-buffers.
        seed: of the order.
        folder: where async_save writes.
    """

    rounds: int
    length: int = 3
    num_profiled: int = 6
    reserved_bytes: int = 262_144
    seed: int = 0
    folder: str = ""

    def __post_init__(self) -> None:
        for name in ("rounds", "length", "num_profiled", "reserved_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One turn of one scheme on one rank; all but `idle_before_s` are means over its timed iterations.

    Attributes:
        scheme: name of a `Scheme`, or of another way.
        iteration_s: seconds of an iteration.
        cpu_s: seconds of processor that the rank took for one, all its threads.
        idle_before_s: in which no message of training was under way, in the iteration without a checkpoint.
        idle_s: the same with checkpoints; None for both where nothing watches.
        checkpoint_s: from the beginning of a checkpoint until all was sent and received; None without checkpoints.
    """

    scheme: str
    iteration_s: float
    cpu_s: float
    idle_before_s: float | None = None
    idle_s: float | None = None
    checkpoint_s: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What is known of a scheme at the end, on one rank.

    Attributes:
        digest: of weights and optimizer.
        shard_bytes, buffer_bytes: of one checkpoint, and of the sub-buffers of both directions.
        num_chunks: of one checkpoint.
        network_s: seconds that its chunks travel at the measured speed of the link; None where it was not measured.
    """

    digest: str
    shard_bytes: int = 0
    buffer_bytes: int = 0
    num_chunks: int = 0
    network_s: float | None = None


def idle_s(began_s: float, ended_s: float, operations: Sequence[tuple[float, float]]) -> float:
    """Return the seconds in which no message was under way.

    Args:
        began_s, ended_s: of the iteration.
        operations: start and end of its messages; what lies outside the iteration does not count.
    """
    within = [(start, end) for start, end in operations if end > began_s and start < ended_s]
    inside = [(max(start, began_s), min(end, ended_s)) for start, end in within]
    messages = tuple(Operation(start_s=start, end_s=end) for start, end in inside)
    iteration = ProfiledIteration(name="iteration", start_s=began_s, end_s=ended_s, operations=messages)
    return sum(idle_spans_s(iteration))


def checked_way(name: str) -> str:
    """Refuse what is neither the name of a `Scheme` nor another way."""
    return name if name in (ASYNC_SAVE, TORCHFT) else Scheme(name).value


def record_turns(schemes: Sequence[str], size: Size, turns: Turns) -> tuple[list[Turn], dict[str, Facts]]:
    """Train with each scheme for a turn a round; every rank calls it.

    Args:
        schemes: names; Baseline is training without checkpoints.
        size: of model and batch; its number of iterations is not looked at.
        turns: how many.

    Returns:
        This rank's turns in the order in which they ran, and what is known of each scheme at the end.
    """
    trials, order, taken = [_Trial(scheme, size, turns) for scheme in schemes], random.Random(turns.seed), []
    for trial in trials:
        trial.settle()
    for _ in range(turns.rounds):
        for trial in order.sample(trials, len(trials)):
            gc.collect()
            gc.disable()
            try:
                taken.append(trial.take_turn())
            finally:
                gc.enable()
    return taken, {trial.scheme: trial.close() for trial in trials}


class AsyncSave:
    """Saves every iteration by torch's async_save; one save at a time, so that training waits for the one before.

    Args:
        model, optimizer: whose state is saved.
        folder: where; the same on all ranks.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: str):
        self._model, self._optimizer, self._folder = model, optimizer, folder
        warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")  # of its own planner, at every save
        self._group = dist.new_group()  # its collectives run in a thread, and must not meet training's
        self._saving: Future | None = None

    def step(self) -> None:
        """Begin to save the iteration just done; the state is copied before this returns."""
        self.wait()
        self._model.zero_grad()  # or torch takes the gradients for the sign of a state
        model, optimizer = get_state_dict(self._model, self._optimizer)
        state = {"model": model, "optimizer": optimizer}
        self._saving = checkpoint.async_save(state, checkpoint_id=self._folder, process_group=self._group)

    def wait(self) -> None:
        """Wait until what is being saved lies in files."""
        if self._saving is not None:
            self._saving.result()
            self._saving = None

    close = wait


class _Trial:
    """A scheme under way on one rank."""

    def __init__(self, scheme: str, size: Size, turns: Turns):
        self.scheme, self._turns = scheme, turns
        self._context = PoolContext(dist.get_rank(), dist.get_world_size())
        self._model, self._tokens = size.model(scheme != TORCHFT), Tokens(size, dist.get_rank())
        self._optimizer = torch.optim.AdamW(self._model.parameters(), lr=LEARNING_RATE)
        self._checkpoints: InMemoryCheckpoints | AsyncSave | None = None
        self._replicas: VotingReplicas | None = None
        if scheme == ASYNC_SAVE:
            self._checkpoints = AsyncSave(self._model, self._optimizer, turns.folder)
        elif scheme == TORCHFT:
            self._replicas = VotingReplicas(self._model, self._optimizer)
            self._model, self._optimizer = self._replicas.model, self._replicas.optimizer
        elif scheme != Scheme.BASELINE.value:
            self._checkpoints = InMemoryCheckpoints(
                self._context,
                self._model,
                self._optimizer,
                scheme=scheme,
                num_profiled=turns.num_profiled,
                reserved_bytes=turns.reserved_bytes,
                throw_away=self._loss,
            )

    def settle(self) -> None:
        """Run the first iterations in one go: spans between turns would not be training's."""
        dist.barrier()
        for _ in range(self._turns.num_profiled + SETTLING):
            self._iterate()
        self._finish()

    def take_turn(self) -> Turn:
        """Run one iteration unwatched by the clock, and then the timed ones."""
        dist.barrier()
        idle_before_s = self._iterate()
        logged, length = len(self._context.events), self._turns.length
        began_s, began_cpu_s = time.monotonic(), time.process_time()
        idle = [self._iterate() for _ in range(length)]
        took_s, took_cpu_s = time.monotonic() - began_s, time.process_time() - began_cpu_s
        ended = [details for name, details in self._context.events[logged:] if name == "checkpoint"]
        self._finish()
        common = {"scheme": self.scheme, "iteration_s": took_s / length, "cpu_s": took_cpu_s / length}
        if not isinstance(self._checkpoints, InMemoryCheckpoints):
            return Turn(**common)
        seconds = [max(details["sent_s"], details["received_s"]) for details in ended]
        return Turn(
            **common, idle_before_s=idle_before_s, idle_s=sum(idle) / length, checkpoint_s=sum(seconds) / len(seconds)
        )

    def close(self) -> Facts:
        """Let go of everything and say what is known."""
        digest = digest_of(self._model, self._optimizer)
        if self._replicas is not None:
            self._replicas.close()
        if not isinstance(self._checkpoints, InMemoryCheckpoints):
            return Facts(digest=digest)
        checkpoints, link = self._checkpoints, self._checkpoints.interleaving.link
        chunks = checkpoints.interleaving.chunks(checkpoints.shard_bytes)
        seconds = [link.startup_s + chunk.size_bytes / link.bandwidth_bytes_per_s for chunk in chunks] if link else None
        facts = Facts(
            digest=digest,
            shard_bytes=checkpoints.shard_bytes,
            buffer_bytes=checkpoints.buffer_bytes,
            num_chunks=len(chunks),
            network_s=None if seconds is None else sum(seconds),
        )
        checkpoints.close()
        self._context.close()
        return facts

    def _iterate(self) -> float | None:
        began_s = time.monotonic()
        self._loss().backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        if self._checkpoints is None:
            return None
        if isinstance(self._checkpoints, AsyncSave):
            return self._checkpoints.step()
        idle = idle_s(began_s, time.monotonic(), self._checkpoints.watch.operations)
        self._checkpoints.step()
        return idle

    def _finish(self) -> None:
        if self._checkpoints is not None:
            self._checkpoints.wait()
        dist.barrier()

    def _loss(self) -> torch.Tensor:
        ids_BS = self._tokens.batch()
        return self._model(ids_BS, ids_BS)
