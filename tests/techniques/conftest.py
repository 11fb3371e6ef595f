"""Pools of warm ranks for the tests of all techniques."""

import contextlib
import functools

import pytest

from workbench.launch import Ranks

LOADED = (
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
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED, timeout_s=100)))
