"""Run the chosen option of each tensor on real ranks, as a communication hook of DistributedDataParallel.

A rank has four worker threads, one for each resource. The device and the CPU serve tasks as they arrive. The links
inside and between machines serve tasks in the order of the plan's timeline, the same on all ranks. A gradient passes
from worker to worker while the backward pass computes the next gradients.
"""

import copy
import itertools
import json
import math
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from workbench.compression.codec import all_finite
from workbench.compression.costs import Processor
from workbench.launch.backends import backend_of
from workbench.parallel.hooks import (
    BUCKET_MB,
    Passes,
    Scaler,
    require_all_handed_over,
    require_ddp,
    require_one_plan,
    require_own_state,
    warn_if_late,
)
from workbench.parallel.messages import all_to_all
from workbench.parallel.timeouts import await_connected, break_connections, naming_lost_ranks, timeout_of

from .method.exchange import (
    Encoders,
    Layout,
    group_of,
    holds,
    is_second,
    layouts_of,
    make_codec,
    merged,
    outgoing,
    padded,
    stream_of,
)
from .method.job import INTER, INTRA, RESOURCES, steps_of
from .method.options import Comm, Comp, Option, Phase, Routine
from .planning import Plan

__all__ = ["BUCKET_MB", "GradientExchange", "Groups", "compress_gradients"]


class Groups:
    """The process groups of one rank: the ranks of its machine, the ranks at its place on all machines, and all ranks.

    All ranks create them together. Their timeout is that of `parent`, by default the default group. ValueError if the
    number of ranks is not the number of GPUs.
    """

    def __init__(
        self,
        num_machines: int,
        gpus_per_machine: int,
        device: torch.device | str = "cpu",
        parent: dist.ProcessGroup | None = None,
    ):
        self.place, self.rank = (num_machines, gpus_per_machine), dist.get_rank()
        wanted, world = num_machines * gpus_per_machine, dist.get_world_size()
        if wanted != world:
            raise ValueError(f"the plan is for {num_machines} machines of {gpus_per_machine}; there are {world} ranks")
        # With its number: a worker thread's own GPU would be the first one.
        self._device = torch.empty(0, device=device if backend_of(device) == "nccl" else "cpu").device
        self._is_interrupted = False
        self._groups = {}
        for phase in Phase:
            members = dict.fromkeys(group_of(phase, rank, *self.place) for rank in range(world))
            made = {ranks: dist.new_group(list(ranks), timeout=timeout_of(parent)) for ranks in members}
            ranks = group_of(phase, self.rank, *self.place)
            self._groups[phase] = made[ranks], ranks
        await_connected(parent)

    def interrupt(self) -> None:
        """End all collectives that wait for failed ranks, with an error."""
        self._is_interrupted = True
        for group, _ in self._groups.values():
            break_connections(group)

    def close(self) -> None:
        """Close the groups' connections; no collective may be running."""
        for group, _ in self._groups.values():
            dist.destroy_process_group(group)
        self._groups.clear()

    def communicate(self, value: Tensor | None, task: Comm, second: bool, shape: Sequence[int]) -> Tensor | None:
        """Run one collective with this rank's value, None if it has none; return its value afterwards.

        Args:
            value: this rank's input.
            task: the collective.
            second: whether the task is the second step of its phase.
            shape: shape of the tensor that the root broadcasts.
        """
        group, ranks = self._groups[task.phase]
        if len(ranks) == 1:
            assert value is not None  # there is no other rank
            return merged([value], task, second)
        if value is None:
            value = torch.empty(*shape, dtype=torch.uint8 if task.is_compressed else torch.float32, device=self._device)
        value = value.to(self._device).contiguous()
        try:
            return self._communicated(value, task, second, group, ranks)
        except RuntimeError:
            if self._is_interrupted:  # this rank has raised, and is one that the others miss
                raise
            with naming_lost_ranks(group, str(task)):
                raise

    def _communicated(
        self, value: Tensor, task: Comm, second: bool, group: dist.ProcessGroup, ranks: Sequence[int]
    ) -> Tensor | None:
        root, n = ranks[0], len(ranks)
        received: list[Tensor] | None
        match task.routine:
            case Routine.BROADCAST:
                dist.broadcast(value, root, group=group)
                return value
            case Routine.ALL_REDUCE | Routine.REDUCE:
                total, is_reduce = value.clone(), task.routine is Routine.REDUCE
                dist.reduce(total, root, group=group) if is_reduce else dist.all_reduce(total, group=group)
                return total if not is_reduce or self.rank == root else None
            case Routine.REDUCE_SCATTER | Routine.ALL_TO_ALL:  # the sum is made here: gloo's sends twice as much
                sent = torch.stack(outgoing(value, task, n))
                arrived = torch.empty_like(sent)
                all_to_all([*arrived.flatten(1)], [*sent.flatten(1)], group=group)
                received = list(arrived)
            case Routine.ALL_GATHER:
                received = [torch.empty_like(value) for _ in ranks]
                dist.all_gather(received, value, group=group)
            case Routine.GATHER:
                received = [torch.empty_like(value) for _ in ranks] if self.rank == root else None
                dist.gather(value, received, root, group=group)
        return None if received is None else merged(received, task, second)


