"""Fused groups on real ranks, as a communication hook of DistributedDataParallel.

The hook runs between the computation of two gradients, where the paper encodes. It collects a group, encodes it, starts
to send it, and returns. After the last group it receives and decodes all groups in turn. It has no thread, and on a GPU
it uses the stream of the backward pass. With several GPUs a machine, only what passes between machines is compressed.
"""

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts
from workbench.compression import DGC, Aggregation, Codec, Identity
from workbench.compression.codec import all_finite
from workbench.compression.gradients import gradient_codec
from workbench.compression.wire import packed, unpacked
from workbench.parallel.hooks import (
    Passes,
    Scaler,
    require_all_handed_over,
    require_ddp,
    require_one_plan,
    require_own_state,
    warn_if_late,
)
from workbench.parallel.hosts import all_shards, host_groups, own_shard_of_sum, require_whole_hosts
from workbench.parallel.timeouts import naming_lost_ranks

from .plan import Plan

__all__ = ["FusedExchange", "Group", "Places", "exchange", "exchanged_by_definition"]


@dataclass(frozen=True, slots=True)
class Places:
    """The ranks that exchange with this one, and those of its machine, if several machines have several ranks each.

    Then nothing is compressed inside a machine (section 5.4.1): its ranks first sum a shard each, a rank encodes its
    shard and exchanges it with the ranks at its place on the other machines, and the machine's ranks share the sums.
    """

    peers: dist.ProcessGroup | None
    machine: dist.ProcessGroup | None = None  # None: all ranks are peers

    @classmethod
    def of(cls, ranks: dist.ProcessGroup | None, per_machine: int) -> "Places":
        """Divide a group of ranks into machines; all ranks call it together."""
        if per_machine in (1, dist.get_world_size(ranks)):
            return cls(ranks)
        machine, peers = host_groups(ranks, per_machine)
        return cls(peers, machine)

    def close(self) -> None:
        """Close the groups that `of` opened."""
        for group in (self.machine, self.peers) if self.machine is not None else ():
            dist.destroy_process_group(group)


