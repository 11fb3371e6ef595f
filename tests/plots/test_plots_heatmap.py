import numpy as np
import pytest
from matplotlib.colors import to_rgb

from workbench import plots
from workbench.plots.style import GREY, INK


def test_a_heat_map_draws_the_matrix_on_the_scale_it_was_given():
    matrix = np.array([[1.0, -2.0], [0.0, 9.0]])
    (image,) = plots.heatmap(matrix, limit=3.0).images
    assert np.array_equal(image.get_array(), matrix)
    assert image.get_clim() == (-3.0, 3.0)


def test_cells_rows_and_columns_carry_what_they_are_given():
    ax = plots.heatmap([[0.0, 1.0]], limit=1, x_ticks=[2, 8], y_ticks=["one"], texts=[["slow", "fast"]])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "8"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one"]
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [("slow", (0, 0)), ("fast", (1, 0))]


def test_every_number_of_a_matrix_is_written_in_its_cell_row_0_on_top():
    ax = plots.matrix([[1, 2.5], [0, -3]])
    places = {text.get_text(): text.get_position() for text in ax.texts}
    assert places == {"1": (0.5, 0.5), "2.5": (1.5, 0.5), "0": (0.5, 1.5), "-3": (1.5, 1.5)}
    bottom, top = ax.get_ylim()
    assert bottom > top


def test_rows_and_columns_that_do_not_count_are_faded():
    ax = plots.matrix([[1, 2], [3, 4]], faded_rows=[1], faded_columns=[1])
    colors = {text.get_text(): to_rgb(text.get_color()) for text in ax.texts}
    assert colors == {"1": to_rgb(INK), "2": to_rgb(GREY), "3": to_rgb(GREY), "4": to_rgb(GREY)}


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: plots.heatmap([[0.0]], limit=0), "limit is 0; it must be more than 0"),
        (lambda: plots.heatmap([[0.0]], limit=float("nan")), "limit is nan; it must be more than 0"),
        (lambda: plots.matrix([1, 2, 3]), "values has 1 dims; it must have 2"),
    ],
)
def test_a_scale_without_width_and_a_row_alone_are_refused(draw, message):
    with pytest.raises(ValueError, match=message):
        draw()
