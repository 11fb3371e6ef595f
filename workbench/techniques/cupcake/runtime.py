"""Fused groups on real ranks, as a communication hook of DistributedDataParallel.

The hook runs between the computation of two gradients, where the paper encodes: it collects a group, encodes it, starts
its sending, and returns. Behind the last group it receives and decodes all of them, one after the other. It has no
thread of its own, and on a GPU it uses the stream of the backward pass.
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
    """A group of gradients as one tensor on one rank: encoded, sent, received and decoded."""

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
        """What is remembered of the passes before, each with an element for every one of the group."""
        return self.codec.memory if self._velocity is None else (self._velocity,)

    @torch.no_grad()
    def encode(self, *, may_be_discarded: bool = False) -> None:
        """Encode the group's share in the mean over ranks; keep what is remembered for `put_back_` if asked to."""
        self._before = [remembered.clone() for remembered in self.memory] if may_be_discarded else []
        self.flat.div_(self._world)
        if self._momentum:  # of the sum it is the sum of all ranks' own
            before = torch.zeros_like(self.flat) if self._velocity is None else self._velocity
            self._velocity = self.flat.add_(before, alpha=self._momentum).clone()
        self._payload = self.codec.encode(self.flat)
        self._message = self._payload.tensors[0] if self._is_sum else packed(self._payload)

    def send(self) -> None:
        """Start to exchange messages with all ranks of the process group."""
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
        """Receive this rank's own message from all, without a network: to measure decoding."""
        self._received = None if self._is_sum else self._message.expand(self._world, -1)

    @torch.no_grad()
    def put_back_(self, piece: int) -> None:
        """Remember of a piece what was remembered before the last pass: its result has not been applied."""
        for number, remembered in enumerate(self.memory):
            before = self._before[number] if self._before else torch.zeros_like(remembered)
            remembered.split(self._sizes)[piece].copy_(before.split(self._sizes)[piece])

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is remembered."""
        return copy.deepcopy({"codec": dict(self.codec.state_dict()), "velocity": self._velocity})

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` gave."""
        self.codec.load_state_dict(state["codec"])
        self._velocity = copy.deepcopy(state["velocity"])

    @torch.no_grad()
    def decode(self) -> None:
        """Make the group the mean over ranks."""
        if not self._is_sum:
            self.flat.copy_(self.codec.decode_sum([unpacked(row, self._payload) for row in self._received]))
        elif self._message is not self.flat:
            self.codec.decode(self._payload, out=self.flat)
        self._work = self._message = self._received = self._payload = None


class FusedExchange:
    """The hook's state on one rank.

    Args:
        model: whose gradients are exchanged from its next backward pass on.
        plan: how; without one, gradients are sent uncompressed in one group for some passes, while `plan_by` is called
            with the moments in which they are ready and returns a plan, or None to go on.
        momentum: of DGC, which corrects it; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs; see `at_epoch`.
        scaler: of the loss; see `exchange`.
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
        """Take over the gradients of a bucket: the communication hook."""
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
        """Receive and decode all groups in the order in which they were sent, and hand the gradients back."""
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
        """Return when each gradient of the last pass was ready, from the first one on."""
        first = next(iter(self._ready.values()))
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
            found = {name: first.elapsed_time(mark) / 1e3 for name, mark in self._ready.items()}
        else:
            found = {name: mark - first for name, mark in self._ready.items()}
        self._ready = {}
        return found

    def at_epoch(self, epoch: int) -> None:
        """Let DGC keep the share of an epoch of its warm-up, also before the plan is made; all ranks call it."""
        require_counts(0, epoch=epoch)
        self._epoch = epoch
        for group in self._groups:
            if hasattr(group.codec, "at_epoch"):
                group.codec.at_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of all that this rank remembers, between two backward passes; each rank saves its own."""
        more = {"epoch": self._epoch, "scale": self._passes.scale}
        return self._whose() | more | {"groups": [group.state_dict() for group in self._groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` gave on this rank, with the same plan.

        Raises:
            ValueError: naming it, if the state is of another plan, rank or number of ranks; nothing is changed then.
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
        """Exchange no more: the model's next backward pass raises."""
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
    """Synchronise a model's gradients as a plan says, from the next backward pass on; all its ranks call it.

    Args:
        model: whose backward pass has no other communication hook.
        plan: for this model and the ranks of its process group; equal on all of them.
        momentum: of DGC, which corrects it; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs, as `compression.exponential_warmup` gives.
        scaler: the `torch.amp.GradScaler` of the loss, or any object whose `get_scale()` returns the factor by which
            the next loss is multiplied: what is remembered follows it. A pass with a gradient that is not finite, whose
            step a scaler skips, leaves what is remembered as it was.

    Returns:
        The exchange; its `state_dict()`, each rank's own, is saved with the model's and loaded to resume.

    Raises:
        ValueError: on all ranks, before gradients are sent, if on one the plan is for other parameters or another
            number of ranks, has no groups of all of them, or has momentum or warm-up for another codec than DGC, or if
            ranks have different plans; in the first pass, if a GradScaler lives and is not given.
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
    """Return the gradients that every rank has after a step: the sums of all ranks' encoded shares in the mean.

    Args:
        gradients: of each rank, N tensors in the order in which they are fused.
        ends: of the groups, a fusion.
        codecs: of each rank, one for each group; they remember errors from step to step.
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
