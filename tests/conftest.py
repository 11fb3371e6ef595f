"""Tests send Ctrl-C, compute with one thread a process, and leave no figure open.

A shell that started them in the background must not have taught them to ignore Ctrl-C. With several threads, operations
on tiny tensors wait for one another, on a busy machine for most of the time.
"""

import contextlib
import functools
import gc
import os
import signal
import sys

import pytest

signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is imported
os.environ.setdefault("MPLBACKEND", "agg")
sys.modules.setdefault("rfc3987_syntax", None)  # as in workbench.cli.main
gc.disable()  # until all tests are collected: what is imported stays, and looking through it takes seconds


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    return min((os.cpu_count() or 1) + 1, 4)  # tests of ranks often wait; more processes would disturb those that time


LONGEST = (  # files of tests that take a minute or more
    "test_activation_compression_in_own_training",
    "test_atp_in_own_training",
    "test_reproduction_runner",
    "test_espresso_in_own_training",
    "test_flextp_in_own_training",
    "test_advise",
)


def pytest_collection_modifyitems(items):
    """Begin with the longest files, or one process would end with one of them alone."""
    items.sort(key=lambda item: (*LONGEST, item.path.stem).index(item.path.stem))


def pytest_collection_finish():
    gc.freeze()
    gc.enable()


def warm_process():
    """Start the process that has imported everything and forks the fork servers of ranks; return what closes it."""
    from workbench.launch.environment import rank_environment
    from workbench.launch.fork_server import WARM_VARIABLE
    from workbench.launch.forking import WarmProcess
    from workbench.launch.kernel_server import OF_RANKS

    if WARM_VARIABLE in os.environ or sys.platform != "linux":
        return lambda: None
    warm = WarmProcess((*OF_RANKS, *LOADED), rank_environment(1))
    os.environ[WARM_VARIABLE] = warm.address
    return warm.close


def pytest_configure(config):
    if config.getoption("numprocesses", None):
        config.add_cleanup(warm_process())  # of all workers, which find it in their environment


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


LESSONS = ("activation_compression", "atp", "cupcake", "flextp", "gemini.exercises", "sdpipe", "zen")
LOADED = (  # before the ranks are forked from one process
    *(f"workbench.explore.{name}" for name in LESSONS),
    "workbench.models.bert",
    "workbench.techniques.activation_compression.measured.iterations",
    "workbench.techniques.cupcake",
    "workbench.techniques.espresso",
    "workbench.techniques.flextp.runtime",
    "workbench.techniques.gemini.measured.reliability",
    "workbench.techniques.gemini.runtime.checkpoints",
    "torch.distributed.fsdp",
    # What the tests' models and compilers would otherwise import on each rank, in 3 s of a processor each time.
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama", "t5")),
    "peft",
    "networkx",
    "torch._dynamo.backends.debugging",
    "torch._dynamo.repro.after_dynamo",
    "torch._export.passes.add_runtime_assertions_for_constraints_pass",
    "torch._inductor.compile_fx",
    "torch.distributed.tensor.experimental",
)


@pytest.fixture(scope="session")
def pools():
    """Pools of ranks by their number; a pool that a failed rank has ended starts again by itself."""
    from workbench.launch import Ranks

    with contextlib.ExitStack() as stack:
        stack.callback(warm_process())
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED, timeout_s=200)))
