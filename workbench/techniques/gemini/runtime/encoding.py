"""Nested state as bytes, without pickle: JSON for plain values, raw bytes for tensors; and the checksum of bytes.

Layout: 8 bytes (the JSON's length, little endian), the JSON, then each tensor's bytes, aligned to 64 bytes.
"""

import base64
import json
import math
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor

__all__ = ["CHECKSUM_BYTES", "aligned", "as_bytes", "checksum", "dtype_named", "pack_tree", "raw_bytes", "unpack_tree"]

CHECKSUM_BYTES = 16  # XXH3-128
LENGTH = struct.Struct("<Q")
ALIGNMENT_BYTES = 64  # tensors start at multiples of it: a cache line, and no dtype is wider
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


class PackedTree:
    """Dictionaries, lists, tuples, plain values, bytes, tensors and arrays, to be written; ValueError for all else.

    Tensors are read when `write_` copies them.
    """

    def __init__(self, tree: Any):
        self._blobs: list[Tensor] = []
        text = json.dumps(_encode(tree, "", self._blobs), separators=(",", ":")).encode()
        self._blobs.insert(0, as_bytes(LENGTH.pack(len(text)) + text))
        sizes = [aligned(blob.numel() * blob.itemsize, ALIGNMENT_BYTES) for blob in self._blobs]
        self.num_bytes = sum(sizes)
        self._starts = [0, *accumulate(sizes)]

    def write_(self, out: Tensor, pinned: Sequence[Tensor] = ()) -> None:
        """Copy everything to `num_bytes` bytes, uint8.

        A CUDA tensor goes straight to locked memory, or else through the pinned sub-buffers in turn.
        """
        is_locked = torch.cuda.is_initialized() and out.is_pinned()
        for start, end, blob in zip(self._starts, self._starts[1:], self._blobs, strict=False):
            size, source = blob.numel() * blob.itemsize, raw_bytes(blob)
            if source.is_cuda and pinned and not is_locked:
                copy_through(pinned, source, out[start : start + size])
            else:
                out[start : start + size].copy_(source, non_blocking=is_locked)
            out[start + size : end] = 0
        if is_locked:
            torch.cuda.synchronize()


def copy_through(pinned: Sequence[Tensor], source: Tensor, out: Tensor) -> None:
    """Copy device memory to the host: one sub-buffer is emptied while the next one is being filled (figure 6.5d)."""
    stream, waiting = torch.cuda.Stream(source.device), deque()
    stream.wait_stream(torch.cuda.current_stream(source.device))

    def empty_oldest() -> None:
        filled, place, buffer = waiting.popleft()
        filled.synchronize()
        place.copy_(buffer)

    size = pinned[0].numel()
    for number, offset in enumerate(range(0, source.numel(), size)):
        if len(waiting) == len(pinned):
            empty_oldest()
        part = source[offset : offset + size]
        buffer = pinned[number % len(pinned)][: part.numel()]
        with torch.cuda.stream(stream):
            buffer.copy_(part, non_blocking=True)
            waiting.append((stream.record_event(), out[offset : offset + size], buffer))
    while waiting:
        empty_oldest()


def pack_tree(tree: Any) -> bytes:
    """Return a tree as bytes, see `PackedTree`."""
    packed = PackedTree(tree)
    out = torch.empty(packed.num_bytes, dtype=torch.uint8)
    packed.write_(out)
    return out.numpy().tobytes()


def unpack_tree(data, copy: bool = True) -> Any:
    """Read the tree that was packed; bytes after it are ignored. Without `copy`, tensors are views of the data."""
    data = as_bytes(data)
    length = LENGTH.unpack(data[: LENGTH.size].numpy().tobytes())[0] if data.numel() >= LENGTH.size else math.inf
    if length > data.numel() - LENGTH.size:
        raise ValueError(f"data is {data.numel()} bytes; it must be as long as the state that it should hold")
    end = LENGTH.size + length
    return _decode(json.loads(data[LENGTH.size : end].numpy().tobytes()), data[aligned(end, ALIGNMENT_BYTES) :], copy)


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


def _encode(tree: Any, path: str, blobs: list[Tensor]) -> Any:
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
        blobs.append(as_bytes(tree.tobytes()))
        return {TAG: "array", "dtype": tree.dtype.str, "shape": tree.shape, "size": tree.nbytes}
    if type(tree) is Tensor and tree.layout is torch.strided:
        blobs.append(tree.detach().contiguous())
        dtype, size = str(tree.dtype).removeprefix("torch."), tree.numel() * tree.itemsize
        return {TAG: "tensor", "dtype": dtype, "shape": list(tree.shape), "size": size}
    if isinstance(tree, np.generic) and tree.dtype.kind in "biuf":
        return _encode(tree.item(), path, blobs)
    kind = type(tree).__name__
    raise ValueError(f"state{path} is of class {kind}; it must be a tensor, an array, a plain value or a collection")


def _decode(tree: Any, data: Tensor, copy: bool) -> Any:
    """Undo `_encode`, taking the blobs in the order in which they were written."""
    taken = 0

    def blob(size: int) -> Tensor:
        nonlocal taken
        start, taken = taken, aligned(taken + size, ALIGNMENT_BYTES)
        if start + size > data.numel():
            raise ValueError(f"data has {data.numel()} bytes of tensors; it must have at least {start + size}")
        found = data[start : start + size]
        return found.clone() if copy else found

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
                return np.frombuffer(blob(node["size"]).numpy(), node["dtype"]).reshape(node["shape"])
            case "tensor":
                return blob(node["size"]).view(dtype_named(node["dtype"])).reshape(node["shape"])
        raise ValueError(f"data has a value of kind {node[TAG]!r}; it must be a kind that pack_tree writes")

    return decode(tree)


def aligned(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple
