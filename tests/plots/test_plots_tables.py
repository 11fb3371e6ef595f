import pytest

from workbench import plots

ROWS = [
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


def test_the_rows_of_a_quantity_can_be_narrowed_by_keys():
    assert plots.rows_of(ROWS, "score", method="A1").value.tolist() == [80.0, 90.0]
    assert plots.rows_of(ROWS, "time").empty


def test_seeds_are_merged_into_their_mean_least_and_most():
    merged = plots.merged(ROWS, "score", ["method"]).to_dict("records")
    assert merged[0] == {"method": "A1", "value": 85.0, "low": 80.0, "high": 90.0}
    assert [row["method"] for row in merged] == ["A1", "T1"]


def test_values_are_written_with_interval_and_unit_a_column_a_quantity_or_a_key():
    by_method = plots.with_intervals(SPEEDUPS, "speedup", columns="method")
    assert by_method["A1"].tolist() == ["1.2 (1.1 to 1.3)", "1.05"]
    assert by_method["A2"].tolist() == ["1.1 (1 to 1.2)", ""]
    both = plots.with_intervals(SPEEDUPS).loc[("A2", 4)]
    assert both.to_dict() == {"speedup": "1.1 (1 to 1.2)", "time_s": "12.35 s"}


@pytest.mark.parametrize(
    "draw", [lambda: plots.bars(ROWS, x="methods"), lambda: plots.lines(ROWS, x="seed", y="methods")]
)
def test_a_missing_column_is_named(draw):
    with pytest.raises(ValueError, match="column is 'methods'; it must be one of"):
        draw()
