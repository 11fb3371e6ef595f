"""Event simulation of tasks, and the pipeline schedules that are simulated."""

import pytest
from torch.distributed.pipelining.schedules import _Action

from workbench.timeline import (
    Cell,
    Kind,
    Task,
    format_timeline,
    gpipe,
    one_forward_one_backward,
    parse_schedule,
    pipeline_tasks,
    simulate,
)


def task(name, resource, duration_s, *after):
    return Task(name=name, resources=tuple(resource.split("+")), duration_s=duration_s, after=after)


def drawn(*tasks):
    return format_timeline(simulate(tasks))


def test_a_task_waits_for_its_predecessor_on_another_resource():
    assert drawn(task("a", "rank0", 2), task("send", "link", 1, "a"), task("b", "rank1", 2, "send")) == (
        "rank0 | a - .    . .\nlink  | . . send . .\nrank1 | . . .    b -"
    )


def test_of_two_ready_tasks_the_one_listed_first_goes_first():
    assert drawn(task("x", "cpu", 1), task("y", "cpu", 2), task("z", "cpu", 1)) == "cpu | x y - z"


def test_a_free_resource_does_not_wait_for_the_order_of_the_list():
    # late is listed first but must wait for slow; soon takes the cpu meanwhile.
    assert drawn(task("slow", "disk", 2), task("late", "cpu", 1, "slow"), task("soon", "cpu", 1)) == (
        "disk | slow - .\ncpu  | soon . late"
    )


def test_a_started_task_is_never_interrupted():
    # first becomes ready at 1 s, while second holds the cpu until 3 s.
    assert drawn(task("first", "cpu", 1, "gate"), task("second", "cpu", 3), task("gate", "disk", 1)) == (
        "cpu  | second - - first\ndisk | gate   . . ."
    )


def test_a_collective_starts_on_all_ranks_when_the_last_one_arrives():
    grid = drawn(task("f0", "rank0", 1), task("f1", "rank1", 3), task("sum", "rank0+rank1", 2, "f0", "f1"))
    assert grid == ("rank0 | f0 . . sum -\nrank1 | f1 - - sum -")


def test_the_resources_of_a_waiting_collective_stay_free_for_others():
    grid = drawn(task("f1", "rank1", 2), task("sum", "rank0+rank1", 1, "f1"), task("fill", "rank0", 1))
    assert grid == ("rank1 | f1   - sum\nrank0 | fill . sum")


def test_two_chunks_overlap_compute_with_communication():
    # By hand: 2 s of compute and 1 s on the link a chunk; only the last second is not hidden.
    chunks = [task("c0", "rank", 2), task("r0", "link", 1, "c0"), task("c1", "rank", 2), task("r1", "link", 1, "c1")]
    assert drawn(*chunks) == ("rank | c0 - c1 - .\nlink | .  . r0 . r1")


def test_a_task_of_no_duration_lets_its_followers_start_at_once():
    timeline = simulate([task("a", "cpu", 1), task("mark", "cpu", 0, "a"), task("b", "disk", 1, "mark")])
    assert [(a.label, a.start_s, a.end_s) for a in timeline.actions] == [("a", 0, 1), ("mark", 1, 1), ("b", 1, 2)]


@pytest.mark.parametrize(
    ("tasks", "rule"),
    [
        ([("a", "cpu", 1, "b"), ("b", "cpu", 1, "a"), ("c", "cpu", 1)], r"\['a', 'b'\] must not wait for each other"),
        ([("a", "cpu", 1, "ghost")], "'ghost' must be a task"),
        ([("a", "cpu", 1), ("a", "disk", 1)], "name is 'a' twice"),
    ],
)
def test_tasks_that_cannot_be_ordered_are_refused(tasks, rule):
    with pytest.raises(ValueError, match=rule):
        drawn(*(task(*arguments) for arguments in tasks))


ONE_F_ONE_B_3X4 = """\
rank 0 | 0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
rank 1 | 1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3
rank 2 | 2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3"""


def test_schedules_are_those_of_the_papers_and_read_back():
    assert str(one_forward_one_backward(3, 4)) == ONE_F_ONE_B_3X4
    assert parse_schedule(ONE_F_ONE_B_3X4) == one_forward_one_backward(3, 4)
    assert str(gpipe(2, 2)) == "rank 0 | 0F0 0F1 0B0 0B1\nrank 1 | 1F0 1F1 1B0 1B1"
    with pytest.raises(ValueError, match="rank 0, rank 1"):
        parse_schedule("rank 1 | 1F0\nrank 0 | 0F0")


def test_a_cell_is_written_as_torch_writes_it():
    assert str(_Action.from_str("1F0")) == str(Cell.parse("1F0"))
    assert str(_Action.from_str("2B13")) == str(Cell(stage=2, kind=Kind.BACKWARD, micro_batch=13))


@pytest.mark.parametrize("word", ["F0", "1G0", "1F", "1F0x"])
def test_a_malformed_cell_is_named(word):
    with pytest.raises(ValueError, match=f"cell is '{word}'"):
        Cell.parse(word)


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
    tasks = pipeline_tasks(gpipe(2, 1), duration_s=lambda cell: 1, transfer_s=lambda cell: 2)
    assert format_timeline(simulate(tasks)) == (
        "rank 0   | 0F0 .        . .   .   .        . 0B0\n"
        "link 0-1 | .   send-0F0 - .   .   .        . .\n"
        "rank 1   | .   .        . 1F0 1B0 .        . .\n"
        "link 1-0 | .   .        . .   .   send-1B0 - ."
    )
