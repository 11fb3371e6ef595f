"""Kinds of plots: the marks, numbers and words that are drawn, not their pixels."""

import matplotlib
import pytest
from cases import refusals
from matplotlib.colors import to_rgb

from workbench import plots
from workbench.plots.style import GREY, INK, KIND_COLOR, KIND_HATCH
from workbench.timeline import Action, Kind, Timeline

ROWS = [
    {"method": "w/o", "part": "compute", "value": 3.0},
    {"method": "w/o", "part": "link", "value": 4.0},
    {"method": "A1", "part": "compute", "value": 3.5},
    {"method": "A1", "part": "link", "value": 1.0},
]


def heights(ax):
    return [round(patch.get_height(), 9) for patch in ax.patches]


def words(texts):
    return [text.get_text() for text in texts]


def test_a_bar_has_the_height_and_the_name_of_its_row_and_on_demand_its_number():
    ax = plots.bars(ROWS[::2], x="method", unit="ms")
    assert heights(ax) == [3.0, 3.5]
    assert words(ax.get_xticklabels()) == ["w/o", "A1"]
    assert ax.get_ylabel() == "value (ms)"
    ax = plots.bars([{"of": "one", "value": 3.0}, {"of": "two", "value": 1759.4}], x="of", value_labels=True)
    assert words(ax.texts) == ["3", "1,759"]
    assert ax.get_ylim()[1] > 1.1 * 1759.4  # numbers stay inside


def test_series_stand_side_by_side_without_overlap_or_on_top_of_one_another():
    ax = plots.bars(ROWS, x="method", by="part")
    spans = sorted((patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches)
    assert all(left[1] <= right[0] + 1e-9 for left, right in zip(spans, spans[1:], strict=False))
    assert words(ax.get_legend().get_texts()) == ["compute", "link"]
    ax = plots.bars(ROWS, x="method", by="part", stacked=True)
    assert [(patch.get_y(), patch.get_height()) for patch in ax.patches] == [(0, 3.0), (0, 3.5), (3.0, 4.0), (3.5, 1.0)]


def test_published_stands_beside_ours_with_a_gap_where_one_is_missing():
    rows = [{"method": "w/o", "published": 10.0, "ours": 9.0}, {"method": "A1", "published": None, "ours": 5.0}]
    ax = plots.comparison(rows, x="method", unit="ms")
    assert [height for height in heights(ax) if height == height] == [10.0, 9.0, 5.0]
    assert words(ax.get_legend().get_texts()) == ["published", "ours"]
    published, ours = ax.patches[0], ax.patches[2]
    assert published.get_x() + published.get_width() == pytest.approx(ours.get_x())
    assert published.get_facecolor() != ours.get_facecolor()
    alone = plots.comparison([{"method": "w/o", "published": None, "ours": 9.0}], x="method")
    assert (heights(alone), words(alone.get_legend().get_texts())) == ([9.0], ["ours"])


def test_each_series_is_a_line_in_the_order_of_x():
    rows = [
        {"hidden": 2, "method": "A1", "value": 20},
        {"hidden": 1, "method": "A1", "value": 10},
        {"hidden": 1, "method": "w/o", "value": 7},
    ]
    ax = plots.lines(rows, x="hidden", by="method", x_label="hidden size", log_y=True)
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 10], [2, 20]], [[1, 7]]]
    assert (ax.get_xlabel(), ax.get_yscale()) == ("hidden size", "log")
    assert words(ax.get_legend().get_texts()) == ["A1", "w/o"]


def test_the_spread_is_a_band_or_a_bar_from_low_to_high():
    rows = [{"x": x, "value": 2.0, "low": 1.0, "high": 4.0} for x in (0, 1)]
    (segment,) = plots.bars(rows[:1], x="x").collections[0].get_segments()
    assert segment[:, 1].tolist() == [1.0, 4.0]
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
    assert words(figure.legends[0].get_texts()) == ["a", "b", "c", "the paper"]
    assert left.get_legend() is right.get_legend() is None and len(left.lines) == 2


