"""One bit an element: `EFSign` with one magnitude a tensor, `OneBit` with a mean of either sign.

    EFSign   scale = mean |x|                            value = scale where x ≥ 0, −scale elsewhere
    OneBit   high = mean of x ≥ 0, low = mean of x < 0   value = high where x ≥ 0, low elsewhere

Both signs of zero count as x ≥ 0; the mean of nothing is 0. Sums are float32 within a block, float64 over blocks; means
travel in float32. A tensor with NaN comes back as NaN, and an infinity makes its mean infinite. The gradient passes
straight through. Wrap them in `ErrorFeedback`, as the papers do. Shapes: N elements, W = ceil(N / 8) bytes.
Sources: Karimireddy et al. (2019), "Error feedback fixes SignSGD and other gradient compression schemes"; Seide et al.
(2014), "1-bit stochastic gradient descent ... of speech DNNs", here with a pair of means a tensor, not a column.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, check_payloads, num_elements
from workbench.compression.quantize import pack, packed_bytes

__all__ = ["EFSign", "OneBit", "ef_sign_by_definition", "one_bit_by_definition"]

# Elements of a block on a CPU, a multiple of 8, so that it stays in a 2 MiB cache; elsewhere a block is the tensor.
BLOCK_ELEMENTS = 1 << 16


class SignCodec(Codec):
    """Send the bits x ≥ 0, lowest first, uint8 [W], and the means of a subclass, float32 [`num_means`]."""

    aggregation = Aggregation.GATHER
    num_means: int

    @abstractmethod
    def means(self, x_N: Tensor, num_positive: Tensor | int) -> Tensor:
        """Give the means to send, float64 [num_means], for x and the number of its elements that are ≥ 0."""

    def levels(self, means: Tensor) -> Tensor:
        """Give the values of the bits 0 and 1, float32 [2], from the received means: here the means themselves."""
        return means

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Pack the signs and take the means."""
        x_N = x.detach().reshape(-1)
        bits_W, num_positive = _pack_signs(x_N)
        return Payload(tensors=(bits_W, self.means(x_N, num_positive).float()), shape=x.shape, dtype=x.dtype)

    @torch.no_grad()
    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Look eight values up for each byte."""
        octets = self._octets(payload)
        out = octets.new_empty(payload.shape) if out is None else out
        check_out(out, payload)
        _look_up_(out.view(-1), octets, payload.tensors[0])
        return out

    @torch.no_grad()
    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Decode and add block by block: a block's sum stays in the cache until it is whole."""
        check_payloads(payloads)
        tables = [self._octets(payload) for payload in payloads]
        total = tables[0].new_empty(payloads[0].shape)
        pieces_by_payload = (payload.tensors[0].split(_step(total) // 8) for payload in payloads)
        for block, *pieces in zip(total.view(-1).split(_step(total)), *pieces_by_payload, strict=True):
            _look_up_(block, tables[0], pieces[0])
            for octets, piece in zip(tables[1:], pieces[1:], strict=True):
                block += _look_up_(torch.empty_like(block), octets, piece)
        return total

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        """Let the whole gradient through, as if nothing had been rounded."""
        return grad_output

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count a bit an element, in whole bytes, and four bytes a mean."""
        return packed_bytes(num_elements(shape), 1) + self.num_means * torch.float32.itemsize

    def _octets(self, payload: Payload) -> Tensor:
        """Tabulate the eight values of every byte: [256, 8] of the payload's dtype."""
        levels = self.levels(payload.tensors[1]).to(payload.dtype)
        byte, position = torch.arange(256, device=levels.device), torch.arange(8, device=levels.device)
        return levels[byte.unsqueeze(1) >> position & 1]


class EFSign(SignCodec):
    """Send the signs, uint8 [W], and the mean magnitude, float32 [1]."""

    num_means = 1

    def means(self, x_N: Tensor, num_positive: Tensor | int) -> Tensor:
        """Give the mean magnitude, float64 [1]."""
        return _sum(x_N, torch.abs).div_(max(1, x_N.numel())).view(1)

    def levels(self, means: Tensor) -> Tensor:
        """Give −scale and scale, float32 [2]."""
        return torch.cat((-means, means))


class OneBit(SignCodec):
    """Send the signs, uint8 [W], and the means of the negative elements and of the others, float32 [2]."""

    num_means = 2

    def means(self, x_N: Tensor, num_positive: Tensor | int) -> Tensor:
        """Give the low and the high mean, float64 [2]."""
        totals = torch.stack([_sum(x_N, part) for part in (lambda x: x.clamp(max=0), torch.relu)])
        high = torch.as_tensor(num_positive, device=x_N.device)
        return totals.div_(torch.stack((x_N.numel() - high, high)).clamp_(min=1))


def ef_sign_by_definition(x: Tensor) -> Tensor:
    """Return the tensor that comes back from `EFSign`, by the module docstring's formula."""
    scale = (_sum(x.abs().reshape(-1)) / x.numel()).float()
    return torch.where(x >= 0, scale, -scale).to(x.dtype)


def one_bit_by_definition(x: Tensor) -> Tensor:
    """Return the tensor that comes back from `OneBit`, by the module docstring's formulas; NaN enters both means."""
    low, high = (_sum(x.masked_fill(other, 0).reshape(-1)) / (~other).sum() for other in (x >= 0, x < 0))
    return torch.where(x >= 0, high.float(), low.float()).to(x.dtype)


def _pack_signs(x_N: Tensor) -> tuple[Tensor, Tensor | int]:
    """Give the bits x ≥ 0, uint8 [W], equal to `pack` on any device, and the number of ones."""
    if not x_N.is_cpu:
        return pack((x_N >= 0).byte().unsqueeze(0), 1).squeeze(0), (x_N >= 0).sum()
    positive = (x_N >= 0).numpy() if x_N.dtype == torch.bfloat16 else x_N.numpy() >= 0  # NumPy has no bfloat16
    return torch.from_numpy(np.packbits(positive, bitorder="little")), int(np.count_nonzero(positive))


def _sum(x_N: Tensor, part: Callable[[Tensor], Tensor] = torch.clone) -> Tensor:
    """Sum part(x), float64 []."""
    return torch.stack([part(block.float()).sum().double() for block in x_N.split(_step(x_N))]).sum()


def _step(x: Tensor) -> int:
    """Give the elements worked on at a time: a block on a CPU, all elsewhere."""
    return BLOCK_ELEMENTS if x.is_cpu else 8 * max(1, packed_bytes(x.numel(), 1))


def _look_up_(flat: Tensor, octets: Tensor, bits_W: Tensor) -> Tensor:
    """Write the eight values of each byte, for the last byte as many as fit; return `flat`."""
    whole = flat.numel() // 8
    torch.index_select(octets, 0, bits_W[:whole].int(), out=flat[: whole * 8].view(-1, 8))
    if flat.numel() % 8:
        flat[whole * 8 :] = octets.index_select(0, bits_W[whole:].int()).view(-1)[: flat.numel() % 8]
    return flat
