"""Who runs which cell, so that two studies at the same time do not run the same one.

Source: flock(2) on a file beside the cell: the operating system frees it when its holder dies, however it dies.
Simplified: where the file system knows no locks, both run the cell and the last result stays.
Left out: other machines.
"""

import contextlib
import fcntl
import os
from dataclasses import dataclass, field
from pathlib import Path

from workbench.reproduction.cells.cell import Cell

__all__ = ["Claims"]


@dataclass(frozen=True, slots=True)
class Claims:
    """The cells of one folder that this process has claimed; leaving the block frees them.

    Attributes:
        folder: where the cells lie.
    """

    folder: Path
    _handles: dict[str, int] = field(default_factory=dict)

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *error: object) -> None:
        for digest in list(self._handles):
            self._free(digest)

    def take(self, cell: Cell) -> bool:
        """Claim a cell; return False where another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self._path(cell.digest), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:  # a file system without locks: then nobody can claim anything
            os.close(handle)
            return True
        self._handles[cell.digest] = handle
        return True

    def free(self, cell: Cell) -> None:
        """Give a cell back."""
        self._free(cell.digest)

    def _free(self, digest: str) -> None:
        handle = self._handles.pop(digest, None)
        if handle is not None:
            with contextlib.suppress(OSError):
                self._path(digest).unlink(missing_ok=True)
            os.close(handle)

    def _path(self, digest: str) -> Path:
        return self.folder / f".{digest}.claim"
