"""Builders of rows: a value, a median with its interval, a ratio taken pair by pair, a few values with their spread."""

import pytest

from workbench.study.rows import median_row, ratio_row, read_row, read_rows, spread_row, value_row


def test_a_value_stands_with_its_keys_and_its_unit():
    assert value_row("bytes", 12, "byte", method="T1", tp=2) == {
        "quantity": "bytes",
        "method": "T1",
        "tp": 2,
        "value": 12,
        "unit": "byte",
    }


def test_a_median_of_six_has_the_least_and_the_largest_as_its_95_percent_interval():
    row = median_row("iteration_s", [5.0, 1.0, 4.0, 2.0, 3.0, 6.0], "s", method="T1")
    assert (row["value"], row["low"], row["high"], row["unit"]) == (3.5, 1.0, 6.0, "s")


def test_a_ratio_is_taken_pair_by_pair_before_its_median():
    row = ratio_row("speedup", [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], [1.0, 1.0, 2.0, 2.0, 2.0, 4.0])
    assert (row["value"], row["low"], row["high"]) == (3.5, 2.0, 5.0)  # 2, 4, 3, 4, 5, 3


def test_a_few_values_have_no_interval_but_a_spread():
    assert spread_row("total_s", [3.0, 1.0, 2.0], "s") == value_row("total_s", 2.0, "s", low=1.0, high=3.0)


def test_a_spread_that_does_not_contain_its_value_is_refused():
    with pytest.raises(ValueError, match="value is 5"):
        value_row("total_s", 5.0, "s", low=1.0, high=3.0)


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
    rows = [{"quantity": "time", "value": 1.0, "unit": "ms", "tp": tp} for tp in (1, 1.0)]
    with pytest.raises(ValueError, match="values, row 2: says the same as row 1"):
        read_rows(rows, "values")