def test_seconds_and_bytes_are_written_in_readable_units():
    written = [plots.format_time(time_s) for time_s in (0.00125, 3e-6, 0.25, 61.0, 0.0)]
    assert written == ["1.25 ms", "3 µs", "250 ms", "61 s", "0 s"]
    assert [plots.format_bytes(n) for n in (33_554_432, 999, 1_638_400)] == ["33.6 MB", "999 B", "1.64 MB"]


def test_drawing_leaves_the_settings_of_matplotlib_as_they_were_but_those_of_a_notebook_s_backend():
    before, was_interactive = dict(matplotlib.rcParams), matplotlib.is_interactive()
    plots.lines([{"x": 1, "value": 2}], x="x")
    assert dict(matplotlib.rcParams) == before
    try:
        with plots.styled():  # the first figure loads the backend, which turns interactive drawing on
            matplotlib.interactive(not was_interactive)
        assert matplotlib.is_interactive() is not was_interactive
    finally:
        matplotlib.interactive(was_interactive)


SCORES = [
    {"quantity": "score", "method": "A1", "seed": 0, "value": 80.0, "unit": "%"},
    {"quantity": "score", "method": "A1", "seed": 1, "value": 90.0, "unit": "%"},
    {"quantity": "score", "method": "T1", "seed": 0, "value": 70.0, "unit": "%"},
    {"quantity": "bytes", "method": "A1", "value": 5.0, "unit": "MB"},
]
SPEEDUPS = [
    {"quantity": "speedup", "method": "A1", "tp": 4, "value": 1.2, "low": 1.1, "high": 1.3, "unit": "1"},
    {"quantity": "speedup", "method": "A1", "tp": 2, "value": 1.05, "low": 1.05, "high": 1.05, "unit": "1"},
    {"quantity": "speedup", "method": "A2", "tp": 4, "value": 1.1, "low": 1.0, "high": 1.2, "unit": "1"},
    {"quantity": "time_s", "method": "A2", "tp": 4, "value": 12.3456, "unit": "s"},
]


def test_the_rows_of_a_quantity_are_narrowed_by_keys_and_seeds_merged_into_their_mean_least_and_most():
    assert plots.rows_of(SCORES, "score", method="A1").value.tolist() == [80.0, 90.0]
    assert plots.rows_of(SCORES, "time").empty
    first, second = plots.merged(SCORES, "score", ["method"]).to_dict("records")
    assert first == {"method": "A1", "value": 85.0, "low": 80.0, "high": 90.0} and second["method"] == "T1"


def test_values_are_written_with_interval_and_unit_a_column_a_quantity_or_a_key():
    by_method = plots.with_intervals(SPEEDUPS, "speedup", columns="method")
    assert by_method["A1"].tolist() == ["1.2 (1.1 to 1.3)", "1.05"]
    assert by_method["A2"].tolist() == ["1.1 (1 to 1.2)", ""]
    both = plots.with_intervals(SPEEDUPS).loc[("A2", 4)]
    assert both.to_dict() == {"speedup": "1.1 (1 to 1.2)", "time_s": "12.35 s"}


TIMELINE = Timeline(
    actions=(
        Action(resource="rank 0", start_s=0.0, end_s=0.002, kind=Kind.COMPUTE, label="attention"),
        Action(resource="link", start_s=0.002, end_s=0.005, kind=Kind.COMMUNICATE, label="sum"),
    )
)


