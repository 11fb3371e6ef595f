import multiprocessing
import time

import pytest

from workbench.timeline import Kind, Recorder, Timeline, format_timeline


def ticking(*times_s):
    return iter(times_s).__next__


def test_recorded_actions_take_their_times_from_the_clock():
    recorder = Recorder(resource="rank 0", clock=ticking(10, 12, 13, 14))
    with recorder.during("work"):
        pass
    with recorder.during("sum", Kind.COMMUNICATE):
        pass
    timeline = Timeline.merged([recorder.actions])
    assert format_timeline(timeline) == "rank 0 | work - . sum"
    assert timeline.actions[1].kind is Kind.COMMUNICATE


def test_an_action_that_raises_is_recorded_and_still_raises():
    recorder = Recorder(resource="rank 0", clock=ticking(0, 1))
    with pytest.raises(ZeroDivisionError), recorder.during("fail"):
        raise ZeroDivisionError
    assert [action.label for action in recorder.actions] == ["fail"]


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
