"""Nested state as bytes, without pickle: JSON for plain values, raw bytes for tensors; and the checksum of bytes.

Layout: 8 bytes (the JSON's length, little endian), the JSON, then each tensor's bytes, aligned to 8 bytes.
"""

import base64
import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

__all__ = ["CHECKSUM_BYTES", "aligned", "as_bytes", "checksum", "dtype_named", "pack_tree", "raw_bytes", "unpack_tree"]

CHECKSUM_BYTES = 16  # XXH3-128
LENGTH = struct.Struct("<Q")
ALIGNMENT_BYTES = 8  # tensors start at multiples of it, so that no element straddles
# JSON carries these as they are; NumPy's and enumerations' subclasses would come back as other classes.
PLAIN = (bool, int, float, str, type(None))
TAG = "$"  # marks a JSON object that stands for something else than a dictionary with text keys


def checksum(*parts) -> bytes:
    """Return the checksum of buffers, hashed as if they were one: XXH3, which adds 40 % to the time of a copy."""
    if len(parts) == 1:
        return xxhash.xxh3_128_digest(parts[0])
    whole = xxhash.xxh3_128()
    for part in parts:
        whole.update(part)
    return whole.digest()


def pack_tree(tree: Any) -> bytes:
    """Write dictionaries, lists, tuples, plain values, bytes, tensors and arrays as bytes; ValueError for all else."""
    blobs: list[bytes] = []
    text = json.dumps(_encode(tree, "", blobs), separators=(",", ":")).encode()
    return LENGTH.pack(len(text)) + b"".join(part + bytes(-len(part) % ALIGNMENT_BYTES) for part in (text, *blobs))


def unpack_tree(data: bytes | bytearray | memoryview) -> Any:
    """Read the state that `pack_tree` wrote; bytes after it are ignored, and tensors own their memory on the CPU."""
    data = memoryview(data).cast("B")
    if len(data) < LENGTH.size or LENGTH.unpack_from(data)[0] > len(data) - LENGTH.size:
        raise ValueError(f"data is {len(data)} bytes; it must be as long as the state that it should hold")
    start = LENGTH.size + LENGTH.unpack_from(data)[0]
    return _decode(json.loads(bytes(data[LENGTH.size : start])), data[aligned(start, ALIGNMENT_BYTES) :])


def raw_bytes(tensor: Tensor) -> Tensor:
    """View a tensor's memory as bytes, in their order in memory; ValueError where elements overlap or leave gaps."""
    if not tensor.is_contiguous():
        expected = 1
        for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
            if size > 1 and stride != expected:
                place = f"strides {tuple(tensor.stride())} of shape {tuple(tensor.shape)}"
                raise ValueError(f"{place} leave gaps or overlap")
            expected *= size
    # detach: bytes have no gradient; as_strided: 0-dim tensors and permutations have bytes too
    return tensor.detach().as_strided((tensor.numel(),), (1,), tensor.storage_offset()).view(torch.uint8)


def as_bytes(buffer) -> Tensor:
    """View any buffer as a uint8 tensor; a read-only buffer is copied, since torch has no such tensors."""
    if isinstance(buffer, Tensor):
        return buffer
    view = memoryview(buffer).cast("B")
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def dtype_named(name: str) -> torch.dtype:
    """Return the torch dtype of a name such as "float32"."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype is {name!r}; it must be one of torch's")
    return dtype


def _encode(tree: Any, path: str, blobs: list[bytes]) -> Any:
    if type(tree) in PLAIN:
        return tree
    if isinstance(tree, Mapping):
        pairs = tree.items()
        if all(type(key) is str and key != TAG for key in tree):
            return {key: _encode(value, f"{path}[{key!r}]", blobs) for key, value in pairs}
        items = [
            [_encode(key, f"{path}.keys()", blobs), _encode(value, f"{path}[{key!r}]", blobs)] for key, value in pairs
        ]
        return {TAG: "pairs", "items": items}
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
    raise ValueError(f"state{path} is of class {kind}; it must be a tensor, an array, a plain value or a collection")


def _decode(tree: Any, data: memoryview) -> Any:
    """Undo `_encode`, taking the blobs in the order in which they were written."""
    taken = 0

    def blob(size: int) -> bytearray:
        nonlocal taken
        start, taken = taken, aligned(taken + size, ALIGNMENT_BYTES)
        if start + size > len(data):
            raise ValueError(f"data has {len(data)} bytes of tensors; it must have at least {start + size}")
        return bytearray(data[start : start + size])

    def decode(node: Any) -> Any:
        if isinstance(node, list):
            return [decode(item) for item in node]
        if not isinstance(node, dict):
            return node
        match node.get(TAG):
            case None:
                return {key: decode(value) for key, value in node.items()}
            case "tuple":
                return tuple(map(decode, node["items"]))
            case "pairs":
                return {decode(key): decode(value) for key, value in node["items"]}
            case "bytes":
                return base64.b64decode(node["base64"])
            case "array":
                return np.frombuffer(blob(node["size"]), node["dtype"]).reshape(node["shape"])
            case "tensor":
                return as_bytes(blob(node["size"])).view(dtype_named(node["dtype"])).reshape(node["shape"])
        raise ValueError(f"data has a value of kind {node[TAG]!r}; it must be a kind that pack_tree writes")

    return decode(tree)


def aligned(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple
