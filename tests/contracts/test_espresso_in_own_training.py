"""Espresso in trainings of its users' own; the tests that prove its cells are shared."""

from tests.contracts.test_hooks_in_own_training import HOOKS
from tests.contracts.works_with import CELLS, Feature


def test_every_feature_has_a_cell():
    assert "espresso" in HOOKS and all(("espresso", feature) in CELLS for feature in Feature)
