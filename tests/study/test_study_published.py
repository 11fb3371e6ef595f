"""Published cells by their keys, and errors of those that do not calibrate."""

import pytest

from workbench.study.published import Cell, error_rows, published_value, summary_rows


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
    ours = [
        {"quantity": "a_ms", "method": name, "value": found, "unit": "ms"}
        for name, found in (("x", 11), ("y", 24), ("z", 30))
    ]
    said = [
        {"quantity": "a_ms", "method": name, "value": 10.0 * n, "unit": "ms", "source": "s"}
        for n, name in enumerate("xyz", start=1)
    ]
    rows = error_rows(ours, said, [{"quantity": "a_ms", "method": "z"}])
    assert {row["method"]: row["value"] for row in rows if row["quantity"] == "relative_error"} == pytest.approx(
        {"x": 0.1, "y": 0.2}
    )
    assert (value(rows, "median_error"), value(rows, "largest_error"), value(rows, "held_out_cells")) == pytest.approx(
        (0.15, 0.2, 2)
    )


def test_empty_columns_of_a_published_table_are_no_keys():
    ours = [{"quantity": "a_ms", "method": "x", "value": 11.0, "unit": "ms"}]
    said = [{"quantity": "a_ms", "method": "x", "boundary": float("nan"), "value": 10.0, "unit": "ms"}]
    assert value(error_rows(ours, said, []), "median_error") == pytest.approx(0.1)


def test_a_comparison_of_nothing_is_refused():
    with pytest.raises(ValueError, match="published has no cell in ms"):
        error_rows([], [{"quantity": "a_ms", "value": 1.0, "unit": "ms"}], [])


def test_ninety_percent_of_the_errors_lie_below_the_ninetieth_percentile():
    assert value(summary_rows(n / 10 for n in range(11)), "p90_error") == pytest.approx(0.9)
