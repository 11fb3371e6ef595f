"""Averaging a stage's model in groups that change, and the lines that a user's own pipeline needs of SDPipe.

with synchronized(part, optimizer, num_stages=2):
    for batch in batches:  # the loop as it was
        schedule.step(batch)
        optimizer.step()
"""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from workbench.checks import require_counts
from workbench.launch.agreement import tell_all
from workbench.parallel.timeouts import timeout_of
from workbench.techniques.sdpipe.method.scheduler import Group, Settings

from .service import LEASE_S, Client, Grouped, SchedulerLost, Server

__all__ = ["Averager", "Options", "Place", "SDPipe", "average_by_definition", "synchronized"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A rank's place among M stages and N pipelines."""

    stage: int
    pipeline: int
    num_stages: int  # M
    num_pipelines: int  # N

    @classmethod
    def of_this_rank(cls, num_stages: int) -> Self:
        """Return this rank's place where stages of a pipeline are neighbours among all ranks, which M must divide."""
        rank, size = dist.get_rank(), dist.get_world_size()
        require_counts(1, num_stages=num_stages)
        if size % num_stages or size // num_stages < 2:
            rule = f"it must divide the number of ranks, {size}, into two pipelines or more"
            raise ValueError(f"num_stages is {num_stages}; {rule}")
        pipeline, stage = divmod(rank, num_stages)
        return cls(stage=stage, pipeline=pipeline, num_stages=num_stages, num_pipelines=size // num_stages)

    @classmethod
    def of_group(cls, group: dist.ProcessGroup) -> Self:
        """Return this rank's place, from the group of its stage's workers; every rank of the default group calls it."""
        groups = sorted({tuple(ranks) for ranks in tell_all(dist.get_process_group_ranks(group))})
        sizes = {len(ranks) for ranks in groups}
        if sum(map(len, groups)) != dist.get_world_size() or len(sizes) > 1 or sizes == {1}:
            raise ValueError(f"group is one of {groups}; they must hold each rank once, and equally many, at least two")
        stage, pipeline = groups.index(tuple(dist.get_process_group_ranks(group))), dist.get_rank(group)
        return cls(stage=stage, pipeline=pipeline, num_stages=len(groups), num_pipelines=sizes.pop())


def average_by_definition(models: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
    """Return the models after one synchronisation: members hold the mean of theirs (line 14 of algorithm 1)."""
    mean = torch.stack([models[worker] for worker in members]).mean(dim=0)
    return [mean if worker in members else model for worker, model in enumerate(models)]


class Averager:
    """Averages tensors among some workers of a stage; nobody else takes part.

    Members that meet often share a communicator, which they make by themselves and keep. Else the first member adds up
    what the others send it, and sends the mean back. Where a backend carries no tensors of their device, as gloo those
    of GPUs, they go through host memory.

    torch's own `new_group` names a communicator after how many a rank has already, which differs among members here.

    Args:
        place: of this rank; all workers of the stage make their averager together.
        device: of the tensors.
        name: the same on all workers, and new for each training.
    """

    def __init__(self, place: Place, device: torch.device, name: str):
        backends = dict(pair.split(":") for pair in dist.get_backend_config().split(","))
        self._place, self._is_nccl = place, backends.get(device.type) == "nccl"
        self._store = dist.PrefixStore(f"sdpipe/{name}/{place.stage}", _get_default_store())
        self._everyone = self._made(tuple(range(place.num_pipelines)), "everyone")
        self._communicators: dict[tuple[int, ...], dist.Backend] = {}

    @property
    def num_communicators(self) -> int:
        """Communicators that are kept."""
        return len(self._communicators)

    def begin_(self, flat: Tensor) -> None:
        """Put the first pipeline's tensor in place of all others'."""
        carried = self._carried(flat)
        self._everyone.broadcast([carried]).wait()
        flat.copy_(carried)

    def average_(self, flat: Tensor, grouped: Grouped) -> None:
        """Put the mean of the members' tensors, of one shape, in place of this one; all get the same bits."""
        members = grouped.members
        if len(members) == 1:
            return
        carried = self._carried(flat)
        if grouped.is_kept:
            if members not in self._communicators:
                self._communicators[members] = self._made(members, str(members))
            self._communicators[members].allreduce([carried]).wait()
            carried /= len(members)
        elif self._place.pipeline == members[0]:
            other = torch.empty_like(carried)
            for worker in members[1:]:
                self._everyone.recv([other], worker, 0).wait()
                carried += other
            carried /= len(members)
            for worker in members[1:]:
                self._everyone.send([carried], worker, 0).wait()
        else:
            self._everyone.send([carried], members[0], 0).wait()
            self._everyone.recv([carried], members[0], 0).wait()
        flat.copy_(carried)

    def _carried(self, flat: Tensor) -> Tensor:
        return flat if self._is_nccl else flat.cpu()

    def _made(self, members: tuple[int, ...], name: str) -> dist.Backend:
        store = dist.PrefixStore(name, self._store)
        number, size = members.index(self._place.pipeline), len(members)
        if self._is_nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = timeout_of()
            return dist.ProcessGroupNCCL(store, number, size, options)
        return dist.ProcessGroupGloo(store, number, size, timeout_of())

    def close(self) -> None:
        """Free the communicators; whoever still waits for this worker gets an error, with gloo at once."""
        made = [*self._communicators.values(), self._everyone] if self._is_nccl and self._everyone else []
        self._communicators, self._everyone = {}, None
        for communicator in made:
            communicator.shutdown()  # which gloo's do when nobody holds them


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """How SDPipe synchronises."""

    history: int = 10  # P
    window_s: float | None = None  # T; None is the settings' own, or 1/N of the median of each worker's ten first ones
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


class SDPipe:
    """Synchronises a stage's workers in groups; every rank makes one, over all ranks of the default group.

    All workers of a stage begin with the parameters of its first one. `ready` says that this worker's backward pass is
    done, `average_` waits for its group. `synchronized` does both in the optimizer's hooks.
    """

    def __init__(self, module: nn.Module, place: Place, *, options: Options | None = None):
        options, self.place, self.log = options or Options(), place, Log()
        _require_alike(module, place)
        name, weights = tell_all(os.urandom(8).hex())[0], list(module.parameters())
        self._parameters = [weight for weight in weights if weight.requires_grad]
        self.averager = Averager(place, self._parameters[0].device, name)
        _change_as_one_(weights, self.averager.begin_)
        self._server, told = None, None
        if dist.get_rank() == 0:
            how = {"history": options.history, "window_s": options.window_s, "settings": options.settings}
            self._server = Server(place.num_stages, place.num_pipelines, **how, host=options.host)
            told = self._server.address
        self._client = Client(tell_all(told)[0], place.stage, place.pipeline, lease_s=options.lease_s)
        self._averaged_s: float | None = None  # when the last group had averaged
        self._hooks: list[RemovableHandle] = []  # of an optimizer

    def ready(self) -> None:
        """Tell the scheduler; returns at once, so that the update is computed while it decides."""
        self._client.signal(None if self._averaged_s is None else time.monotonic() - self._averaged_s)

    def average_(self) -> Grouped:
        """Wait for this worker's group, and average the model among its members."""
        began_s = time.monotonic()
        grouped = self._client.group()
        grouped_s = time.monotonic()
        self._average_with_(grouped)
        self._averaged_s = time.monotonic()
        self.log.waited_s += grouped_s - began_s
        self.log.averaged_s += self._averaged_s - grouped_s
        self.log.groups.append(Group(self.place.stage, frozenset(grouped.members)))
        return grouped

    def _average_with_(self, grouped: Grouped) -> None:
        if len(grouped.members) > 1:
            _change_as_one_(self._parameters, lambda flat: self.averager.average_(flat, grouped))

    def follow_(self, optimizer: torch.optim.Optimizer) -> None:
        """Average after every step of an optimizer, until this rank leaves."""
        self._hooks = [
            optimizer.register_step_pre_hook(lambda *_: self.ready()),
            optimizer.register_step_post_hook(lambda *_: self.average_() and None),
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.fail()

    def close(self) -> dict[str, int]:
        """Leave, and wait until all workers have; every rank calls it. Returns what was counted, on rank 0."""
        with suppress(SchedulerLost):  # this worker is done, and needs the scheduler no more
            self._client.leave()
            self._client.wait_for_all()
        return self._free()

    def fail(self) -> None:
        """Leave after an error on this rank, so that nobody waits for it for longer than a lease."""
        with suppress(RuntimeError, ValueError):  # the error that led here says more
            if (grouped := self._client.leave(has_failed=True)) is not None:
                self._average_with_(grouped)  # its members wait for this worker already
        self.averager.close()
        if self._server is not None:
            with suppress(SchedulerLost):  # the others may be about to end
                self._client.wait_for_all()
        self._free()

    def _free(self) -> dict[str, int]:
        for hook in self._hooks:
            hook.remove()
        self._client.close()
        self.averager.close()
        return {} if self._server is None else self._server.close()


@torch.no_grad()
def _change_as_one_(weights: Sequence[Tensor], change_: Callable[[Tensor], None]) -> None:
    """Let a function change weights that lie in one vector."""
    flat = torch.cat([weight.detach().flatten() for weight in weights])
    change_(flat)
    for weight, part in zip(weights, flat.split([weight.numel() for weight in weights]), strict=True):
        weight.copy_(part.view_as(weight))


def _require_alike(module: nn.Module, place: Place) -> None:
    """Refuse, on all ranks alike, modules that differ among the workers of a stage, or have nothing to average."""
    own = [[name, list(w.shape), str(w.dtype), w.requires_grad] for name, w in module.named_parameters()]
    first: dict[int, tuple[int, list]] = {}
    for rank, (stage, held) in enumerate(tell_all([place.stage, own])):
        if not any(is_trained for *_, is_trained in held):
            raise ValueError(f"module of rank {rank} has no parameter that is trained; it must have one")
        other, expected = first.setdefault(stage, (rank, held))
        if held != expected:
            parts = next(pair for pair in zip_longest(expected, held) if pair[0] != pair[1])
            texts = ["nothing" if part is None else f"{part[0]} {part[1]} {part[2]}" for part in parts]
            raise ValueError(
                f"module holds {texts[0]} on rank {other} and {texts[1]} on rank {rank}; workers of a stage, here of "
                f"stage {stage}, must hold the same parameters: give `group` if ranks are laid out in another way"
            )


def _require_its_own(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse a module that averages by itself, and an optimizer of another module."""
    if isinstance(module, DistributedDataParallel):
        raise ValueError("module is a DistributedDataParallel, which averages over all ranks; give the module in it")
    updated = {weight for group in optimizer.param_groups for weight in group["params"]}
    if updated.isdisjoint(module.parameters()):
        raise ValueError("optimizer has no parameter of the module; it must be the one that updates it")


def synchronized(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    num_stages: int | None = None,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    options: Options | None = None,
) -> SDPipe:
    """Synchronise a pipeline's stage after every step of its optimizer; every rank calls it.

    It begins at once; leaving its `with` block ends it, as `close` on all ranks does. An error inside is raised again
    on its rank. Other ranks go on without it; where they need it, they raise `SchedulerLost` within a lease.

    Args:
        module: this rank's stage, on one device; all workers of a stage begin with its first worker's parameters.
        optimizer: of the module.
        num_stages: M, where stages of a pipeline are neighbouring ranks of the default group; it divides their number
            into N pipelines, at least 2.
        group: in place of `num_stages`, the workers of this rank's stage, as a group or as a mesh of one dimension,
            such as `mesh["pipelines"]`.
        options: None for the paper's: P = 10, T = 1/N of an iteration.

    Raises:
        ValueError: if the ranks do not fit, the optimizer is of another module, or workers of a stage hold different
            parameters.
    """
    if (num_stages is None) == (group is None):
        rule = "give exactly one, num_stages=1 where each rank has the whole model"
        raise ValueError(f"num_stages, group are {num_stages}, {group}; {rule}")
    _require_its_own(module, optimizer)
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"group is a mesh of {group.ndim} dimensions; it must be of one, the pipelines")
        group = group.get_group()
    place = Place.of_this_rank(num_stages) if group is None else Place.of_group(group)
    sdpipe = SDPipe(module, place, options=options)
    sdpipe.follow_(optimizer)
    return sdpipe
