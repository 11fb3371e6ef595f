"""Exercises run on ranks that all tests share."""

import contextlib
import functools

import pytest

LESSONS = ("activation_compression", "atp", "cupcake", "flextp", "gemini.exercises", "sdpipe", "zen")
LOADED = [f"workbench.explore.{name}" for name in LESSONS]  # once, before the ranks are forked


@pytest.fixture(scope="session")
def exercise_pools():
    """Pools of ranks by their number."""
    from workbench.launch import Ranks

    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda num_ranks: stack.enter_context(Ranks(num_ranks, preload=LOADED)))


@pytest.fixture
def exercises_on_pools(exercise_pools, monkeypatch):
    """Let exercises use warm pools, where a reader's run starts its own."""

    def shared(num_ranks, **choices):
        return contextlib.nullcontext(exercise_pools(num_ranks))

    monkeypatch.setattr("workbench.launch.ranks.Ranks", shared)
    monkeypatch.setattr("workbench.explore.code_exercises.TIMEOUT_S", 60.0)  # other tests may take the processor
