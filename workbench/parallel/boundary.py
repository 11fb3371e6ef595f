"""The message between two pipeline stages, with or without a codec, and its gradient.

| codec                                | forward         | backward                    |
|--------------------------------------|-----------------|-----------------------------|
| none                                 | activation      | gradient of the activation  |
| summed (AutoEncoder, FP16)           | code            | gradient of the code        |
| gathered, float values (TopK, ...)   | values, indices | gradient of the kept values |
| gathered, no float values (Quantize) | packed integers | full-size gradient          |

Autograd has no gradients for integers, and torch.distributed.pipelining returns one gradient for each float tensor that
it sent. An integer message therefore travels beside an empty float tensor, the *token*, which ties the graphs of the
two stages together, and the full-size gradient is handed over in the boundary's `slot`.
"""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workbench.compression.codec import Aggregation, Codec, Payload
from workbench.parallel.traffic import MessageKind, Phase, Traffic

__all__ = ["Boundary"]

NUM_ENDS = 2  # ranks that take part in one message over a boundary


class Boundary(nn.Module):
    """One side, or in one process both sides, of the boundary between two stages.

    Args:
        codec: Compresses the message; None sends the activation itself. Both sides
            need equal codecs; each trains the half that it uses.
        traffic: Ledger of what this process sends.
        site: Name of the boundary in the ledger.
    """

    def __init__(self, codec: Codec | None = None, traffic: Traffic | None = None, site: str = ""):
        super().__init__()
        self.codec, self.site = codec, site
        self.traffic = Traffic() if traffic is None else traffic
        self.slot: deque[Tensor] = deque()  # full-size gradients on their way back, first in, first out
        self.shape: torch.Size | None = None
        self.dtype: torch.dtype | None = None
        self.has_full_gradient = False

    @torch.no_grad()
    def prepare(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device | str) -> tuple:
        """Fix the message's shape and say which tensors cross the link.

        Returns:
            Example tensors of the right shapes and types, with requires_grad where a
            gradient of the same size comes back.
        """
        self.expect(shape, dtype)
        activation = torch.zeros(shape, dtype=dtype, device=device)
        if self.codec is None:
            return (activation.requires_grad_(),)
        # A twin encodes the example, so that random streams and error memories stay put.
        twin = self.codec.for_site("example")
        tensors = twin.eval().encode(activation).tensors
        self.has_full_gradient = not tensors[0].is_floating_point()
        for tensor in tensors:
            tensor.requires_grad_(tensor.is_floating_point())
        return (*tensors, _token(activation)) if self.has_full_gradient else tensors

    def expect(self, shape: Sequence[int], dtype: torch.dtype) -> None:
        """Fix the shape and dtype of the messages of a micro-batch from now on, without examples."""
        self.shape, self.dtype = torch.Size(shape), dtype

    def send(self, x: Tensor) -> tuple[Tensor, ...]:
        """Turn an activation into the tensors that cross the link; those of floats carry the gradient."""
        tensors: tuple[Tensor, ...]
        if self.codec is None:
            tensors = (x,)
        elif self.codec.aggregation is Aggregation.SUM:
            tensors = self.codec.encode(x).tensors
        else:
            tensors = _Encode.apply(x, self, self.codec)
        for tensor in tensors:
            self.traffic.record(MessageKind.SEND, tensor, NUM_ENDS, Phase.FORWARD, self.site)
        return tuple(tensor.contiguous() for tensor in tensors)

    def receive(self, *tensors: Tensor) -> Tensor:
        """Decode the tensors of the other side's `send` to the activation."""
        if self.has_full_gradient:
            return _DecodeFullGradient.apply(tensors[-1], self, self.codec, *tensors[:-1])
        first = _CountGradient.apply(tensors[0], self)
        if self.codec is None:
            return first
        return self.codec.decode(self.payload((first, *tensors[1:])))

    def payload(self, tensors: Sequence[Tensor]) -> Payload:
        """Put tensors of a message, or of its gradient, into the codec's envelope."""
        assert self.shape is not None and self.dtype is not None  # by `prepare` or `expect`
        return Payload(tensors=tuple(tensors), shape=self.shape, dtype=self.dtype)

    def count_gradient(self, gradient: Tensor) -> None:
        """Enter a gradient that travels back."""
        self.traffic.record(MessageKind.SEND, gradient, NUM_ENDS, Phase.BACKWARD, self.site)


class _Encode(torch.autograd.Function):
    """Encode with a gathered codec, on the sending side.

    Forward: returns the payload's tensors, and the token if all of them are integers.
    Backward: the gradient of the kept values, put back in place, or the full-size
    gradient from the slot; then the codec's own rule. Communicates nothing; the stage sends what it returns.
    """

    @staticmethod
    def forward(ctx, x: Tensor, boundary: Boundary, codec: Codec):
        ctx.boundary, ctx.payload = boundary, codec.encode(x)
        tensors = ctx.payload.tensors
        ctx.mark_non_differentiable(*(t for t in tensors if not t.is_floating_point()))
        return (*tensors, _token(x)) if boundary.has_full_gradient else tensors

    @staticmethod
    def backward(ctx, *gradients: Tensor):
        boundary, codec = ctx.boundary, ctx.boundary.codec
        if boundary.has_full_gradient:
            gradient = boundary.slot.popleft()
        else:
            gradient = codec.decode(boundary.payload((gradients[0], *ctx.payload.tensors[1:])))
        return codec.input_gradient(gradient, ctx.payload), None, None


class _DecodeFullGradient(torch.autograd.Function):
    """Decode integers, on the receiving side.

    Forward: returns the decoded activation.
    Backward: leaves the activation's full-size gradient in the slot and gives the
    token an empty one. Communicates nothing; the stage sends the slot's content.
    """

    @staticmethod
    def forward(ctx, token: Tensor, boundary: Boundary, codec: Codec, *tensors: Tensor):
        ctx.boundary, ctx.token, ctx.num_tensors = boundary, torch.empty_like(token), len(tensors)
        return codec.decode(boundary.payload(tensors))

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.boundary.count_gradient(gradient)
        ctx.boundary.slot.append(gradient.contiguous())
        return ctx.token, None, None, *(None,) * ctx.num_tensors


class _CountGradient(torch.autograd.Function):
    """Identity; enters the gradient in the ledger on its way back. Communicates nothing."""

    @staticmethod
    def forward(ctx, x: Tensor, boundary: Boundary):
        ctx.boundary = boundary
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient: Tensor):
        ctx.boundary.count_gradient(gradient)
        return gradient, None


def _token(like: Tensor) -> Tensor:
    """Make the empty tensor that ties two graphs together; it sends no bytes."""
    return torch.empty(0, dtype=torch.float32, device=like.device, requires_grad=True)
