"""Pipeline stages on consecutive ranks, by a schedule of torch.distributed.pipelining (GPipe or 1F1B).

Every rank is given the whole batch and reads shapes, targets and masks from it; messages are [B, S, H] of a
micro-batch. `open_mesh` arranges ranks as tensor groups inside a pipeline. `VirtualPipeline` runs all
stages in one process, equal to float tolerance.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from enum import Enum
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.pipelining.schedules import PipelineScheduleSingle

from workbench.parallel.boundary import NUM_ENDS, Boundary
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.messages import begin_messages
from workbench.parallel.timeouts import init_mesh
from workbench.parallel.traffic import MessageKind, Phase
from workbench.timeline import Kind, Recorder

__all__ = ["WHOLE", "Mesh", "Pipeline", "Schedule", "Stage", "StepResult", "VirtualPipeline", "open_mesh"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of a pipeline."""

    index: int  # position in the pipeline, from 0
    num_stages: int  # length of the pipeline

    def __post_init__(self):
        if self.num_stages < 1:
            raise ValueError(f"num_stages: {self.num_stages} must be at least 1")
        if not 0 <= self.index < self.num_stages:
            raise ValueError(f"index: {self.index} is not in 0..{self.num_stages - 1}")

    @property
    def is_first(self) -> bool:
        """Whether the stage reads the model's input."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the model's output."""
        return self.index == self.num_stages - 1

    def layers(self, num_layers: int) -> range:
        """Give the indices of the stage's layers in the whole model, which the stages must divide."""
        if num_layers % self.num_stages:
            raise ValueError(f"num_layers: {num_layers} is not divisible by {self.num_stages} pipeline stages")
        share = num_layers // self.num_stages
        return range(self.index * share, (self.index + 1) * share)


WHOLE = Stage(index=0, num_stages=1)  # a model that is not cut into stages


Loss = Callable[[Tensor, Tensor], Tensor]  # (output, targets) of a micro-batch -> mean loss, a scalar


class Schedule(Enum):
    """The order in which a stage works on micro-batches."""

    GPIPE = ScheduleGPipe  # all forward, then all backward
    ONE_FORWARD_ONE_BACKWARD = Schedule1F1B  # backward as soon as possible, so that few activations are held


@dataclass(frozen=True, kw_only=True, slots=True)
class Mesh:
    """This rank's place among tensor and pipeline ranks."""

    tensor_group: ProcessTensorGroup  # ranks that share this rank's layers
    pipeline_group: dist.ProcessGroup  # ranks that hold the other stages' parts of this rank's shards
    stage: Stage  # this rank's stage


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one iteration gives; both fields are None except in the last stage."""

    loss: Tensor | None  # mean loss over micro-batches, a scalar, detached
    output: Tensor | None  # output for the whole batch, detached


def open_mesh(*, tensor: int, pipeline: int, device: str = "cpu") -> Mesh:
    """Arrange all ranks as `pipeline` stages of `tensor` neighbouring ranks each; return this rank's place."""
    if tensor * pipeline != dist.get_world_size():
        raise ValueError(f"tensor, pipeline: {tensor} x {pipeline} is not the number of ranks, {dist.get_world_size()}")
    mesh = init_mesh(device, (pipeline, tensor), ("pipeline", "tensor"))
    return Mesh(
        tensor_group=ProcessTensorGroup(mesh.get_group("tensor")),
        pipeline_group=mesh.get_group("pipeline"),
        stage=Stage(index=mesh.get_local_rank("pipeline"), num_stages=pipeline),
    )


class _StageModule(nn.Module):
    """A stage's part of the model between its two boundaries."""

    def __init__(self, part: nn.Module, before: Boundary | None, after: Boundary | None):
        super().__init__()
        self.part, self.before, self.after = part, before, after

    def forward(self, *message: Tensor, **context: Tensor):
        x = message[0] if self.before is None else self.before.receive(*message)
        y = self.part(x, **context)
        return y if self.after is None else self.after.send(y)


