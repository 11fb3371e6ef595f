import pytest

from workbench.timeline import Kind, Task, format_timeline, parse_timeline, simulate


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


def test_kinds_and_labels_reach_the_timeline():
    encode = Task(name="encode layer 3", resources=("gpu",), duration_s=1, kind=Kind.ENCODE, label="enc")
    expected = parse_timeline("gpu | enc", kind_of=lambda label: Kind.ENCODE)
    assert simulate([encode]) == expected


def test_tasks_in_a_circle_are_named():
    with pytest.raises(ValueError, match=r"\['a', 'b'\] must not wait for each other"):
        simulate([task("a", "cpu", 1, "b"), task("b", "cpu", 1, "a"), task("c", "cpu", 1)])


def test_an_unknown_predecessor_is_named():
    with pytest.raises(ValueError, match="'ghost' must be a task"):
        simulate([task("a", "cpu", 1, "ghost")])


def test_a_name_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="name is 'a' twice"):
        simulate([task("a", "cpu", 1), task("a", "disk", 1)])
