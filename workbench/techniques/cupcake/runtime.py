"""Fused groups on real ranks, as a communication hook of DistributedDataParallel.

The hook runs between the computation of two gradients, where the paper encodes. It collects a group, encodes it, starts
to send it, and returns. After the last group it receives and decodes all groups in turn. It has no thread, and on a GPU
it uses the stream of the backward pass.
"""

import copy
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts
from workbench.compression import Aggregation, Codec, Identity
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
from workbench.parallel.timeouts import naming_lost_ranks

from .plan import Plan

__all__ = ["FusedExchange", "Group", "exchange", "exchanged_by_definition"]


class Group:
    """A group of gradients as one tensor on one rank, with the steps encode, send, receive and decode."""

    def __init__(
        self,
        codec: Codec,
        num_elements: Sequence[int],
        momentum: float,
        device: torch.device | str,
        ranks: dist.ProcessGroup | None = None,
    ):
        self.codec, self._momentum = codec, momentum  # of gradients that are sent as they are
        self.flat = torch.zeros(sum(num_elements), device=device)
        self.pieces, self._sizes = self.flat.split(list(num_elements)), list(num_elements)
        self._velocity: Tensor | None = None
        self._before: list[Tensor] = []
        self._is_sum, self.ranks, self._world = codec.aggregation is Aggregation.SUM, ranks, dist.get_world_size(ranks)

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """State of previous passes: tensors with as many elements as the group."""
        return self.codec.memory if self._velocity is None else (self._velocity,)

    @torch.no_grad()
    def encode(self, *, may_be_discarded: bool = False) -> None:
        """Encode this rank's share of the mean over ranks; if it may be discarded, keep the state for `put_back_`."""
        self._before = [remembered.clone() for remembered in self.memory] if may_be_discarded else []
        self.flat.div_(self._world)
        if self._momentum:  # the velocities of the ranks add up to the velocity of the sum
            before = torch.zeros_like(self.flat) if self._velocity is None else self._velocity
            self._velocity = self.flat.add_(before, alpha=self._momentum).clone()
        self._payload = self.codec.encode(self.flat)
        self._message = self._payload.tensors[0] if self._is_sum else packed(self._payload)

    def send(self) -> None:
        """Start the exchange of messages with all ranks of the process group."""
        if self._is_sum:
            self._work = dist.all_reduce(self._message, group=self.ranks, async_op=True)
            return
        self._received = self._message.new_empty(self._world, self._message.numel())
        self._work = dist.all_gather(list(self._received), self._message, group=self.ranks, async_op=True)

    def receive(self) -> None:
        """Wait for the messages of all ranks."""
        self._work.wait()

    def exchange(self) -> None:
        """Send and receive."""
        self.send()
        self.receive()

    def keep(self) -> None:
        """Take this rank's message as that of every rank, without a network, to measure decoding."""
        self._received = None if self._is_sum else self._message.expand(self._world, -1)

    @torch.no_grad()
    def put_back_(self, piece: int) -> None:
        """Restore the state of a piece before the last pass, because its result was not applied."""
        for number, remembered in enumerate(self.memory):
            before = self._before[number] if self._before else torch.zeros_like(remembered)
            remembered.split(self._sizes)[piece].copy_(before.split(self._sizes)[piece])

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of the state."""
        return copy.deepcopy({"codec": dict(self.codec.state_dict()), "velocity": self._velocity})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`."""
        self.codec.load_state_dict(state["codec"])
        self._velocity = copy.deepcopy(state["velocity"])

    @torch.no_grad()
    def decode(self) -> None:
        """Replace the group by its mean over ranks."""
        if not self._is_sum:
            self.flat.copy_(self.codec.decode_sum([unpacked(row, self._payload) for row in self._received]))
        elif self._message is not self.flat:
            self.codec.decode(self._payload, out=self.flat)
        self._work = self._message = self._received = self._payload = None