class Group:
    """A group of gradients as one tensor on one rank, with the steps encode, send, receive and decode."""

    def __init__(
        self,
        codec: Codec,
        num_elements: Sequence[int],
        momentum: float,
        device: torch.device | str,
        ranks: dist.ProcessGroup | None = None,
        places: Places | None = None,
    ):
        self.codec, self._momentum = codec, momentum  # of gradients that are sent as they are
        self.ranks, self._places = ranks, places or Places(ranks)
        self.flat = torch.zeros(sum(num_elements), dtype=torch.float32, device=device)
        self.pieces, self._sizes = self.flat.split(list(num_elements)), list(num_elements)
        self._velocity: Tensor | None = None
        self._before: list[Tensor] = []
        self._is_sum, self._world = codec.aggregation is Aggregation.SUM, dist.get_world_size(ranks)
        machine = self._places.machine
        per_machine, place = (1, 0) if machine is None else (dist.get_world_size(machine), dist.get_rank(machine))
        self._shard_elements = -(-len(self.flat) // per_machine)
        self._first_element = place * self._shard_elements  # of this rank's shard

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """State of previous passes: the codec's, as long as this rank's shard, or the velocity of the whole group."""
        return self.codec.memory if self._velocity is None else (self._velocity,)

    @torch.no_grad()
    def encode(self, *, may_be_discarded: bool = False) -> None:
        """Encode this rank's share of the mean over ranks; if it may be discarded, keep the state for `put_back_`."""
        self._before = [remembered.clone() for remembered in self.memory] if may_be_discarded else []
        self.flat.div_(self._world)
        if self._momentum:  # the velocities of the ranks add up to the velocity of the sum
            before = torch.zeros_like(self.flat) if self._velocity is None else self._velocity
            self._velocity = self.flat.add_(before, alpha=self._momentum).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        machine = self._places.machine
        self._shard = self.flat if machine is None else own_shard_of_sum(self.flat, machine)
        self._payload = self.codec.encode(self._shard)
        self._message = self._payload.tensors[0] if self._is_sum else packed(self._payload)

    def send(self) -> None:
        """Start the exchange of messages with all peers."""
        if self._is_sum:
            self._received = []
            self._work = dist.all_reduce(self._message, group=self._places.peers, async_op=True)
        else:
            peers = self._places.peers
            self._received = list(self._message.new_empty(dist.get_world_size(peers), self._message.numel()))
            self._work = dist.all_gather(self._received, self._message, group=peers, async_op=True)

    def receive(self) -> None:
        """Wait for the messages of all peers."""
        self._work.wait()
        del self._work

    def exchange(self) -> None:
        """Send and receive."""
        self.send()
        self.receive()

    def keep(self) -> None:
        """Take this rank's message as that of every peer, without a network between machines, to measure decoding."""
        num_peers = dist.get_world_size(self._places.peers)
        self._received = [] if self._is_sum else [self._message] * num_peers

    @torch.no_grad()
    def put_back_(self, piece: int) -> None:
        """Restore the state of a piece before the last pass, because its result was not applied."""
        start = sum(self._sizes[:piece]) - (0 if self._velocity is not None else self._first_element)
        of_piece = slice(max(0, start), max(0, start + self._sizes[piece]))  # it may lie in another rank's shard
        for number, remembered in enumerate(self.memory):
            remembered[of_piece] = self._before[number][of_piece] if self._before else 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        return copy.deepcopy({"codec": dict(self.codec.state_dict()), "velocity": self._velocity})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`."""
        self.codec.load_state_dict(state["codec"])
        saved = state["velocity"]
        self._velocity = None if saved is None else saved.to(self.flat.device, copy=True)

    @torch.no_grad()
    def decode(self) -> None:
        """Replace the group by its mean over ranks."""
        if not self._is_sum:
            self._shard.copy_(self.codec.decode_sum([unpacked(row, self._payload) for row in self._received]))
        elif self._message is not self._shard:
            self.codec.decode(self._payload, out=self._shard)
        if self._places.machine is not None:
            self.flat.copy_(all_shards(self._shard, self._places.machine)[: len(self.flat)])
        del self._message, self._received, self._payload, self._shard


class FusedExchange:
    """The hook's state on one rank; arguments as for `exchange`.

    Without a plan, gradients are sent uncompressed in one group. After each pass `plan_by` gets the times when
    gradients were ready, and returns a plan, or None to continue without.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        plan: Plan | None,
        *,
        momentum: float = 0.0,
        warmup: Sequence[float] = (),
        scaler: Scaler | None = None,
        plan_by: Callable[[Mapping[str, float]], Plan | None] = lambda ready_s: None,
        places: Places | None = None,
    ):
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self._names = {p: name for name, p in self._parameters.items()}
        self._device = next(iter(self._parameters.values())).device
        self._momentum, self._warmup, self._plan_by, self._is_closed = momentum, warmup, plan_by, False
        self._ready: dict[str, Any] = {}
        self._passes = Passes(model, scaler, self._put_back_, momentum)
        self.plan, self._ranks = plan, model.process_group
        self._places = places or Places(self._ranks)
        self._epoch: int | None = None
        self._begin_()
        model.register_comm_hook(self, FusedExchange.synchronise)

    def _begin_(self) -> None:
        plan, rank = self.plan, dist.get_rank(self._ranks)
        self._members = [tuple(self._parameters)] if plan is None else plan.groups
        self._groups: list[Group] = []
        self._place: dict[str, tuple[int, int]] = {}
        for number, names in enumerate(self._members):
            flag = plan is not None and plan.compressed[number]
            codec: Codec = Identity()
            if plan is not None and flag:
                codec = gradient_codec(plan.codec, momentum=self._momentum, warmup=self._warmup)
            codec = codec.for_site(f"group {number}").for_rank(rank)
            sizes = [self._parameters[name].numel() for name in names]
            momentum = 0.0 if flag else self._momentum
            self._groups.append(Group(codec, sizes, momentum, self._device, self._ranks, self._places))
            self._place |= {name: (number, piece) for piece, name in enumerate(names)}
        if self._epoch is not None:
            self.at_epoch(self._epoch)
        self._start_pass_()

    def _start_pass_(self) -> None:
        self._missing = [len(names) for names in self._members]
        self._may_be_discarded = [False] * len(self._members)
        self._sent: list[int] = []
        self._buckets: list[tuple[dist.GradBucket, torch.futures.Future]] = []

    def synchronise(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Take the gradients of a bucket; DDP calls this communication hook."""
        if self._is_closed:
            raise RuntimeError("gradients are not exchanged: the exchange is closed")
        if bucket.index() == 0:
            factor = self._passes.begin_()
            for remembered in (tensor for group in self._groups for tensor in group.memory):
                remembered.mul_(factor)
        devices = [self._device] if self._device.type == "cuda" else []
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        self._buckets.append((bucket, future))
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            name = self._names[parameter]
            number, piece = self._place[name]
            self._groups[number].pieces[piece].copy_(gradient.view(-1))
            self._missing[number] -= 1
            self._may_be_discarded[number] |= self._passes.may_be_discarded(parameter)
            if self.plan is None:
                self._ready[name] = self._mark()
            if not self._missing[number]:
                self._groups[number].encode(may_be_discarded=self._may_be_discarded[number])
                with self._naming(number):
                    self._groups[number].send()
                self._sent.append(number)
        if bucket.is_last():
            self._passes.end_()
        if len(self._sent) == len(self._groups):
            self._finish_()
        return future

    def _naming(self, number: int) -> AbstractContextManager[None]:
        names = self._members[number]
        return naming_lost_ranks(self._ranks, f"gradients of group {number}, {names[0]} to {names[-1]}")

    def _put_back_(self, name: str) -> None:
        number, piece = self._place[name]
        self._groups[number].put_back_(piece)

    def _finish_(self) -> None:
        """Receive and decode all groups in the order of sending, and return their gradients to DDP."""
        for number in self._sent:
            with self._naming(number):
                self._groups[number].receive()
            self._groups[number].decode()
            if self._passes.is_scaled and self._passes.all_finite:
                self._passes.all_finite = all_finite(self._groups[number].flat)
        for bucket, _ in self._buckets:
            for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
                number, piece = self._place[self._names[parameter]]
                gradient.view(-1).copy_(self._groups[number].pieces[piece])
        for bucket, future in self._buckets:
            future.set_result(bucket.buffer())
        self._start_pass_()
        if self.plan is None and (plan := self._plan_by(self._seconds())) is not None:
            self.plan = plan
            self._begin_()

    def _mark(self) -> Any:
        if self._device.type == "cuda":
            return torch.cuda.current_stream(self._device).record_event(torch.cuda.Event(enable_timing=True))
        return time.perf_counter()

    def _seconds(self) -> dict[str, float]:
        """Return the time when each gradient of the last pass was ready, counted from the first gradient."""
        first = next(iter(self._ready.values()))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            ready_s = {name: first.elapsed_time(mark) / 1e3 for name, mark in self._ready.items()}
        else:
            ready_s = {name: mark - first for name, mark in self._ready.items()}
        self._ready = {}
        return ready_s

    def at_epoch(self, epoch: int) -> None:
        """Set DGC's share to that of an epoch of its warm-up, even before there is a plan; all ranks call it."""
        require_counts(0, epoch=epoch)
        self._epoch = epoch
        for group in self._groups:
            if isinstance(group.codec, DGC):
                group.codec.at_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's state between two backward passes; each rank saves its own state."""
        more = {"epoch": self._epoch, "scale": self._passes.scale}
        return self._whose() | more | {"groups": [group.state_dict() for group in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned on this rank with the same plan.

        Raises:
            ValueError: if the state belongs to another plan, rank or number of ranks; nothing changes then.
        """
        require_own_state(state, self._whose())
        self._passes.scale = state["scale"]
        if state["epoch"] is not None:
            self.at_epoch(state["epoch"])
        for group, saved in zip(self._groups, state["groups"], strict=True):
            group.load_state_dict(saved)

    def _whose(self) -> dict[str, Any]:
        codec = None if self.plan is None else self.plan.codec
        compressed = [] if self.plan is None else [int(flag) for flag in self.plan.compressed]
        facts = {
            "codec": codec,
            "compressed groups": compressed,
            "GPUs a machine": 1 if self.plan is None else self.plan.gpus_per_machine,
            "groups of parameters": self._members,
            "momentum": self._momentum,
            "warmup": list(self._warmup),
        }
        of = {"rank": dist.get_rank(self._ranks), "number of ranks": dist.get_world_size(self._ranks)}
        return of | {name: json.dumps(fact) for name, fact in facts.items()}

    def __deepcopy__(self, memo: object) -> "FusedExchange":
        return self  # a copied model, such as an average of weights, has no hook

    def close(self) -> None:
        """End the exchange; the model's next backward pass raises."""
        self._is_closed = True
        self._passes.close()
        if not self._sent:  # of an unfinished pass messages may be under way
            self._places.close()


def exchange(
    model: DistributedDataParallel,
    plan: Plan,
    *,
    momentum: float = 0.0,
    warmup: Sequence[float] = (),
    scaler: Scaler | None = None,
) -> FusedExchange:
    """Synchronise a model's gradients by a plan, from the next backward pass on; all its ranks call it.

    Args:
        model: a model without another communication hook.
        plan: a plan for this model and the ranks of its process group, equal on all ranks.
        momentum: momentum for DGC's correction; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs, see `compression.exponential_warmup`.
        scaler: the `torch.amp.GradScaler` of the loss, or any object whose `get_scale()` returns the factor of the next
            loss. The state of the codecs is scaled with it. If a gradient is not finite, the scaler skips the step, and
            the state stays as before the pass.

    Returns:
        The exchange. To resume a training, each rank saves and loads its `state_dict()` with the model's.

    Raises:
        ValueError: on all ranks, before gradients are sent, if the plan of a rank is for other parameters or another
            number of ranks, if its machines are not whole, if its groups lack parameters, if plans differ, or if
            momentum or warm-up are given for a codec other than DGC; in the first pass, if a GradScaler exists but was
            not given; in a pass that adds to the results of another one, if momentum is given.
    """

    def check() -> None:
        gradient_codec(plan.codec, momentum=momentum, warmup=warmup)
        require_whole_hosts(dist.get_world_size(model.process_group), gpus_per_machine=plan.gpus_per_machine)
        plan.check(model.module, dist.get_world_size(model.process_group))
        require_all_handed_over(model)

    require_ddp(model)
    require_one_plan(f"{plan.to_json()}, {momentum}, {warmup}", check=check, group=model.process_group)
    warn_if_late(model, "cupcake")
    places = Places.of(model.process_group, plan.gpus_per_machine)
    return FusedExchange(model, plan, momentum=momentum, warmup=warmup, scaler=scaler, places=places)


def exchanged_by_definition(
    gradients: Sequence[Sequence[Tensor]], ends: Sequence[int], codecs: Sequence[Sequence[Codec]], per_machine: int = 1
) -> list[Tensor]:
    """Return the gradients after a step, the same on all ranks: sums of the ranks' decoded shares of the mean.

    With several ranks a machine, each decodes its shard of the machine's sum.

    Args:
        gradients: for each rank, N tensors in the order of fusion.
        ends: a fusion, the ends of its groups.
        codecs: for each rank, a codec for each group; codecs keep their errors from step to step.
        per_machine: ranks a machine, which follow one another.
    """
    num_ranks, exchanged, start = len(gradients), [], 0
    for group, end in enumerate(ends):
        shares = [torch.cat([tensor.flatten() for tensor in tensors[start:end]]) / num_ranks for tensors in gradients]
        shares = [nn.functional.pad(share, (0, -len(share) % per_machine)) for share in shares]
        machines = range(0, num_ranks, per_machine)
        of_machines = [torch.stack(shares[first : first + per_machine]).sum(dim=0) for first in machines]
        sent: list[list[Tensor]] = [[] for _ in range(per_machine)]
        for rank, rank_codecs in enumerate(codecs):
            machine, place = divmod(rank, per_machine)
            shard = of_machines[machine].chunk(per_machine)[place]
            sent[place].append(rank_codecs[group].decode(rank_codecs[group].encode(shard)))
        total = torch.cat([torch.stack(shards).sum(dim=0) for shards in sent])
        sizes = [tensor.numel() for tensor in gradients[0][start:end]]
        pairs = zip(total[: sum(sizes)].split(sizes), gradients[0][start:end], strict=True)
        exchanged += [piece.view_as(tensor) for piece, tensor in pairs]
        start = end
    return exchanged
