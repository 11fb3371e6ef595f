"""Nested state of any object as bytes, without pickle: JSON for what is not a tensor, raw bytes for tensors.

What: what `state_dict()` of a schedule, a sampler or a user's object returns: dictionaries with keys of any plain kind,
lists, tuples, numbers, strings, bytes, None, torch tensors and NumPy arrays.
Source: none; the rule against pickle is this project's own.
Simplified: floats travel as Python writes them in JSON, which reads back bit for bit (infinities and NaN too).
Left out: objects of other classes, which are refused by their place in the state.

Layout: 8 bytes (the JSON's length, little endian), the JSON, then each tensor's bytes, aligned to 8 bytes.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["dtype_named", "pack_tree", "raw_bytes", "unpack_tree"]

LENGTH = struct.Struct("<Q")
ALIGNMENT_BYTES = 8  # Tensors start at multiples of it, so that none of their elements straddles
# What JSON carries as it is; NumPy's and enumerations' subclasses would come back as other classes
PLAIN = (bool, int, float, str, type(None))
TAG = "$"  # Marks a JSON object that stands for something else than a dictionary with text keys


def pack_tree(tree: Any) -> bytes:
    """Write a nested state as bytes."""
    blobs: list[bytes] = []
    text = json.dumps(_encode(tree, "", blobs), separators=(",", ":")).encode()
    parts = [LENGTH.pack(len(text)), _padded(text, LENGTH.size), *(_padded(blob) for blob in blobs)]
    return b"".join(parts)


def unpack_tree(data: bytes | bytearray | memoryview) -> Any:
    """Read back what `pack_tree` wrote."""
    data = memoryview(data).cast("B")
    if len(data) < LENGTH.size or LENGTH.unpack_from(data)[0] > len(data) - LENGTH.size:
        raise ValueError(f"data: {len(data)} bytes are too few for the state they should hold")
    size = LENGTH.unpack_from(data)[0]
    start = LENGTH.size + size
    tree = json.loads(bytes(data[LENGTH.size : start]))
    return _decode(tree, data[_aligned(start) :])


def raw_bytes(tensor: Tensor) -> Tensor:
    """View a tensor's memory as bytes, in the order in which it lies there."""
    if not tensor.is_contiguous():
        expected = 1
        for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if size > 1 and stride != expected:
                place = f"strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)}"
                raise ValueError(f"{place} leave gaps or overlap")
            expected *= size
    # detach: bytes have no gradient; as_strided: 0-dim tensors and permutations have bytes too
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)


def dtype_named(name: str) -> torch.dtype:
    """Give the torch dtype of a name such as "float32"."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype: {name!r} is none of torch's")
    return dtype


def _encode(tree: Any, path: str, blobs: list[bytes]) -> Any:
    """Turn a state into JSON's kinds; bytes of tensors go to `blobs`."""
    if type(tree) in PLAIN:
        return tree
    if isinstance(tree, Mapping):
        return _encode_mapping(tree, path, blobs)
    if type(tree) in (list, tuple):
        items = [_encode(item, f"{path}[{index}]", blobs) for index, item in enumerate(tree)]
        return items if type(tree) is list else {TAG: "tuple", "items": items}
    if type(tree) is bytes:
        return {TAG: "bytes", "base64": base64.b64encode(tree).decode()}
    if isinstance(tree, np.ndarray) and tree.dtype.kind in "biufc":
        blobs.append(tree.tobytes())
        return {TAG: "array", "dtype": tree.dtype.str, "shape": tree.shape, "size": len(blobs[-1])}
    if type(tree) is Tensor:
        kept = tree.detach().cpu().contiguous()
        blobs.append(raw_bytes(kept).numpy().tobytes())
        dtype = str(tree.dtype).removeprefix("torch.")
        return {TAG: "tensor", "dtype": dtype, "shape": list(tree.shape), "size": len(blobs[-1])}
    if isinstance(tree, np.generic) and tree.dtype.kind in "biuf":
        return _encode(tree.item(), path, blobs)
    kind = type(tree).__name__
    raise ValueError(f"state{path}: {kind} is neither a tensor, an array, a plain value nor a collection")


def _encode_mapping(tree: Mapping, path: str, blobs: list[bytes]) -> Any:
    """Keep text keys as they are; write others as pairs, in the order in which they are."""
    if all(type(key) is str and key != TAG for key in tree):
        return {key: _encode(value, f"{path}[{key!r}]", blobs) for key, value in tree.items()}
    pairs = []
    for key, value in tree.items():
        pairs.append([_encode(key, f"{path}.keys()", blobs), _encode(value, f"{path}[{key!r}]", blobs)])
    return {TAG: "pairs", "items": pairs}


def _decode(tree: Any, data: memoryview) -> Any:
    """Undo `_encode`, taking the blobs in the order in which they were written."""
    taken = 0

    def blob(size: int) -> bytearray:
        nonlocal taken
        start, taken = taken, _aligned(taken + size)
        if start + size > len(data):
            raise ValueError(f"data: {len(data)} bytes of tensors end before byte {start + size}")
        return bytearray(data[start : start + size])

    def decode(node: Any) -> Any:
        if isinstance(node, list):
            return [decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        kind = node.get(TAG)
        if kind is None:
            return {key: decode(value) for key, value in node.items()}
        return DECODERS[kind](node, decode, blob)

    return decode(tree)


def _tensor(node: dict, _decode_item: Any, blob: Any) -> Tensor:
    dtype, data = dtype_named(node["dtype"]), blob(node["size"])
    flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return flat.reshape(node["shape"])


# Kind of a tagged node -> how it is read: called with the node, a reader of its items, a reader of tensors' bytes
DECODERS = {
    "tuple": lambda node, decode, _: tuple(decode(item) for item in node["items"]),
    "pairs": lambda node, decode, _: {decode(key): decode(value) for key, value in node["items"]},
    "bytes": lambda node, *_: base64.b64decode(node["base64"]),
    "array": lambda node, _, blob: np.frombuffer(blob(node["size"]), node["dtype"]).reshape(node["shape"]),
    "tensor": _tensor,
}


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _padded(data: bytes, before: int = 0) -> bytes:
    """Append what is missing to the next aligned place, `before` bytes lying ahead of the data."""
    return data + bytes(_aligned(before + len(data)) - before - len(data))
