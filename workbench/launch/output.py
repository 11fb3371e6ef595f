"""Output of the ranks, line by line, each line with the rank it comes from.

Simplified: a line longer than 1 MiB is shown as several.
"""

import codecs
import collections
import io
import os
import sys
from typing import TextIO

__all__ = ["RankOutput"]

LAST_LINES = 20  # kept for the report of a rank that dies
CHUNK_BYTES = 1 << 16  # the size of a pipe
MOST_CHARACTERS = 1 << 20  # of a line; one read more may be in it


class RankOutput:
    """One of a rank's two output streams, read from a pipe and written line by line.

    Args:
        rank: whose output it is.
        fd: reading end of the pipe; owned by this object.
        name: "stdout" or "stderr": where the lines go.
        echo: whether they go there at all.
    """

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
            stream: TextIO = getattr(sys, self._name)
            stream.write("".join(self._prefix + line for line in lines))
            stream.flush()

    def close(self) -> None:
        """Close the pipe."""
        self._pipe.close()
