"""Exercises run on the ranks that all tests share."""

import contextlib

import pytest


@pytest.fixture
def exercises_on_pools(pools, monkeypatch):
    """Let exercises use warm pools, where a reader's run starts its own."""

    def shared(num_ranks, **choices):
        return contextlib.nullcontext(pools(num_ranks))

    monkeypatch.setattr("workbench.launch.ranks.Ranks", shared)
