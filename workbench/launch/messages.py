"""Messages between the owner of a pool, its nursery and its ranks, over socket pairs.

A small object travels in the socket, a large one in a shared-memory file whose descriptor
travels in its place. Only inherited socket pairs carry messages: nothing is unpickled that
another user or another machine could have sent.
"""

import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

from workbench.launch.parcels import INLINE_BYTES, Parcel, SharedFile, map_frames, pack, unpack

__all__ = ["CannotUnpack", "Channel", "channel_pair"]

SOCKET_BUFFER_BYTES = 4 * INLINE_BYTES  # macOS gives 8 KiB unless asked
HEADER = struct.Struct("<?QQ")  # whether shared, number of frames, number of bytes
MAX_FDS = 8  # descriptors one message may carry
CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)


class CannotUnpack(ValueError):
    """A message arrived whole, but its object cannot be made here; `__cause__` says why."""


class Channel:
    """One end of a socket pair that carries Python objects.

    Args:
        end: a connected Unix stream socket; the channel owns it.
    """

    def __init__(self, end: socket.socket):
        self._socket = end

    def fileno(self) -> int:
        """Return the descriptor, to wait for or to hand on."""
        return self._socket.fileno()

    def send(self, obj: Any, fds: Sequence[int] = ()) -> None:
        """Send an object, and descriptors that arrive as duplicates.

        Raises:
            OSError: if the other end is closed.
        """
        self.send_parcel(pack(obj), fds)

    def send_parcel(self, parcel: Parcel, fds: Sequence[int] = ()) -> None:
        """Send what was packed before."""
        if parcel.travels_shared:
            shared = SharedFile(parcel)
            try:
                self.send_shared(shared, fds)
            finally:
                shared.close()
            return
        header = HEADER.pack(False, 1, parcel.num_bytes)
        socket.send_fds(self._socket, [header], fds)
        self._socket.sendall(parcel.frames[0])

    def send_shared(self, shared: SharedFile, fds: Sequence[int] = ()) -> None:
        """Send a shared file that several channels may be given."""
        header = HEADER.pack(True, shared.num_frames, shared.num_bytes)
        socket.send_fds(self._socket, [header], [shared.fd, *fds])

    def receive(self, object_named: Callable[[str], Any] | None = None) -> Any:
        """Wait for an object.

        Raises:
            CannotUnpack: if its pickle cannot be read; the channel stays usable.
            EOFError: if the other end was closed.
        """
        return self.receive_with_fds(object_named)[0]

    def receive_with_fds(self, object_named: Callable[[str], Any] | None = None) -> tuple[Any, list[int]]:
        """Wait for an object and return it with the descriptors sent beside it.

        Args:
            object_named: gives the object that a handle stands for.

        Raises:
            CannotUnpack: if its pickle cannot be read; the channel stays usable.
            EOFError: if the other end was closed.
        """
        flags = socket.MSG_WAITALL | CLOSE_ON_EXEC
        header, fds, _, _ = socket.recv_fds(self._socket, HEADER.size, MAX_FDS, flags)
        if len(header) < HEADER.size:
            raise EOFError("the other end of the channel was closed")
        shared, num_frames, num_bytes = HEADER.unpack(header)
        frames = map_frames(fds[0], num_frames) if shared else [self._read(num_bytes)]
        if shared:
            socket.close(fds.pop(0))
        try:
            return unpack(frames, object_named), list(fds)
        except Exception as error:
            raise CannotUnpack(f"{type(error).__name__}: {error}") from error

    def _read(self, num_bytes: int) -> bytearray:
        data = bytearray(num_bytes)
        got = self._socket.recv_into(data, num_bytes, socket.MSG_WAITALL)
        if got < num_bytes:
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