def test_an_action_is_a_bar_from_its_start_to_its_end_in_the_row_of_its_resource_the_first_on_top():
    ax = plots.gantt(TIMELINE)
    spans = [(bar.get_x(), bar.get_width(), bar.get_y() + bar.get_height() / 2) for bar in ax.patches]
    assert spans == [pytest.approx((0, 2, 0)), pytest.approx((2, 3, 1))]
    bottom, top = ax.get_ylim()
    assert ax.get_xlabel() == "time (ms)" and bottom > top
    assert words(ax.get_yticklabels()) == ["rank 0", "link"]
    assert words(ax.get_legend().get_texts()) == ["compute", "communicate"]
    assert plots.gantt(TIMELINE, legend=False).get_legend() is None
    actions = (
        Action(resource="rank 0", start_s=0, end_s=0.01, label="does-not-fit-and-is-left-out"),
        Action(resource="rank 0", start_s=0.01, end_s=1.0, label="fits"),
    )
    assert words(plots.gantt(Timeline(actions=actions)).texts) == ["fits"]


def test_timelines_under_each_other_share_one_scale_and_one_legend():
    longer = Timeline(actions=(Action(resource="rank 0", start_s=0, end_s=0.02),))
    above, below = plots.gantts({"plain": TIMELINE, "longer": longer}, figsize=(8, 4))
    assert above.get_xlim() == below.get_xlim() == pytest.approx((0, 20))
    assert above.get_legend() is None and below.get_legend() is not None
    assert [ax.get_title(loc="left") for ax in (above, below)] == ["plain", "longer"]


def test_every_kind_has_a_look_of_its_own_and_a_legend_can_say_what_kinds_stand_for():
    assert set(KIND_COLOR) == set(KIND_HATCH) == set(Kind)
    layer = (Kind.COMPUTE, Kind.ENCODE, Kind.COMMUNICATE, Kind.DECODE)
    assert len({KIND_COLOR[kind] for kind in layer}) == len({KIND_HATCH[kind] for kind in layer}) == 4
    figure, _ = plots.figure()
    plots.kind_legend(figure, {"training": Kind.COMPUTE, "checkpoint": Kind.COMMUNICATE})
    patches = figure.legends[0].get_patches()
    assert [patch.get_label() for patch in patches] == ["training", "checkpoint"]
    assert patches[1].get_hatch() == KIND_HATCH[Kind.COMMUNICATE]


def test_a_heat_map_draws_the_matrix_on_its_scale_with_the_texts_of_cells_rows_and_columns():
    options = {"x_ticks": [2, 8], "y_ticks": ["one"], "texts": [["slow", "fast"]]}
    ax = plots.heatmap([[1.0, 9.0]], limit=3.0, **options)
    assert ax.images[0].get_array().tolist() == [[1.0, 9.0]] and ax.images[0].get_clim() == (-3.0, 3.0)
    assert (words(ax.get_xticklabels()), words(ax.get_yticklabels())) == (["2", "8"], ["one"])
    assert [(text.get_text(), text.get_position()) for text in ax.texts] == [("slow", (0, 0)), ("fast", (1, 0))]


def test_every_number_of_a_matrix_is_written_in_its_cell_row_0_on_top_and_faded_where_it_does_not_count():
    ax = plots.matrix([[1, 2.5], [0, -3]], faded_rows=[1], faded_columns=[1])
    places = {text.get_text(): text.get_position() for text in ax.texts}
    assert places == {"1": (0.5, 0.5), "2.5": (1.5, 0.5), "0": (0.5, 1.5), "-3": (1.5, 1.5)}
    assert [to_rgb(text.get_color()) for text in ax.texts] == [to_rgb(INK), *[to_rgb(GREY)] * 3]
    bottom, top = ax.get_ylim()
    assert bottom > top


test_what_cannot_be_drawn_is_refused = refusals(
    (lambda: plots.bars(ROWS, x="method"), "each bar must come once"),
    (lambda: plots.bars(SCORES, x="methods"), "column is 'methods'; it must be one of"),
    (lambda: plots.lines(SCORES, x="seed", y="methods"), "column is 'methods'; it must be one of"),
    (lambda: plots.heatmap([[0.0]], limit=float("nan")), "limit is nan; it must be more than 0"),
    (lambda: plots.matrix([1, 2, 3]), "values has 1 dims; it must have 2"),
)
