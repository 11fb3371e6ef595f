"""Actions, timelines, grids, recorders and traces; event simulation of tasks and of pipeline schedules."""

import time

import pytest
from torch.distributed.pipelining.schedules import _Action

from tests.cases import refusals
from workbench.timeline import (
    Action,
    Cell,
    Kind,
    Recorder,
    Task,
    Timeline,
    chrome_trace,
    format_timeline,
    one_forward_one_backward,
    parse_timeline,
    pipeline_tasks,
    simulate,
)


def action(resource, start_s, end_s, kind=Kind.COMPUTE, label=""):
    return Action(resource=resource, start_s=start_s, end_s=end_s, kind=kind, label=label)


def of(*actions):
    return Timeline(actions=actions)


test_actions_timelines_grids_and_orders_that_cannot_be_are_refused = refusals(
    (lambda: action("rank 0", 2.0, 1.0), "end_s is 1.0; it must not be before start_s, 2.0"),
    (lambda: Timeline(actions=(action("rank 1", 0, 1),), resources=("rank 0",)), r"lacks \['rank 1'\]"),
    (lambda: format_timeline(of(action("rank 0", 0, 1.4))), "multiple of step_s"),
    (lambda: format_timeline(of(action("rank 0", 0, 2), action("rank 0", 1, 3))), "overlap no other"),
    (lambda: parse_timeline("rank 0 | a . -"), "must follow an action"),
    (lambda: parse_timeline("rank 0 | a\nrank 0 | b"), "each row must come once"),
    (
        lambda: drawn(task("a", "cpu", 1, "b"), task("b", "cpu", 1, "a"), task("c", "cpu", 1)),
        r"\['a', 'b'\] must not wait for each other",
    ),
    (lambda: drawn(task("a", "cpu", 1, "ghost")), "'ghost' must be a task"),
    (lambda: drawn(task("a", "cpu", 1), task("a", "disk", 1)), "name is 'a' twice"),
    (lambda: one_forward_one_backward(0, 1), "num_stages is 0; it must be at least 1"),
)


def test_seconds_are_added_up_by_resource_and_by_kind_and_merged_recordings_start_at_zero():
    sums = [action("rank 0", 3, 5, Kind.COMMUNICATE), action("rank 1", 1, 5, Kind.COMMUNICATE)]
    timeline = of(action("rank 0", 0, 3), *sums)
    assert timeline.duration_s == 5
    assert timeline.total_s(resource="rank 0") == 5
    assert timeline.total_s(kind=Kind.COMMUNICATE) == 6
    assert timeline.total_s(resource="rank 1", kind=Kind.COMPUTE) == 0
    merged = Timeline.merged([[action("rank 0", 100.5, 101.0)], [action("rank 1", 100.25, 102.0)]])
    assert [(a.resource, a.start_s, a.end_s) for a in merged.actions] == [("rank 0", 0.25, 0.75), ("rank 1", 0.0, 1.75)]
    assert merged.resources == ("rank 0", "rank 1")


GRID = """\
rank 0 | F0 -  .  B0
rank 1 | .  .  F0"""


def test_a_grid_reads_as_actions_with_their_times_and_prints_as_it_was_read_also_rows_without_actions():
    timeline = parse_timeline(GRID, step_s=0.5, kind_of=lambda label: Kind.FORWARD)
    assert timeline.actions == (
        action("rank 0", 0.0, 1.0, Kind.FORWARD, "F0"),
        action("rank 0", 1.5, 2.0, Kind.FORWARD, "B0"),
        action("rank 1", 1.0, 1.5, Kind.FORWARD, "F0"),
    )
    printed = format_timeline(parse_timeline(GRID, step_s=0.1), step_s=0.1)
    assert printed == "rank 0 | F0 - .  B0\nrank 1 | .  . F0 ."
    assert format_timeline(parse_timeline(printed)) == printed
    assert format_timeline(parse_timeline("rank 0 | a\nlink |")) == "rank 0 | a\nlink   | ."


def test_a_timeline_becomes_the_trace_worked_by_hand():
    communicate = action("link", 0.002, 0.0025, Kind.COMMUNICATE, "all-reduce")
    timeline = Timeline(actions=(communicate, action("rank 0", 0.0, 0.002)), resources=("rank 0", "link"))
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


def recorded():
    recorder = Recorder(resource="rank")
    with recorder.during("sleep"):
        time.sleep(0.01)
    return recorder.actions


