"""The contract of every codec: `encode` a tensor into the `Payload` that crosses a link, and `decode` it.

`Aggregation` says whether a group of ranks may sum payloads and decode once, or must gather them, decode each and add.
Shape and dtype are known to the receiver and are not part of a payload.
"""

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import torch
from torch import Tensor, nn

__all__ = ["Aggregation", "Codec", "Payload", "site_seed"]


class Aggregation(Enum):
    """How ranks combine the payloads of one reduction: sum and decode once, or gather and decode each."""

    SUM = "sum"
    GATHER = "gather"


@dataclass(frozen=True, kw_only=True, slots=True)
class Payload:
    """One encoded tensor: the tensors that cross the wire, and the shape and dtype that the receiver knows."""

    tensors: tuple[Tensor, ...]  # tensors that cross the wire, in the order in which they are sent
    shape: torch.Size  # shape of the encoded tensor
    dtype: torch.dtype  # dtype of the encoded tensor

    def __post_init__(self) -> None:
        if not isinstance(self.tensors, tuple) or not self.tensors:
            raise ValueError(f"tensors is {self.tensors!r}: a payload needs a tuple of at least one tensor")
        object.__setattr__(self, "shape", torch.Size(self.shape))

    @property
    def num_bytes(self) -> int:
        """Count the bytes of all tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)


class Codec(nn.Module, ABC):
    """Base of all codecs; a subclass gives encode, decode and payload_bytes.

    Codecs that are summed (`Aggregation.SUM`) encode and decode with plain differentiable operations. Codecs that are
    gathered encode without a graph and state their gradient in `input_gradient`.
    """

    aggregation: Aggregation

    # Whether encode(x W) = x encode(W) for all matrices: a payload is one tensor, and nothing is remembered
    is_linear: bool = False

    @abstractmethod
    def encode(self, x: Tensor) -> Payload:
        """Turn a floating-point tensor of any shape into its payload, whose size depends on shape and dtype only."""

    @abstractmethod
    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Turn a payload into a tensor of the original shape and dtype, or write it into `out`, without a graph.

        Raises:
            ValueError: if `out` has another shape, dtype or device, or is not contiguous.
        """

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Decode the payloads of all ranks, of one shape and dtype, and add them in the given order."""
        return self.decode_sum_by_definition(payloads)

    def decode_sum_by_definition(self, payloads: Sequence[Payload]) -> Tensor:
        """Add decoded payloads one by one; `decode_sum` must give the same bits, those of NaN apart."""
        check_payloads(payloads)
        total = self.decode(payloads[0])
        for payload in payloads[1:]:
            total = total + self.decode(payload)
        return total

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        """Give the gradient of decode(encode(x)) with respect to x; of gathered codecs only, of x's shape."""
        raise TypeError(f"{type(self).__name__} is differentiated by autograd and has no input_gradient of its own")

    def forward(self, x: Tensor) -> Tensor:
        """Send x through the codec: decode(encode(x)), differentiable."""
        if self.aggregation is Aggregation.SUM:
            return self.decode(self.encode(x))
        round_trip = _uncompiled_round_trip if torch.compiler.is_dynamo_compiling() else _RoundTrip.apply
        return round_trip(x, self, torch.is_grad_enabled())

    def for_site(self, site: str, hidden: int | None = None) -> "Codec":
        """Make the codec of one call site, which shares no state with this one.

        Args:
            site: name of the call site, equal on all ranks of a group.
            hidden: size of the last dimension there; None keeps this codec's.
        """
        return copy.deepcopy(self)

    def for_rank(self, rank: int) -> "Codec":
        """Make the codec of a rank of the group: shared weights, random streams and remembered errors of its own."""
        return self

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Remembered sums of encoded tensors and of encoding errors, each of the encoded tensor's shape."""
        return ()

    def rescale_(self, factor: float) -> None:
        """Multiply the memory, as when the loss is scaled by another factor."""
        for remembered in self.memory:
            remembered.mul_(factor)

    @abstractmethod
    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count the bytes that encode(...).num_bytes gives for every tensor of a shape and dtype, without encoding."""


class _RoundTrip(torch.autograd.Function):
    """decode(encode(x)) of a gathered codec; backward its `input_gradient`. Communicates nothing."""

    @staticmethod
    def forward(ctx, x: Tensor, codec: Codec, is_grad_enabled: bool) -> Tensor:
        ctx.grad_was_enabled = is_grad_enabled  # see workbench.recomputation
        payload = codec.encode(x)
        ctx.codec, ctx.payload = codec, payload
        return codec.decode(payload)

    @staticmethod
    def backward(ctx, grad_output: Tensor) -> tuple[Tensor, None, None]:
        return ctx.codec.input_gradient(grad_output, ctx.payload), None, None


@torch._disable_dynamo  # it cannot compile random draws or data-dependent code, and tries for long
def _uncompiled_round_trip(x: Tensor, codec: Codec, is_grad_enabled: bool) -> Tensor:
    return _RoundTrip.apply(x, codec, is_grad_enabled)


def site_seed(seed: int, site: str) -> int:
    """Derive a seed in [0, 2**63) from a run's or a codec's seed and the name of a place, alike on every rank."""
    digest = hashlib.sha256(f"{seed}/{site}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def num_elements(shape: Sequence[int]) -> int:
    """Count the elements of a shape."""
    return math.prod(shape)


def all_finite(x: Tensor) -> bool:
    """Return whether no element is infinite or NaN: one fast sum says so, except where it overflows."""
    flat = x.detach().reshape(-1)
    total = flat.dot(flat) if x.dtype == torch.float32 else flat.sum(dtype=torch.float32)
    return bool(total.isfinite()) or bool(flat.isfinite().all())


def check_payloads(payloads: Sequence[Payload]) -> None:
    """Refuse an empty sum, which has no shape."""
    if not payloads:
        raise ValueError("payloads is empty: a sum needs at least one payload")


def check_out(out: Tensor, payload: Payload) -> None:
    """Refuse an `out` that does not fit the decoded tensor; see `Codec.decode`."""
    device = payload.tensors[0].device
    if (out.shape, out.dtype, out.device) != (payload.shape, payload.dtype, device) or not out.is_contiguous():
        contiguous = "contiguous" if out.is_contiguous() else "not contiguous"
        raise ValueError(
            f"out has shape {tuple(out.shape)}, {out.dtype}, on {out.device}, {contiguous}: "
            f"it must be contiguous, of shape {tuple(payload.shape)}, {payload.dtype}, on {device}"
        )
