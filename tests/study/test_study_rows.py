"""Builders of rows: a value, a median with its interval, a ratio taken pair by pair, a few values with their spread."""

import pytest

from workbench.study.rows import median_row, ratio_row, spread_row, value_row


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