class _Stage(PipelineStage):
    """A stage that also passes full-size gradients back, where its boundaries have them.

    Adds to torch's backward messages one tensor: the gradient that the decoder left in
    its slot (out), or a buffer whose content the encoder will find in its slot (in).
    """

    submod: _StageModule
    recorder: Recorder | None = None

    def forward_one_chunk(self, fwd_chunk_id: int, *args, **kwargs):
        with self._during(f"forward {fwd_chunk_id}", Kind.FORWARD):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args, **kwargs):
        with self._during(f"backward {bwd_chunk_id}", Kind.BACKWARD):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def _during(self, label: str, kind: Kind):
        return nullcontext() if self.recorder is None else self.recorder.during(label, kind)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_bwd_send_ops(bwd_chunk_id)
        before = self.submod.before
        if before is not None and before.has_full_gradient and self.has_backward:
            ops.append(self._op(dist.isend, before.slot.popleft(), self.stage_index - 1))
        return ops

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        ops = super().get_bwd_recv_ops(bwd_chunk_id)
        after = self.submod.after
        if after is not None and after.has_full_gradient and self.has_backward:
            assert after.shape is not None
            buffer = torch.empty(after.shape, dtype=after.dtype, device=self.device)
            after.slot.append(buffer)
            ops.append(self._op(dist.irecv, buffer, self.stage_index + 1))
        return ops

    def _op(self, kind: Callable, tensor: Tensor, stage: int) -> dist.P2POp:
        return dist.P2POp(kind, tensor, group=self.group, group_peer=self.stage_index_to_group_rank[stage])


