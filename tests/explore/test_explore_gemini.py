"""The lesson on in-memory checkpoints: the puzzle, the controls, recovery on paper, a small training and its log."""

from fractions import Fraction
from types import SimpleNamespace

import pytest

from workbench.explore import gemini as lesson
from workbench.techniques.gemini.control.service import Event
from workbench.techniques.gemini.cost import Cause
from workbench.techniques.gemini.method.interleaving import Scheme
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.recovery import Tier

CHOSEN = {"link": 100, "copy_rate": 400, "reserved_mib": 128, "num_buffers": 4, "safety": 0.9, "num_replicas": 2}
PLACE = {"num_machines": 16, "failures_per_day": 8, "solution": "Gemini", "num_replicas": 2, "num_standbys": 0}


def test_the_puzzle_begins_with_a_lost_group_and_says_so():
    explorer = lesson.explore_placement()
    assert explorer.result.lost == (0, 1)
    assert not explorer.result.recovers
    # 4 of 28 pairs of eight machines are groups
    assert explorer.result.probability == Fraction(24, 28)
    assert explorer.status == (
        "machines 0, 1 failed: shards 0, 1 are lost, training starts from persistent storage; "
        "of all failures of 2 machines, 85.7 % (6/7) are survived."
    )
    survived = explorer.set(failed=(1, 2))
    assert survived.result.recovers and survived.result.lost == ()
    assert survived.status.startswith("machines 1, 2 failed: training recovers from memory;")
    assert survived.result.probability == Fraction(24, 28)
    assert explorer.set(num_replicas=1, failed=(3,)).status.startswith("machine 3 failed: shard 3 is lost, training")
    assert explorer.set(failed=()).status == "no machine failed: nothing is lost."


def test_an_impossible_placement_leaves_the_last_figure_and_names_the_rule():
    explorer = lesson.explore_placement()
    before = explorer.png
    explorer.set(kind="group", num_machines=9)
    assert "it must be a multiple of num_replicas, 2" in explorer.status
    explorer.set(kind="mixed", failed=(12,))
    assert "failed names machine 12; machines are 0 to 8" in explorer.status
    assert before != explorer.png  # nine machines in between


def test_curves_beside_the_puzzle_reach_to_as_many_failures_as_were_chosen():
    puzzle = lesson.solve(num_machines=9, num_replicas=2, kind="ring", failed=range(8))
    assert list(puzzle.curves) == ["ring"]
    assert len(puzzle.curves["ring"]) == 9
    assert puzzle.curves["ring"][8] == puzzle.probability == 0


def test_the_control_of_failures_says_what_it_shows():
    explorer = lesson.explore_failures()
    assert explorer.status.startswith("Gemini: 9")
    explorer.set(failures_per_day=0)
    assert explorer.status == "Gemini: 100.0% of 10 days is progress that stays; nothing fails."


def test_replicas_spare_storage_and_standby_machines_spare_waiting():
    two = lesson.compare_failures(**PLACE)
    alone, with_four = (lesson.compare_failures(**PLACE | more) for more in ({"num_replicas": 1}, {"num_standbys": 4}))
    assert alone.run.num_recoveries[Tier.STORAGE] == sum(alone.run.num_recoveries.values())
    assert two.run.num_recoveries[Tier.STORAGE] < alone.run.num_recoveries[Tier.STORAGE] / 5
    assert alone.run.effective_ratio < two.run.effective_ratio
    assert with_four.run.wasted_s[Cause.REPLACEMENT] == 0 < two.run.wasted_s[Cause.REPLACEMENT]
    (there,) = [row for row in two.curves if row["solution"] == "Gemini" and row["failures_per_day"] == 8]
    assert there["ratio"] == pytest.approx(two.run.effective_ratio)


def test_a_checkpoint_costs_its_time_first_less_in_idle_spans_and_more_of_the_network_with_more_replicas():
    blocking, gemini = (lesson.compare_schemes(scheme=scheme, **CHOSEN) for scheme in (Scheme.BLOCKING, Scheme.GEMINI))
    assert blocking.overhead == pytest.approx(blocking.chosen.checkpoint_s / blocking.plain.iteration_s)
    assert 0 <= gemini.overhead < blocking.overhead
    three = lesson.compare_schemes(scheme=Scheme.GEMINI, **CHOSEN | {"num_replicas": 3})
    assert three.chosen.checkpoint_s == pytest.approx(2 * gemini.chosen.checkpoint_s, rel=1e-3)


