"""The lesson on in-memory checkpoints: the placement puzzle, its exercises, the controls."""

from fractions import Fraction

import pytest

from workbench.explore import Standing, check
from workbench.explore import gemini as lesson
from workbench.techniques.gemini.cost import Cause
from workbench.techniques.gemini.method.interleaving import Scheme
from workbench.techniques.gemini.method.recovery import Tier

CHOSEN = {"link": 100, "copy_rate": 400, "reserved_mib": 128, "num_buffers": 4, "safety": 0.9, "num_replicas": 2}
PLACE = {"num_machines": 16, "failures_per_day": 8, "solution": "Gemini", "num_replicas": 2, "num_standbys": 0}
EXERCISES = (
    lesson.fatal_pairs_of_ring,
    lesson.holders_of_shard,
    lesson.lost_shards,
    lesson.memory_for_replicas,
    lesson.partner_in_another_rack,
    lesson.probability_of_four_lost,
)


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


def test_other_machines_that_fail_may_be_survived_with_the_same_odds():
    explorer = lesson.explore_placement().set(failed=(1, 2))
    assert explorer.result.recovers
    assert explorer.result.lost == ()
    assert explorer.status.startswith("machines 1, 2 failed: training recovers from memory;")
    assert explorer.result.probability == Fraction(24, 28)


def test_one_failed_machine_and_none_are_written_as_such():
    explorer = lesson.explore_placement().set(num_replicas=1, failed=(3,))
    assert explorer.status.startswith("machine 3 failed: shard 3 is lost, training starts")
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


@pytest.mark.parametrize("exercise", EXERCISES, ids=lambda exercise: exercise.__name__)
def test_exercises_know_their_answer_and_help_with_every_mistake(exercise):
    asked = exercise()
    assert check(asked, asked.answer).standing is Standing.RIGHT
    for mistake in asked.mistakes:
        feedback = check(asked, mistake.answer)
        assert (feedback.standing, feedback.text) == (Standing.NOT_YET, mistake.hint)
    assert check(asked, None).standing is Standing.NOT_ANSWERED


def test_the_answers_are_those_worked_by_hand():
    # one group of three and a ring 3 4 5 6
    assert lesson.holders_of_shard().answer == (5, 6, 3)
    # machines 2 and 3 are the holders of shard 2
    assert lesson.lost_shards().answer == (2,)
    assert lesson.fatal_pairs_of_ring().answer == 8
    # one of each of four groups: 2^4 of 70
    assert lesson.probability_of_four_lost().answer == pytest.approx(16 / 70)
    # 4 times 1200 GB / 16
    assert lesson.memory_for_replicas().answer == 300
    assert lesson.partner_in_another_rack().answer == 3


def test_the_control_of_failures_says_what_it_shows():
    explorer = lesson.explore_failures()
    assert explorer.status.startswith("Gemini: 9")
    explorer.set(failures_per_day=0)
    assert explorer.status == "Gemini: 100.0% of 10 days is progress that stays; nothing fails."


def test_one_replica_sends_every_lost_machine_to_storage():
    alone, two = lesson.compare_failures(**PLACE | {"num_replicas": 1}), lesson.compare_failures(**PLACE)
    assert alone.run.num_recoveries[Tier.STORAGE] == sum(alone.run.num_recoveries.values())
    assert two.run.num_recoveries[Tier.STORAGE] < alone.run.num_recoveries[Tier.STORAGE] / 5
    assert alone.run.effective_ratio < two.run.effective_ratio


def test_standby_machines_take_the_waiting_away():
    without, with_four = lesson.compare_failures(**PLACE), lesson.compare_failures(**PLACE | {"num_standbys": 4})
    assert with_four.run.wasted_s[Cause.REPLACEMENT] == 0 < without.run.wasted_s[Cause.REPLACEMENT]


def test_the_curve_passes_through_the_chosen_place():
    comparison = lesson.compare_failures(**PLACE)
    (there,) = [row for row in comparison.curves if row["solution"] == "Gemini" and row["failures_per_day"] == 8]
    assert there["ratio"] == pytest.approx(comparison.run.effective_ratio)


def test_a_checkpoint_that_goes_first_costs_its_time_and_one_in_idle_spans_less():
    blocking, gemini = (lesson.compare_schemes(scheme=scheme, **CHOSEN) for scheme in (Scheme.BLOCKING, Scheme.GEMINI))
    assert blocking.overhead == pytest.approx(blocking.chosen.checkpoint_s / blocking.plain.iteration_s)
    assert 0 <= gemini.overhead < blocking.overhead


def test_more_replicas_take_more_of_the_network():
    two, three = (
        lesson.compare_schemes(scheme=Scheme.GEMINI, **CHOSEN | {"num_replicas": number}) for number in (2, 3)
    )
    assert three.chosen.checkpoint_s == pytest.approx(2 * two.chosen.checkpoint_s, rel=1e-3)


def test_one_replica_stays_at_home_and_the_text_says_so():
    explorer = lesson.explore_interleaving().set(num_replicas=1)
    assert explorer.result.overhead == 0 and explorer.status.startswith("No checkpoint")


def test_more_buffers_than_are_free_are_out_of_memory_and_the_text_says_so():
    # Two shards of 136 MiB in chunks of 128: four chunks, four buffers of 128 MiB, and 256 MiB are free.
    explorer = lesson.explore_interleaving().set(scheme=Scheme.BLOCKING)
    assert "out of memory" not in explorer.status
    large = explorer.set(reserved_mib=512, num_replicas=3).result
    assert large.chosen.buffer_bytes == 512 * 2**20, "of which 256 MiB are free"
    assert large.chosen.is_out_of_memory and "out of memory" in explorer.status


def test_a_control_that_is_moved_is_computed_and_told():
    explorer = lesson.explore_interleaving()
    assert list(explorer.values) == ["scheme", *CHOSEN]
    explorer.set(scheme=Scheme.BLOCKING)
    assert explorer._repr_mimebundle_()["text/plain"].startswith("Blocking: the iteration is 9.")


@pytest.mark.parametrize(
    ("explore", "changes"),
    [
        (lesson.explore_placement, {"failed": (0, 2, 4), "kind": "ring", "num_machines": 9, "num_replicas": 3}),
        (
            lesson.explore_failures,
            {"num_machines": 64, "failures_per_day": 16, "num_standbys": 4, "num_replicas": 1, "solution": "HighFreq"},
        ),
    ],
)
def test_every_control_changes_the_figure(explore, changes):
    explorer = explore()
    seen = {explorer.png} | {explorer.set(**{name: value}).png for name, value in changes.items()}
    assert set(explorer.values) == set(changes)
    assert len(seen) == 1 + len(changes)
