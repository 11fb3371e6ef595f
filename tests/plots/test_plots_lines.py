import matplotlib
import pytest

from workbench import plots


def test_each_series_is_a_line_in_the_order_of_x():
    rows = [
        {"hidden": 2, "method": "A1", "value": 20},
        {"hidden": 1, "method": "A1", "value": 10},
        {"hidden": 1, "method": "w/o", "value": 7},
    ]
    ax = plots.lines(rows, x="hidden", by="method", x_label="hidden size", log_y=True)
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 10], [2, 20]], [[1, 7]]]
    assert (ax.get_xlabel(), ax.get_yscale()) == ("hidden size", "log")
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["A1", "w/o"]


def test_the_spread_is_a_band_from_low_to_high():
    rows = [{"x": x, "value": 2.0, "low": 1.0, "high": 4.0} for x in (0, 1)]
    (band,) = plots.lines(rows, x="x").collections
    assert set(band.get_paths()[0].vertices[:, 1]) == {1.0, 4.0}


def test_eight_series_have_eight_colours_and_markers_and_the_next_eight_another_line():
    rows = [{"x": x, "value": x, "series": number} for number in range(16) for x in (0, 1)]
    drawn = plots.lines(rows, x="x", by="series").lines
    looks = [(line.get_color(), line.get_marker(), line.get_linestyle()) for line in drawn]
    assert len({color for color, _, _ in looks[:8]}) == len({marker for _, marker, _ in looks[:8]}) == 8
    assert len(set(looks)) == 16


def test_the_legend_and_the_edge_hide_no_marker():
    ax = plots.lines([{"x": x, "value": x, "of": "one"} for x in (0, 1)], x="x", by="of")
    ax.figure.canvas.draw()
    assert not ax.lines[0].get_clip_on()
    assert ax.get_legend().get_window_extent().x0 >= ax.get_window_extent().x1


def test_one_legend_below_names_the_series_of_all_axes_once():
    figure, (left, right) = plots.figure(1, 2)
    for ax, names in ((left, "ab"), (right, "bc")):
        plots.lines([{"x": 0, "value": 1, "of": name} for name in names], ax=ax, x="x", by="of")
    plots.published_line(right, 1.0, "the paper")
    plots.below(figure)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c", "the paper"]
    assert left.get_legend() is right.get_legend() is None


def test_drawing_leaves_the_settings_of_matplotlib_as_they_were():
    before = dict(matplotlib.rcParams)
    plots.lines([{"x": 1, "value": 2}], x="x")
    assert dict(matplotlib.rcParams) == before


def test_a_function_draws_on_the_axes_it_is_given():
    _, (left, right) = plots.figure(1, 2)
    assert plots.lines([{"x": 1, "value": 2}], x="x", ax=right) is right
    assert not left.lines


@pytest.mark.parametrize(
    ("time_s", "text"), [(0.00125, "1.25 ms"), (3e-6, "3 µs"), (0.25, "250 ms"), (61.0, "61 s"), (0.0, "0 s")]
)
def test_a_time_is_written_in_a_readable_unit(time_s, text):
    assert plots.format_time(time_s) == text


@pytest.mark.parametrize(("num_bytes", "text"), [(33_554_432, "33.6 MB"), (999, "999 B"), (1_638_400, "1.64 MB")])
def test_bytes_are_written_in_powers_of_a_thousand(num_bytes, text):
    assert plots.format_bytes(num_bytes) == text


def test_what_the_first_figure_of_a_notebook_sets_stays_set():
    # A notebook's backend turns interactive drawing on when it is loaded, by the first figure.
    before = matplotlib.is_interactive()
    try:
        with plots.styled():
            matplotlib.interactive(not before)
        assert matplotlib.is_interactive() is not before
    finally:
        matplotlib.interactive(before)
