"""When training's own messages are under way, of which checkpoint traffic must keep out (sections 6.5.1 and 6.5.4)."""

# No postponed annotations: DDP reads those of a hook.
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_api import AllGather, ReduceScatter
from torch.nn.parallel import DistributedDataParallel

__all__ = ["TrafficWatch", "watch_traffic"]

Operation = tuple[float, float]  # start and end of a message, seconds of the monotonic clock


class TrafficWatch:
    """Notes the messages of an iteration, and lets others wait for an idle network."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._changed = threading.Condition()
        self._operations: list[Operation] = []
        self._num_under_way = 0
        self._is_over = False
        self.started_s = clock()  # of the iteration

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Start and end of the messages that have ended in this iteration, in the order of their ends."""
        with self._changed:
            return tuple(self._operations)

    def begin(self) -> float:
        """Note that a message begins; return the time, for `end`."""
        with self._changed:
            self._num_under_way += 1
        return self._clock()

    def end(self, started_s: float) -> None:
        """Note that the message that began at that time has ended."""
        with self._changed:
            self._operations.append((started_s, self._clock()))
            self._num_under_way -= 1
            self._changed.notify_all()

    @contextmanager
    def message(self) -> Iterator[None]:
        """Note one message for as long as the body runs."""
        started_s = self.begin()
        try:
            yield
        finally:
            self.end(started_s)

    def next_iteration(self) -> tuple[Operation, ...]:
        """Forget this iteration's messages and return them; the next iteration begins now."""
        with self._changed:
            ended, self._operations = self._operations, []
            self._is_over, self.started_s = False, self._clock()
            return tuple(ended)

    def finish_iteration(self) -> None:
        """Note that this iteration sends nothing more: waits for a further idle span end at once."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait_for_idle(self, num_ended: int, timeout_s: float) -> bool:
        """Wait until `num_ended` messages have ended and none is under way, or the iteration is over; False if late."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._is_over or (self._num_under_way == 0 and len(self._operations) >= num_ended), timeout_s
            )


def watch_traffic(model: nn.Module, watch: TrafficWatch) -> None:
    """Make a model report its collectives, before its first iteration; one on a single rank has none."""
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    sharded = [module for module in model.modules() if isinstance(module, FSDPModule)]
    if isinstance(model, DistributedDataParallel):
        try:
            model.register_comm_hook((watch, model.process_group), _averaged)
        except RuntimeError as error:
            if "once" not in str(error):
                raise
            words = "its messages are not seen, and checkpoints may travel beside them"
            warnings.warn(f"model has a communication hook of its own: {words}", stacklevel=2)
    elif sharded:
        for module in sharded:
            module.set_custom_all_gather(_WatchedAllGather(watch))
            module.set_custom_reduce_scatter(_WatchedReduceScatter(watch))
    elif dist.is_initialized() and dist.get_world_size() > 1:
        rule = "where there are several ranks it must be wrapped in DDP or given to fully_shard"
        raise ValueError(f"model is {type(model).__name__}; {rule}")


def _averaged(state: tuple[TrafficWatch, dist.ProcessGroup], bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """Average a bucket over the model's group as DDP does without a hook: multiply by 1 / N, then add."""
    watch, group = state
    started_s, gradients = watch.begin(), bucket.buffer()
    gradients.mul_(1.0 / dist.get_world_size(group))
    added = dist.all_reduce(gradients, group=group, async_op=True).get_future()

    def ended(future: torch.futures.Future) -> Tensor:
        watch.end(started_s)
        return future.value()[0]

    return added.then(ended)


class _Watched:
    """Allocates as usual and reports a collective, also an asynchronous one."""

    def __init__(self, watch: TrafficWatch) -> None:
        self._watch = watch

    def allocate(self, size, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return an empty tensor."""
        return torch.empty(*size, dtype=dtype, device=device)

    def _call(self, collective: Callable[..., dist.Work | None], async_op: bool) -> dist.Work | None:
        if not async_op:
            with self._watch.message():
                return collective(async_op=False)
        started_s, work = self._watch.begin(), collective(async_op=True)
        work.get_future().add_done_callback(lambda _: self._watch.end(started_s))
        return work


class _WatchedAllGather(_Watched, AllGather):
    """The all-gather of parameters, reported."""

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, group, async_op: bool = False) -> dist.Work | None:
        return self._call(partial(dist.all_gather_single, output_tensor, input_tensor, group=group), async_op)


class _WatchedReduceScatter(_Watched, ReduceScatter):
    """The reduce-scatter of gradients, reported."""

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group, op, async_op: bool = False
    ) -> dist.Work | None:
        scatter = partial(dist.reduce_scatter_single, output=output_tensor, input=input_tensor, group=group, op=op)
        return self._call(scatter, async_op)
