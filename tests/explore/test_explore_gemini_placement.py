"""The lesson on in-memory checkpoints: the placement puzzle, its picture, the exercises."""

from fractions import Fraction

import pytest
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from workbench.explore import Standing, check
from workbench.explore import gemini as lesson
from workbench.plots import figure
from workbench.plots.style import PALE, VERMILION
from workbench.techniques.gemini.method.placement import Placement, placement

EXERCISES = (
    lesson.fatal_pairs_of_ring,
    lesson.holders_of_shard,
    lesson.lost_shards,
    lesson.memory_for_replicas,
    lesson.partner_in_another_rack,
    lesson.probability_of_four_lost,
)


def _boxes(placed, failed=()):
    ax = lesson.draw_placement(placed, ax=figure()[1], failed=failed)
    return ax, [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def _shards(ax, boxes):
    """Return the number written in each box, by machine from left to right, lowest first."""
    numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text().isdigit()}
    columns = sorted({round(x, 6) for x, _ in numbers})
    return [[int(numbers[each]) for each in sorted(numbers) if round(each[0], 6) == x] for x in columns]


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


def test_every_control_changes_the_figure():
    explorer = lesson.explore_placement()
    seen = {explorer.png}
    changes = ({"failed": (0, 2, 4)}, {"kind": "ring"}, {"num_machines": 9}, {"num_replicas": 3})
    for change in changes:
        seen.add(explorer.set(**change).png)
    assert len(seen) == 1 + len(changes)


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


def test_the_picture_has_a_column_a_machine_with_its_own_shard_lowest():
    ax, boxes = _boxes(placement(5, 2))
    assert len(boxes) == 10
    assert _shards(ax, boxes) == [[0, 1], [1, 0], [2, 4], [3, 2], [4, 3]]
    assert [text.get_text() for text in ax.texts if text.get_text().isalpha()] == ["group", "ring"]


def test_machines_that_share_replicas_stand_together_whatever_their_numbers():
    ax, _ = _boxes(Placement.own([(0, 2), (1, 3), (2, 0), (3, 1)]))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]


def test_boxes_of_failed_machines_are_faded_and_those_of_lost_shards_have_a_red_edge():
    _, boxes = _boxes(placement(4, 2), failed={0, 1, 2})
    faded = [box for box in boxes if box.get_facecolor() == to_rgba(PALE)]
    lost = [box for box in boxes if box.get_edgecolor() == to_rgba(VERMILION)]
    assert len(faded) == 6  # three machines with two boxes
    assert len(lost) == 4  # shards 0 and 1, both replicas; shards 2 and 3 live on machine 3


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
