"""Tests send Ctrl-C, compute with one thread a process, and leave no figure open.

A shell that started them in the background must not have taught them to ignore Ctrl-C. With several threads, operations
on tiny tensors wait for one another, on a busy machine for most of the time.
"""

import os
import signal
import sys

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("MPLBACKEND", "agg")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")
