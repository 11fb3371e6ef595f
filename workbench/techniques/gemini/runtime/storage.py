"""Persistent storage, the last tier: checkpoints at any fsspec URL, by torch.distributed.checkpoint, without pickle.

The marker, written last by one rank, lists a checksum of every tensor and image: a checkpoint counts when it is there.
"""

import contextlib
import io
import itertools
import json
import os
import re
import uuid
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import fsspec
import torch
from safetensors.torch import save as in_safetensors
from torch import Tensor
from torch import distributed as dist
from torch.distributed import checkpoint
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
from torch.distributed.tensor import DTensor
from torch.futures import Future

from workbench.techniques.gemini.method.checks import require_counts

from .agreement import tell_all
from .encoding import as_bytes, checksum, dtype_named, raw_bytes
from .layout import Entry, StateLayout, StateMismatch, local_of
from .state import TrainingState

__all__ = ["MARKER", "CheckpointReader", "PersistentTier", "StorageCorrupt", "read_marker"]

MARKER = "complete.json"  # a checkpoint without a valid marker does not count
FOLDER = re.compile(r"iteration-(\d+)$")


class StorageCorrupt(RuntimeError):
    """Stored bytes are not those that were written, or are not there."""


class _Folder:
    """The part of torch's interfaces in which there is nothing to do."""

    def __init__(self, fs, folder: str):
        self._fs, self._folder = fs, folder

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return True  # the folder is given to the constructor

    def reset(self, checkpoint_id: Any = None) -> None:
        """Nothing is kept between checkpoints."""

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    prepare_global_plan = prepare_local_plan