class Pipeline:
    """This rank's stage of a model, with its schedule.

    `module` holds this rank's parameters, those of the boundaries' codecs included: it is what an optimizer takes.

    Args:
        part: This stage's part: (x, **context) -> y, with x the input in the first
            stage and hidden states elsewhere, y hidden states except in the last.
        mesh: This rank's place.
        hidden_size: Last dimension of the messages.
        num_micro_batches: Parts that a batch is cut into.
        loss: Needed to `step`.
        schedule: Order of work.
        before, after: Boundaries to the neighbouring stages; None sends plain
            activations. Neighbours need equal codecs.
        dtype: Dtype of the messages.
        device: Device of the messages.
        recorder: Records each micro-batch's forward and backward pass; None records nothing.
    """

    def __init__(
        self,
        part: nn.Module,
        mesh: Mesh,
        *,
        hidden_size: int,
        num_micro_batches: int = 1,
        loss: Loss | None = None,
        schedule: Schedule = Schedule.GPIPE,
        before: Boundary | None = None,
        after: Boundary | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        recorder: Recorder | None = None,
    ):
        self.mesh, self.stage, self.hidden_size = mesh, mesh.stage, hidden_size
        self.recorder = recorder
        self.num_micro_batches, self.schedule, self.loss = num_micro_batches, schedule, loss
        self.dtype, self.device = dtype, torch.device(device)
        traffic = mesh.tensor_group.traffic
        self.before = None if self.stage.is_first else before or Boundary()
        self.after = None if self.stage.is_last else after or Boundary()
        for boundary, index in ((self.before, self.stage.index), (self.after, self.stage.index + 1)):
            if boundary is not None:
                boundary.traffic, boundary.site = traffic, boundary_site(index)
        self.module = _StageModule(part, self.before, self.after)
        self._prepared: dict[bool, tuple[torch.Size, PipelineScheduleSingle]] = {}

    def step(self, inputs: Tensor, targets: Tensor, **context: Any) -> StepResult:
        """Run one batch forward and backward; gradients are added to earlier ones.

        Inputs, targets and the context of every stage, tensors such as masks, are [batch, ...], the same on every rank.
        Loss and output are in the last stage.
        """
        if self.loss is None:
            raise ValueError("loss: None; a step needs one")
        schedule = self._schedule_for(inputs, self._share_of_loss)
        losses: list[Tensor] = []
        target, kept = (targets, losses) if self.stage.is_last else (None, None)
        tied = self._tied_weight()
        earlier = set_aside_gradient_(tied)
        output = schedule.step(*self._inputs(inputs), target=target, losses=kept, **context)
        if tied is not None:
            assert tied.grad is not None
            tied.grad = self._with_other_ends(tied.grad)
            add_earlier_(tied, earlier)
        if not self.stage.is_last:
            return StepResult(loss=None, output=None)
        return StepResult(loss=torch.stack(losses).sum().detach(), output=output.detach())

    def evaluate(self, inputs: Tensor, **context: Any) -> Tensor | None:
        """Run one batch forward only, without gradients, in evaluation mode; only the last stage has the output."""
        with torch.no_grad(), evaluation_mode(self.module):
            return self._schedule_for(inputs, None).step(*self._inputs(inputs), **context)

    def _inputs(self, inputs: Tensor) -> tuple[Tensor, ...]:
        return (inputs,) if self.stage.is_first else ()

    def _schedule_for(self, inputs: Tensor, loss: Loss | None) -> PipelineScheduleSingle:
        """Give the schedule for training or, without a loss, for evaluation.

        Messages have fixed sizes, so another shape of batch needs new buffers. The
        boundaries serve training and evaluation in turn: they are told each time.
        """
        micro_batch = inputs[: micro_batch_size(inputs, self.num_micro_batches)]
        message_shape = (*micro_batch.shape[:2], self.hidden_size)
        prepared = self._prepared.get(loss is None)
        if prepared is None or prepared[0] != inputs.shape:
            prepared = inputs.shape, self._new_schedule(micro_batch, message_shape, loss)
            self._prepared[loss is None] = prepared
        for boundary in (self.before, self.after):
            if boundary is not None:
                boundary.expect(message_shape, self.dtype)
        return prepared[1]

    def _new_schedule(
        self, micro_batch: Tensor, message_shape: tuple[int, ...], loss: Loss | None
    ) -> PipelineScheduleSingle:
        def example(boundary: Boundary | None, otherwise: Tensor) -> tuple[Tensor, ...]:
            if boundary is None:
                return (otherwise,)
            return boundary.prepare(message_shape, self.dtype, self.device)

        # Examples of all messages are given, so that torch infers none by an extra pass
        # through the model, which would send messages and advance random streams. The
        # last stage's output is sent nowhere: its example is never read.
        stage = _Stage(
            self.module,
            self.stage.index,
            self.stage.num_stages,
            self.device,
            input_args=example(self.before, micro_batch),
            output_args=example(self.after, torch.empty(0, device=self.device)),
            group=self.mesh.pipeline_group,
        )
        stage.recorder = self.recorder
        # Going forward only, both schedules are the same; GPipe's runs without a loss.
        kind = ScheduleGPipe if loss is None else self.schedule.value
        return kind(stage, self.num_micro_batches, loss, scale_grads=False)

    def _share_of_loss(self, output: Tensor, targets: Tensor) -> Tensor:
        assert self.loss is not None
        return self.loss(output, targets) / self.num_micro_batches

    def _tied_weight(self) -> nn.Parameter | None:
        """Give the trained weight of which the first and the last stage each hold a copy."""
        ends = (0, self.stage.num_stages - 1)
        is_end = self.stage.num_stages > 1 and self.stage.index in ends
        weight = getattr(self.module.part, "tied_weight", None) if is_end else None
        return None if weight is None or not weight.requires_grad else weight

    def _with_other_ends(self, gradient: Tensor) -> Tensor:
        """Add the gradient of the other end's copy; each end sends the other its own."""
        group, traffic = self.mesh.pipeline_group, self.mesh.tensor_group.traffic
        peer = self.stage.num_stages - 1 - self.stage.index
        other = torch.empty_like(gradient)
        for work in begin_messages({peer: other}, {peer: gradient}, group=group):
            work.wait()
        traffic.record(MessageKind.SEND, gradient, NUM_ENDS, Phase.BACKWARD, "tied_weight")
        return gradient + other


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Put a module in evaluation mode, and restore the modes of all inner modules afterwards."""
    modes = {inner: inner.training for inner in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for inner, training in modes.items():
            inner.training = training


def set_aside_gradient_(weight: nn.Parameter | None) -> Tensor | None:
    """Return and remove a tied weight's gradient of earlier steps, which is complete already."""
    if weight is None:
        return None
    earlier, weight.grad = weight.grad, None
    return earlier


def add_earlier_(weight: nn.Parameter, earlier: Tensor | None) -> None:
    """Add the gradient that was set aside."""
    if earlier is not None:
        assert weight.grad is not None
        weight.grad += earlier