def test_the_text_says_which_scheme_is_drawn_and_where_it_is_out_of_memory_or_stays_at_home():
    explorer = lesson.explore_interleaving()
    assert list(explorer.values) == ["scheme", *CHOSEN]
    assert explorer.status.startswith("Gemini: the iteration is") and "out of memory" not in explorer.status
    # Two shards of 136 MiB in chunks of 128: four chunks, four buffers of 128 MiB, and 256 MiB are free.
    large = explorer.set(scheme=Scheme.BLOCKING, reserved_mib=512, num_replicas=3).result
    assert explorer.status.startswith("Blocking: the iteration is")
    assert large.chosen.buffer_bytes == 512 * 2**20, "of which 256 MiB are free"
    assert large.chosen.is_out_of_memory and "out of memory" in explorer.status
    explorer.set(num_replicas=1)
    assert explorer.result.overhead == 0 and explorer.status.startswith("No checkpoint")


def _tiers(lost, **more):
    plan = lesson.plan_after(placement(4, 2), lost, in_memory=57, **more)
    return plan.iteration, [source.tier for source in plan.sources]


@pytest.mark.parametrize(
    ("lost", "in_storage", "iteration", "tiers"),
    [
        ([], [], 57, [Tier.LOCAL] * 4),
        ([1, 3], [], 57, [Tier.LOCAL, Tier.PEER, Tier.LOCAL, Tier.PEER]),
        ([0, 1], [20, 40], 40, [Tier.STORAGE] * 4),
        ([0, 1], [], 0, [Tier.START] * 4),
    ],
    ids=["nothing is lost", "one of each group is left", "a group is lost", "nothing is left"],
)
def test_machines_resume_from_the_nearest_tier_that_all_of_them_have(lost, in_storage, iteration, tiers):
    assert _tiers(lost, in_storage=in_storage) == (iteration, tiers)


def test_a_machine_that_does_not_exist_cannot_be_lost():
    with pytest.raises(ValueError, match=r"lost is \[2, 4\]; it must name machines from 0 to 3"):
        _tiers([4, 2])


def _told(*events: Event) -> SimpleNamespace:
    return SimpleNamespace(events=events)  # a training that has told something already


def _done(iteration: int, time_s: float, rank: int = 0) -> Event:
    return Event(name="iteration", time_s=time_s, rank=rank, generation=1, details={"iteration": iteration})


def test_iterations_in_a_row_share_a_line_that_begins_with_the_second_of_the_first():
    lines = []
    begins = Event(name="root elected", time_s=100.0, machine="machine-0")
    killed = Event(name="killed", time_s=103.5, machine="machine-1")
    training = _told(begins, _done(1, 101.0), _done(1, 101.1, rank=3), _done(2, 102.0), killed, _done(3, 104.0))
    lesson.LiveLog(training, write=lines.append).until_iteration(3)
    assert lines == [
        "  0.00 s  machine-0 is elected root",
        "  1.00 s  iterations 1 to 2",
        "  3.50 s  KILLED: machine-1",
        "  4.00 s  iteration 3",
    ]


def test_the_log_goes_on_where_it_stopped_and_silence_ends_the_waiting_with_its_cause():
    lines = []
    training = _told(_done(1, 1.0), _done(2, 2.0), Event(name="finished", time_s=2.5))
    log = lesson.LiveLog(training, write=lines.append, silence_s=0.05)
    log.until_iteration(1)
    log.until_end()
    assert lines == ["  0.00 s  iteration 1", "  1.00 s  iteration 2", "  1.50 s  all ranks have returned"]
    with pytest.raises(TimeoutError, match="waiting for iteration 3, nothing was heard of the training for 0.05 s"):
        log.until_iteration(3)


def test_an_event_is_told_with_what_a_reader_wants_to_know():
    served = Event(name="retrieve", time_s=0.0, rank=1, details={"tier": "peer memory", "iteration": 7})
    assert lesson.in_words(served) == "rank 1: iteration 7 from peer memory"
    died = Event(name="rank failed", time_s=0.0, rank=2, machine="machine-2", details={"kind": "died", "message": ""})
    assert lesson.in_words(died) == "rank 2 of machine-2: died"
    assert lesson.in_words(Event(name="killed", time_s=0.0)) == "KILLED: the store"
    assert lesson.in_words(Event(name="joined", time_s=0.0, rank=2)) == ""
