"""Effects of inputs one at a time, by hand."""

import math

import pytest

from workbench.study.sensitivity import elasticity, needed, sensitivity_rows


def time_s(num_bytes: float, rate: float, start_s: float, unused: float = 1.0) -> float:
    return start_s + num_bytes / rate


INPUTS = {"num_bytes": 6.0, "rate": 2.0, "start_s": 1.0, "unused": 5.0}  # 1 + 6 / 2 = 4


def test_an_elasticity_is_the_share_of_a_sums_part_and_negative_for_a_divisor():
    elasticities = {name: elasticity(time_s, INPUTS, name) for name in INPUTS}
    assert elasticities["num_bytes"] == pytest.approx(3 / 4, abs=1e-3)
    assert elasticities["rate"] == pytest.approx(-3 / 4, abs=1e-3)
    assert elasticities["start_s"] == pytest.approx(1 / 4, abs=1e-3)
    assert elasticities["unused"] == 0


def test_the_needed_value_gives_the_wanted_number_whether_it_rises_or_falls_and_there_may_be_none():
    assert needed(time_s, INPUTS, "num_bytes", 7.0) == pytest.approx(12)  # 1 + 12 / 2
    assert needed(time_s, INPUTS, "rate", 7.0) == pytest.approx(1)  # 1 + 6 / 1
    assert needed(time_s, INPUTS, "start_s", 2.0) is None  # 3 s of sending alone
    assert needed(time_s, INPUTS, "unused", 7.0) is None


def test_rows_name_all_effects_and_the_values_needed_of_the_three_largest():
    rows = sensitivity_rows(time_s, INPUTS, 7.0, model="toy")
    shown = {(row["quantity"], row.get("input")): row["value"] for row in rows if row["model"] == "toy"}
    assert shown["ours", None] == 4 and shown["wanted", None] == 7
    assert {name for quantity, name in shown if quantity == "elasticity"} == set(INPUTS)
    by_input = {name: value for (quantity, name), value in shown.items() if quantity == "needed_over_ours"}
    assert {name: round(value, 4) for name, value in by_input.items()} == {"num_bytes": 2, "rate": 0.5, "start_s": 4}
    with pytest.raises(ValueError, match="rate"):
        sensitivity_rows(time_s, INPUTS | {"rate": 0.0}, 7.0)
    assert math.isfinite(sum(shown.values()))
