"""All stages of a pipeline in one process, equal to `pipeline.Pipeline` to float tolerance.

Micro-batches run one after the other; no schedule changes what is computed.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import (
    Loss,
    StepResult,
    add_earlier_,
    boundary_site,
    evaluation_mode,
    micro_batch_size,
    set_aside_gradient_,
)

__all__ = ["VirtualPipeline"]


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
        self.parts, self.boundaries = self.module["parts"], self.module["boundaries"]
        self.num_micro_batches, self.loss = num_micro_batches, loss

    def step(self, inputs: Tensor, targets: Tensor, **context: Tensor) -> StepResult:
        """Run one batch forward and backward, as `Pipeline.step` does."""
        losses, outputs, tied = [], [], self._tied_weights()
        earlier = [set_aside_gradient_(weight) for weight in tied]
        for micro_inputs, micro_targets, micro_context in self._cut(inputs, targets, context):
            output = self._forward(micro_inputs, micro_context)
            loss = self.loss(output, micro_targets) / self.num_micro_batches
            loss.backward()
            losses.append(loss.detach())
            outputs.append(output.detach())
        total = sum(weight.grad for weight in tied)
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
