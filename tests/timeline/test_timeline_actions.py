"""Actions and timelines: as grids, as a Chrome trace, and as a recorder writes them."""

import json
import multiprocessing
import time

import pytest

from workbench.timeline import (
    Action,
    Kind,
    Recorder,
    Timeline,
    chrome_trace,
    chrome_trace_json,
    format_timeline,
    parse_timeline,
)


def action(resource, start_s, end_s, kind=Kind.COMPUTE, label=""):
    return Action(resource=resource, start_s=start_s, end_s=end_s, kind=kind, label=label)


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: action("rank 0", 2.0, 1.0), "end_s is 1.0; it must not be before start_s, 2.0"),
        (lambda: action("rank 0", 0.0, float("inf")), "end_s is inf"),
        (lambda: Timeline(actions=(action("rank 1", 0, 1),), resources=("rank 0",)), r"lacks \['rank 1'\]"),
        (lambda: format_timeline(Timeline(actions=(action("rank 0", 0, 1.4),))), "multiple of step_s"),
        (
            lambda: format_timeline(Timeline(actions=(action("rank 0", 0, 2), action("rank 0", 1, 3)))),
            "overlap no other",
        ),
        (lambda: parse_timeline("rank 0 | - a"), "must follow an action"),
        (lambda: parse_timeline("rank 0 | a . -"), "must follow an action"),
        (lambda: parse_timeline("rank 0 | a\nrank 0 | b"), "each row must come once"),
    ],
)
def test_actions_timelines_and_grids_that_cannot_be_are_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()


def test_seconds_are_added_up_by_resource_and_by_kind():
    timeline = Timeline(
        actions=(
            action("rank 0", 0, 3),
            action("rank 0", 3, 5, Kind.COMMUNICATE),
            action("rank 1", 1, 5, Kind.COMMUNICATE),
        )
    )
    assert timeline.duration_s == 5
    assert timeline.total_s(resource="rank 0") == 5
    assert timeline.total_s(kind=Kind.COMMUNICATE) == 6
    assert timeline.total_s(resource="rank 1", kind=Kind.COMPUTE) == 0


def test_merged_recordings_start_at_zero_and_keep_their_distance():
    merged = Timeline.merged([[action("rank 0", 100.5, 101.0)], [action("rank 1", 100.25, 102.0)]])
    assert [(a.resource, a.start_s, a.end_s) for a in merged.actions] == [("rank 0", 0.25, 0.75), ("rank 1", 0.0, 1.75)]
    assert merged.resources == ("rank 0", "rank 1")


GRID = """\
rank 0 | F0 -  .  B0
rank 1 | .  .  F0"""


def test_a_grid_reads_as_actions_with_their_times():
    timeline = parse_timeline(GRID, step_s=0.5, kind_of=lambda label: Kind.FORWARD)
    assert timeline.actions == (
        action("rank 0", 0.0, 1.0, Kind.FORWARD, "F0"),
        action("rank 0", 1.5, 2.0, Kind.FORWARD, "B0"),
        action("rank 1", 1.0, 1.5, Kind.FORWARD, "F0"),
    )


def test_a_grid_prints_as_it_was_read_also_rows_without_actions():
    printed = format_timeline(parse_timeline(GRID, step_s=0.1), step_s=0.1)
    assert printed == "rank 0 | F0 - .  B0\nrank 1 | .  . F0 ."
    assert format_timeline(parse_timeline(printed)) == printed
    assert format_timeline(parse_timeline("rank 0 | a\nlink |")) == "rank 0 | a\nlink   | ."


def test_a_timeline_becomes_the_trace_worked_by_hand():
    communicate = action("link", 0.002, 0.0025, Kind.COMMUNICATE, "all-reduce")
    timeline = Timeline(actions=(communicate, action("rank 0", 0.0, 0.002)), resources=("rank 0", "link"))
    assert json.loads(chrome_trace_json(timeline)) == chrome_trace(timeline)
    assert chrome_trace(timeline, name="layer") == {
        "displayTimeUnit": "ms",
        "traceEvents": [
            {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "layer"}},
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "rank 0"}},
            {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": 0, "args": {"sort_index": 0}},
            {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "link"}},
            {"name": "thread_sort_index", "ph": "M", "pid": 0, "tid": 1, "args": {"sort_index": 1}},
            {"name": "compute", "cat": "compute", "ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 2000.0},
            {"name": "all-reduce", "cat": "communicate", "ph": "X", "pid": 0, "tid": 1, "ts": 2000.0, "dur": 500.0},
        ],
    }


def test_recorded_actions_take_their_times_from_the_clock_also_where_they_raise():
    recorder = Recorder(resource="rank 0", clock=iter([10, 12, 13, 14, 15, 16]).__next__)
    with recorder.during("work"):
        pass
    with recorder.during("sum", Kind.COMMUNICATE):
        pass
    with pytest.raises(ZeroDivisionError), recorder.during("fail"):
        raise ZeroDivisionError
    timeline = Timeline.merged([recorder.actions])
    assert format_timeline(timeline) == "rank 0 | work - . sum . fail"
    assert timeline.actions[1].kind is Kind.COMMUNICATE


def test_queued_work_is_waited_for_before_each_reading_of_the_clock():
    calls = []
    clock = lambda: calls.append("clock") or 0.0  # noqa: E731
    recorder = Recorder(resource="gpu", clock=clock, synchronize=lambda: calls.append("wait"))
    with recorder.during("kernel"):
        calls.append("queue")
    assert calls == ["wait", "clock", "queue", "wait", "clock"]


def record_between(connection):
    recorder = Recorder(resource="child")
    with recorder.during("child"):
        time.sleep(0.01)
    connection.send(recorder.actions)


@pytest.mark.timeout(30)
def test_processes_of_one_machine_share_the_clock():
    # The child starts and ends within the parent's action, so its times must lie inside.
    here, there = multiprocessing.Pipe()
    recorder = Recorder(resource="parent")
    with recorder.during("parent"):
        child = multiprocessing.get_context("spawn").Process(target=record_between, args=(there,))
        child.start()
        child_action = here.recv()[0]
        child.join()
    parent_action = recorder.actions[0]
    assert parent_action.start_s < child_action.start_s < child_action.end_s < parent_action.end_s
