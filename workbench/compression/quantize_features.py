"""Uniform quantisation with one scale a feature (column of the last dimension), as in the released code (Q1 to Q3).

Each feature is divided by its largest magnitude over batch and sequence and rounded to 2**bits values, in float32:

    scale = fp16(max |x|), 1 where it would be 0      levels = 2**(bits − 1)
    code  = clamp(round(x / scale · levels), −levels, levels − 1) + levels, ties to even
    value = (code − levels) / levels · scale

A payload is the packed codes, uint8 [R, W], and the scales, float16 [C]. A feature with NaN or an infinity, or whose
scale overflows float16, comes back as NaN. The gradient passes straight through.
Source: the released code of Wang et al. (2022), "Fine-tuning language models over slow networks using activation
compression with guarantees", without the 1e-6 that it adds to the scale.
Shapes: R rows, C columns, W bytes of a row's codes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from workbench.compression.codec import Payload, check_out, check_payloads, num_elements
from workbench.compression.packing import pack, packed_bytes, unpack
from workbench.compression.quantize import Quantize

__all__ = ["SCALE_BYTES", "QuantizeFeatures", "quantized_features_by_definition"]

SCALE_BYTES = 2  # of a feature, float16


class QuantizeFeatures(Quantize):
    """Send `bits` bits an element, and two bytes a feature; see Quantize for the argument."""

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Quantise each feature and pack the codes row by row.

        Args:
            x: floating-point tensor of any shape; without dimensions it has one feature.

        Returns:
            uint8 [rows, packed] and float16 [features].
        """
        x_RC, levels = x.detach().reshape(_row_shape(x.shape)).float(), 2 ** (self.bits - 1)
        scale_C = _scales(x_RC)
        fits_C = scale_C.isfinite()
        steps_RC = (x_RC / (scale_C.float() / levels)).round_().clamp_(-levels, levels - 1).add_(levels)
        # In features that do not fit, whatever NaN was cast to is multiplied by 0.
        codes_RC = steps_RC.to(torch.uint8).mul_(fits_C)
        scale_C.masked_fill_(~fits_C, torch.nan)
        return Payload(tensors=(pack(codes_RC, self.bits), scale_C), shape=x.shape, dtype=x.dtype)

    @torch.no_grad()
    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Unpack the codes and scale each feature."""
        packed_RW, scale_C = payload.tensors
        levels = 2 ** (self.bits - 1)
        codes_RC = unpack(packed_RW, self.bits, len(scale_C))
        value = (codes_RC.float() - levels).mul_(scale_C.float() / levels).view(payload.shape)
        if out is None:
            return value.to(payload.dtype)
        check_out(out, payload)
        return out.copy_(value)

    @torch.no_grad()
    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Decode and add one after the other."""
        check_payloads(payloads)
        return reduce(Tensor.add_, map(self.decode, payloads))

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count the packed bytes of every row and the scale of every feature."""
        rows, columns = _row_shape(shape)
        return rows * packed_bytes(columns, self.bits) + columns * SCALE_BYTES


def quantized_features_by_definition(x_RC: Tensor, bits: int) -> Tensor:
    """Return what comes back of x_RC, feature by feature, with the module docstring's formulas and no codes.

    Args:
        x_RC: floating-point tensor [rows, features].
        bits: 1 to 8.
    """
    levels, back = 2 ** (bits - 1), []
    for feature_R in x_RC.float().unbind(1):
        scale = feature_R.abs().amax().half().float() if len(feature_R) else feature_R.new_ones(())
        scale = torch.where(scale == 0, 1.0, scale)
        steps_R = (feature_R / scale * levels).round().clamp(-levels, levels - 1)
        value_R = steps_R / levels * scale
        back.append(value_R if scale.isfinite() else torch.full_like(value_R, torch.nan))
    return torch.stack(back, 1).to(x_RC.dtype) if back else x_RC.clone()


def _scales(x_RC: Tensor) -> Tensor:
    if not len(x_RC):
        return torch.ones(x_RC.shape[1], dtype=torch.float16, device=x_RC.device)
    scale_C = x_RC.abs().amax(0).half()
    return scale_C.masked_fill_(scale_C == 0, 1.0)


def _row_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Give rows and features; nothing of either where the tensor is empty."""
    columns = shape[-1] if len(shape) else 1
    return (num_elements(shape) // columns, columns) if num_elements(shape) else (0, 0)
