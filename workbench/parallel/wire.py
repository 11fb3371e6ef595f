"""The bytes that this process has handed to TCP, from the kernel's counters (TCP_INFO; Linux 4.19 or later)."""

from __future__ import annotations

import os
import socket
import struct
import sys

__all__ = ["tcp_bytes_sent"]

# Offsets in struct tcp_info, in bytes: 8 one-byte fields, 24 of four bytes, then eight-byte and four-byte ones.
NOTSENT_OFFSET = 144  # tcpi_notsent_bytes, 32 bits: handed to TCP and not yet transmitted
BYTES_SENT_OFFSET = 200  # tcpi_bytes_sent, 64 bits: payload transmitted, repeats included
BYTES_RETRANS_OFFSET = 208  # tcpi_bytes_retrans, 64 bits: of those, repeats
TCP_INFO_BYTES = 256
SMALLEST_TCP_INFO_BYTES = BYTES_RETRANS_OFFSET + 8


def tcp_bytes_sent() -> int:
    """Return the payload bytes this process has handed to its open TCP sockets since they were opened.

    Bytes that wait in a send buffer count, bytes that TCP had to repeat count once, and packet headers do not
    count, so the difference of two calls is what the code in between wrote.

    Returns:
        bytes, summed over the sockets.

    Raises:
        RuntimeError: this is not Linux, or the kernel is older than 4.19.

    Source: tcp(7), TCP_INFO.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"tcp_bytes_sent reads Linux's TCP_INFO; this is {sys.platform}")
    return sum(_sent_by(descriptor) for descriptor in _open_files())


def _open_files() -> list[int]:
    return [int(name) for name in os.listdir("/proc/self/fd")]


def _sent_by(descriptor: int) -> int:
    """Return the bytes written to one open file, which is 0 unless it is a connected TCP socket."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return 0
        with socket.socket(fileno=os.dup(descriptor)) as twin:
            return _written(twin)
    except FileNotFoundError:  # the descriptor that listed the folder is closed by now
        return 0


def _written(twin: socket.socket) -> int:
    if twin.type != socket.SOCK_STREAM or twin.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    info = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < SMALLEST_TCP_INFO_BYTES:
        raise RuntimeError(f"tcp_bytes_sent needs Linux 4.19 or later; this kernel's TCP_INFO has {len(info)} bytes")
    (waiting,) = struct.unpack_from("=I", info, NOTSENT_OFFSET)
    sent, repeated = struct.unpack_from("=QQ", info, BYTES_SENT_OFFSET)
    return sent - repeated + waiting
