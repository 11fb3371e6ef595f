"""Row-wise uniform quantisation to 1 to 8 bits (Q1 to Q3, with one scale a row), codes packed into bytes.

Each row (last dimension) is mapped to the integers 0 .. 2**bits − 1, in float32:

    bias  = fp16(min)                     scale = fp16((max − bias) / (2**bits − 1)), 1 where it would be 0
    code  = clamp(round((x − bias) · (1 / scale)), 0, 2**bits − 1), ties to even
    value = code · scale + bias

A payload is uint8 [R, W]: the packed codes of a row, then its scale and bias (float16 each). A row with NaN or an
infinity, or whose scale or bias overflows float16, comes back as NaN. The gradient passes straight through.
Shapes: R rows, C columns, W bytes of a row on the wire.

`QuantizeFeatures` has one scale a feature (column of the last dimension), as the released code of the paper:

    scale = fp16(max |x|), 1 where it would be 0      levels = 2**(bits − 1)
    code  = clamp(round(x / scale · levels), −levels, levels − 1) + levels, ties to even
    value = (code − levels) / levels · scale

A payload is the packed codes, uint8 [R, W], and the scales, float16 [C]. A feature with NaN or an infinity, or whose
scale overflows float16, comes back as NaN. The gradient passes straight through.
Source: the released code of Wang et al. (2022), "Fine-tuning language models over slow networks using activation
compression with guarantees", without the 1e-6 that it adds to the scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce

import torch
from torch import Tensor
from torch.nn import functional

from workbench.compression.codec import Aggregation, Codec, Payload, check_out, check_payloads, num_elements

__all__ = ["SCALE_AND_BIAS_BYTES", "SCALE_BYTES", "Quantize", "QuantizeFeatures", "dequantize_rows"]
__all__ += ["dequantize_rows_by_definition", "pack", "pack_by_definition", "packed_bytes", "quantize_rows"]
__all__ += ["quantize_rows_by_definition", "quantized_features_by_definition", "unpack", "unpack_by_definition"]


def packed_bytes(columns: int, bits: int) -> int:
    """Count the bytes of one row's codes."""
    return -(-columns * bits // 8)


def pack_by_definition(codes_RC: Tensor, bits: int) -> Tensor:
    """Write each code's bits, below 2**bits, into one stream a row, lowest first, and cut it in bytes: uint8 [R, W]."""
    rows, columns = codes_RC.shape
    stream = codes_RC.new_zeros(rows, packed_bytes(columns, bits) * 8)
    for bit in range(bits):
        stream[:, bit : columns * bits : bits] = codes_RC >> bit & 1
    packed_RW = codes_RC.new_zeros(rows, packed_bytes(columns, bits))
    for bit in range(8):
        packed_RW |= stream[:, bit::8] << bit
    return packed_RW


def unpack_by_definition(packed_RW: Tensor, bits: int, columns: int) -> Tensor:
    """Cut bytes into one stream of bits a row and read each code from it: uint8 [R, C]."""
    stream = packed_RW.new_zeros(len(packed_RW), packed_RW.shape[1] * 8)
    for bit in range(8):
        stream[:, bit::8] = packed_RW >> bit & 1
    codes_RC = packed_RW.new_zeros(len(packed_RW), columns)
    for bit in range(bits):
        codes_RC |= stream[:, bit : columns * bits : bits] << bit
    return codes_RC


def pack(codes_RC: Tensor, bits: int) -> Tensor:
    """Equal `pack_by_definition`, whole codes at a time where they do not straddle bytes."""
    if 8 % bits:
        return pack_by_definition(codes_RC, bits)
    per_byte = 8 // bits
    codes_RC = functional.pad(codes_RC, (0, -codes_RC.shape[1] % per_byte))
    packed_RW = codes_RC[:, ::per_byte].clone()
    for position in range(1, per_byte):
        packed_RW |= codes_RC[:, position::per_byte] << position * bits
    return packed_RW


def unpack(packed_RW: Tensor, bits: int, columns: int) -> Tensor:
    """Equal `unpack_by_definition`, whole codes at a time where they do not straddle bytes."""
    if bits == 8:
        return packed_RW[:, :columns]
    if 8 % bits:
        return unpack_by_definition(packed_RW, bits, columns)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8, device=packed_RW.device)
    codes = (packed_RW.unsqueeze(-1) >> shifts).bitwise_and_(2**bits - 1)
    return codes.flatten(1)[:, :columns]


# Bytes of scale and bias of a row, one float16 each.
SCALE_AND_BIAS_BYTES = 4
# Elements that plain operations work on at a time on CPU, to stay in the cache.
BLOCK_ELEMENTS = 1 << 17


