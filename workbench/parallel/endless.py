"""1F1B without a flush, the schedule of PipeDream (Narayanan et al., 2019), with stashed weights:

schedule = Endless1F1B(part, loss_fn, group=pipeline)
for loss in schedule.run(batches):  # once a mini-batch, after its backward pass
    optimizer.step()
    optimizer.zero_grad()
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.func import functional_call

from workbench.timeline import Kind

from .timeouts import group_beside

__all__ = ["Endless1F1B"]

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)  # of messages
MOST_DIMS = 6  # of a message


class _Within(nn.Module):
    """Does something within a module, so that `functional_call` lends it other weights meanwhile."""

    def __init__(self, part: nn.Module):
        super().__init__()
        self.part = part

    def forward(self, do: Callable[[], Any]) -> Any:
        """Do it."""
        return do()


@dataclass(frozen=True, slots=True)
class _Passed:
    """A forward pass whose backward pass is still to come."""

    number: int  # of the mini-batch in its run
    x: Tensor
    weights: dict[str, Tensor]  # as the forward pass found them
    result: Tensor  # the loss on the last stage


class Endless1F1B:
    """Runs one stage of a pipeline whose mini-batches follow each other: stage j of M is M - j forward passes ahead.

    A backward pass uses the weights of its forward pass, as in PipeDream: a stage keeps a copy of its weights for each
    mini-batch under way. Buffers are the module's own, in their newest state. A mini-batch is not cut.

    Args:
        part: this rank's stage, which makes one tensor of floats from one tensor.
        loss_fn: of the last stage's result and the targets of a mini-batch; unused on other stages.
        group: the ranks of this pipeline in the order of its stages, which create their schedules together.
        during: a context around each pass, by number of its mini-batch and kind, such as `Recorder.during`.
    """

    def __init__(
        self,
        part: nn.Module,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
        *,
        group: dist.ProcessGroup,
        during: Callable[[str, Kind], AbstractContextManager] = lambda label, kind: nullcontext(),
    ):
        self._part, self._within, self._loss_fn, self._during = part, _Within(part), loss_fn, during
        self._stage, self._num_stages = dist.get_rank(group), dist.get_world_size(group)
        self._device = next(part.parameters()).device
        # Each direction has a group of its own, since messages of one NCCL communicator wait for each other.
        self._down = group
        self._up = group_beside(group)
        self._sent: deque[tuple[dist.Work, Tensor]] = deque()

    def run(self, batches: Iterable[tuple[Tensor, Tensor]]) -> Iterator[Tensor | None]:
        """Train on mini-batches of inputs and targets, until all have passed forward and backward.

        The first stage reads the inputs, the last one the targets; all stages need equally many mini-batches. After
        each backward pass the gradients are in the parameters' `grad`, added to earlier ones, and the caller goes on.
        A checkpoint belongs between two runs: in a run, other mini-batches are under way.

        Yields:
            The loss of the mini-batch, None on other stages than the last.

        Raises:
            ValueError: if a result is not a tensor of floats of at most six dimensions.
        """
        under_way: deque[_Passed] = deque()
        for number, (inputs, targets) in enumerate(batches):
            under_way.append(self._forward(number, inputs, targets))
            if len(under_way) == self._num_stages - self._stage:
                yield self._backward(under_way.popleft())
        while under_way:
            yield self._backward(under_way.popleft())
        while self._sent:
            self._sent.popleft()[0].wait()

    def _forward(self, number: int, inputs: Tensor, targets: Tensor) -> _Passed:
        x = inputs if self._stage == 0 else self._receive(self._stage - 1, self._down).requires_grad_()
        weights = {
            name: weight.detach().clone().requires_grad_()
            for name, weight in self._within.named_parameters()
            if weight.requires_grad
        }
        is_last = self._stage == self._num_stages - 1
        with self._during(str(number), Kind.FORWARD):
            result = functional_call(self._within, weights, (lambda: self._part(x),))
            result = self._loss_fn(result, targets) if is_last else result
        if not is_last:
            self._send(result.detach(), self._stage + 1, self._down)
        return _Passed(number, x, weights, result)

    def _backward(self, passed: _Passed) -> Tensor | None:
        is_last = self._stage == self._num_stages - 1
        sent = None if is_last else self._receive(self._stage + 1, self._up)
        wanted = [*passed.weights.values(), *([passed.x] if self._stage else [])]
        with self._during(str(passed.number), Kind.BACKWARD):
            # With the weights of then, too, since activation checkpointing computes the forward pass anew.
            grad = partial(torch.autograd.grad, passed.result, wanted, sent, allow_unused=True)
            gradients = list(functional_call(self._within, passed.weights, (grad,))) if wanted else []
        if self._stage:
            x_grad = gradients.pop()
            self._send(torch.zeros_like(passed.x) if x_grad is None else x_grad, self._stage - 1, self._up)
        parameters = dict(self._within.named_parameters())
        pairs = [(parameters[name], gradient) for name, gradient in zip(passed.weights, gradients, strict=True)]
        pairs = [(weight, gradient) for weight, gradient in pairs if gradient is not None and weight.requires_grad]
        # Adds them to `grad`, and calls hooks of parameters.
        torch.autograd.backward([weight for weight, _ in pairs], [gradient for _, gradient in pairs])
        return passed.result.detach() if is_last else None

    def _send(self, tensor: Tensor, stage: int, group: dist.ProcessGroup) -> None:
        if tensor.dtype not in DTYPES or tensor.ndim > MOST_DIMS:
            rule = f"it must be of floats, of at most {MOST_DIMS} dimensions"
            raise ValueError(f"result of stage {self._stage} is {tensor.dtype} {tuple(tensor.shape)}; {rule}")
        head = torch.zeros(2 + MOST_DIMS, dtype=torch.int64)
        head[: 2 + tensor.ndim] = torch.tensor([DTYPES.index(tensor.dtype), tensor.ndim, *tensor.shape])
        for message in (head.to(self._device), tensor.contiguous()):
            work = dist.isend(message, group_dst=stage, group=group)
            assert work is not None  # this rank is in the group
            self._sent.append((work, message))
        while len(self._sent) > 4 * self._num_stages:  # of mini-batches whose turn was before the oldest under way
            self._sent.popleft()[0].wait()

    def _receive(self, stage: int, group: dist.ProcessGroup) -> Tensor:
        head = torch.zeros(2 + MOST_DIMS, dtype=torch.int64, device=self._device)
        dist.recv(head, group_src=stage, group=group)
        dtype, num_dims, *shape = head.tolist()
        tensor = torch.empty(shape[:num_dims], dtype=DTYPES[dtype], device=self._device)
        dist.recv(tensor, group_src=stage, group=group)
        return tensor
