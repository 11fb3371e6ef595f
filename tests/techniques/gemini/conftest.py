"""One fleet of warm machines and one pool of warm ranks for all tests of the technique: starting them takes seconds."""

import contextlib
import functools

import pytest

from workbench.launch import Ranks
from workbench.launch.machines import Machines
from workbench.techniques.gemini.measured import reliability
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD

LOADED = (*PRELOAD, reliability.__name__)


@pytest.fixture(scope="session")
def fleet():
    """Machines that are started in no time, of which whoever uses them leaves none running."""
    with Machines(preload=LOADED, echo=False) as machines:
        yield machines


@pytest.fixture(scope="session")
def pools():
    """Pools of ranks by their number; a pool that a failed rank has ended starts again by itself."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED, timeout_s=100)))
