"""SDPipe for a user's own pipeline:

with synchronized(part, optimizer, num_stages=2):
    for batch in batches:  # the unchanged loop
        schedule.step(batch)
        optimizer.step()
"""

import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from workbench.launch.agreement import tell_all
from workbench.parallel.replicas import Averager, Place, Replica, Ties, require_alike
from workbench.parallel.timeouts import timeout_of
from workbench.techniques.sdpipe.method.scheduler import Group

from .service import Client, Grouped, Options, SchedulerLost, Server, WorkerLost

__all__ = ["Log", "SDPipe", "synchronized"]


@dataclass(slots=True)
class Log:
    """Groups and times of a worker."""

    groups: list[Group] = field(default_factory=list)
    waited_s: float = 0.0  # waiting for groups, after the update
    averaged_s: float = 0.0  # sending and receiving messages


class SDPipe:
    """Synchronises a stage's workers in groups; every rank of the default group creates one.

    All workers of a stage begin with the parameters and buffers of its first worker, and end with the mean of all
    workers. `before_update` reports the end of this worker's backward pass, `after_update` waits for its group.
    `synchronized` calls both from the optimizer's hooks, and documents the arguments.
    """

    _is_reported = False  # between `before_update` and `after_update`

    def __init__(
        self,
        module: nn.Module,
        place: Place,
        *,
        options: Options | None = None,
        timeout: timedelta | None = None,
        tied: Mapping[str, str] | None = None,
    ):
        options = options or Options()
        timeout = timeout or timeout_of()
        self.place = place
        self.log = Log()
        self._module = module
        self._identity = {"place": asdict(place), "history": options.history, "window_s": options.window_s}
        require_alike(module, place)
        name = tell_all(os.urandom(8).hex())[0]
        self._replica = Replica(module)
        self.averager = Averager(place, self._replica.device, name, timeout)
        self._replica.begin_(self.averager)
        self._tie = partial(Ties, module, place, tied, self._replica.device, timeout=timeout)
        self._ties = self._tie(name=name)
        self._server: Server | None = None
        if dist.get_rank() == 0:
            self._server = Server(place.num_stages, place.num_pipelines, options)
        access = tell_all(self._server and self._server.access)[0]
        limits = {"lease_s": options.lease_s, "timeout_s": timeout.total_seconds()}
        self._client = Client(access, place.stage, place.pipeline, **limits)
        self._averaged_s: float | None = None  # end of the last averaging
        self._is_averaged = self._is_closed = False
        self._hooks: list[RemovableHandle] = []  # hooks of an optimizer
        self._optimizer: Any = None  # the optimizer that `follow_` has marked for GradScaler
        self._skipped: list[tuple[Tensor, Tensor]] = []  # weights and gradients of a step that a scaler skips

    def before_update(self) -> None:
        """Report to the scheduler, on a GPU once gradients are computed; the update overlaps with its decision."""
        self._finish_update()
        if self._is_averaged:
            raise RuntimeError("step inside `averaged`, whose end would undo it; take it before or afterwards")
        with self._naming_lost("comparing the gradients of tied weights"):
            self._ties.compare_gradients()
        self._finish_queued()
        self._client.signal(None if self._averaged_s is None else time.monotonic() - self._averaged_s)
        self._is_reported = True

    def _finish_update(self) -> None:
        """Average after an update that ended with an error, which the caller's loop has caught: others wait for it."""
        if self._is_reported:
            self._skipped = []
            self.after_update()

    def after_update(self) -> None:
        """Wait for this worker's group, and average the model among its members."""
        self._is_reported = False
        began_s = time.monotonic()
        group = self._client.group()
        grouped_s = time.monotonic()
        self._put_mean_(group)
        self._finish_queued()
        self._averaged_s = time.monotonic()
        self.log.waited_s += grouped_s - began_s
        self.log.averaged_s += self._averaged_s - grouped_s
        self.log.groups.append(Group(self.place.stage, frozenset(group.members)))

    @contextmanager
    def averaged(self) -> Iterator[Grouped]:
        """Give the module the mean of all workers inside a `with` block, for a checkpoint or an evaluation.

        Every rank calls it; the numbers of their steps may differ. Ranks that have ended take part. Afterwards each
        worker has its previous weights and buffers again.
        """
        self._finish_update()
        vectors = self._replica.vectors()
        self._client.come(is_last=False)
        met = self._client.meet()
        try:
            self._put_mean_(met)
            self._is_averaged = True
            yield met
        finally:
            self._is_averaged = False
            self._replica.put_(vectors)

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state as plain values, without the states of the module and the optimizer."""
        return self._identity | {"weights": self._replica.fingerprint(), "scheduler": self._client.state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a state of `state_dict`; every rank calls it, after it has loaded the module's state.

        Raises:
            ValueError: on all ranks, if the state of a rank has another place, P or T, or other weights.
        """
        rule = "call `synchronized`, load the module's state_dict of this rank, and then this one"
        expected = self._identity | {"weights": self._replica.fingerprint()}
        wrong = [f"{name} {state.get(name)}, not {here}" for name, here in expected.items() if state.get(name) != here]
        for refused in tell_all(f"state of rank {dist.get_rank()} has {wrong[0]}; {rule}" if wrong else None):
            if refused:
                raise ValueError(refused)
        if self.place.pipeline == 0:
            self._client.load(state["scheduler"])
        self._ties.close()
        self._ties = self._tie(name=tell_all(os.urandom(8).hex())[0])  # the weights have changed; no rank steps before

    def follow_(self, optimizer: torch.optim.Optimizer) -> None:
        """Average after every step of an optimizer, until this rank leaves, including steps that GradScaler skips.

        If gradients are not finite, GradScaler calls only an optimizer that can skip steps itself. The optimizer is
        marked as such here; otherwise other workers would wait for this worker's next step, possibly forever.
        """
        if not getattr(optimizer, "_step_supports_amp_scaling", False):
            self._optimizer = optimizer
            self._optimizer._step_supports_amp_scaling = True
        before = optimizer.register_step_pre_hook(lambda *_: self._before_step(optimizer))
        after = optimizer.register_step_post_hook(lambda *_: self._after_step())
        hooks: tuple[Any, Any] = optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks
        hooks[0].move_to_end(before.id, last=False)  # other hooks see unscaled gradients
        hooks[1].move_to_end(after.id, last=False)  # and the averaged model
        self._hooks = [before, after]

    def _before_step(self, optimizer: Any) -> None:
        _require_own(optimizer, self._module)
        scale, found_inf = (getattr(optimizer, name, None) for name in ("grad_scale", "found_inf"))
        if self._optimizer is not None and found_inf is not None:
            optimizer.grad_scale = optimizer.found_inf = None  # as without a scaler
            weights = [weight for group in optimizer.param_groups for weight in group["params"]]
            weights = [weight for weight in weights if weight.grad is not None]
            if found_inf.item():
                self._skipped = [(weight, weight.grad) for weight in weights]
                optimizer.zero_grad(set_to_none=True)
            elif scale is not None:
                for weight in weights:
                    if weight.grad.dtype == torch.float16:
                        raise ValueError("Attempting to unscale FP16 gradients.")  # GradScaler's message
                    weight.grad.mul_(scale.double().reciprocal().float())
        self.before_update()

    def _after_step(self) -> None:
        for weight, gradient in self._skipped:
            weight.grad = gradient
        self._skipped = []
        self.after_update()

    def _mean(self, group: Grouped) -> list[Tensor]:
        """Return the mean of the members' vectors; values that are not floats come from the first member."""
        weights, floats, rest = vectors = self._replica.vectors()
        if self.place.pipeline != group.members[0]:
            rest.zero_()
        with self._naming_lost(f"averaging with workers {[*group.members]}"):
            for vector in vectors:
                if vector.numel():
                    self.averager.sum_(vector, group.members, group.is_kept)
        weights /= len(group.members)
        floats /= len(group.members)
        return vectors

    def _put_mean_(self, group: Grouped) -> None:
        if group.failed:
            warnings.warn(f"the mean is of pipelines {[*group.members]} only: {group.failed}", stacklevel=4)
        if len(group.members) > 1:
            self._replica.put_(self._mean(group))
        with self._naming_lost("averaging tied weights"):
            self._ties.average_()

    def _finish_queued(self) -> None:
        """Wait on a GPU for what is queued: signals and times are those of work that is done."""
        if self._replica.device.type == "cuda":
            torch.cuda.current_stream(self._replica.device).synchronize()

    @contextmanager
    def _naming_lost(self, what: str) -> Iterator[None]:
        """If the messages in the body fail, raise an error that names failed or silent workers."""
        try:
            yield
        except RuntimeError:
            self._client.blame(f"{what} failed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, *__: object) -> None:
        self.close() if error is None else self.fail(error)

    def close(self) -> dict[str, int]:
        """Wait until all workers have ended, and give the module their mean; every rank calls it.

        Returns:
            The scheduler's counts, on rank 0.

        Raises:
            WorkerLost, SchedulerLost: if there is no mean of all; the module then holds this worker's weights.
        """
        if self._is_closed:
            return {}
        try:
            self._finish_update()
            self._client.come(is_last=True)
            while not (met := self._client.meet()).is_over:
                self._mean(met)  # other workers evaluate their mean, and train on
            self._put_mean_(met)
        except BaseException as error:
            self.fail(error)
            raise
        return self._free()

    def fail(self, error: BaseException | None = None) -> None:
        """Leave after an error on this rank; other ranks continue without its pipeline, but not without rank 0."""
        if self._is_closed:
            return
        with suppress(RuntimeError, ValueError):  # the first error says more
            gave_up = isinstance(error, WorkerLost | SchedulerLost)
            grouped = self._client.fail(f"gave up ({error})" if gave_up else "has failed")
            if grouped is not None and len(grouped.members) > 1:
                self._replica.put_(self._mean(grouped))  # the members already wait for this worker
        self._free()

    def _free(self) -> dict[str, int]:
        self._is_closed = True
        for hook in self._hooks:
            hook.remove()
        if self._optimizer is not None:
            del self._optimizer._step_supports_amp_scaling
        self._client.close()
        self.averager.close()
        self._ties.close()
        return {} if self._server is None else self._server.close()


def _require_own(optimizer: torch.optim.Optimizer, module: nn.Module) -> None:
    """Refuse parameters that are not the module's: each worker would train its own, and nobody would average them."""
    updated = {weight for param_group in optimizer.param_groups for weight in param_group["params"]}
    if others := updated.difference(module.parameters()):
        sizes = [list(weight.shape) for weight in others]
        rule = "give one module that holds all that the optimizer updates, such as a ModuleList"
        raise ValueError(f"optimizer has parameters that the module lacks, of the sizes {sorted(sizes)[:3]}; {rule}")


def synchronized(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    num_stages: int | None = None,
    group: dist.ProcessGroup | DeviceMesh | None = None,
    tied: Mapping[str, str] | None = None,
    options: Options | None = None,
) -> SDPipe:
    """Synchronise a pipeline's stage after every step of its optimizer; every rank calls it.

    It begins at once, and ends with its `with` block or with `close` on all ranks. An error inside the block is raised
    on its rank. Within the timeout of the group, other ranks continue without its pipeline, or raise `WorkerLost` or
    `SchedulerLost`.

    Args:
        module: this rank's stage, on one device; all workers of a stage begin with its first worker's parameters and
            buffers.
        optimizer: the optimizer of the module.
        num_stages: M, if the stages of a pipeline are neighbouring ranks of the default group. The ranks form N
            pipelines, at least 2.
        group: instead of `num_stages`, the workers of this rank's stage, as a group or as a mesh of one dimension,
            such as `mesh["pipelines"]`.
        tied: weights that this stage shares with other stages, {"a name that all of them use": "name of this stage"};
            you add their gradients. None treats equal matrices as one weight while their gradients are equal.
        options: None for the paper's: P = 10, T = 1/N of an iteration.

    Raises:
        ValueError: if the ranks do not fit, if the optimizer updates what is not the module's, if workers of a stage
            hold different tensors, or if the weights in `tied` differ in shape or are unknown.
    """
    if (num_stages is None) == (group is None):
        rule = "give exactly one, num_stages=1 where each rank has the whole model"
        raise ValueError(f"num_stages, group are {num_stages}, {group}; {rule}")
    for part in module.modules():
        if isinstance(part, DistributedDataParallel | FullyShardedDataParallel):
            raise ValueError(f"module is a {type(part).__name__}, which averages by itself; give the module in it")
    for name, weight in module.named_parameters():
        if isinstance(weight, DTensor) or weight.is_meta:
            kind = "has no values" if weight.is_meta else "is a DTensor, as of fully_shard"
            raise ValueError(f"module's {name} {kind}; each worker must hold its stage's weights whole")
    _require_own(optimizer, module)
    if isinstance(group, DeviceMesh):
        if group.ndim != 1:
            raise ValueError(f"group is a mesh of {group.ndim} dimensions; it must be of one, the pipelines")
        group = group.get_group()
    place = Place.of_group(group) if num_stages is None else Place.of_this_rank(num_stages)
    sdpipe = SDPipe(module, place, options=options, timeout=min(timeout_of(), timeout_of(group)), tied=tied)
    sdpipe.follow_(optimizer)
    return sdpipe
