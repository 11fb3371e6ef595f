"""Output of the ranks, line by line, each line with the rank it comes from."""

import codecs
import collections
import os
import re
import sys
from typing import TextIO

__all__ = ["RankOutput"]

LAST_LINES = 20  # kept for the report of a rank that dies
CHUNK_BYTES = 1 << 16  # the size of a pipe
LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)")


class RankOutput:
    """One of a rank's two output streams, read from a pipe and written line by line.

    Args:
        rank: whose output it is.
        fd: reading end of the pipe, non-blocking; owned by this object.
        name: "stdout" or "stderr": where the lines go.
        echo: whether they go there at all.
    """

    def __init__(self, rank: int, fd: int, name: str, echo: bool):
        os.set_blocking(fd, False)
        self.last_lines: collections.deque[str] = collections.deque(maxlen=LAST_LINES)
        self._prefix = f"[rank {rank}] "
        self._fd = fd
        self._name = name
        self._echo = echo
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def fileno(self) -> int:
        """Return the descriptor, to wait for."""
        return self._fd

    def pass_on(self) -> bool:
        """Write what has arrived; return whether more may come."""
        while True:
            try:
                data = os.read(self._fd, CHUNK_BYTES)
            except BlockingIOError:
                return True
            if not data:
                return False
            self._feed(self._decoder.decode(data))

    def finish_line(self) -> None:
        """Write an unfinished last line."""
        if self._rest:
            self._feed("\n")

    def _feed(self, text: str) -> None:
        text = self._rest + text
        lines = LINE.findall(text)
        self._rest = text[sum(map(len, lines)) :]
        self.last_lines.extend(line.rstrip("\r\n") for line in lines)
        if self._echo and lines:
            stream: TextIO = getattr(sys, self._name)
            stream.write("".join(self._prefix + line for line in lines))
            stream.flush()

    def close(self) -> None:
        """Close the pipe."""
        os.close(self._fd)