def test_processes_of_one_machine_share_the_clock(pools):
    # The ranks start and end within the parent's action, so their times must lie inside.
    recorder = Recorder(resource="parent")
    with recorder.during("parent"):
        by_rank = pools(2).run(recorded)
    (parent,) = recorder.actions
    for (child,) in by_rank:
        assert parent.start_s < child.start_s < child.end_s < parent.end_s


def task(name, resource, duration_s, *after):
    return Task(name=name, resources=tuple(resource.split("+")), duration_s=duration_s, after=after)


def drawn(*tasks):
    return format_timeline(simulate(tasks))


def test_of_ready_tasks_the_one_listed_first_goes_first_and_a_free_resource_waits_for_no_other():
    assert drawn(task("x", "cpu", 1), task("y", "cpu", 2), task("z", "cpu", 1)) == "cpu | x y - z"
    # late is listed first but must wait for slow; soon takes the cpu meanwhile.
    assert drawn(task("slow", "disk", 2), task("late", "cpu", 1, "slow"), task("soon", "cpu", 1)) == (
        "disk | slow - .\ncpu  | soon . late"
    )


def test_a_started_task_is_never_interrupted():
    # first becomes ready at 1 s, while second holds the cpu until 3 s.
    assert drawn(task("first", "cpu", 1, "gate"), task("second", "cpu", 3), task("gate", "disk", 1)) == (
        "cpu  | second - - first\ndisk | gate   . . ."
    )


def test_a_collective_starts_when_the_last_rank_arrives_and_others_use_its_resources_until_then():
    grid = drawn(task("f0", "rank0", 1), task("f1", "rank1", 3), task("sum", "rank0+rank1", 2, "f0", "f1"))
    assert grid == ("rank0 | f0 . . sum -\nrank1 | f1 - - sum -")
    grid = drawn(task("f1", "rank1", 2), task("sum", "rank0+rank1", 1, "f1"), task("fill", "rank0", 1))
    assert grid == ("rank1 | f1   - sum\nrank0 | fill . sum")


def test_a_task_of_no_duration_lets_its_followers_start_at_once():
    timeline = simulate([task("a", "cpu", 1), task("mark", "cpu", 0, "a"), task("b", "disk", 1, "mark")])
    assert [(a.label, a.start_s, a.end_s) for a in timeline.actions] == [("a", 0, 1), ("mark", 1, 1), ("b", 1, 2)]


ONE_F_ONE_B_3X4 = """\
rank 0 | 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
rank 1 | 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
rank 2 | 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"""


def test_a_schedule_is_that_of_the_paper_in_cells_as_torch_writes_them():
    assert str(one_forward_one_backward(3, 4)) == ONE_F_ONE_B_3X4
    assert str(_Action.from_str("2B13")) == str(Cell(stage=2, kind=Kind.BACKWARD, micro_batch=13))


def test_two_stages_with_free_links_wait_only_at_both_ends():
    # Forward 1 s, backward 2 s, by hand: (m + n - 1) * (f + b) = (2 + 2 - 1) * 3 = 9 s for n = 2, m = 2.
    seconds = {Kind.FORWARD: 1, Kind.BACKWARD: 2}
    tasks = pipeline_tasks(
        one_forward_one_backward(2, 2), duration_s=lambda cell: seconds[cell.kind], transfer_s=lambda cell: 0
    )
    timeline = simulate(tasks)
    starts = {a.label: a.start_s for a in timeline.actions if a.kind is not Kind.COMMUNICATE}
    assert starts == {"0F0": 0, "0F1": 1, "0B0": 4, "0B1": 7, "1F0": 1, "1B0": 2, "1F1": 4, "1B1": 5}
    assert timeline.end_s == 9


def test_transfers_that_take_time_are_rows_of_the_timeline():
    tasks = pipeline_tasks(one_forward_one_backward(2, 1), duration_s=lambda cell: 1, transfer_s=lambda cell: 2)
    assert format_timeline(simulate(tasks)) == (
        "rank 0   | 0F0 .        . .   .   .        . 0B0\n"
        "link 0-1 | .   send-0F0 - .   .   .        . .\n"
        "rank 1   | .   .        . 1F0 1B0 .        . .\n"
        "link 1-0 | .   .        . .   .   send-1B0 - ."
    )
