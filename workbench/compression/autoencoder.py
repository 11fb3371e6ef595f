"""The linear auto-encoder (A1, A2): a learned projection before the sum, its partner after it.

Encoding is linear, so one all-reduce of the codes suffices if every rank holds the same encoder: equal seeds give equal
weights, and the layer sums the encoder's gradients over the group. The paper does not state the initial weights; here
the encoder is uniform with variance 1/hidden, and the decoder starts as its transpose.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, num_elements, site_seed

__all__ = ["AutoEncoder"]


class AutoEncoder(Codec):
    """Send code_size numbers in place of the last dimension's `hidden`.

    Args:
        hidden: size of the last dimension.
        code_size: size of the code, 1 <= code_size <= hidden.
        seed: seed of the initial weights.
        device: where the weights live.
        dtype: dtype of the weights; inputs of other dtypes use a cast copy.
    """

    aggregation, is_linear = Aggregation.SUM, True

    def __init__(
        self,
        hidden: int,
        code_size: int,
        seed: int = 0,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if not 1 <= code_size <= hidden:
            raise ValueError(f"code_size is {code_size}: it must lie in 1..{hidden}, the hidden size")
        self.hidden, self.code_size, self.seed = hidden, code_size, seed
        encoder = _initial_encoder(hidden, code_size, site_seed(seed, "")).to(device=device, dtype=dtype)
        self.encoder = nn.Parameter(encoder)
        self.decoder = nn.Parameter(encoder.t().clone(memory_format=torch.contiguous_format))  # never a view

    def extra_repr(self) -> str:
        """Name the sizes in the module's repr."""
        return f"hidden={self.hidden}, code_size={self.code_size}, seed={self.seed}"

    def encode(self, x: Tensor) -> Payload:
        """Project [..., hidden] on [..., code_size]; differentiable."""
        self._require_hidden(x.shape)
        return Payload(tensors=(x @ self.encoder.to(x.dtype),), shape=x.shape, dtype=x.dtype)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Project [..., code_size] back on [..., hidden]; differentiable without `out`."""
        if out is not None:
            check_out(out, payload)
        result = payload.tensors[0] @ self.decoder.to(payload.dtype)
        return result if out is None else out.copy_(result)

    def for_site(self, site: str, hidden: int | None = None) -> "AutoEncoder":
        """Make an auto-encoder with new weights that depend on (seed, site) only."""
        hidden = self.hidden if hidden is None else hidden
        weights = self.encoder
        codec = AutoEncoder(hidden, self.code_size, self.seed, device=weights.device, dtype=weights.dtype)
        with torch.no_grad():
            codec.encoder.copy_(_initial_encoder(hidden, self.code_size, site_seed(self.seed, site)))
            codec.decoder.copy_(codec.encoder.t())
        return codec

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count code_size elements for every `hidden`."""
        self._require_hidden(shape)
        return num_elements(shape[:-1]) * self.code_size * dtype.itemsize

    def _require_hidden(self, shape: Sequence[int]) -> None:
        if not len(shape) or shape[-1] != self.hidden:
            raise ValueError(f"x has shape {tuple(shape)}: its last dimension must be hidden = {self.hidden}")


def _initial_encoder(hidden: int, code_size: int, seed: int) -> Tensor:
    """Draw [hidden, code_size] from the uniform distribution of variance 1/hidden."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(hidden, code_size, generator=generator)
    return (2 * uniform - 1) * math.sqrt(3 / hidden)
