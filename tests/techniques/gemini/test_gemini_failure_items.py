"""Rows of the items on failures: worked by hand, or the paper's own numbers."""

from datetime import date

import pytest

from workbench.datasets.source import DataSource, SourceKind
from workbench.datasets.training_logbooks import Logbook, LoggedEvent
from workbench.techniques.gemini.method.best import best_checkpointing
from workbench.techniques.gemini.simulated import failures, recoveries, replay
from workbench.timeline.faults import DAY_S, FaultKind


def value(rows, quantity, **keys):
    (found,) = [row for row in rows if row["quantity"] == quantity and keys.items() <= row.items()]
    return found["value"]


def test_a_failure_at_310_goes_back_to_200_if_the_third_checkpoint_is_incomplete():
    rows = recoveries.worked_example_rows([10, 11, 100])
    back = {each: value(rows, "back_to", checkpoint_iterations=each) for each in (10, 11, 100)}
    assert back == {10: pytest.approx(300), 11: pytest.approx(200), 100: pytest.approx(200)}
    assert value(rows, "lost_iterations", checkpoint_iterations=11) == pytest.approx(110)


def test_the_minutes_of_one_failure_add_up():
    rows = recoveries.overhead_rows()
    assert value(rows, "total_min", failure="software") == pytest.approx((15 + 162 + 240) / 60)
    assert value(rows, "total_min", failure="hardware") == pytest.approx((15 + 162 + 330 + 1.5 + 240) / 60)
    assert value(rows, "resumes_with", failure="hardware") == 3
    timeline = recoveries.overhead_timelines()["hardware"]
    assert timeline.total_s(resource="recovery") == pytest.approx(15 + 162 + 330 + 1.5 + 240)


def test_the_wasted_time_of_figure_6_10():
    rows = failures.wasted_rows(300, [0])
    assert value(rows, "iterations_wasted") == 1.5
    assert value(rows, "reduction", highfreq="HighFreq", replaced="none") == pytest.approx(1208 / 93)
    assert value(rows, "reduction", highfreq="HighFreq, every 9", replaced="one") == pytest.approx(1239 / 94.5)
    # 8 of 120 pairs are groups: of 300 failures 20, with a standard deviation of 4.3.
    assert value(rows, "storage_share") == pytest.approx(100 * 8 / 120, abs=4)


def test_serialising_is_14_5_per_cent_of_training_every_nine_iterations():
    rows = failures.serialising_rows()
    assert value(rows, "serialising_share", solution="HighFreq, every 9", of="training time") == pytest.approx(
        100 * 81 / (9 * 62)
    )
    of_all = value(rows, "serialising_share", solution="HighFreq", of="all time")
    assert of_all == pytest.approx(100 * 81 / (8 * 62 + 81))


def test_losses_added_up_leave_what_the_text_says():
    rows = failures.rows_by_machines([1000], num_days=2, seeds=[0])
    # 15 failures a day: Gemini 417 + 93 s each; HighFreq 81 / 558 and 255 + 1,239 s each.
    ours, theirs = 1 - 15 * 510 / DAY_S, 1 - 81 / 558 - 15 * 1494 / DAY_S
    assert value(rows, "effective_ratio_added", solution="Gemini") == pytest.approx(ours)
    assert value(rows, "gain_added", highfreq="HighFreq, every 9") == pytest.approx(100 * (ours / theirs - 1))
    shares = [row["value"] for row in rows if row["quantity"] == "time_share" and row["solution"] == "Gemini"]
    assert sum(shares) == pytest.approx(1)


def event(first, last, category, text="x", count=None):
    return LoggedEvent(first_day=first, last_day=last, category=category, text=text, count=count)


def test_the_lines_of_a_diary_become_failures_on_their_days():
    events = (
        event(date(2021, 11, 12), date(2021, 11, 12), "hardware", "hosts down at the same time", 5),
        event(date(2021, 11, 17), date(2021, 12, 3), "restarts", count=40),
        event(date(2021, 12, 21), date(2021, 12, 21), "infrastructure", "deleted the entire cluster", 16),
        event(date(2021, 11, 11), date(2022, 1, 6), "restarts", count=90),
        event(date(2021, 12, 3), date(2021, 12, 3), "milestone"),
    )
    source = DataSource(name="opt-175b", kind=SourceKind.STAND_IN, detail="", sha256="")
    trace = replay.diary_trace("opt-175b", Logbook(name="opt-175b", events=events, source=source), seed=0)
    assert len(trace.faults) == 90
    (five,) = [fault for fault in trace.faults if len(fault.machines) == 5]
    assert 1 <= five.time_s / DAY_S < 2
    (all_at_once,) = [fault for fault in trace.faults if len(fault.machines) == 124]
    assert 40 <= all_at_once.time_s / DAY_S < 41
    assert trace.num_of(FaultKind.SOFTWARE) == 0


def test_without_the_diary_a_stand_in_says_that_it_is_one(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    traces, source = replay.diary_or_stand_in("bloom-176b", [0, 1])
    assert not source.is_real
    assert len(traces) == 2
    rows = replay.replay_rows("bloom-176b", traces, num_standbys=1)
    assert value(rows, "effective_ratio", solution="Gemini") > value(rows, "effective_ratio", solution="Strawman")


def test_the_map_has_the_best_choice_at_every_place():
    rows = failures.best_rows([0.015], [10, 400], idle_s=10, blocking_s=0, window_s=600, num_failures=200, seeds=[0])
    assert value(rows, "gap_to_search", link_gbps=10) == 0
    # A shard of 75 GB takes 60 s over 10 Gbps: six idle spans of 10 s; over 400 Gbps 1.5 s.
    assert value(rows, "best_interval", link_gbps=10) == 6
    assert value(rows, "best_interval", link_gbps=400) == 1
    assert best_checkpointing(failures.paper_needs(0.015, 10, idle_s=10)).interval_iterations == 6
