import numpy as np
import pytest

from workbench import plots


def test_a_heat_map_draws_the_matrix_on_the_scale_it_was_given():
    matrix = np.array([[1.0, -2.0], [0.0, 9.0]])
    ax = plots.heatmap(matrix, limit=3.0)
    (image,) = ax.images
    assert np.array_equal(image.get_array(), matrix)
    assert image.get_clim() == (-3.0, 3.0)


@pytest.mark.parametrize("limit", [0, -1, float("nan")])
def test_a_scale_without_width_is_refused(limit):
    with pytest.raises(ValueError, match="limit is .*; it must be more than 0"):
        plots.heatmap([[0.0]], limit=limit)


def test_cells_rows_and_columns_carry_what_they_are_given():
    ax = plots.heatmap([[0.0, 1.0]], limit=1, x_ticks=[2, 8], y_ticks=["one"], texts=[["slow", "fast"]])
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "8"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["one"]
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [("slow", (0, 0)), ("fast", (1, 0))]
