"""Objects packed for another process: a cloudpickle and the large buffers beside it.

Tensors and arrays of 64 KiB and more, and the pickle itself when it is that large, lie in an
anonymous shared-memory file: it has no name, so nothing is left when a process is killed. The
receiver maps it copy-on-write, so one parcel to four ranks occupies memory once, and every
rank may change its tensors.

Source: pickle protocol 5 with out-of-band buffers (PEP 574); memfd_create(2).
Simplified: a CUDA tensor travels through host memory; a view carries its whole storage.
Left out: byte order, other machines.
"""

import ctypes
import io
import mmap
import os
import pickle
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

__all__ = ["INLINE_BYTES", "Handle", "Parcel", "SharedFile", "map_frames", "pack", "unpack"]

INLINE_BYTES = 1 << 16  # below a socket's buffer, so that sending to an idle rank never waits


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """Stands for an object that the ranks keep; arrives on a rank as that object."""

    name: str  # the name it was put under
    crew: str  # the set of ranks that keep it


@dataclass(frozen=True, kw_only=True, slots=True)
class Parcel:
    """A packed object: its pickle, then the buffers that are not part of the pickle."""

    frames: Sequence[memoryview]

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames."""
        return sum(frame.nbytes for frame in self.frames)

    @property
    def travels_shared(self) -> bool:
        """Whether it is too large for a socket's buffer."""
        return len(self.frames) > 1 or self.num_bytes > INLINE_BYTES


class _Pickler(cloudpickle.Pickler):
    def __init__(self, file: io.BytesIO, name_of: Callable[[Handle], str] | None):
        self.large: list[memoryview] = []
        self._name_of = name_of
        self._boxes: dict[int, _StorageBox] = {}
        super().__init__(file, protocol=5, buffer_callback=self._stays_inside)

    def _stays_inside(self, buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < INLINE_BYTES:
            return True
        self.large.append(raw)
        return False

    def persistent_id(self, obj: Any) -> str | None:
        return self._name_of(obj) if self._name_of and type(obj) is Handle else None

    def reducer_override(self, obj: Any) -> Any:
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, torch.UntypedStorage):
            return _same, (self._box(obj),)
        if torch is not None and isinstance(obj, torch.storage.TypedStorage):
            return _typed_storage, (self._box(obj._untyped_storage), obj.dtype)
        return super().reducer_override(obj)

    def _box(self, storage: Any) -> "_StorageBox":
        return self._boxes.setdefault(storage._cdata, _StorageBox(storage))


class _StorageBox:
    """Pickles one tensor storage once, so that views of it stay views of one storage."""

    def __init__(self, storage: Any):
        self._storage = storage

    def __reduce_ex__(self, protocol: int) -> Any:
        import torch

        storage = self._storage
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return _storage_from, (pickle.PickleBuffer(flat.cpu().numpy()), str(storage.device))


def _same(value: Any) -> Any:
    return value


def _storage_from(buffer: Any, device: str) -> Any:
    import torch

    if memoryview(buffer).nbytes == 0:
        return torch.UntypedStorage(0, device=device)
    return torch.frombuffer(buffer, dtype=torch.uint8).to(device).untyped_storage()


def _typed_storage(storage: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=storage, dtype=dtype, _internal=True)


class _Unpickler(pickle.Unpickler):
    def __init__(self, frames: Sequence[Any], object_named: Callable[[str], Any] | None):
        super().__init__(io.BytesIO(frames[0]), buffers=frames[1:])
        self._object_named = object_named

    def persistent_load(self, name: str) -> Any:
        if self._object_named is None:
            raise pickle.UnpicklingError(f"a handle ({name!r}) means nothing outside a rank")
        return self._object_named(name)


def pack(obj: Any, name_of: Callable[[Handle], str] | None = None) -> Parcel:
    """Pickle an object, functions of a notebook cell included, keeping large buffers apart.

    Args:
        obj: what to pack.
        name_of: gives a handle's name, or raises ValueError when it is no longer valid.

    Returns:
        Parcel that several channels may send; it refers to the object's own memory.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, name_of)
    pickler.dump(obj)
    return Parcel(frames=(file.getbuffer(), *pickler.large))


def unpack(frames: Sequence[Any], object_named: Callable[[str], Any] | None = None) -> Any:
    """Return the object of a parcel's frames.

    Args:
        frames: the pickle and its buffers.
        object_named: gives the object kept under a handle's name.
    """
    return _Unpickler(frames, object_named).load()


class SharedFile:
    """An anonymous file in memory that holds a parcel; frames start on whole pages."""

    def __init__(self, parcel: Parcel):
        self.fd = _anonymous_file()
        self.num_frames = len(parcel.frames)
        lengths = [frame.nbytes for frame in parcel.frames]
        starts, self.num_bytes = _layout(lengths)
        os.truncate(self.fd, self.num_bytes)
        _write(self.fd, memoryview(struct.pack(f"<{len(lengths)}Q", *lengths)), 0)
        for frame, start in zip(parcel.frames, starts, strict=True):
            _write(self.fd, frame.cast("B"), start)

    def close(self) -> None:
        """Let go of the file; it lives on while a receiver has it."""
        os.close(self.fd)


def _anonymous_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("workbench-message")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _layout(lengths: Sequence[int]) -> tuple[list[int], int]:
    starts, end = [], 8 * len(lengths)
    for length in lengths:
        start = -(-end // mmap.PAGESIZE) * mmap.PAGESIZE
        starts.append(start)
        end = start + length
    return starts, end


def _write(fd: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written


def _map(fd: int, offset: int, length: int) -> Any:
    # Python's own mmap keeps a descriptor for every mapping: results that are kept in a
    # notebook would use them up.
    if length == 0:
        return b""
    libc = _libc()
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = libc.mmap(None, length, protection, mmap.MAP_PRIVATE, fd, offset)
    if address in (None, ctypes.c_void_p(-1).value):
        reason = os.strerror(ctypes.get_errno())
        raise MemoryError(f"cannot map {length} bytes of a message: {reason}")
    mapped = (ctypes.c_ubyte * length).from_address(address)
    weakref.finalize(mapped, libc.munmap, address, length).atexit = False
    return mapped


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    integers = [ctypes.c_int] * 3
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *integers, ctypes.c_int64]
    libc.mmap.restype = ctypes.c_void_p
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return libc


def map_frames(fd: int, num_frames: int) -> list[Any]:
    """Map the frames of a shared file; each is unmapped when nothing refers to it any more.

    Args:
        fd: descriptor of the file, which may be closed afterwards.
        num_frames: number of frames in it.
    """
    lengths = struct.unpack(f"<{num_frames}Q", os.pread(fd, 8 * num_frames, 0))
    starts, _ = _layout(lengths)
    return [_map(fd, start, length) for start, length in zip(starts, lengths, strict=True)]