class _Journey:
    """A gradient on its way along its option, on one rank."""

    _gradient: Tensor  # holds the mean over ranks at the end
    _done: Callable[[Tensor], None]  # called with it
    _value: Tensor | None = None  # None where this rank holds nothing
    _velocity: Tensor | None = None

    def __init__(self, name: str, option: Option, encoders: Encoders, groups: Groups, momentum: float):
        self.name, self._option, self.encoders, self._groups = name, option, encoders, groups
        self._momentum = 0.0 if option.is_compressed else momentum  # for a compressed gradient the codec has it
        self._layouts = layouts_of(option, *groups.place)
        self.resources = tuple(step.resource for step in steps_of(option, *groups.place))
        self.number = 0

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """What is remembered of the passes before."""
        return self.encoders.memory if self._velocity is None else (self._velocity,)

    def begin_(self, gradient: Tensor, done: Callable[[Tensor], None], *, may_be_discarded: bool = False) -> None:
        """Start with a gradient, which will hold the mean over ranks when `done` is called with it.

        What is remembered is kept for `put_back_` if the result may be discarded.
        """
        self._before = [remembered.clone() for remembered in self.memory] if may_be_discarded else []
        self.number, self._gradient, self._done = 0, gradient, done
        first = gradient
        if self._momentum:  # the velocities of the ranks add up to the velocity of the sum
            velocity = self._velocity  # a loaded one may lie on another device
            first = gradient if velocity is None else self._momentum * velocity.to(gradient.device) + gradient
            self._velocity = first.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)  # what is not finite is sent once
        self._value = padded(first, math.prod(self._groups.place))
        self._num_elements = self._value.numel()

    def put_back_(self) -> None:
        """Remember what was remembered before the last pass: its result has not been applied."""
        for number, remembered in enumerate(self.memory):  # there was none of a codec that is new
            remembered.zero_() if number >= len(self._before) else remembered.copy_(self._before[number])

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of what is remembered."""
        return {"encoders": self.encoders.state_dict(), "velocity": copy.deepcopy(self._velocity)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue with what `state_dict` gave."""
        self.encoders.load_state_dict(state["encoders"])
        self._velocity = copy.deepcopy(state["velocity"])

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.number

    def leave_(self) -> None:
        """Remember what the worker, or the backward pass, has queued on a GPU."""
        self._queued = torch.cuda.current_stream().record_event() if self._gradient.is_cuda else None

    def run_(self) -> bool:
        """Do the next task, and return whether there are more.

        After the last one the backward pass may go on, and begin the journey anew at once: it belongs to the worker no
        longer.
        """
        if self._queued is not None:
            torch.cuda.current_stream().wait_event(self._queued)
            if self._value is not None and self._value.is_cuda:
                self._value.record_stream(torch.cuda.current_stream())
        task, before, after = self._option.tasks[self.number], *self._layouts[self.number : self.number + 2]
        if isinstance(task, Comm):
            self._communicate_(task, before)
        elif self._value is not None:
            self._value = self._value.to(self._gradient.device if task.processor is Processor.GPU else "cpu")
            if isinstance(task, Comp):
                place = sum(isinstance(earlier, Comp) for earlier in self._option.tasks[: self.number])
                stream = stream_of(self._option, self.number, self._groups.rank, self._groups.place[1])
                self._value = self.encoders.encode(self._value, place, after.pieces, stream)
            else:
                self._value = self.encoders.decode(self._value, self._num_elements // before.split)
        self.number += 1
        if self.number < len(self._option.tasks):
            return True
        assert self._value is not None  # an option ends with the whole sum on every rank
        mean = self._value[: self._gradient.numel()].view_as(self._gradient)
        torch.mul(mean.to(self._gradient.device), 1 / math.prod(self._groups.place), out=self._gradient)
        self._value = None
        if self._gradient.is_cuda:
            torch.cuda.current_stream().synchronize()
        self._done(self._gradient)
        return False

    def _communicate_(self, task: Comm, before: Layout) -> None:
        others = replace(before, rooted=before.rooted - {task.phase})
        if not holds(others, self._groups.rank, *self._groups.place):
            return  # the roots of another phase communicate
        shape: tuple[int, ...] = (self._num_elements // before.split,)
        if task.is_compressed and task.routine is Routine.BROADCAST:
            piece = self.encoders.template(shape[0] // before.pieces, self._gradient.device)
            shape = before.copies, before.pieces, piece.num_bytes
        self._value = self._groups.communicate(self._value, task, is_second(self._option, self.number), shape)


class _Worker(threading.Thread):
    """Serves the tasks of one resource, as they arrive or in an order that repeats every iteration."""

    def __init__(
        self, resource: int, serve: Callable[..., None], order: Sequence[tuple[str, int]] | None, device: torch.device
    ):
        super().__init__(name=f"espresso, {RESOURCES[resource]}", daemon=True)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._serve, self._order = serve, None if order is None else itertools.cycle(order)
        self.inbox: queue.SimpleQueue[_Journey | None] = queue.SimpleQueue()

    def run(self) -> None:
        waiting, following = {}, None if self._order is None else next(self._order, None)
        while (journey := self.inbox.get()) is not None:
            if self._order is None:
                self._serve(journey, self._stream)
                continue
            waiting[journey.key] = journey
            while following in waiting:
                self._serve(waiting.pop(following), self._stream)
                following = next(self._order)


class GradientExchange:
    """The hook's state on one rank; `close` or the end of a `with` block ends its workers."""

    def __init__(
        self,
        plan: Plan,
        model: DistributedDataParallel,
        groups: Groups,
        momentum: float,
        warmup: Sequence[float],
        scaler: Scaler | None,
    ):
        make = partial(make_codec, plan.codec, momentum=momentum, warmup=warmup)
        self._journeys = {
            name: _Journey(name, option, Encoders(make, name), groups, momentum)
            for name, option in plan.options.items()
        }
        self._names = {parameter: name for name, parameter in model.module.named_parameters()}
        options = {name: str(option) for name, option in plan.options.items()}
        facts = {
            "codec": plan.codec,
            "machines and GPUs": groups.place,
            "options": options,
            "numbers of elements": dict(plan.num_elements),
            "momentum": momentum,
            "warmup": list(warmup),
        }
        self._whose = {"rank": groups.rank} | {name: json.dumps(fact) for name, fact in facts.items()}
        self._passes, self._epoch = Passes(model, scaler, self._put_back_, momentum), 0
        self._groups, self._lock = groups, threading.Lock()
        self._failure: Exception | None = None
        self._device = next(model.module.parameters()).device
        self._open: dict[torch.futures.Future, int] = {}  # number of unfinished gradients in each bucket
        model.register_comm_hook(self, GradientExchange.synchronise)
        orders = {INTRA: plan.orders[0], INTER: plan.orders[1]}
        self._workers = [
            _Worker(resource, self._serve, orders.get(resource), self._device) for resource in range(len(RESOURCES))
        ]
        for worker in self._workers:
            worker.start()

    def synchronise(self, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        """Start the transfers of a bucket's gradients; DDP calls this communication hook."""
        devices = [self._device] if self._device.type == "cuda" else []
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        gradients = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        with self._lock:
            if self._failure is not None:
                raise RuntimeError(f"gradients are not exchanged: {self._failure}") from self._failure
            self._open[future] = len(gradients)
        if bucket.index() == 0:
            factor = self._passes.begin_()
            for remembered in (tensor for journey in self._journeys.values() for tensor in journey.memory):
                remembered.mul_(factor)
        for parameter, gradient in gradients:
            journey = self._journeys[self._names[parameter]]
            done = partial(self._arrived, future, bucket.buffer())
            journey.begin_(gradient, done, may_be_discarded=self._passes.may_be_discarded(parameter))
            self._hand_on(journey)
        if bucket.is_last():
            self._passes.end_()
        return future.then(self._received)

    def _put_back_(self, name: str) -> None:
        self._journeys[name].put_back_()

    def _received(self, done: torch.futures.Future) -> Tensor:
        if self._failure is not None:
            raise self._failure
        return done.value()

    def _arrived(self, future: torch.futures.Future, buffer: Tensor, gradient: Tensor) -> None:
        is_finite = not self._passes.is_scaled or all_finite(gradient)
        with self._lock:
            self._passes.all_finite &= is_finite
            if future not in self._open:
                return  # the exchange has failed
            self._open[future] -= 1
            is_last = self._open[future] == 0
            if is_last:
                del self._open[future]
        if is_last:
            future.set_result(buffer)

    def _hand_on(self, journey: _Journey) -> None:
        journey.leave_()
        self._workers[journey.resources[journey.number]].inbox.put(journey)

    def _serve(self, journey: _Journey, stream: torch.cuda.Stream | None) -> None:
        if self._failure is not None:
            return
        try:
            with torch.cuda.stream(stream), torch.no_grad():
                if journey.run_():
                    self._hand_on(journey)
        except BaseException as error:  # the training waits for the futures and must see the error
            self._fail(RuntimeError(f"rank {self._groups.rank} could not exchange {journey.name}: {error!r}"))

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._failure = self._failure or error
            failed = list(self._open)
            self._open.clear()
        for future in failed:
            future.set_result(torch.empty(0))  # `_received` raises

    def at_epoch(self, epoch: int) -> None:
        """Set DGC's share to that of an epoch of its warm-up; all ranks call this between two steps."""
        self._epoch = epoch
        for journey in self._journeys.values():
            journey.encoders.at_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of this rank's state between two backward passes; each rank saves its own state."""
        more = {"epoch": self._epoch, "scale": self._passes.scale}
        gradients = {name: journey.state_dict() for name, journey in self._journeys.items()}
        return self._whose | more | {"gradients": gradients}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state that `state_dict` returned on this rank with the same plan.

        Raises:
            ValueError: if the state belongs to another plan, rank or number of ranks; nothing changes then.
        """
        require_own_state(state, self._whose)
        self._passes.scale = state["scale"]
        self.at_epoch(state["epoch"])
        for name, journey in self._journeys.items():
            journey.load_state_dict(state["gradients"][name])

    def close(self) -> None:
        """End the workers, even while they wait for failed ranks; the model's next backward pass raises."""
        is_whole = self._failure is None and not self._open
        self._fail(RuntimeError("the exchange is closed"))
        for worker in self._workers:
            worker.inbox.put(None)
        if not is_whole:
            self._groups.interrupt()
        for worker in self._workers:
            worker.join()
        self._groups.close()
        self._passes.close()

    def __deepcopy__(self, memo: object) -> "GradientExchange":
        return self  # a copied model, such as an average of weights, has no hook

    def __enter__(self) -> "GradientExchange":
        return self

    def __exit__(self, *_) -> None:
        self.close()


def compress_gradients(
    model: DistributedDataParallel,
    plan: Plan,
    *,
    momentum: float = 0.0,
    warmup: Sequence[float] = (),
    scaler: Scaler | None = None,
) -> GradientExchange:
    """Synchronise a model's gradients by a plan, from the next backward pass on; all ranks call it.

    Args:
        model: a model without another communication hook.
        plan: a plan for this model and this number of ranks, equal on all ranks.
        momentum: momentum for DGC's correction; the optimizer then has none.
        warmup: shares that DGC keeps in its first epochs, see `compression.exponential_warmup` and `at_epoch`.
        scaler: the `torch.amp.GradScaler` of the loss, or any object whose `get_scale()` returns the factor of the next
            loss. The state of the codecs is scaled with it. If a gradient is not finite, the scaler skips the step, and
            the state stays as before the pass.

    Returns:
        The exchange. To resume a training, each rank saves and loads its `state_dict()` with the model's.

    Raises:
        ValueError: on all ranks, before gradients are sent, if the plan of a rank is for other parameters or another
            number of ranks, if plans differ, if momentum or warm-up are given for a codec other than DGC, or if the
            model's process group lacks ranks; in the first pass, if a GradScaler exists but was not given; in a pass
            that adds to the results of another one, if momentum is given.
    """

    def check() -> None:
        if (momentum or warmup) and plan.codec != "dgc":
            raise ValueError(f"momentum is {momentum}, warmup {warmup}, codec {plan.codec}: only DGC has the first two")
        plan.check(model.module)
        require_all_handed_over(model)

    require_ddp(model)
    size, world = dist.get_world_size(model.process_group), dist.get_world_size()
    if size != world:
        raise ValueError(f"the model's process group has {size} ranks; it must have all {world}, those of the machines")
    require_one_plan(f"{plan.to_json()}, {momentum}, {warmup}", check=check)
    warn_if_late(model, "espresso")
    device = next(model.module.parameters()).device
    groups = Groups(plan.machines.num_machines, plan.machines.gpus_per_machine, device, model.process_group)
    return GradientExchange(plan, model, groups, momentum, warmup, scaler)
