"""Payloads of values and indices (ascending) of the flattened tensor, which Top-K and Random-K share.

A kept negative zero is sent as a positive one, so that sums do not depend on which zeros were kept.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, check_payloads, num_elements

__all__ = ["SparseCodec"]


class SparseCodec(Codec):
    """Keep a share, or a number, of the elements; a subclass chooses them in `kept_indices`.

    Args:
        keep: a float in (0, 1] is a share of the elements (at least one is
            kept); an int is a number of elements (all, where there are fewer).
        index_dtype: torch.int64, as the paper sends it, or torch.int32.
    """

    aggregation = Aggregation.GATHER

    def __init__(self, keep: float | int, *, index_dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        if isinstance(keep, bool) or not isinstance(keep, (int, float)):
            raise ValueError(f"keep is {keep!r}: it must be a float share or an int number of elements")
        if isinstance(keep, float) and not 0 < keep <= 1:
            raise ValueError(f"keep is {keep}: a share must lie in (0, 1]")
        if isinstance(keep, int) and keep < 1:
            raise ValueError(f"keep is {keep}: a number of elements must be at least 1")
        if index_dtype not in (torch.int32, torch.int64):
            raise ValueError(f"index_dtype is {index_dtype}: it must be torch.int32 or torch.int64")
        self.keep, self.index_dtype = keep, index_dtype

    def extra_repr(self) -> str:
        """Name the share and the index dtype in the module's repr."""
        return f"keep={self.keep}, index_dtype={self.index_dtype}"

    def num_kept(self, shape: Sequence[int]) -> int:
        """Count the elements kept of a tensor; shares are rounded to the nearest number."""
        available = num_elements(shape)
        wanted = self.keep if isinstance(self.keep, int) else max(1, round(self.keep * available))
        return min(wanted, available)

    @abstractmethod
    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose positions of the flattened tensor, ascending, int64."""

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Take the kept elements, in x's dtype, and their positions, ascending, in index_dtype."""
        if x.numel() > torch.iinfo(self.index_dtype).max:
            raise ValueError(f"x has {x.numel()} elements: positions do not fit {self.index_dtype}")
        indices = self.kept_indices(x, self.num_kept(x.shape))
        values = x.reshape(-1).index_select(0, indices).add_(0.0)  # -0.0 + 0.0 is 0.0
        return Payload(tensors=(values, indices.to(self.index_dtype)), shape=x.shape, dtype=x.dtype)

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Put the values at their positions, zeros elsewhere."""
        values, indices = payload.tensors
        if out is None:
            out = torch.zeros(payload.shape, dtype=payload.dtype, device=values.device)
        else:
            check_out(out, payload)
            out.zero_()
        out.view(-1).index_copy_(0, indices.to(torch.int64), values)
        return out

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Add all payloads into one buffer; only kept positions are touched."""
        check_payloads(payloads)
        total = self.decode(payloads[0])
        flat = total.view(-1)
        for payload in payloads[1:]:
            values, indices = payload.tensors
            if flat.is_cpu and flat.dtype == torch.float16:
                # index_add_ gives the same there, in 3 to 5 times the time
                flat.put_(indices.to(torch.int64), values, accumulate=True)
            else:
                flat.index_add_(0, indices.to(torch.int64), values)
        return total

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        """Let the gradient through at kept positions only."""
        indices = payload.tensors[1].to(torch.int64)
        grad_x = torch.zeros_like(grad_output, memory_format=torch.contiguous_format)
        grad_x.view(-1).index_copy_(0, indices, grad_output.reshape(-1).index_select(0, indices))
        return grad_x

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count a value and an index for each kept element."""
        return self.num_kept(shape) * (dtype.itemsize + self.index_dtype.itemsize)
