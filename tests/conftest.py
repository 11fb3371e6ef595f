"""Tests send Ctrl-C, compute with one thread a process, and leave no figure open.

A shell that started them in the background must not have taught them to ignore Ctrl-C. With several threads, operations
on tiny tensors wait for one another, on a busy machine for most of the time.
"""

import contextlib
import functools
import os
import signal
import sys

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("MPLBACKEND", "agg")


def pytest_xdist_auto_num_workers():
    return min((os.cpu_count() or 1) + 1, 4)  # tests of ranks often wait; more processes would disturb those that time


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


LOADED = (  # before the ranks are forked from one process
    "workbench.models.bert",
    "workbench.techniques.activation_compression.measured.iterations",
    "workbench.techniques.flextp.runtime",
    "workbench.techniques.gemini.measured.reliability",
    "workbench.techniques.gemini.runtime.checkpoints",
    "torch._dynamo",
    "torch.distributed.fsdp",
)


@pytest.fixture(scope="session")
def pools():
    """Pools of ranks by their number; a pool that a failed rank has ended starts again by itself."""
    from workbench.launch import Ranks

    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED, timeout_s=100)))