class CheckpointWriter(_Folder, StorageWriter):
    """Writes one checkpoint."""

    def __init__(self, fs, folder: str, about: dict[str, Any]):
        super().__init__(fs, folder)
        self._about = about

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Remove a marker of an earlier attempt, before anything it vouches for is overwritten."""
        if is_coordinator and self._fs.exists(f"{self._folder}/{MARKER}"):
            self._fs.rm_file(f"{self._folder}/{MARKER}")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuse values that torch would pickle."""
        pickled = [item.index.fqn for item in plan.items if item.type == WriteItemType.BYTE_IO]
        if pickled:
            raise ValueError(f"state[{pickled[0]!r}] is pickled by torch; it must be a tensor")
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Name each rank's file."""
        return [replace(plan, storage_data=f"{index:05d}.safetensors") for index, plan in enumerate(plans)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write this rank's file and return the place of each tensor in it."""
        tensors = {item.index: planner.resolve_data(item).detach().cpu().contiguous() for item in plan.items}
        file = in_safetensors({_name_in_file(index): tensor for index, tensor in tensors.items()})
        before = 8 + int.from_bytes(file[:8], "little")
        header = json.loads(file[8:before])
        write_file(self._fs, f"{self._folder}/{plan.storage_data}", [file])
        results = []
        for index, tensor in tensors.items():
            start, end = (before + place for place in header[_name_in_file(index)]["data_offsets"])
            entry = {"name": index.fqn, "dtype": str(tensor.dtype).removeprefix("torch."), "shape": list(tensor.shape)}
            entry |= {"offsets": list(index.offset or [0] * tensor.dim()), "checksum": checksum(file[start:end]).hex()}
            entry |= {"file": plan.storage_data, "start": start, "num_bytes": end - start}
            results.append(WriteResult(index=index, size_in_bytes=end - start, storage_data=entry))
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


class CheckpointReader(_Folder, StorageReader):
    """Reads one checkpoint, verifying each tensor that it reads."""

    def __init__(self, fs, folder: str, marker: dict[str, Any]):
        super().__init__(fs, folder)
        self._marker = marker
        self._entries = {MetadataIndex(entry["name"], entry["offsets"]): entry for entry in marker["entries"]}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Turn the marker's list into torch's."""
        tensors: dict[str, TensorStorageMetadata] = {}
        for entry in self._marker["entries"]:
            properties = TensorProperties(dtype=dtype_named(entry["dtype"]))
            size = torch.Size(entry["whole_shape"])
            metadata = tensors.setdefault(entry["name"], TensorStorageMetadata(properties, size, []))
            metadata.chunks.append(ChunkStorageMetadata(torch.Size(entry["offsets"]), torch.Size(entry["shape"])))
        return Metadata(state_dict_metadata=tensors, storage_data=self._entries)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to prepare."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the planned parts of tensors; StorageCorrupt if one was changed."""
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
    end = entry["start"] + entry["num_bytes"]
    try:
        data = fs.cat_file(place, start=entry["start"], end=end) if entry["num_bytes"] else b""
    except OSError as error:
        raise StorageCorrupt(f"{place}: {error}") from error
    if checksum(data).hex() != entry["checksum"]:
        raise StorageCorrupt(f"{place}: the checksum of {entry['name']!r} is wrong")
    return as_bytes(data).view(dtype_named(entry["dtype"])).reshape(entry["shape"])


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
        pass  # half written, or no text any more: the same as a wrong checksum
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


class PersistentTier:
    """Checkpoints in one folder, such as "file:///data/run" or "s3://bucket/run"; `storage_options` are fsspec's.

    torch.distributed.checkpoint's own `load` can read the sharded tensors into any number of ranks; of tensors that are
    equal on all ranks one copy is stored. After each save all but the last complete checkpoints are removed.
    """

    def __init__(self, url: str, keep_last: int = 2, storage_options: dict[str, Any] | None = None):
        require_counts(1, keep_last=keep_last)
        self.url, self.keep_last = url, keep_last
        self._fs, self._root = _writable(url, storage_options or {})

    def save(self, state: TrainingState, iteration: int) -> None:
        """Store an iteration; every rank calls it, with the same iteration."""
        state.capture(iteration)
        tensors = {f"{_own(state.rank)}head": state.head}
        live = state.tensors()
        plain = {name: tensor for name, tensor in live.items() if not isinstance(tensor, DTensor)}
        checksums = _gathered({name: checksum(raw_bytes(t).cpu().numpy()).hex() for name, t in plain.items()})
        for name, tensor in live.items():
            is_shared = all(of_rank.get(name) == checksums[0].get(name) for of_rank in checksums)  # or sharded
            tensors[name if is_shared else _own(state.rank) + name] = tensor.detach()
        images = _gathered(checksum(*(view.cpu().numpy() for view in state.views(0, state.num_bytes))).hex())
        about = {"iteration": iteration, "world_size": state.world_size, "images": images}
        folder = self._folder(iteration)
        self._fs.makedirs(folder, exist_ok=True)
        with _single_process_allowed():
            checkpoint.save(tensors, storage_writer=CheckpointWriter(self._fs, folder, about))
        if state.rank == 0:
            self._remove_old(iteration)

    def iterations(self) -> tuple[int, ...]:
        """List the complete checkpoints, oldest first; their markers are verified, their tensors not yet."""
        complete = []
        for iteration in self._folders():
            try:
                read_marker(self._fs, self._folder(iteration))
            except StorageCorrupt:
                continue
            complete.append(iteration)
        return tuple(complete)

    def read(self, state: TrainingState, iteration: int) -> Tensor:
        """Read this rank's image of an iteration, alone; StateMismatch, StorageCorrupt or CheckpointException."""
        folder = self._folder(iteration)
        marker = read_marker(self._fs, folder)
        if marker["world_size"] != state.world_size:
            raise StateMismatch(f"checkpoint: world_size is {marker['world_size']}; this run's is {state.world_size}")
        entries = {entry["name"]: entry for entry in marker["entries"]}
        head = read_entry(self._fs, folder, entries[f"{_own(state.rank)}head"])
        layout = StateLayout.read(head)
        state.check_layout(layout)
        image = torch.zeros(layout.num_bytes, dtype=torch.uint8)
        image[: head.numel()] = head
        targets = self._targets(state, layout, image, entries)
        reader = CheckpointReader(self._fs, folder, marker)
        with _single_process_allowed():
            tensors = {key: tensor for key, (tensor, _) in targets.items()}
            checkpoint.load(tensors, storage_reader=reader, no_dist=True)
        for tensor, place in targets.values():
            local = local_of(tensor)
            if local.data_ptr() != place.data_ptr():
                place.copy_(local)  # a mesh of GPUs moved it there
        if checksum(image.numpy()).hex() != marker["images"][state.rank]:
            raise StorageCorrupt(f"{folder}: rank {state.rank}'s image is not the one that was written")
        return image

    def _targets(
        self, state: TrainingState, layout: StateLayout, image: Tensor, stored: dict[str, Any]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """View an image as the tensors to be read: key -> tensor to read into, and its place in the image."""
        targets = {}
        for entry in layout.entries:
            part = image[entry.offset : entry.offset + entry.num_bytes].view(getattr(torch, entry.dtype))
            place = part.as_strided(entry.shape, entry.stride)
            key = entry.name if entry.name in stored else _own(state.rank) + entry.name
            targets[key] = (_sharded(state, entry, place) if entry.placements else place, place)
        return targets

    def _folders(self) -> list[int]:
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return []
        matches = (FOLDER.search(path.rstrip("/")) for path in self._fs.ls(self._root, detail=False))
        return sorted(int(match[1]) for match in matches if match)

    def _remove_old(self, newest: int) -> None:
        """Remove the checkpoints, complete or not, that are older than the last complete ones; the marker first."""
        complete = [iteration for iteration in self.iterations() if iteration <= newest]
        oldest_kept = complete[-self.keep_last :][0]
        for iteration in self._folders():
            if iteration < oldest_kept:
                folder = self._folder(iteration)
                if self._fs.exists(f"{folder}/{MARKER}"):
                    self._fs.rm_file(f"{folder}/{MARKER}")
                self._fs.rm(folder, recursive=True)

    def _folder(self, iteration: int) -> str:
        return f"{self._root}/iteration-{iteration:09d}"


def _name_in_file(index: MetadataIndex) -> str:
    """Name a shard; one rank may hold several of one tensor."""
    return f"{index.fqn}@{','.join(map(str, index.offset))}" if any(index.offset or ()) else index.fqn


def _sharded(state: TrainingState, entry: Entry, place: Tensor) -> DTensor:
    parameter = state.parameter_of(entry)
    stride = tuple(itertools.accumulate((1, *entry.whole_shape[:0:-1]), lambda a, b: a * b))[::-1]
    return DTensor.from_local(
        place,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=torch.Size(entry.whole_shape),
        stride=stride,
    )


def _writable(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    """Open a URL, and write, read and remove a file there, or refuse it."""
    probe = f".probe-{uuid.uuid4().hex}"
    try:
        fs, root = fsspec.core.url_to_fs(url, **options)
        root = root.rstrip("/")
        fs.makedirs(root, exist_ok=True)
        write_file(fs, f"{root}/{probe}", [probe.encode()])
        read_back = fs.cat_file(f"{root}/{probe}")
        fs.rm_file(f"{root}/{probe}")
    except Exception as error:  # whatever a storage system's client raises means that it cannot be written
        raise ValueError(f"url is {url!r}; it must be writable: {type(error).__name__}: {error}") from error
    if read_back != probe.encode():
        raise ValueError(f"url is {url!r}; it must give back the bytes that were written")
    return fs, root


def _gathered(value: Any) -> list[Any]:
    return tell_all(value) if dist.is_available() and dist.is_initialized() else [value]


@contextlib.contextmanager
def _single_process_allowed() -> Iterator[None]:
    """Let one process without a process group save and load, which torch warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _own(rank: int) -> str:
    """Return the beginning of the names of one rank's own tensors."""
    return f"rank-{rank}/"