class FusedExchange:
    """The hook's state on one rank.

    Args:
        model: the model whose gradients are exchanged, from its next backward pass on.
        plan: the groups and their codec. Without a plan, gradients are sent uncompressed in one group. After each pass
            `plan_by` gets the times when gradients were ready, and returns a plan, or None to continue without.
        momentum: momentum for DGC's correction; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs; see `at_epoch`.
        scaler: scaler of the loss; see `exchange`.
        plan_by: see `plan`.
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
    ):
        self._parameters = {name: p for name, p in model.module.named_parameters() if p.requires_grad}
        self._names = {p: name for name, p in self._parameters.items()}
        self._device = next(iter(self._parameters.values())).device
        self._momentum, self._warmup, self._plan_by, self._is_closed = momentum, warmup, plan_by, False
        self._ready: dict[str, object] = {}
        self._passes = Passes(model, scaler, self._put_back_)
        self.plan, self._epoch, self._ranks = plan, None, model.process_group
        self._begin_()
        model.register_comm_hook(self, FusedExchange.synchronise)

    def _begin_(self) -> None:
        plan, rank = self.plan, dist.get_rank(self._ranks)
        if plan is None:
            members, compressed = [tuple(self._parameters)], [False]
        else:
            members, compressed = plan.groups, plan.compressed
        self._groups, self._place = [], {}
        for number, (names, flag) in enumerate(zip(members, compressed, strict=True)):
            codec = gradient_codec(plan.codec, momentum=self._momentum, warmup=self._warmup) if flag else Identity()
            codec = codec.for_site(f"group {number}").for_rank(rank)
            sizes = [self._parameters[name].numel() for name in names]
            self._groups.append(Group(codec, sizes, 0.0 if flag else self._momentum, self._device, self._ranks))
            self._place |= {name: (number, piece) for piece, name in enumerate(names)}
        self._members = members
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
        future = torch.futures.Future(devices=[self._device] if self._device.type == "cuda" else [])
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

    def _mark(self) -> object:
        if self._device.type == "cuda":
            return torch.cuda.current_stream(self._device).record_event(torch.cuda.Event(enable_timing=True))
        return time.perf_counter()

    def _seconds(self) -> dict[str, float]:
        """Return the time when each gradient of the last pass was ready, counted from the first gradient."""
        first = next(iter(self._ready.values()))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            found = {name: first.elapsed_time(mark) / 1e3 for name, mark in self._ready.items()}
        else:
            found = {name: mark - first for name, mark in self._ready.items()}
        self._ready = {}
        return found

    def at_epoch(self, epoch: int) -> None:
        """Set DGC's share to that of an epoch of its warm-up, even before there is a plan; all ranks call it."""
        require_counts(0, epoch=epoch)
        self._epoch = epoch
        for group in self._groups:
            if hasattr(group.codec, "at_epoch"):
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
        facts = {"codec": codec, "compressed groups": compressed, "groups of parameters": self._members}
        facts |= {"momentum": self._momentum, "warmup": list(self._warmup)}
        of = {"rank": dist.get_rank(self._ranks), "number of ranks": dist.get_world_size(self._ranks)}
        return of | {name: json.dumps(fact) for name, fact in facts.items()}

    def __deepcopy__(self, memo: object) -> "FusedExchange":
        return self  # a copied model, such as an average of weights, has no hook

    def close(self) -> None:
        """End the exchange; the model's next backward pass raises."""
        self._is_closed = True
        self._passes.close()


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
            number of ranks, if its groups lack parameters, if plans differ, or if momentum or warm-up are given for a
            codec other than DGC; in the first pass, if a GradScaler exists but was not given.
    """

    def check() -> None:
        gradient_codec(plan.codec, momentum=momentum, warmup=warmup)
        plan.check(model.module, dist.get_world_size(model.process_group))
        require_all_handed_over(model)

    require_ddp(model)
    require_one_plan(f"{plan.to_json()}, {momentum}, {warmup}", check=check, group=model.process_group)
    warn_if_late(model, "cupcake")
    return FusedExchange(model, plan, momentum=momentum, warmup=warmup, scaler=scaler)


def exchanged_by_definition(
    gradients: Sequence[Sequence[Tensor]], ends: Sequence[int], codecs: Sequence[Sequence[Codec]]
) -> list[Tensor]:
    """Return the gradients after a step, the same on all ranks: sums of the ranks' decoded shares of the mean.

    Args:
        gradients: for each rank, N tensors in the order of fusion.
        ends: a fusion, the ends of its groups.
        codecs: for each rank, a codec for each group; codecs keep their errors from step to step.
    """
    num_ranks, found, start = len(gradients), [], 0
    for group, end in enumerate(ends):
        shares = [torch.cat([tensor.flatten() for tensor in own[start:end]]) / num_ranks for own in gradients]
        sent = [own[group].decode(own[group].encode(share)) for own, share in zip(codecs, shares, strict=True)]
        total = torch.stack(sent).sum(dim=0)
        sizes = [tensor.numel() for tensor in gradients[0][start:end]]
        pairs = zip(total.split(sizes), gradients[0][start:end], strict=True)
        found += [piece.view_as(tensor) for piece, tensor in pairs]
        start = end
    return found
