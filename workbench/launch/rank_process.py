"""A rank as its owner sees it: its messages, its output line by line, its stack dumps, and its process."""

import codecs
import collections
import contextlib
import io
import os
import signal
import socket
import sys
from collections.abc import Sequence
from typing import TextIO

from workbench.launch.failures import own_frames
from workbench.launch.messages import CannotUnpack, Channel, NotAMessage
from workbench.launch.processes import Listener, is_readable
from workbench.launch.protocol import RankSaid, RankStarted

__all__ = ["RankOutput", "RankProcess"]

LAST_LINES = 20  # kept for the report of a rank that dies
CHUNK_BYTES = 1 << 16  # the size of a pipe
MOST_CHARACTERS = 1 << 20  # of a line, which is shown in pieces; one read more may be in it
MOST_STACK_BYTES = 1 << 20  # of a stack dump; faulthandler stops after 100 frames a thread


class RankProcess:
    """A rank that was started, by the message of its start and the descriptors beside it.

    The listener shows what the rank writes, if `echo`, and returns its messages as events.
    """

    def __init__(self, started: RankStarted, fds: Sequence[int], listener: Listener, echo: bool):
        channel, out, err, *files = fds
        self._stacks, *self._pidfd = map(io.FileIO, files)
        self.started = started
        self.channel = Channel(socket.socket(fileno=channel))
        self.outputs = tuple(
            RankOutput(started.rank, fd, name, echo) for fd, name in ((out, "stdout"), (err, "stderr"))
        )
        self._listener = listener
        listener.add(self.channel, self._hear)
        for output in self.outputs:
            listener.add(output, self._pass_on, output)

    def _pass_on(self, output: "RankOutput") -> None:
        if not output.pass_on():
            self._listener.remove(output)

    def _hear(self) -> list[RankSaid]:
        try:
            message = self.channel.receive()
        except (EOFError, ConnectionError):
            self._listener.remove(self.channel)  # its supervisor says how it ended
            return []
        except CannotUnpack as error:
            message = error
        except NotAMessage as error:
            self._listener.remove(self.channel)  # nor is what follows
            message = error
        started = self.started
        return [RankSaid(rank=started.rank, machine=started.machine, label=started.label, message=message)]

    def hear_rest(self) -> list[RankSaid]:
        """Return the messages that have arrived."""
        events: list[RankSaid] = []
        while self.channel in self._listener and is_readable(self.channel.fileno()):
            events += self._hear()
        return events

    def show_rest(self) -> None:
        """Show what the pipes hold: all that the rank wrote before it answered or ended."""
        for output in self.outputs:
            output.pass_on()
            output.finish_line()

    def send_signal(self, number: int) -> None:
        """Send this very process a signal; nothing happens if it has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self._pidfd:
                signal.pidfd_send_signal(self._pidfd[0].fileno(), number)
            else:
                os.kill(self.started.pid, number)

    def stack(self) -> str:
        """Return what the rank has written down of its stack."""
        # Not seek and read: the rank writes through the same open file and its position.
        return os.pread(self._stacks.fileno(), MOST_STACK_BYTES, 0).decode(errors="replace")

    def last_words(self) -> str:
        """Return what a dead rank wrote last: a fatal signal's stack, or lines of standard error."""
        return own_frames(self.stack()) or "\n".join(self.outputs[1].last_lines)

    def close(self) -> None:
        """Forget the rank."""
        sources: list[Channel | RankOutput] = [self.channel, *self.outputs]
        for source in sources:
            self._listener.remove(source)
            source.close()
        for file in (self._stacks, *self._pidfd):
            file.close()


class RankOutput:
    """A rank's "stdout" or "stderr", as `name` says, read from a pipe and written there line by line."""

    def __init__(self, rank: int, fd: int, name: str, echo: bool):
        self.last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._pipe = io.FileIO(fd)
        os.set_blocking(fd, False)
        self._prefix = f"[rank {rank}] "
        self._name = name
        self._echo = echo
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        # Keeps a final \r back until it is known whether \n follows.
        self._decoder = io.IncrementalNewlineDecoder(decoder, translate=False)
        self._rest: list[str] = []  # of an unfinished line
        self._rest_characters = 0

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._pipe.fileno()

    def pass_on(self) -> bool:
        """Write what the pipe holds now, however fast it is filled; return whether more may come."""
        data = self._pipe.read(CHUNK_BYTES)
        if data:
            self._feed(self._decoder.decode(data))
        return data != b""  # None: nothing has arrived

    def finish_line(self) -> None:
        """Write an unfinished last line."""
        self._feed(self._decoder.decode(b"", final=True))
        if self._rest:
            self._feed("\n")

    def _feed(self, text: str) -> None:
        lines = []
        for piece in io.StringIO(text, newline=""):  # a line ends with \n, \r or \r\n only
            self._rest.append(piece)
            self._rest_characters += len(piece)
            if piece.endswith(("\r", "\n")):
                lines.append(self._take_rest())
            elif self._rest_characters >= MOST_CHARACTERS:
                lines.append(self._take_rest() + "\n")
        self._write(lines)

    def _take_rest(self) -> str:
        line = "".join(self._rest)
        self._rest.clear()
        self._rest_characters = 0
        return line

    def _write(self, lines: list[str]) -> None:
        self.last_lines.extend(line.rstrip("\r\n") for line in lines)
        if self._echo and lines:
            stream: TextIO | None = getattr(sys, self._name)
            if stream is None:
                return  # this process was started without one
            stream.write("".join(self._prefix + line for line in lines))
            stream.flush()

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()