class Quantize(Codec):
    """Send `bits` bits, 1 to 8, an element, and four bytes a row."""

    aggregation = Aggregation.GATHER

    def __init__(self, bits: int) -> None:
        super().__init__()
        if isinstance(bits, bool) or not isinstance(bits, int) or not 1 <= bits <= 8:
            raise ValueError(f"bits is {bits!r}: it must be an int in 1..8")
        self.bits = bits

    def extra_repr(self) -> str:
        """Name the bits in the module's repr."""
        return f"bits={self.bits}"

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Quantise each row and pack the codes; a tensor without dimensions is one row of one."""
        x_RC = x.detach().reshape(_row_shape(x.shape)).contiguous()
        payload_RW = quantize_rows(x_RC, self.bits)
        return Payload(tensors=(payload_RW,), shape=x.shape, dtype=x.dtype)

    @torch.no_grad()
    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Unpack the codes of each row and scale them."""
        rows, columns = _row_shape(payload.shape)
        if out is None:
            return dequantize_rows(payload.tensors[0], self.bits, columns, payload.dtype).view(payload.shape)
        check_out(out, payload)
        dequantize_rows(payload.tensors[0], self.bits, columns, payload.dtype, out=out.view(rows, columns))
        return out

    @torch.no_grad()
    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Decode and add block by block: a block's sum stays in the cache until it is whole."""
        check_payloads(payloads)
        first = payloads[0]
        total = torch.empty(first.shape, dtype=first.dtype, device=first.tensors[0].device)
        rows, columns = _row_shape(first.shape)
        total_RC = total.view(rows, columns)
        for block in _blocks(total_RC):
            parts = (dequantize_rows(p.tensors[0][block], self.bits, columns, p.dtype) for p in payloads)
            total_RC[block] = reduce(Tensor.add_, parts)
        return total

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        """Let the whole gradient through, as if nothing had been rounded."""
        return grad_output

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count the packed bytes and the scale and bias of every row."""
        rows, columns = _row_shape(shape)
        return rows * _row_bytes(columns, self.bits)


def quantize_rows_by_definition(x_RC: Tensor, bits: int) -> Tensor:
    """Quantise rows with the module docstring's formulas, packing bit by bit: uint8 [R, W]."""
    levels, x_RC = 2**bits - 1, x_RC.float()
    if not x_RC.numel():
        return x_RC.new_zeros(len(x_RC), SCALE_AND_BIAS_BYTES, dtype=torch.uint8)
    bias_R1 = x_RC.amin(1, keepdim=True).half() + 0.0
    scale_R1 = ((x_RC.amax(1, keepdim=True) - bias_R1.float()) / levels).half()
    scale_R1 = torch.where(scale_R1 == 0, 1.0, scale_R1)
    codes_RC = ((x_RC - bias_R1.float()) * (1 / scale_R1.float())).round().clamp(0, levels)
    fits_R1 = scale_R1.isfinite() & bias_R1.isfinite()
    codes_RC = torch.where(fits_R1, codes_RC, 0.0).to(torch.uint8)
    scale_bias_R2 = torch.where(fits_R1, torch.cat((scale_R1, bias_R1), dim=1), torch.nan)
    return torch.cat((pack_by_definition(codes_RC, bits), scale_bias_R2.view(torch.uint8)), dim=1)


def dequantize_rows_by_definition(payload_RW: Tensor, bits: int, columns: int, dtype: torch.dtype) -> Tensor:
    """Unpack bit by bit, then code · scale + bias: [R, C] of `dtype`."""
    codes_RC = unpack_by_definition(payload_RW[:, :-SCALE_AND_BIAS_BYTES], bits, columns)
    scale_R1, bias_R1 = _scale_bias(payload_RW).float().split(1, dim=1)
    return (codes_RC.float() * scale_R1 + bias_R1).to(dtype)


def quantize_rows(x_RC: Tensor, bits: int) -> Tensor:
    """Quantise rows into uint8 [R, W], equal to `quantize_rows_by_definition` bit for bit."""
    if _operators_apply(x_RC.device, bits, x_RC.shape[1]):
        payload_RW = _quantize_with_operator(x_RC, bits)
        if payload_RW is not None:
            return payload_RW
    payload_RW = torch.empty(len(x_RC), _row_bytes(x_RC.shape[1], bits), dtype=torch.uint8, device=x_RC.device)
    for block in _blocks(x_RC):
        codes_RC, scale_bias_R2 = _codes(x_RC[block].float(), bits)
        payload_RW[block, :-SCALE_AND_BIAS_BYTES] = pack(codes_RC, bits)
        payload_RW[block, -SCALE_AND_BIAS_BYTES:] = scale_bias_R2.view(torch.uint8)
    return payload_RW


def dequantize_rows(
    payload_RW: Tensor, bits: int, columns: int, dtype: torch.dtype, *, out: Tensor | None = None
) -> Tensor:
    """Decode rows into [R, C], or `out`, equal to `dequantize_rows_by_definition` but for the bits of NaN."""
    decode: Callable[[Tensor], Tensor] = partial(_dequantize, bits=bits, columns=columns)
    if _operators_apply(payload_RW.device, bits, columns):
        decode = getattr(torch.ops.quantized, f"embedding_bag_{bits}bit_unpack").default
        if out is None:
            return decode(payload_RW).to(dtype)
    out = torch.empty(len(payload_RW), columns, dtype=dtype, device=payload_RW.device) if out is None else out
    for block in _blocks(out):
        out[block] = decode(payload_RW[block])
    return out


