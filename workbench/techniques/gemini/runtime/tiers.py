"""Persistent storage, the tier that is left when memory is lost: at any fsspec URL, by torch.distributed.checkpoint.

    tier = PersistentTier("s3://bucket/run", keep_last=2)     # ValueError if it cannot be written to
    tier.save(state, iteration)                               # on all ranks
    image = tier.read(state, tier.iterations()[-1])           # on each rank; verified; then resume_(state, image, ...)

What: sharded tensors are stored as torch.distributed.checkpoint stores them, so that its own `load` can read them into
any number of ranks (for other purposes than recovery); of tensors that are equal on all ranks one copy is stored, and
what differs (random numbers, buffers) once a rank. A checkpoint counts when its marker is there, which lists a checksum
of every tensor and of every rank's whole image.
Source: thesis, chapter 6 (Gemini), section 6.3.1 (hierarchical storage), 6.7.1 (every three hours).
Simplified: training waits while it is written. Left out: recovery into another number of ranks.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import fsspec
import torch
from torch import Tensor
from torch import distributed as dist
from torch.distributed import checkpoint
from torch.distributed.tensor import DTensor

from workbench.techniques.gemini.runtime.checksums import checksum
from workbench.techniques.gemini.runtime.layout import Entry, StateLayout, StateMismatch
from workbench.techniques.gemini.runtime.leaves import raw_bytes
from workbench.techniques.gemini.runtime.state import TrainingState
from workbench.techniques.gemini.runtime.storage_files import (
    MARKER,
    CheckpointReader,
    CheckpointWriter,
    StorageCorrupt,
    read_entry,
    read_marker,
    write_file,
)

__all__ = ["PersistentTier", "StorageCorrupt"]

FOLDER = re.compile(r"iteration-(\d+)$")


class PersistentTier:
    """Checkpoints in one folder of a storage system."""

    def __init__(self, url: str, keep_last: int = 2, storage_options: dict[str, Any] | None = None):
        if keep_last < 1:
            raise ValueError(f"keep_last: {keep_last} must be at least 1")
        self.url, self.keep_last = url, keep_last
        self._fs, self._root = _writable(url, storage_options or {})

    def save(self, state: TrainingState, iteration: int) -> None:
        """Store an iteration; every rank calls it, with the same iteration."""
        state.capture(iteration)
        tensors = {f"{_own(state.rank)}head": state.head}
        live = state.tensors()
        own = _gathered(_checksums(live))
        for name, tensor in live.items():
            is_shared = isinstance(tensor, DTensor) or all(of_rank.get(name) == own[0].get(name) for of_rank in own)
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
        """List the complete checkpoints, oldest first. Their markers are verified, not yet what these list."""
        found = []
        for iteration in self._folders():
            try:
                read_marker(self._fs, self._folder(iteration))
            except StorageCorrupt:
                continue
            found.append(iteration)
        return tuple(found)

    def read(self, state: TrainingState, iteration: int) -> Tensor:
        """Read this rank's image of an iteration; each rank by itself, since others may be served by faster tiers."""
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
            wanted = {key: tensor for key, (tensor, _) in targets.items()}
            checkpoint.load(wanted, storage_reader=reader, no_dist=True)
        for tensor, place in targets.values():
            local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
            if local.data_ptr() != place.data_ptr():
                place.copy_(local)  # a mesh of GPUs moved it there
        if checksum(image.numpy()).hex() != marker["images"][state.rank]:
            raise StorageCorrupt(f"{folder}: rank {state.rank}'s image is not the one that was written")
        return image

    def load_(self, state: TrainingState, iteration: int) -> int:
        """Read an iteration and put it in place; see `read` and `TrainingState.load_`."""
        return state.load_(self.read(state, iteration))

    def faults(self) -> dict[int, str]:
        """Say why checkpoints that were begun do not count: iteration -> reason."""
        found = {}
        for iteration in self._folders():
            try:
                read_marker(self._fs, self._folder(iteration))
            except StorageCorrupt as error:
                found[iteration] = str(error)
        return found

    def _targets(
        self, state: TrainingState, layout: StateLayout, image: Tensor, stored: dict[str, Any]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """View an image as the tensors to be read: key -> what is read into, and its place in the image."""
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
        """Remove what is older than the last complete ones, complete or not; the marker first."""
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


def _sharded(state: TrainingState, entry: Entry, place: Tensor) -> DTensor:
    """Wrap a place in the image as the shard that this rank holds of a tensor."""
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
        found = fs.cat_file(f"{root}/{probe}")
        fs.rm_file(f"{root}/{probe}")
    except Exception as error:  # whatever a storage system's client raises means that it cannot be written
        raise ValueError(f"url: {url!r} cannot be written to: {type(error).__name__}: {error}") from error
    if found != probe.encode():
        raise ValueError(f"url: {url!r} gives back other bytes than were written")
    return fs, root


def _checksums(live: dict[str, Tensor]) -> dict[str, str]:
    """Give the checksum of each tensor that is not sharded, to see which are equal on all ranks."""
    return {
        name: checksum(raw_bytes(tensor).cpu().numpy()).hex()
        for name, tensor in live.items()
        if not isinstance(tensor, DTensor)
    }


def _gathered(value: Any) -> list[Any]:
    """Give every rank's value, in rank order."""
    if not _in_group():
        return [value]
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _in_group() -> bool:
    return dist.is_available() and dist.is_initialized()


@contextlib.contextmanager
def _single_process_allowed() -> Iterator[None]:
    """Let one process without a process group save and load, which torch warns of."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield


def _own(rank: int) -> str:
    """Begin the name of what only one rank has."""
    return f"rank-{rank}/"
