"""The lesson on in-memory checkpoints: recovery on paper, a small training, its live log, two exercises."""

import subprocess
import sys
from collections.abc import Sequence

import pytest

from workbench.explore import Standing, check
from workbench.explore import gemini as lesson
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.runtime.checkpoints import InMemoryCheckpoints
from workbench.techniques.gemini.runtime.control.events import Event
from workbench.techniques.gemini.runtime.training import Fault, Victim, run_training


def test_the_puzzle_is_imported_without_the_simulator_and_the_runtime():
    rooms = {f"workbench.techniques.gemini.{room}" for room in ("cost", "runtime", "simulated", "study")}
    code = f"import sys; from workbench.explore.gemini import solve; print(sorted({rooms} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_every_name_of_the_lesson_is_there():
    assert all(hasattr(lesson, name) for name in lesson.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'explore_weather'"):
        _ = lesson.explore_weather


# Recovery on paper


def _tiers(lost, **more):
    plan = lesson.plan_after(placement(4, 2), lost, in_memory=57, **more)
    return plan.iteration, [source.tier for source in plan.sources]


def test_where_nothing_is_lost_everybody_reads_their_own_memory():
    assert _tiers([]) == (57, [Tier.LOCAL] * 4)


def test_new_machines_read_their_peers_as_long_as_each_group_has_one_left():
    assert _tiers([1, 3]) == (57, [Tier.LOCAL, Tier.PEER, Tier.LOCAL, Tier.PEER])


def test_a_whole_group_that_is_lost_sends_everybody_back_to_storage():
    assert _tiers([0, 1], in_storage=[20, 40]) == (40, [Tier.STORAGE] * 4)
    assert _tiers([0, 1]) == (0, [Tier.START] * 4)


def test_a_machine_that_does_not_exist_cannot_be_lost():
    with pytest.raises(ValueError, match=r"lost is \[2, 4\]; it must name machines from 0 to 3"):
        _tiers([4, 2])


# The live log


class _Told:
    """A training that has told something already."""

    def __init__(self, *events: Event):
        self.events: Sequence[Event] = events


def _done(iteration: int, time_s: float, rank: int = 0) -> Event:
    return Event(name="iteration", time_s=time_s, rank=rank, generation=1, details={"iteration": iteration})


def test_iterations_in_a_row_share_a_line_that_begins_with_the_second_of_the_first():
    lines = []
    begins = Event(name="root elected", time_s=100.0, machine="machine-0")
    killed = Event(name="killed", time_s=103.5, machine="machine-1")
    told = _Told(begins, _done(1, 101.0), _done(1, 101.1, rank=3), _done(2, 102.0), killed, _done(3, 104.0))
    lesson.LiveLog(told, write=lines.append).until_iteration(3)
    assert lines == [
        "  0.00 s  machine-0 is elected root",
        "  1.00 s  iterations 1 to 2",
        "  3.50 s  KILLED: machine-1",
        "  4.00 s  iteration 3",
    ]


def test_the_log_goes_on_where_it_stopped():
    lines = []
    log = lesson.LiveLog(_Told(_done(1, 1.0), _done(2, 2.0), Event(name="finished", time_s=2.5)), write=lines.append)
    log.until_iteration(1)
    log.until_end()
    assert lines == ["  0.00 s  iteration 1", "  1.00 s  iteration 2", "  1.50 s  all ranks have returned"]


def test_silence_ends_the_waiting_with_what_was_waited_for():
    log = lesson.LiveLog(_Told(_done(1, 1.0)), write=lambda line: None, silence_s=0.05)
    with pytest.raises(TimeoutError, match="waiting for iteration 2, nothing was heard of the training for 0.05 s"):
        log.until_iteration(2)


def test_an_event_is_told_with_what_a_reader_wants_to_know():
    served = Event(name="retrieve", time_s=0.0, rank=1, details={"tier": "peer memory", "iteration": 7})
    assert lesson.in_words(served) == "rank 1: iteration 7 from peer memory"
    died = Event(name="rank failed", time_s=0.0, rank=2, machine="machine-2", details={"kind": "died", "message": ""})
    assert lesson.in_words(died) == "rank 2 of machine-2: died"
    assert lesson.in_words(Event(name="killed", time_s=0.0)) == "KILLED: the store"
    assert lesson.in_words(Event(name="joined", time_s=0.0, rank=2)) == ""


# The small training


def _train(context, num_iterations):
    mine = lesson.SmallTraining(context, pause_s=0)
    checkpoints = InMemoryCheckpoints(context, mine.model, mine.optimizer, num_profiled=2)
    for _ in mine.updates(checkpoints.iteration, num_iterations):
        checkpoints.step()
    return mine.digest()


def test_the_small_training_ends_with_the_same_bits_after_a_lost_machine():
    common = {"args": (7,), "preload": lesson.PRELOAD, "timeout_s": 100, "echo": False}
    undisturbed = run_training(_train, 2, **common)
    hurt = run_training(_train, 2, **common, faults=[Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=4)])
    assert hurt.num_generations == 2
    assert hurt.results == undisturbed.results
    assert len(set(hurt.results)) == 2  # each rank has its own shard


# The exercises


@pytest.mark.parametrize("exercise", [lesson.seconds_wasted, lesson.resumed_from], ids=["waste", "tiers"])
def test_the_exercises_on_waste_and_tiers_know_their_answer_and_help_with_every_mistake(exercise):
    asked = exercise()
    assert check(asked, asked.answer).standing is Standing.RIGHT
    for mistake in asked.mistakes:
        feedback = check(asked, mistake.answer)
        assert (feedback.standing, feedback.text) == (Standing.NOT_YET, mistake.hint)


def test_their_answers_are_those_worked_by_hand():
    # 40 + 120 / 2 + 30
    assert lesson.seconds_wasted().answer == 130
    # machines 2 and 3 are a group: all six ranks go back to the newest in storage
    assert lesson.resumed_from().answer == (40, 6)