def _operators_apply(device: torch.device, bits: int, columns: int) -> bool:
    """Return whether PyTorch's row-wise packing operators support the device, bits and columns."""
    return device.type == "cpu" and bits in (2, 4) and columns > 0 and columns * bits % 8 == 0


def _quantize_with_operator(x_RC: Tensor, bits: int) -> Tensor | None:
    """Quantise with PyTorch's operator; None where it would not follow the definition.

    The operator ignores NaN and overflows silently: the sum of all elements shows the former, the written scales and
    biases the latter. Each block is summed while the operator has it in the cache.
    """
    prepack = getattr(torch.ops.quantized, f"embedding_bag_{bits}bit_prepack").default
    payload_RW = torch.empty(len(x_RC), _row_bytes(x_RC.shape[1], bits), dtype=torch.uint8)
    total = torch.zeros(())
    for block in _blocks(x_RC):
        part_RC = x_RC[block] if x_RC.dtype == torch.float16 else x_RC[block].float()
        payload_RW[block] = prepack(part_RC)
        total += part_RC.sum(dtype=torch.float32)
    scale_bias_R2 = _scale_bias(payload_RW)
    if not (torch.isfinite(total) and torch.isfinite(scale_bias_R2).all()):
        return None
    # The sign of a zero bias would depend on the order of the operator's comparisons.
    payload_RW[:, -SCALE_AND_BIAS_BYTES:] = (scale_bias_R2 + 0.0).view(torch.uint8)
    return payload_RW


def _codes(x_RC: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """Give the codes, uint8 [rows, columns], and scale and bias, float16 [rows, 2]."""
    levels = 2**bits - 1
    bias_R1 = x_RC.amin(1, keepdim=True).half().add_(0.0)
    scale_R1 = (x_RC.amax(1, keepdim=True).sub_(bias_R1)).div_(levels).half()
    scale_R1.masked_fill_(scale_R1 == 0, 1.0)
    fits_R1 = scale_R1.isfinite() & bias_R1.isfinite()
    steps_RC = (x_RC - bias_R1.float()).mul_(1 / scale_R1.float()).round_().clamp_(0, levels)
    # In rows that do not fit, whatever NaN was cast to is multiplied by 0.
    codes_RC = steps_RC.to(torch.uint8).mul_(fits_R1)
    scale_bias_R2 = scale_R1.new_empty(len(x_RC), 2)  # not cat, which autocast on CPU refuses for float16
    scale_bias_R2[:, :1], scale_bias_R2[:, 1:] = scale_R1, bias_R1
    return codes_RC, scale_bias_R2.masked_fill_(~fits_R1, torch.nan)


def _dequantize(payload_RW: Tensor, bits: int, columns: int) -> Tensor:
    """Decode one block with plain operations, in float32."""
    scale_R1, bias_R1 = _scale_bias(payload_RW).float().split(1, dim=1)
    codes_RC = unpack(payload_RW[:, :-SCALE_AND_BIAS_BYTES], bits, columns)
    return codes_RC.float().mul_(scale_R1).add_(bias_R1)


def _scale_bias(payload_RW: Tensor) -> Tensor:
    """Read scale and bias, float16 [rows, 2], from the end of each row."""
    return payload_RW[:, -SCALE_AND_BIAS_BYTES:].clone(memory_format=torch.contiguous_format).view(torch.float16)


def _blocks(x_RC: Tensor) -> list[slice]:
    """Cut rows into blocks that stay in a CPU's cache; one block elsewhere."""
    step = max(1, BLOCK_ELEMENTS // max(1, x_RC.shape[1])) if x_RC.device.type == "cpu" else max(1, len(x_RC))
    return [slice(start, start + step) for start in range(0, len(x_RC), step)]


def _row_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Give rows and columns; no rows where the tensor is empty."""
    columns = shape[-1] if len(shape) else 1
    return (num_elements(shape) // columns if columns else 0), columns


def _row_bytes(columns: int, bits: int) -> int:
    """Count the bytes of one row's codes, scale and bias."""
    return packed_bytes(columns, bits) + SCALE_AND_BIAS_BYTES


SCALE_BYTES = 2  # bytes of a feature's scale, float16


class QuantizeFeatures(Quantize):
    """Send `bits` bits an element, and two bytes a feature; see Quantize for the argument."""

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Quantise each feature and pack the codes row by row: uint8 [R, W] and the scales, float16 [C]."""
        x_RC, levels = x.detach().reshape(_feature_shape(x.shape)).float(), 2 ** (self.bits - 1)
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
        rows, columns = _feature_shape(shape)
        return rows * packed_bytes(columns, self.bits) + columns * SCALE_BYTES


def quantized_features_by_definition(x_RC: Tensor, bits: int) -> Tensor:
    """Return what comes back of [R, C], feature by feature, by the module docstring's formulas without codes."""
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


def _feature_shape(shape: Sequence[int]) -> tuple[int, int]:
    """Give rows and features; nothing of either where the tensor is empty."""
    columns = shape[-1] if len(shape) else 1
    return (num_elements(shape) // columns, columns) if num_elements(shape) else (0, 0)
