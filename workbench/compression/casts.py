"""The codecs of the baselines: a tensor as it is ("w/o"), and IEEE half precision (float16).

FP16 is a plain cast that rounds to nearest even; magnitudes from 65520 on become infinite, gradients alike.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, num_elements

__all__ = ["FP16", "Identity"]


class Identity(Codec):
    """Send every element in its own dtype."""

    aggregation, is_linear = Aggregation.SUM, True

    def encode(self, x: Tensor) -> Payload:
        """Wrap the tensor itself; nothing is copied."""
        return Payload(tensors=(x,), shape=x.shape, dtype=x.dtype)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Give the tensor itself."""
        if out is None:
            return payload.tensors[0]
        check_out(out, payload)
        return out.copy_(payload.tensors[0])

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count elements times the size of one."""
        return num_elements(shape) * dtype.itemsize


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
