"""Codes of 1 to 8 bits in bytes, row by row: code i in the bits from i·bits on, lowest bit first.

Shapes: R rows, C columns, W bytes of a row's codes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

__all__ = ["pack", "pack_by_definition", "packed_bytes", "unpack", "unpack_by_definition"]


def packed_bytes(columns: int, bits: int) -> int:
    """Count the bytes of one row's codes."""
    return -(-columns * bits // 8)


def pack_by_definition(codes_RC: Tensor, bits: int) -> Tensor:
    """Write each code's bits into one stream a row, lowest first, and cut it in bytes.

    Args:
        codes_RC: uint8, below 2**bits.
        bits: 1 to 8.

    Returns:
        uint8 [R, W].
    """
    rows, columns = codes_RC.shape
    stream = codes_RC.new_zeros(rows, packed_bytes(columns, bits) * 8)
    for bit in range(bits):
        stream[:, bit : columns * bits : bits] = codes_RC >> bit & 1
    packed_RW = codes_RC.new_zeros(rows, packed_bytes(columns, bits))
    for bit in range(8):
        packed_RW |= stream[:, bit::8] << bit
    return packed_RW


def unpack_by_definition(packed_RW: Tensor, bits: int, columns: int) -> Tensor:
    """Cut bytes into one stream of bits a row and read each code from it.

    Args:
        packed_RW: uint8.
        bits: 1 to 8.
        columns: C.

    Returns:
        uint8 [R, C].
    """
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
