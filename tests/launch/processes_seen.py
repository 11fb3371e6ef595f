"""Looks at other processes from outside; the dead but unreaped do not count as living."""

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

PATIENCE_S = 40.0  # seconds a busy machine may need to get something going


def living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if _is_living(pid)]


def _is_living(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def family(pid: int) -> list[int]:
    """The process and all its descendants."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def wait_for(condition: Callable[[], object], within_s: float = PATIENCE_S) -> object:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        value = condition()
        if value:
            return value
        time.sleep(0.01)
    raise AssertionError(f"nothing after {within_s} s")


def wait_for_text(path: Path) -> str:
    """Text of a file that another process writes with a line end last."""
    return wait_for(lambda: path.exists() and path.read_text().endswith("\n") and path.read_text())


def assert_all_dead_within(pids: Iterable[int], within_s: float) -> None:
    pids = list(pids)
    end = time.monotonic() + within_s
    while living(pids) and time.monotonic() < end:
        time.sleep(0.01)
    left = {pid: psutil.Process(pid).cmdline() for pid in living(pids)}
    assert not left, f"still living after {within_s} s: {left}"
