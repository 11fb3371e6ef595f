"""Persistent storage, the last tier: checkpoints in a folder at any fsspec URL, without pickle.

A checkpoint is the two parts of each rank's image, in files named by their checksum, so that weights which are equal on
all ranks are stored once. The marker, written last by one rank, lists the parts: a checkpoint counts when it is there.
"""

import contextlib
import io
import json
import os
import re
import uuid
import warnings
from typing import Any

import fsspec
from torch import Tensor
from torch import distributed as dist

from workbench.checks import require_counts
from workbench.launch.agreement import tell_all

from .encoding import as_bytes, checksum
from .state import StateMismatch, TrainingState, image_of, parts_of

__all__ = ["MARKER", "PersistentTier", "StorageCorrupt"]

MARKER = "complete.json"  # a checkpoint without a valid marker does not count
FOLDER = re.compile(r"iteration-(\d{9,18})")
PART = re.compile(r"[0-9a-f]{32}")  # a checksum, the name of a part


class StorageCorrupt(RuntimeError):
    """Stored bytes are not those that were written, or are not there."""


class PersistentTier:
    """Checkpoints in one folder, such as "file:///data/run" or "s3://bucket/run"; `storage_options` are fsspec's.

    After each save all but the last complete checkpoints are removed.
    """

    def __init__(self, url: str, keep_last: int = 2, storage_options: dict[str, Any] | None = None):
        require_counts(1, keep_last=keep_last)
        self.url, self.keep_last = url, keep_last
        probe = f".probe-{uuid.uuid4().hex}"
        try:
            self._fs, root = fsspec.core.url_to_fs(url, **(storage_options or {}))
            self._root = root.rstrip("/")
            self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(f"{self._root}/{probe}", probe.encode())
            read_back = self._fs.cat_file(f"{self._root}/{probe}")
            self._fs.rm_file(f"{self._root}/{probe}")
        except Exception as error:  # whatever a storage system's client raises means that it cannot be written
            raise ValueError(f"url is {url!r}; it must be writable: {type(error).__name__}: {error}") from error
        if read_back != probe.encode():
            raise ValueError(f"url is {url!r}; it must give back the bytes that were written")

    def save(self, image: Tensor, iteration: int) -> None:
        """Store the image of this rank; every rank calls it, with the same iteration."""
        folder, in_group = self._folder(iteration), dist.is_initialized()
        rank = dist.get_rank() if in_group else 0

        def gathered(value: Any) -> list[Any]:
            return tell_all(value) if in_group else [value]  # all ranks have come then

        parts = [(checksum(part.numpy()).hex(), part) for part in parts_of(image)]
        names = gathered([name for name, _ in parts])
        if rank == 0:  # before anything that the marker of an earlier attempt vouches for is overwritten
            self._fs.makedirs(folder, exist_ok=True)
            self._remove(f"{folder}/{MARKER}")
        gathered(None)
        written = {name for of_rank in names[:rank] for name in of_rank}
        for name, part in parts:
            if name not in written:
                self._write(f"{folder}/{name}", part.numpy())
        gathered(None)
        if rank == 0:
            body = json.dumps({"iteration": iteration, "parts": names})
            marker = {"checksum": checksum(body.encode()).hex(), "body": body}
            self._write(f"{folder}/{MARKER}", json.dumps(marker).encode())
            # The checkpoints, complete or not, that are older than the last complete ones go; their markers first.
            complete = [other for other in self.iterations() if other <= iteration]
            for old in [old for old in self._folders() if old < complete[-self.keep_last :][0]]:
                self._remove(f"{self._folder(old)}/{MARKER}")
                self._remove(self._folder(old))

    def iterations(self) -> tuple[int, ...]:
        """List the complete checkpoints, oldest first; their markers are verified, their parts not yet."""
        complete = []
        for iteration in self._folders():
            with contextlib.suppress(StorageCorrupt):
                self._marker(iteration)
                complete.append(iteration)
        return tuple(complete)

    def read(self, state: TrainingState, iteration: int) -> Tensor:
        """Read the image of a state's rank, verified; StateMismatch for another number of ranks, StorageCorrupt."""
        names = self._marker(iteration)["parts"]
        if len(names) != state.world_size:
            raise StateMismatch(f"checkpoint: world_size is {len(names)}; this run's is {state.world_size}")
        parts = []
        for name in names[state.rank]:
            path = f"{self._folder(iteration)}/{name}"
            data = self._file(path)
            if checksum(data).hex() != name:
                raise StorageCorrupt(f"{path}: its checksum is not its name")
            parts.append(as_bytes(data))
        return image_of(*parts)

    def _marker(self, iteration: int) -> dict[str, Any]:
        """Read and verify a checkpoint's marker."""
        place = f"{self._folder(iteration)}/{MARKER}"
        # One that is half written, of another shape, or no text any more is the same as a wrong checksum.
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
            outer = json.loads(self._file(place))
            if checksum(outer["body"].encode()).hex() == outer["checksum"]:
                marker = json.loads(outer["body"])
                if all(PART.fullmatch(name) for shared, local in marker["parts"] for name in (shared, local)):
                    return marker
        raise StorageCorrupt(f"{place}: its checksum is wrong")

    def _file(self, path: str) -> bytes:
        """Read a regular file; StorageCorrupt for what a reader would wait for or be led away by."""
        try:
            about = self._fs.info(path)
            if about["type"] != "file" or about.get("islink"):
                warnings.warn(f"{path} is passed over: it is no regular file", stacklevel=2)
                raise StorageCorrupt(f"{path} is no regular file")
            return self._fs.cat_file(path)
        except OSError as error:
            is_absent = isinstance(error, FileNotFoundError) and path.endswith(MARKER)
            why = " is not there: the checkpoint is incomplete" if is_absent else f": {error}"
            raise StorageCorrupt(path + why) from error

    def _write(self, path: str, data: Any) -> None:
        """Write a file and, where the file system can, wait until it is on the disk."""
        with self._fs.open(path, "wb") as stream:
            stream.write(data)
            stream.flush()
            # Remote and in-memory files have no descriptor; closing them is what stores them.
            with contextlib.suppress(AttributeError, io.UnsupportedOperation):
                os.fsync(stream.fileno())

    def _folders(self) -> list[int]:
        self._fs.invalidate_cache()
        if not self._fs.exists(self._root):
            return []
        iterations = []
        for about in self._fs.ls(self._root, detail=True):
            name = FOLDER.fullmatch(about["name"].rstrip("/").rpartition("/")[2])
            if name and about["type"] == "directory" and not about.get("islink"):
                iterations.append(int(name[1]))
            elif name:
                warnings.warn(f"{about['name']} is passed over: it is no folder", stacklevel=2)
        return sorted(iterations)

    def _remove(self, path: str) -> None:
        if self._fs.exists(path):
            self._fs.rm(path, recursive=True)

    def _folder(self, iteration: int) -> str:
        return f"{self._root}/iteration-{iteration:09d}"
