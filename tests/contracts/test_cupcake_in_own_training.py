"""Cupcake in trainings of its users' own; the tests that prove its cells are shared with Espresso."""

from tests.contracts import test_hooks_in_own_training, test_hooks_lose_nothing  # noqa: F401
