"""Messages over socket pairs: an object is pickled with cloudpickle, its large buffers travel in shared memory.

The shared memory has no name, so nothing is left when a process is killed. The receiver maps it copy-on-write: one
message to four ranks occupies memory once, and every rank may change its tensors.
"""

import ctypes
import io
import mmap
import os
import pickle
import socket
import struct
import sys
import tempfile
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from workbench.launch.main_of_rank import ByValuePickler

__all__ = ["INLINE_BYTES", "CannotUnpack", "Channel", "Handle", "Message", "NotAMessage", "SharedFile"]
__all__ += ["anonymous_file", "channel_pair", "pack", "unpack"]

INLINE_BYTES = 1 << 16  # below a socket's buffer, so that sending to an idle rank never waits
SOCKET_BUFFER_BYTES = 4 * INLINE_BYTES  # macOS gives 8 KiB unless asked
HEADER = struct.Struct("<4s?QQ")  # magic, whether shared, number of frames, number of bytes
MAGIC = b"wbm1"
MAX_FDS = 8  # descriptors one message may carry
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class NotAMessage(ValueError):
    """What arrived was not written by the other end's channel; what follows cannot be read either."""


class CannotUnpack(ValueError):
    """A message arrived whole, but its object cannot be made here; `__cause__` says why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Handle:
    """Stands for an object that the ranks keep; arrives on a rank as that object."""

    name: str  # the name it was put under
    group: str  # the worker group that keeps it


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """A pickled object."""

    frames: Sequence[memoryview]  # the pickle, then the buffers that are not part of it

    @property
    def num_bytes(self) -> int:
        """Bytes of all frames."""
        return sum(frame.nbytes for frame in self.frames)

    @property
    def is_shared(self) -> bool:
        """Whether it travels in shared memory, because a socket's buffer may not hold it."""
        return len(self.frames) > 1 or self.num_bytes > INLINE_BYTES


def pack(obj: Any, name_of: Callable[[Handle], str] | None = None) -> Message:
    """Pickle an object, functions of a notebook cell included; the message refers to the object's own memory.

    `name_of` gives a handle's name, or raises ValueError when the handle is no longer valid.
    """
    file = io.BytesIO()
    pickler = _Pickler(file, name_of)
    pickler.dump(obj)
    return Message(frames=(file.getbuffer(), *pickler.large))


def unpack(frames: Sequence[Any], object_named: Callable[[str], Any] | None = None) -> Any:
    """Return the object of a message's frames; `object_named` gives the object kept under a handle's name."""
    return _Unpickler(frames, object_named).load()


class Channel:
    """One end of a socket pair that carries Python objects; the channel owns the socket."""

    def __init__(self, end: socket.socket):
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, to wait for or to hand on."""
        return self._socket.fileno()

    def send(self, obj: Any, fds: Sequence[int] = ()) -> None:
        """Send an object, and descriptors that arrive as duplicates; OSError if the other end is closed."""
        self.send_message(pack(obj), fds)

    def send_message(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send what was pickled before."""
        if message.is_shared:
            shared = SharedFile(message)
            try:
                self.send_shared(shared, fds)
            finally:
                shared.close()
            return
        header = HEADER.pack(MAGIC, False, 1, message.num_bytes)
        socket.send_fds(self._socket, [header], fds)
        self._socket.sendall(message.frames[0])

    def send_shared(self, shared: "SharedFile", fds: Sequence[int] = ()) -> None:
        """Send a shared file that several channels may be given."""
        header = HEADER.pack(MAGIC, True, shared.num_frames, shared.num_bytes)
        socket.send_fds(self._socket, [header], [shared.fd, *fds])

    def receive(self, object_named: Callable[[str], Any] | None = None) -> Any:
        """Wait for an object; raises as `receive_with_fds`."""
        return self.receive_with_fds(object_named)[0]

    def receive_with_fds(self, object_named: Callable[[str], Any] | None = None) -> tuple[Any, list[int]]:
        """Wait for an object and return it with the descriptors sent beside it.

        CannotUnpack, after which the channel stays usable, if its pickle cannot be read; EOFError if the other end was
        closed; NotAMessage if something else wrote there.
        """
        header, fds, _, _ = socket.recv_fds(self._socket, HEADER.size, MAX_FDS, CLOSE_ON_EXEC)
        if not header:
            raise EOFError("the other end of the channel was closed")
        if not header.startswith(MAGIC[: len(header)]):
            raise _not_a_message(header, fds)
        if len(header) < HEADER.size:
            header += self._read(HEADER.size - len(header))
        _, shared, num_frames, num_bytes = HEADER.unpack(header)
        if not fds if shared else num_bytes > INLINE_BYTES:
            raise _not_a_message(header, fds)
        frames = _map_frames(fds[0], num_frames) if shared else [self._read(num_bytes)]
        if shared:
            os.close(fds.pop(0))
        try:
            return unpack(frames, object_named), list(fds)
        except Exception as error:
            raise CannotUnpack(f"{type(error).__name__}: {error}") from error

    def _read(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        if self._socket.recv_into(data, num_bytes, socket.MSG_WAITALL) < num_bytes:
            raise EOFError("the other end of the channel was closed")
        return data

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def channel_pair() -> tuple[Channel, Channel]:
    """Return the two ends of a new channel."""
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
    return Channel(ends[0]), Channel(ends[1])


class SharedFile:
    """An anonymous file in memory that holds a message; frames start on whole pages."""

    def __init__(self, message: Message):
        self.fd = anonymous_file("workbench-message")
        self.num_frames = len(message.frames)
        lengths = [frame.nbytes for frame in message.frames]
        starts, self.num_bytes = _layout(lengths)
        os.truncate(self.fd, self.num_bytes)
        _write(self.fd, memoryview(struct.pack(f"<{len(lengths)}Q", *lengths)), 0)
        for frame, start in zip(message.frames, starts, strict=True):
            _write(self.fd, frame.cast("B"), start)

    def close(self) -> None:
        """Let go of the file; it lives on while a receiver has it."""
        os.close(self.fd)


def anonymous_file(name: str) -> int:
    """Return the descriptor of a new file without a path, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Pickler(ByValuePickler):
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

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        import torch

        storage = self._storage
        flat = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        array: Any = flat.cpu().numpy()  # its type in NumPy is not that of a buffer
        return _storage_from, (pickle.PickleBuffer(array), str(storage.device))


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


def _not_a_message(header: bytes, fds: Sequence[int]) -> NotAMessage:
    for fd in fds:
        os.close(fd)
    return NotAMessage(f"{bytes(header)!r} is no message of the workbench; something else has written to its socket")


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
    # Python's own mmap keeps a descriptor for every mapping: results kept in a notebook would use them up.
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


def _map_frames(fd: int, num_frames: int) -> list[Any]:
    """Map the frames of a shared file; each is unmapped when nothing refers to it any more."""
    lengths = struct.unpack(f"<{num_frames}Q", os.pread(fd, 8 * num_frames, 0))
    starts, _ = _layout(lengths)
    return [_map(fd, start, length) for start, length in zip(starts, lengths, strict=True)]
