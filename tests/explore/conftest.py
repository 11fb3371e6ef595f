"""Exercises run on ranks that all tests share."""

import contextlib
import functools

import pytest

from tests.conftest import LOADED


@pytest.fixture(scope="session")
def pools():
    """Pools of their own by number of ranks, since a wrong answer may leave the groups of its ranks in any state."""
    from workbench.launch import Ranks

    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED)))


@pytest.fixture
def exercises_on_pools(pools, monkeypatch):
    """Let exercises use warm pools, where a reader's run starts its own."""

    def shared(num_ranks, **choices):
        return contextlib.nullcontext(pools(num_ranks))

    monkeypatch.setattr("workbench.launch.ranks.Ranks", shared)
    monkeypatch.setattr("workbench.explore.code_exercises.TIMEOUT_S", 60.0)  # other tests may take the processor
