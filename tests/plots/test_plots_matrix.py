import pytest
from matplotlib.colors import to_rgb

from workbench import plots
from workbench.plots.style import GREY, INK


def test_every_number_is_written_in_its_cell_row_0_on_top():
    ax = plots.matrix([[1, 2.5], [0, -3]])
    assert {text.get_text(): text.get_position() for text in ax.texts} == {
        "1": (0.5, 0.5),
        "2.5": (1.5, 0.5),
        "0": (0.5, 1.5),
        "-3": (1.5, 1.5),
    }
    bottom, top = ax.get_ylim()
    assert bottom > top


def test_rows_and_columns_that_do_not_count_are_faded():
    ax = plots.matrix([[1, 2], [3, 4]], faded_rows=[1], faded_columns=[1])
    colors = {text.get_text(): to_rgb(text.get_color()) for text in ax.texts}
    assert colors == {"1": to_rgb(INK), "2": to_rgb(GREY), "3": to_rgb(GREY), "4": to_rgb(GREY)}


def test_a_row_alone_is_refused():
    with pytest.raises(ValueError, match="values has 1 dims"):
        plots.matrix([1, 2, 3])
