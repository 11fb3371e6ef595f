"""IEEE half precision (float16), the honest baseline: a plain cast that rounds to nearest even.

Magnitudes from 65520 on become infinite, gradients alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, num_elements

__all__ = ["FP16"]


class FP16(Codec):
    """Send two bytes an element; sums of payloads are rounded to half precision."""

    aggregation = Aggregation.SUM

    def encode(self, x: Tensor) -> Payload:
        """Cast to float16; differentiable."""
        return Payload(tensors=(x.to(torch.float16),), shape=x.shape, dtype=x.dtype)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Cast back to the original dtype; differentiable without `out`."""
        if out is None:
            return payload.tensors[0].to(payload.dtype)
        check_out(out, payload)
        return out.copy_(payload.tensors[0])

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count two bytes an element."""
        return num_elements(shape) * torch.float16.itemsize
