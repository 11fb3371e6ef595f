"""How torch.distributed.checkpoint writes and reads this project's files at any fsspec URL, without pickle.

What: its writer and reader interfaces. Each rank writes one safetensors file of what the planner gave it (shards of
sharded tensors, its share of replicated ones); the marker, written last by one rank, lists every tensor with its place
and checksum. Torch's own fsspec writer pickles its list, and its safetensors one cannot leave the local disk.
Source: torch.distributed.checkpoint.storage (the interfaces); the safetensors format.
Simplified: one file a rank. Left out: values that are not tensors, which are refused; compression.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from workbench.techniques.gemini.runtime.checksums import checksum
from workbench.techniques.gemini.runtime.leaves import dtype_named, raw_bytes

__all__ = [
    "MARKER",
    "CheckpointReader",
    "CheckpointWriter",
    "StorageCorrupt",
    "read_entry",
    "read_marker",
    "write_file",
]

MARKER = "complete.json"  # A checkpoint without it, or whose content is not what it says of itself, does not count
# Torch's names -> the safetensors format's
DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
}


class StorageCorrupt(RuntimeError):
    """Stored bytes are not those that were written, or are not there."""


class CheckpointWriter(StorageWriter):
    """Writes one checkpoint."""

    def __init__(self, fs, folder: str, about: dict[str, Any]):
        self._fs, self._folder, self._about = fs, folder, about

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Accept any: the folder is given to the constructor."""
        return True

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between checkpoints."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remove a marker of an earlier attempt, before anything it vouches for is overwritten."""
        if is_coordinator and self._fs.exists(f"{self._folder}/{MARKER}"):
            self._fs.rm_file(f"{self._folder}/{MARKER}")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse values that torch would pickle."""
        odd = [item.index.fqn for item in plan.items if item.type == WriteItemType.BYTE_IO]
        if odd:
            raise ValueError(f"state: {odd[0]!r} is not a tensor")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name each rank's file."""
        return [replace(plan, storage_data=f"{index:05d}.safetensors") for index, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file and tell where each tensor lies in it."""
        tensors = {item.index: planner.resolve_data(item).detach().cpu().contiguous() for item in plan.items}
        header, start, results, data = {}, 0, [], []
        for index, tensor in tensors.items():
            data.append(raw_bytes(tensor).numpy())
            name, end = _name_in_file(index), start + len(data[-1])
            dtype = str(tensor.dtype).removeprefix("torch.")
            header[name] = {"dtype": DTYPES[dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
            entry = {"name": index.fqn, "dtype": dtype, "shape": list(tensor.shape)}
            entry["offsets"] = list(index.offset or [0] * tensor.dim())
            entry |= {"file": plan.storage_data, "start": start, "num_bytes": end - start}
            entry["checksum"] = checksum(data[-1]).hex()
            results.append(WriteResult(index=index, size_in_bytes=end - start, storage_data=entry))
            start = end
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)  # the format wants the data aligned
        before = 8 + len(text)
        for result in results:
            result.storage_data["start"] += before
        write_file(self._fs, f"{self._folder}/{plan.storage_data}", [len(text).to_bytes(8, "little"), text, *data])
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Write the marker; called on one rank when all files are written."""
        entries = []
        for result in (result for of_rank in results for result in of_rank):
            whole = list(metadata.state_dict_metadata[result.index.fqn].size)
            entries.append(result.storage_data | {"whole_shape": whole})
        body = json.dumps({**self._about, "entries": entries})
        text = json.dumps({"checksum": checksum(body.encode()).hex(), "body": body})
        write_file(self._fs, f"{self._folder}/{MARKER}", [text.encode()])


class CheckpointReader(StorageReader):
    """Reads one checkpoint, verifying each tensor that it reads."""

    def __init__(self, fs, folder: str, marker: dict[str, Any]):
        self._fs, self._folder, self._marker = fs, folder, marker
        self._entries = {MetadataIndex(entry["name"], entry["offsets"]): entry for entry in marker["entries"]}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Accept any: the folder is given to the constructor."""
        return True

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between checkpoints."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Turn the marker's list into torch's."""
        found: dict[str, TensorStorageMetadata] = {}
        for entry in self._marker["entries"]:
            properties = TensorProperties(dtype=dtype_named(entry["dtype"]))
            size = torch.Size(entry["whole_shape"])
            metadata = found.setdefault(entry["name"], TensorStorageMetadata(properties, size, []))
            metadata.chunks.append(ChunkStorageMetadata(torch.Size(entry["offsets"]), torch.Size(entry["shape"])))
        return Metadata(state_dict_metadata=found, storage_data=self._entries)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Nothing to change."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Nothing to change."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read what this rank asks for; StorageCorrupt if it is not what was written."""
        for item in plan.items:
            entry = self._entries[MetadataIndex(item.storage_index.fqn, item.storage_index.offset)]
            stored = read_entry(self._fs, self._folder, entry)
            for dim, (offset, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                stored = stored.narrow(dim, offset, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(stored)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done


def read_entry(fs, folder: str, entry: dict[str, Any]) -> Tensor:
    """Read and verify one stored tensor."""
    place = f"{folder}/{entry['file']}"
    if not entry["num_bytes"]:
        return torch.empty(entry["shape"], dtype=dtype_named(entry["dtype"]))
    try:
        data = bytearray(fs.cat_file(place, start=entry["start"], end=entry["start"] + entry["num_bytes"]))
    except OSError as error:
        raise StorageCorrupt(f"{place}: {error}") from error
    if checksum(data).hex() != entry["checksum"]:
        raise StorageCorrupt(f"{place}: the checksum of {entry['name']!r} is wrong")
    return torch.frombuffer(data, dtype=dtype_named(entry["dtype"])).reshape(entry["shape"])


def read_marker(fs, folder: str) -> dict[str, Any]:
    """Read and verify a checkpoint's marker."""
    place = f"{folder}/{MARKER}"
    try:
        text = fs.cat_file(place)
    except FileNotFoundError:
        raise StorageCorrupt(f"{place} is not there: the checkpoint is incomplete") from None
    try:
        outer = json.loads(text)
        if checksum(outer["body"].encode()).hex() == outer["checksum"]:
            return json.loads(outer["body"])
    except (ValueError, KeyError, TypeError, AttributeError):
        pass  # half written, or bytes that are no text any more: the same as a wrong checksum
    raise StorageCorrupt(f"{place}: its checksum is wrong")


def write_file(fs, path: str, parts: list) -> None:
    """Write a file and, where the file system can, wait until it is on the disk."""
    with fs.open(path, "wb") as stream:
        for part in parts:
            stream.write(part)
        stream.flush()
        try:
            os.fsync(stream.fileno())
        except (AttributeError, io.UnsupportedOperation):
            return  # remote and in-memory files have no descriptor; closing them is what stores them


def _name_in_file(index: MetadataIndex) -> str:
    """Tell shards apart that one rank may hold of one tensor."""
    return index.fqn if not index.offset or not any(index.offset) else f"{index.fqn}@{','.join(map(str, index.offset))}"
