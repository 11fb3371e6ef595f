"""The codec that sends a tensor as it is: the baseline "w/o"."""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, num_elements

__all__ = ["Identity"]


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
