"""Looks at other processes from outside; the dead but unreaped do not count as living."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

PATIENCE_S = 100.0  # seconds a busy machine may need to get something going

# A program that a test kills begins with this; its first argument is the file that says how far it is.
PROGRAM = """
import ctypes, os, subprocess, sys, time
path = sys.argv[1]
def say(*words):
    open(path, "w").write(" ".join(map(str, words)) + "\\n")
def start_sleep():
    return subprocess.Popen(["sleep", "600"], start_new_session=True).pid
def hang():
    ctypes.PyDLL(None).sleep(600)  # holds the interpreter lock
"""


def run_python(*arguments: str, **options) -> subprocess.CompletedProcess:
    """Run Python to its end and keep its output."""
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=200, **options)


def living(pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if _is_living(pid)]


def _is_living(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
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
