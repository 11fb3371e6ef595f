"""The pictures of Gemini, as far as its items' tests do not look at them."""

from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from workbench.plots import figure
from workbench.plots.style import PALE, VERMILION
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.method import Placement, placement


def _boxes(placed, failed=()):
    ax = pictures.draw_placement(placed, ax=figure()[1], failed=failed)
    return ax, [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def _shards(ax, boxes):
    """Return the number written in each box, by machine from left to right, lowest first."""
    numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text().isdigit()}
    columns = sorted({round(x, 6) for x, _ in numbers})
    return [[int(numbers[place]) for place in sorted(numbers) if round(place[0], 6) == x] for x in columns]


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