def micro_batch_size(inputs: Tensor, num_micro_batches: int) -> int:
    """Return the size of a micro-batch; refuse a batch that does not divide."""
    if num_micro_batches < 1 or len(inputs) % num_micro_batches:
        raise ValueError(f"num_micro_batches: {num_micro_batches} does not divide a batch of {len(inputs)}")
    return len(inputs) // num_micro_batches


def boundary_site(index: int) -> str:
    """Name the boundary before stage `index`."""
    return f"stage.{index}.input"


class VirtualPipeline:
    """All stages of a pipeline in one process; `module` holds all parameters.

    Args:
        parts: The stages' parts, in order.
        num_micro_batches, loss: As in `Pipeline`.
        boundaries: One between each two stages; None sends plain activations.
    """

    def __init__(
        self,
        parts: Sequence[nn.Module],
        *,
        num_micro_batches: int = 1,
        loss: Loss | None = None,
        boundaries: Sequence[Boundary] | None = None,
    ):
        if boundaries is None:
            boundaries = [Boundary() for _ in parts[1:]]
        if len(boundaries) != len(parts) - 1:
            raise ValueError(f"boundaries: {len(boundaries)} given; {len(parts)} stages have {len(parts) - 1}")
        for index, boundary in enumerate(boundaries):
            boundary.site = boundary_site(index + 1)
        self.module = nn.ModuleDict({"parts": nn.ModuleList(parts), "boundaries": nn.ModuleList(boundaries)})
        self.parts, self.boundaries = list(parts), list(boundaries)
        self.num_micro_batches, self.loss = num_micro_batches, loss

    def step(self, inputs: Tensor, targets: Tensor, **context: Tensor) -> StepResult:
        """Run one batch forward and backward, as `Pipeline.step` does."""
        if self.loss is None:
            raise ValueError("loss: None; a step needs one")
        losses: list[Tensor] = []
        outputs: list[Tensor] = []
        tied = self._tied_weights()
        earlier = [set_aside_gradient_(weight) for weight in tied]
        for micro_inputs, micro_targets, micro_context in self._cut(inputs, targets, context):
            output = self._forward(micro_inputs, micro_context)
            loss = self.loss(output, micro_targets) / self.num_micro_batches
            loss.backward()
            losses.append(loss.detach())
            outputs.append(output.detach())
        total = sum((weight.grad for weight in tied if weight.grad is not None), torch.zeros(()))
        for weight, before in zip(tied, earlier, strict=True):
            weight.grad = total.clone()
            add_earlier_(weight, before)
        return StepResult(loss=torch.stack(losses).sum(), output=torch.cat(outputs))

    @torch.no_grad()
    def evaluate(self, inputs: Tensor, **context: Tensor) -> Tensor:
        """Run one batch forward only, as `Pipeline.evaluate` does."""
        micro_batches = self._cut(inputs, inputs, context)
        with evaluation_mode(self.module):
            return torch.cat([self._forward(x, micro) for x, _, micro in micro_batches])

    def _forward(self, x: Tensor, context: dict[str, Tensor]) -> Tensor:
        x = self.parts[0](x, **context)
        for boundary, part in zip(self.boundaries, self.parts[1:], strict=True):
            if boundary.shape is None:
                boundary.prepare(x.shape, x.dtype, x.device)
            boundary.expect(x.shape, x.dtype)
            x = part(boundary.receive(*boundary.send(x)), **context)
        return x

    def _cut(self, inputs: Tensor, targets: Tensor, context: dict[str, Tensor]) -> Iterator:
        """Yield (inputs, targets, context) of each micro-batch."""
        size = micro_batch_size(inputs, self.num_micro_batches)
        for start in range(0, len(inputs), size):
            rows = slice(start, start + size)
            yield inputs[rows], targets[rows], {name: t[rows] for name, t in context.items()}

    def _tied_weights(self) -> list[nn.Parameter]:
        """Give the copies of a trained weight that the first and the last of several stages hold."""
        ends = [self.parts[0], self.parts[-1]] if len(self.parts) > 1 else []
        copies = [getattr(part, "tied_weight", None) for part in ends]
        return [weight for weight in copies if weight is not None and weight.requires_grad]
