"""Averaging a stage's model in groups that change, and the lines that a user's own pipeline needs of SDPipe.

with synchronized(part, optimizer, num_stages=2):
    for batch in batches:  # the loop as it was
        schedule.step(batch)
        optimizer.step()
"""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store

from workbench.checks import require_counts
from workbench.launch.agreement import tell_all
from workbench.techniques.sdpipe.method.scheduler import Group, Settings

from .service import LEASE_S, Client, Grouped, Server

__all__ = ["Averager", "Options", "Place", "SDPipe", "average_by_definition", "synchronized"]

TIMEOUT = timedelta(minutes=30)  # in which the other members must come, as torch waits for peers


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A rank's place among M stages and N pipelines; stages of a pipeline are neighbouring ranks."""

    stage: int
    pipeline: int
    num_stages: int  # M
    num_pipelines: int  # N

    @classmethod
    def of_this_rank(cls, num_stages: int) -> Self:
        """Return the place of this rank of the default group, whose size `num_stages` must divide."""
        rank, size = dist.get_rank(), dist.get_world_size()
        require_counts(1, num_stages=num_stages)
        if size % num_stages or size // num_stages < 2:
            rule = f"it must divide the number of ranks, {size}, into two pipelines or more"
            raise ValueError(f"num_stages is {num_stages}; {rule}")
        pipeline, stage = divmod(rank, num_stages)
        return cls(stage=stage, pipeline=pipeline, num_stages=num_stages, num_pipelines=size // num_stages)

    def rank_of(self, pipeline: int) -> int:
        """Return the rank of this stage in a pipeline."""
        return pipeline * self.num_stages + self.stage


def average_by_definition(models: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
    """Return the models after one synchronisation: members hold the mean of theirs (line 14 of algorithm 1)."""
    mean = torch.stack([models[worker] for worker in members]).mean(dim=0)
    return [mean if worker in members else model for worker, model in enumerate(models)]


class Averager:
    """Averages tensors among some workers of a stage; nobody else takes part.

    Members that meet often share a communicator, which they make by themselves and keep. Else the first member adds up
    what the others send it, and sends the mean back.

    torch's own `new_group` names a communicator after how many a rank has already, which differs among members here.

    Args:
        place: of this rank.
        group: of the workers of this stage, in the order of pipelines.
        name: the same on all workers, and new for each training.
    """

    def __init__(self, place: Place, group: dist.ProcessGroup, name: str):
        self._place, self._group = place, group
        self._store = dist.PrefixStore(f"sdpipe/{name}/{place.stage}", _get_default_store())
        self._communicators: dict[tuple[int, ...], dist.Backend] = {}

    @property
    def num_communicators(self) -> int:
        """Communicators that are kept."""
        return len(self._communicators)

    def average_(self, flat: Tensor, grouped: Grouped) -> None:
        """Put the mean of the members' tensors, of one shape, in place of this one; all get the same bits."""
        members = grouped.members
        if len(members) == 1:
            return
        if grouped.is_kept:
            self._communicator(members).allreduce([flat]).wait()
            flat /= len(members)
        elif self._place.pipeline == members[0]:
            others = [torch.empty_like(flat) for _ in members[1:]]
            arriving = [dist.irecv(x, group_src=i, group=self._group) for x, i in zip(others, members[1:], strict=True)]
            for other, work in zip(others, arriving, strict=True):
                work.wait()
                flat += other
            flat /= len(members)
            for work in [dist.isend(flat, group_dst=worker, group=self._group) for worker in members[1:]]:
                work.wait()
        else:
            dist.send(flat, group_dst=members[0], group=self._group)
            dist.recv(flat, group_src=members[0], group=self._group)

    def _communicator(self, members: tuple[int, ...]) -> dist.Backend:
        if members not in self._communicators:
            store = dist.PrefixStore(str(members), self._store)
            number, size = members.index(self._place.pipeline), len(members)
            if dist.get_backend(self._group) == "nccl":
                made = dist.ProcessGroupNCCL(store, number, size, dist.ProcessGroupNCCL.Options())
            else:
                made = dist.ProcessGroupGloo(store, number, size, TIMEOUT)
            self._communicators[members] = made
        return self._communicators[members]

    def close(self) -> None:
        """Free the communicators."""
        self._communicators = {}


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How SDPipe synchronises."""

    history: int = 10  # P
    window_s: float | None = None  # T; None measures ten iterations and takes 1/N of their median
    settings: Settings | None = None  # of the scheduler; None for the paper's
    lease_s: float = LEASE_S  # without an answer, after which a scheduler counts as lost
    host: str = "127.0.0.1"  # address of the first rank's host, as the others see it

    def __post_init__(self) -> None:
        require_counts(1, history=self.history)
        if self.window_s is not None and not self.window_s >= 0:
            raise ValueError(f"window_s is {self.window_s!r}; it must be at least 0, infinite, or None")


@dataclass(slots=True)
class Log:
    """What a worker saw."""

    groups: list[Group] = field(default_factory=list)  # its own
    waited_s: float = 0.0  # for groups, after its update was done
    averaged_s: float = 0.0  # in messages


MEASURED = 10  # iterations whose median gives the window where none is told


class SDPipe:
    """Synchronises a stage's workers in groups; every rank makes one, over all ranks of the default group.

    `ready` says that this worker's backward pass is done, `average_` waits for its group. `synchronized` does both in
    the optimizer's hooks.
    """

    def __init__(self, module: nn.Module, place: Place, *, group: dist.ProcessGroup, options: Options | None = None):
        self._options, self.place, self.log = options or Options(), place, Log()
        name = tell_all(os.urandom(8).hex())[0]
        self._parameters = [weight for weight in module.parameters() if weight.requires_grad]
        if not self._parameters:
            raise ValueError("module has no parameter that is trained; it must have one")
        self.averager = Averager(place, group, name)
        self._server: Server | None = None
        self._client: Client | None = None
        self._lengths_s: list[float] = []
        self._began_s = time.monotonic()
        if self._options.window_s is not None:
            self._connect(self._options.window_s)

    def _connect(self, window_s: float) -> None:
        place, options, told = self.place, self._options, None
        if dist.get_rank() == 0:
            how = {"history": options.history, "window_s": window_s, "settings": options.settings}
            self._server = Server(place.num_stages, place.num_pipelines, **how, host=options.host)
            told = self._server.address
        address = tell_all(told)[0]
        self._client = Client(address, place.stage, place.pipeline, lease_s=options.lease_s)

    def ready(self) -> None:
        """Tell the scheduler; returns at once, so that the update is computed while it decides."""
        if self._client is not None:
            self._client.signal()

    def average_(self) -> Grouped:
        """Wait for this worker's group, and average the model among its members."""
        began_s = time.monotonic()
        grouped = self._measure() if self._client is None else self._client.group()
        grouped_s = time.monotonic()
        self.average_with_(grouped)
        self.log.waited_s += grouped_s - began_s
        self.log.averaged_s += time.monotonic() - grouped_s
        self.log.groups.append(Group(self.place.stage, frozenset(grouped.members)))
        return grouped

    @torch.no_grad()
    def average_with_(self, grouped: Grouped) -> None:
        """Average the model among members that are known."""
        if len(grouped.members) == 1:
            return
        flat = torch.cat([weight.detach().flatten() for weight in self._parameters])
        self.averager.average_(flat, grouped)
        for weight, part in zip(self._parameters, flat.split([w.numel() for w in self._parameters]), strict=True):
            weight.copy_(part.view_as(weight))

    def _measure(self) -> Grouped:
        """Let all workers average while iterations are measured; then agree on the window, 1/N of an iteration."""
        now_s = time.monotonic()
        self._lengths_s.append(now_s - self._began_s)
        self._began_s = now_s
        if len(self._lengths_s) == MEASURED:
            lengths = sorted(seconds for told in tell_all(self._lengths_s) for seconds in told)
            self._connect(lengths[len(lengths) // 2] / self.place.num_pipelines)
        return Grouped(tuple(range(self.place.num_pipelines)), is_kept=True)

    def close(self) -> dict[str, int]:
        """Leave; every rank calls it. Returns what the scheduler counted, on rank 0."""
        if self._client is not None:
            self._client.leave()
            self._client.close()
        dist.barrier()
        self.averager.close()
        return {} if self._server is None else self._server.close()


@contextmanager
def synchronized(
    module: nn.Module, optimizer: torch.optim.Optimizer, *, num_stages: int, options: Options | None = None
) -> Iterator[SDPipe]:
    """Synchronise a pipeline's stage after every step of its optimizer; every rank calls it.

    Args:
        module: this rank's stage; stages of a pipeline are on neighbouring ranks of the default group.
        optimizer: of the module.
        num_stages: M, which divides the number of ranks into N pipelines, at least 2.
        options: None for the paper's: P = 10, T = 1/N of an iteration.
    """
    place = Place.of_this_rank(num_stages)
    groups = [
        dist.new_group([pipeline * num_stages + stage for pipeline in range(place.num_pipelines)])
        for stage in range(num_stages)
    ]
    sdpipe = SDPipe(module, place, group=groups[place.stage], options=options)
    hooks = [
        optimizer.register_step_pre_hook(lambda *_: sdpipe.ready()),
        optimizer.register_step_post_hook(lambda *_: sdpipe.average_() and None),
    ]
    try:
        yield sdpipe
    finally:
        for hook in hooks:
            hook.remove()
    sdpipe.close()
