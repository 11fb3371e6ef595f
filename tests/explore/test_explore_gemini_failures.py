"""The control of failures: what it says, what each control changes."""

import pytest

from workbench.explore.gemini.failures_explorer import compare, explore_failures, from_storage
from workbench.techniques.gemini.simulating import Cause

PLACE = {"num_machines": 16, "failures_per_day": 8, "solution": "Gemini", "num_replicas": 2, "num_standbys": 0}


def test_the_explorer_says_what_it_shows():
    explorer = explore_failures()
    assert explorer.status.startswith("Gemini: 9")
    explorer.set(failures_per_day=0)
    assert explorer.status == "Gemini: 100.0% of 10 days is progress that stays; nothing fails."


def test_every_control_changes_the_figure():
    explorer = explore_failures()
    seen = {explorer.png}
    changes = {"num_machines": 64, "failures_per_day": 16, "num_standbys": 4, "num_replicas": 1, "solution": "HighFreq"}
    for name, value in changes.items():
        seen.add(explorer.set(**{name: value}).png)
    assert len(seen) == 1 + len(changes)


def test_one_replica_sends_every_lost_machine_to_storage():
    alone, two = compare(**PLACE | {"num_replicas": 1}), compare(**PLACE)
    assert from_storage(alone) == sum(alone.run.num_recoveries.values())
    assert from_storage(two) < from_storage(alone) / 5
    assert alone.run.effective_ratio < two.run.effective_ratio


def test_standby_machines_take_the_waiting_away():
    without, with_four = compare(**PLACE), compare(**PLACE | {"num_standbys": 4})
    assert with_four.run.wasted_s[Cause.REPLACEMENT] == 0 < without.run.wasted_s[Cause.REPLACEMENT]


def test_the_curve_passes_through_the_chosen_place():
    comparison = compare(**PLACE)
    (there,) = [row for row in comparison.curves if row["solution"] == "Gemini" and row["failures_per_day"] == 8]
    assert there["ratio"] == pytest.approx(comparison.run.effective_ratio)
