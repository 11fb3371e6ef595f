"""Nested state as bytes, without pickle: JSON for plain values, raw bytes for tensors; and the checksum of bytes.

Layout: 8 bytes (the JSON's length, little endian), the JSON, then each tensor's bytes, aligned to 64 bytes.
"""

import base64
import json
import math
import random
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import xxhash
from torch import Tensor, nn

__all__ = ["CHECKSUM_BYTES", "GENERATORS", "PLAIN", "PackedTree", "aligned", "as_bytes", "can_pack", "checksum"]
__all__ += ["generator_state", "leaves", "pack_tree", "restore_generator_", "unpack_tree"]

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)  # in the order of their codes


def generator_state(generator: Any) -> Any:
    """Return a generator's position: a tensor, or plain values and arrays."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=False)
    version, words, gauss = generator.getstate()
    return version, np.array(words, dtype=np.uint32), gauss  # as text, 625 words would take 20 times as long


def restore_generator_(generator: Any, state: Any) -> None:
    """Move a generator to a position."""
    match generator:
        case torch.Generator():
            generator.set_state(state.clone())  # it ends the process for a view that begins within its memory
        case np.random.RandomState():
            generator.set_state(state)
        case np.random.Generator():
            generator.bit_generator.state = state
        case _:
            version, words, gauss = state
            generator.setstate((version, tuple(words.tolist()), gauss))


CHECKSUM_BYTES = 16  # XXH3-128
LENGTH = struct.Struct("<Q")
ALIGNMENT_BYTES = 64  # tensors start at multiples of it: a cache line, and no dtype is wider
# JSON carries these as they are; NumPy's and enumerations' subclasses would come back as other classes.
PLAIN = (bool, int, float, str, type(None))
MAPPINGS = (dict, OrderedDict, Counter, defaultdict)
SEQUENCES = (list, tuple, set, frozenset, deque, torch.Size)
MAPPING_NAMES = {kind.__name__: kind for kind in MAPPINGS}
SEQUENCE_NAMES: dict[str, Any] = {kind.__name__: kind for kind in SEQUENCES}
FACTORIES = (int, float, bool, str, list, dict, set, tuple)  # of a defaultdict


def _dtype_named(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype is {name!r}; it must be one of torch's")
    return dtype


READERS: dict[str, Callable[[str], Any]] = {  # of kinds that are written as text
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "complex": complex,
    "device": torch.device,
    "dtype": _dtype_named,
}
TAG = "$"  # marks a JSON object that stands for something else than a dictionary with text keys


def checksum(data) -> bytes:
    """Return the checksum of a buffer: XXH3, which adds 40 % to the time of a copy."""
    return xxhash.xxh3_128_digest(data)


class PackedTree:
    """A tree of plain values, tensors, arrays, generators and collections, to be written; ValueError for all else.

    Each comes back in its own type. Tensors are read when `write_` copies them; those that share memory share it again.
    """

    def __init__(self, tree: Any):
        tensors: list[tuple[Tensor, dict]] = []
        encoded, blobs = _encode(tree, "", tensors), _laid_out(tensors)
        sizes = [blob.nbytes for blob in blobs]
        text = json.dumps({"sizes": sizes, "tree": encoded}, separators=(",", ":")).encode()
        self._blobs = [as_bytes(LENGTH.pack(len(text)) + text), *blobs]
        self._starts = _starts([blob.nbytes for blob in self._blobs])
        self.num_bytes = self._starts[-1]

    def write_(self, out: Tensor, pinned: Sequence[Tensor] = ()) -> None:
        """Copy everything to `num_bytes` bytes, uint8.

        A CUDA tensor goes straight to locked memory, or else through the pinned sub-buffers in turn.
        """
        is_locked = torch.cuda.is_initialized() and out.is_pinned()
        for start, end, blob in zip(self._starts, self._starts[1:], self._blobs, strict=False):
            # The bytes of a dense tensor in their order in memory; as_strided, because permutations have bytes too.
            flat = blob.detach().as_strided((blob.numel(),), (1,), blob.storage_offset()).view(torch.uint8)
            size = flat.numel()
            if flat.is_cuda and pinned and not is_locked:
                _copy_through(pinned, flat, out[start : start + size])
            else:
                out[start : start + size].copy_(flat, non_blocking=is_locked)
            out[start + size : end] = 0
        for device in {blob.device for blob in self._blobs if is_locked and blob.is_cuda}:
            torch.cuda.synchronize(device)


def _copy_through(pinned: Sequence[Tensor], source: Tensor, out: Tensor) -> None:
    """Copy device memory to the host: one sub-buffer is emptied while the next one is being filled (figure 6.5d)."""
    stream = torch.cuda.Stream(source.device)
    stream.wait_stream(torch.cuda.current_stream(source.device))
    filled: list[Any] = []  # events
    parts, places = (tensor.split(pinned[0].numel()) for tensor in (source, out))
    for number in range(len(parts) + len(pinned)):
        buffer, oldest = pinned[number % len(pinned)], number - len(pinned)
        if 0 <= oldest < len(parts):
            filled[oldest].synchronize()
            places[oldest].copy_(buffer[: places[oldest].numel()])
        if number < len(parts):
            with torch.cuda.stream(stream):
                buffer[: parts[number].numel()].copy_(parts[number], non_blocking=True)
                filled.append(stream.record_event())


def pack_tree(tree: Any) -> bytes:
    """Return a tree as bytes, see `PackedTree`."""
    packed = PackedTree(tree)
    out = torch.empty(packed.num_bytes, dtype=torch.uint8)
    packed.write_(out)
    return out.numpy().tobytes()


def unpack_tree(data, copy: bool = True) -> Any:
    """Read the tree that was packed; bytes after it are ignored. Without `copy`, tensors are views of the data."""
    data = as_bytes(data)
    room = data.numel() - LENGTH.size
    length = LENGTH.unpack(data[: LENGTH.size].numpy().tobytes())[0] if room >= 0 else 0
    if length > room:
        raise ValueError(f"data is {data.numel()} bytes; it must be as long as the state that it should hold")
    end = LENGTH.size + length
    packed = json.loads(data[LENGTH.size : end].numpy().tobytes())
    return _Reader(data[aligned(end, ALIGNMENT_BYTES) :], packed["sizes"], copy).tree(packed["tree"])


def can_pack(tree: Any) -> bool:
    """Say whether `PackedTree` takes a tree."""
    try:
        _encode(tree, "", [])
    except (RecursionError, ValueError):
        return False
    return True


def leaves(tree: Any) -> Iterator[Any]:
    """Give all in a tree that is no collection."""
    if type(tree) in MAPPINGS or type(tree) in SEQUENCES:
        for item in tree.values() if type(tree) in MAPPINGS else tree:
            yield from leaves(item)
    else:
        yield tree


def as_bytes(buffer) -> Tensor:
    """View any buffer as a uint8 tensor; a read-only buffer is copied, since torch has no such tensors."""
    if isinstance(buffer, Tensor):
        return buffer
    view = memoryview(buffer).cast("B")
    if not view.nbytes:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def _encode(tree: Any, path: str, tensors: list[tuple[Tensor, dict]]) -> Any:
    """Turn a tree into JSON; tensors are listed with their JSON, which `_laid_out` completes."""
    kind = type(tree)
    if kind in PLAIN:
        return tree
    if kind in MAPPINGS:
        if kind is dict and all(type(key) is str and key != TAG for key in tree):
            return {key: _encode(value, f"{path}[{key!r}]", tensors) for key, value in tree.items()}
        node: dict[str, Any] = {TAG: kind.__name__}
        node["items"] = [
            [_encode(key, f"{path}.keys()", tensors), _encode(value, f"{path}[{key!r}]", tensors)]
            for key, value in tree.items()
        ]
        if kind is defaultdict and tree.default_factory is not None:
            if tree.default_factory not in FACTORIES:
                raise ValueError(f"state{path} has the default {tree.default_factory!r}; it must be a built-in class")
            node["factory"] = FACTORIES.index(tree.default_factory)
        if getattr(tree, "__dict__", None):  # such as the _metadata of a module's state_dict
            node["attributes"] = _encode(vars(tree), f"{path}.__dict__", tensors)
        return node
    if kind in SEQUENCES:
        items = [_encode(item, f"{path}[{index}]", tensors) for index, item in enumerate(tree)]
        limit = {"maxlen": tree.maxlen} if kind is deque else {}
        return items if kind is list else {TAG: kind.__name__, "items": items, **limit}
    if kind in (bytes, bytearray):
        return {TAG: kind.__name__, "base64": base64.b64encode(tree).decode()}
    if kind in (complex, torch.dtype, torch.device):
        return {TAG: kind.__name__, "text": str(tree).removeprefix("torch.")}
    if kind in GENERATORS:
        device = str(tree.device) if kind is torch.Generator else ""
        position = _encode(generator_state(tree), path, tensors)
        return {TAG: "generator", "code": GENERATORS.index(kind), "position": position, "device": device}
    if (kind is np.ndarray or isinstance(tree, np.generic)) and tree.dtype.kind in "biufc":
        node = {TAG: "array", "array": tree.dtype.str, "shape": tree.shape, "is_scalar": kind is not np.ndarray}
        node["order"] = "F" if tree.flags.f_contiguous and not tree.flags.c_contiguous else "C"
        tensors.append((as_bytes(tree.tobytes(node["order"])), node))
        return node
    if kind not in (Tensor, nn.Parameter):
        rule = "it must be a tensor, an array, a plain value or a collection"
        raise ValueError(f"state{path} is of class {kind.__name__}; {rule}")
    if tree.layout is torch.sparse_coo:
        parts = [_encode(part, path, tensors) for part in (tree.detach()._indices(), tree.detach()._values())]
        return {TAG: "sparse", "parts": parts, "shape": list(tree.shape), "is_coalesced": tree.is_coalesced()}
    if tree.layout is not torch.strided or tree.is_quantized or tree.is_meta:
        words = "quantized" if tree.is_quantized else "on meta" if tree.is_meta else str(tree.layout)
        raise ValueError(f"state{path} is a tensor that is {words}; it must have strides and bytes of its own")
    node = {TAG: "tensor", "dtype": str(tree.dtype).removeprefix("torch."), "shape": list(tree.shape)}
    marks: dict[str, Any] = {"device": tree.device.type if tree.device.type != "cpu" else ""}
    marks |= {"requires_grad": tree.requires_grad and tree.is_leaf, "is_parameter": kind is nn.Parameter}
    node |= {key: mark for key, mark in marks.items() if mark}
    tensors.append((tree.detach().resolve_conj().resolve_neg(), node))
    return node


def _laid_out(tensors: Sequence[tuple[Tensor, dict]]) -> list[Tensor]:
    """Return the blobs to be written, and say in each tensor's JSON where in which of them it lies.

    Tensors with memory in common lie in one blob, so that they have it in common again.
    """
    is_dense = torch.ops.aten.is_non_overlapping_and_dense
    places = []  # storage, start, end, number
    for number, (tensor, _) in enumerate(tensors):
        steps = [(size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)]
        start, num_bytes = tensor.data_ptr(), (sum(steps) + 1) * tensor.itemsize if tensor.numel() else 0
        places.append((tensor.untyped_storage().data_ptr(), start, start + num_bytes, number))
    groups: list[list[Any]] = []  # storage, start, end, numbers
    for storage, start, end, number in sorted(places):
        if groups and storage == groups[-1][0] and start < min(end, groups[-1][2]):  # not for one without elements
            groups[-1][2] = max(end, groups[-1][2])
            groups[-1][3].append(number)
        else:
            groups.append([storage, start, end, [number]])
    blobs: list[Tensor] = []
    for _, begin, end, numbers in sorted(groups, key=lambda group: min(group[3])):  # equal states have equal bytes
        members = [tensors[number] for number in numbers]
        blob = members[0][0]
        if len(members) > 1:
            whole = max((tensor.untyped_storage() for tensor, _ in members), key=lambda storage: storage.nbytes())
            begin -= (begin - whole.data_ptr()) % ALIGNMENT_BYTES  # so that every member's start fits its dtype
            blob = torch.empty(0, dtype=torch.uint8, device=blob.device)
            blob.set_(whole, begin - whole.data_ptr(), (end - begin,), (1,))
        for tensor, node in members:
            node |= {"blob": len(blobs), "start": tensor.data_ptr() - begin}
            if not tensor.is_contiguous() and (len(members) > 1 or is_dense(tensor)):
                node["stride"] = tensor.stride()
        blobs.append(blob if is_dense(blob) else blob.contiguous())
    return blobs


class _Reader:
    """Undoes `_encode`."""

    def __init__(self, data: Tensor, sizes: Sequence[int], copy: bool):
        self._data, self._sizes, self._copy = data, sizes, copy
        self._starts = _starts(sizes)
        if sizes and (needed := self._starts[-2] + sizes[-1]) > data.numel():
            raise ValueError(f"data has {data.numel()} bytes of tensors; it must have at least {needed}")
        self._blobs: dict[tuple[int, str], Tensor] = {}
        self._tensors: dict[str, Tensor] = {}

    def tree(self, node: Any) -> Any:
        if isinstance(node, list):
            return [self.tree(item) for item in node]
        if not isinstance(node, dict):
            return node
        if TAG not in node:
            return {key: self.tree(value) for key, value in node.items()}
        match name := node[TAG]:
            case _ if name in MAPPING_NAMES:
                mapping: Any = MAPPING_NAMES[name]()
                if "factory" in node:
                    mapping.default_factory = FACTORIES[node["factory"]]
                for key, value in node["items"]:
                    mapping[self.tree(key)] = self.tree(value)
                if "attributes" in node:
                    vars(mapping).update(self.tree(node["attributes"]))
                return mapping
            case _ if name in SEQUENCE_NAMES:
                more = {"maxlen": node["maxlen"]} if "maxlen" in node else {}
                return SEQUENCE_NAMES[name](map(self.tree, node["items"]), **more)
            case _ if name in READERS:
                return READERS[name](node["base64"] if "base64" in node else node["text"])
            case "array":
                flat = self._blob(node["blob"], "cpu").numpy().view(node["array"])
                array = flat.reshape(node["shape"], order=node["order"])
                return array[()].copy() if node["is_scalar"] else array
            case "tensor":
                key = json.dumps(node)
                if key not in self._tensors:
                    self._tensors[key] = self._tensor(node)
                return self._tensors[key]
            case "sparse":
                indices, values = map(self.tree, node["parts"])
                choices = {"is_coalesced": node["is_coalesced"], "check_invariants": False}
                return torch.sparse_coo_tensor(indices, values, node["shape"], **choices)
            case "generator":
                kind, position = GENERATORS[node["code"]], self.tree(node["position"])
                if kind is torch.Generator:
                    generator: Any = torch.Generator(node["device"])
                elif kind is random.Random:
                    generator = random.Random()
                else:
                    generator = kind(getattr(np.random, position["bit_generator"])())
                restore_generator_(generator, position)
                return generator
        raise ValueError(f"data has a value of kind {name!r}; it must be a kind that pack_tree writes")

    def _blob(self, number: int, device: str) -> Tensor:
        """Return a blob's bytes, the same tensor to all that lie in it."""
        if (number, device) not in self._blobs:
            data = self._data[self._starts[number] :][: self._sizes[number]]
            if self._copy:
                is_there = device != "cuda" or torch.cuda.is_available()
                data = data.to(device if is_there else "cpu", copy=True)
            self._blobs[number, device] = data
        return self._blobs[number, device]

    def _tensor(self, node: dict[str, Any]) -> Tensor:
        dtype, shape = _dtype_named(node["dtype"]), node["shape"]
        data = self._blob(node["blob"], node.get("device", "cpu"))
        if 0 in shape:
            tensor = torch.empty(shape, dtype=dtype, device=data.device)
        else:
            data = data[node["start"] :]
            data = data[: data.numel() // dtype.itemsize * dtype.itemsize].view(dtype)
            is_strided = "stride" in node
            tensor = data.as_strided(shape, node["stride"]) if is_strided else data[: math.prod(shape)].view(shape)
        if node.get("is_parameter"):
            tensor = nn.Parameter(tensor, requires_grad=False)
        return tensor.requires_grad_() if node.get("requires_grad") else tensor


def _starts(sizes: Sequence[int]) -> list[int]:
    """Return where blobs of these bytes start, and where they end."""
    return [0, *accumulate(aligned(size, ALIGNMENT_BYTES) for size in sizes)]


def aligned(size: int, multiple: int) -> int:
    """Round a size up to a multiple."""
    return -(-size // multiple) * multiple
