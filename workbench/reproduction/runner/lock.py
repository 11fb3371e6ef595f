"""One runner at a time on results/<profile>: a lock that the operating system frees when its holder dies.

Source: flock(2). The file beside it says who holds it: pid, host and since when.
Simplified: the file stays when the lock is freed; only the lock on it counts, so a stale one cannot be mistaken.
Left out: file systems without flock (some network mounts), which are refused by name.
"""

import contextlib
import errno
import fcntl
import json
import os
import platform
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from workbench.reproduction.errors import UsageError

__all__ = ["LOCK_FILE", "hold_lock"]

LOCK_FILE = ".lock"


@contextlib.contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder while the block runs.

    Raises:
        UsageError: naming who holds it, or why it cannot be had.
    """
    path = folder / LOCK_FILE
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    try:
        _take(handle, folder)
        _sign(handle)
        yield
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _take(handle: int, folder: Path) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise UsageError(f"{folder} cannot be locked: {error.strerror}") from None
        raise UsageError(f"{folder} is in use by another run: {_holder(handle)}") from None


def _sign(handle: int) -> None:
    holder = {"pid": os.getpid(), "host": platform.node(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
    os.ftruncate(handle, 0)
    os.pwrite(handle, json.dumps(holder).encode(), 0)


def _holder(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 4096, 0))
        return f"pid {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):
        return "it has only just begun"
