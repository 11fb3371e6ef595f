import pytest

from workbench import plots

ROWS = [
    {"method": "w/o", "part": "compute", "value": 3.0},
    {"method": "w/o", "part": "link", "value": 4.0},
    {"method": "A1", "part": "compute", "value": 3.5},
    {"method": "A1", "part": "link", "value": 1.0},
]


def heights(ax):
    return [round(patch.get_height(), 9) for patch in ax.patches]


def test_a_bar_has_the_height_and_the_name_of_its_row():
    ax = plots.bars(ROWS[::2], x="method", unit="ms")
    assert heights(ax) == [3.0, 3.5]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["w/o", "A1"]
    assert ax.get_ylabel() == "value (ms)"


def test_stacked_series_begin_where_the_one_below_ends():
    ax = plots.bars(ROWS, x="method", by="part", stacked=True)
    assert [(patch.get_y(), patch.get_height()) for patch in ax.patches] == [(0, 3.0), (0, 3.5), (3.0, 4.0), (3.5, 1.0)]


def test_series_side_by_side_do_not_overlap():
    ax = plots.bars(ROWS, x="method", by="part")
    spans = sorted((patch.get_x(), patch.get_x() + patch.get_width()) for patch in ax.patches)
    assert all(
        left_end <= right_start + 1e-9 for (_, left_end), (right_start, _) in zip(spans, spans[1:], strict=False)
    )
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["compute", "link"]


def test_the_spread_reaches_from_low_to_high():
    ax = plots.bars([{"method": "A1", "value": 3.0, "low": 2.5, "high": 4.0}], x="method")
    (segment,) = ax.collections[0].get_segments()
    assert segment[:, 1].tolist() == [2.5, 4.0]


def test_values_are_written_on_the_bars_when_asked():
    ax = plots.bars([{"of": "one", "value": 3.0}, {"of": "two", "value": 1759.4}], x="of", value_labels=True)
    assert [text.get_text() for text in ax.texts] == ["3", "1,759"]
    assert ax.get_ylim()[1] > 1.1 * 1759.4  # numbers stay inside


def test_two_rows_for_one_bar_are_refused():
    with pytest.raises(ValueError, match="each bar must come once"):
        plots.bars(ROWS, x="method")


def test_published_stands_beside_ours_with_a_gap_where_one_is_missing():
    rows = [{"method": "w/o", "published": 10.0, "ours": 9.0}, {"method": "A1", "published": None, "ours": 5.0}]
    ax = plots.comparison(rows, x="method", unit="ms")
    drawn = [height for height in heights(ax) if height == height]
    assert drawn == [10.0, 9.0, 5.0]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["published", "ours"]
    published, ours = ax.patches[0], ax.patches[2]
    assert published.get_x() + published.get_width() == pytest.approx(ours.get_x())
    assert published.get_facecolor() != ours.get_facecolor()


def test_a_side_without_values_is_neither_drawn_nor_named():
    ax = plots.comparison([{"method": "w/o", "published": None, "ours": 9.0}], x="method")
    assert heights(ax) == [9.0]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["ours"]
