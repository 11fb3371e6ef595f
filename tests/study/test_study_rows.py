"""Rows: builders of values, medians and ratios; published cells by their keys, and the errors against them."""

import pytest

from workbench.study.published import Cell, error_rows, published_value, summary_rows
from workbench.study.rows import median_row, ratio_row, read_row, read_rows, spread_row, value_row


def test_a_row_is_a_value_or_a_median_with_its_interval_or_a_few_values_with_their_spread():
    keys = {"method": "T1", "tp": 2}
    assert value_row("bytes", 12, "byte", **keys) == {"quantity": "bytes", **keys, "value": 12, "unit": "byte"}
    row = median_row("iteration_s", [5.0, 1.0, 4.0, 2.0, 3.0, 6.0], "s", method="T1")
    assert (row["value"], row["low"], row["high"], row["unit"]) == (3.5, 1.0, 6.0, "s")
    assert spread_row("total_s", [3.0, 1.0, 2.0], "s") == value_row("total_s", 2.0, "s", low=1.0, high=3.0)


def test_a_ratio_is_taken_pair_by_pair_before_its_median():
    row = ratio_row("speedup", [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], [1.0, 1.0, 2.0, 2.0, 2.0, 4.0])
    assert (row["value"], row["low"], row["high"]) == (3.5, 2.0, 5.0)  # 2, 4, 3, 4, 5, 3


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"low": 2.0, "high": 3.0}, "value is 1.0, outside its spread, low 2.0 to high 3.0"),
        ({"low": 0.0, "high": 0.5}, "value is 1.0, outside its spread"),
        ({"low": float("nan"), "high": 2.0}, "low is nan; it must be finite"),
        ({"low": 0.0, "high": float("inf")}, "high is inf; it must be finite"),
        ({"seed": 0.5}, "seed is 0.5; it must be a whole number"),
        ({"seed": float("nan")}, "seed is nan; it must be a whole number"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_a_spread_without_its_value_and_a_seed_that_is_no_whole_number_are_refused(more, message):
    with pytest.raises(ValueError, match=message):
        read_row({"quantity": "time", "value": 1.0, "unit": "ms", **more})


def test_two_rows_of_the_same_thing_are_refused():
    rows = [value_row("time", 1.0, "ms", tp=tp) for tp in (1, 1.0)]
    with pytest.raises(ValueError, match="values, row 2: says the same as row 1"):
        read_rows(rows, "values")


def value(rows: list[dict], quantity: str) -> float:
    (row,) = [row for row in rows if row["quantity"] == quantity]
    return row["value"]


def test_a_cell_has_the_number_that_the_table_prints():
    # Table 7, row A2, column Tensor Dec.; table I of FlexTP; figure 6.11 of Gemini.
    cell = Cell.of("table-7", "decode_ms", method="A2", tp=4, pp=4)
    assert cell.value("activation_compression") == 20.52
    assert cell.keys() == {"quantity": "decode_ms", "method": "A2", "tp": 4, "pp": 4}
    assert published_value("flextp", "table-1", "epoch_s", scheme="scatter-gather", migrated_share=0.0) == 373
    assert published_value("gemini", "fig-6-11", "reduction", network_gbit_per_s=100, num_machines=16) == 65


@pytest.mark.parametrize(("method", "count"), [("w/o", 0), (["A1", "A2"], 2)])
def test_keys_of_no_row_or_of_several_are_named(method, count):
    with pytest.raises(ValueError, match=f"table-7 has {count} rows of decode_ms with .*; it must have one"):
        published_value("activation_compression", "table-7", "decode_ms", method=method, tp=4, pp=4)


def test_cells_that_calibrate_have_no_error_and_the_others_are_summed_up():
    ours = [value_row("a_ms", value, "ms", method=name) for name, value in (("x", 11), ("y", 24), ("z", 30))]
    published = [value_row("a_ms", 10.0 * n, "ms", method=name, source="s") for n, name in enumerate("xyz", start=1)]
    rows = error_rows(ours, published, [{"quantity": "a_ms", "method": "z"}])
    errors = {row["method"]: row["value"] for row in rows if row["quantity"] == "relative_error"}
    assert errors == pytest.approx({"x": 0.1, "y": 0.2})
    summary = [value(rows, quantity) for quantity in ("median_error", "largest_error", "held_out_cells")]
    assert summary == pytest.approx([0.15, 0.2, 2])
    assert value(summary_rows(n / 10 for n in range(11)), "p90_error") == pytest.approx(0.9)
    # An empty column of a published table is no key.
    with_boundary = [{**published[0], "boundary": float("nan")}]
    assert value(error_rows(ours[:1], with_boundary, []), "median_error") == pytest.approx(0.1)
    with pytest.raises(ValueError, match="published has no cell in ms"):
        error_rows([], published[:1], [])
