"""Payloads as plain bytes, so that one collective sends any payload."""

import torch
from torch import Tensor

from workbench.compression.codec import Payload

__all__ = ["packed", "unpacked"]


def packed(payload: Payload) -> Tensor:
    """Return the bytes of a payload's tensors one after the other, uint8 [B]."""
    return torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in payload.tensors])


def unpacked(row: Tensor, like: Payload) -> Payload:
    """Read a payload back from its bytes; `like` is a payload of the same codec, shape and dtype."""
    tensors, at = [], 0
    for tensor in like.tensors:
        end = at + tensor.numel() * tensor.element_size()
        tensors.append(row[at:end].clone().view(tensor.dtype).view(tensor.shape))
        at = end
    return Payload(tensors=tuple(tensors), shape=like.shape, dtype=like.dtype)
