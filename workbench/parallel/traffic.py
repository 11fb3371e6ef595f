"""A ledger of messages: one entry for every collective or point-to-point message of a group.

An entry counts the bytes that *one* rank contributes; `workbench.cluster` turns them into bytes on the wire.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from torch import Tensor

__all__ = ["Message", "MessageKind", "Phase", "Traffic", "tcp_bytes_sent"]


class MessageKind(StrEnum):
    """The kind of a message."""

    SUM = "sum"  # all-reduce of partial results
    GATHER = "gather"  # all-gather of messages
    COPY_BACKWARD = "copy-backward"  # all-reduce of the gradient of a replicated input
    BROADCAST = "broadcast"  # one rank's tensor to all others
    REDUCE = "reduce"  # sum of partial results on one rank
    SEND = "send"  # one tensor from one rank to another, such as over a pipeline boundary


class Phase(StrEnum):
    """The pass in which a message travels."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclass(frozen=True, kw_only=True, slots=True)
class Message:
    """One entry of the ledger."""

    what: MessageKind  # kind of message
    phase: Phase  # pass in which it travelled
    message_bytes: int  # bytes that one rank contributes
    num_ranks: int  # ranks that took part
    site: str  # call site, such as "layers.3.attention.output"; empty if none was named

    def __post_init__(self):
        if self.message_bytes < 0:
            raise ValueError(f"message_bytes: {self.message_bytes} is negative")
        if self.num_ranks < 2:
            raise ValueError(f"num_ranks: {self.num_ranks}; a message takes at least 2")


class Traffic:
    """The messages of one group, in the order in which they were sent."""

    def __init__(self):
        self.messages: list[Message] = []
        self.site = ""
        self.phase = Phase.FORWARD

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    @contextmanager
    def at(self, site: str, phase: Phase = Phase.FORWARD) -> Iterator[None]:
        """Name the call site of the messages recorded inside the block."""
        outer = self.site, self.phase
        self.site, self.phase = site, phase
        try:
            yield
        finally:
            self.site, self.phase = outer

    def record(
        self, what: MessageKind, tensor: Tensor, num_ranks: int, phase: Phase | None = None, site: str | None = None
    ) -> None:
        """Enter one tensor, by default at the site and in the phase that `at` named; one rank alone sends nothing."""
        if num_ranks > 1:
            self.messages.append(
                Message(
                    what=what,
                    phase=self.phase if phase is None else phase,
                    message_bytes=tensor.numel() * tensor.element_size(),
                    num_ranks=num_ranks,
                    site=self.site if site is None else site,
                )
            )

    def num_bytes(self, *, what: str | None = None, phase: str | None = None, site: str = "") -> int:
        """Add up the bytes that one rank contributed, of one kind, one pass, and sites that contain a text."""
        return sum(
            message.message_bytes
            for message in self.messages
            if (what is None or message.what == what)
            and (phase is None or message.phase == phase)
            and site in message.site
        )

    def clear(self) -> None:
        """Forget all messages."""
        self.messages.clear()


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

    Raises:
        RuntimeError: this is not Linux, or the kernel is older than 4.19.

    Source: tcp(7), TCP_INFO.
    """
    if not sys.platform.startswith("linux"):
        raise RuntimeError(f"tcp_bytes_sent reads Linux's TCP_INFO; this is {sys.platform}")
    return sum(_sent_by(int(name)) for name in os.listdir("/proc/self/fd"))


def _sent_by(descriptor: int) -> int:
    """Return the bytes written to one open file, which is 0 unless it is a connected TCP socket."""
    try:
        if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
            return 0
    except FileNotFoundError:  # the descriptor that listed the folder is closed by now
        return 0
    with socket.socket(fileno=os.dup(descriptor)) as twin:
        if twin.type != socket.SOCK_STREAM or twin.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        info = twin.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO_BYTES)
    if len(info) < SMALLEST_TCP_INFO_BYTES:
        raise RuntimeError(f"tcp_bytes_sent needs Linux 4.19 or later; this kernel's TCP_INFO has {len(info)} bytes")
    (waiting,) = struct.unpack_from("=I", info, NOTSENT_OFFSET)
    sent, repeated = struct.unpack_from("=QQ", info, BYTES_SENT_OFFSET)
    return sent - repeated + waiting
