"""Rows of the counted items: the example of figure 2 and a wrong recovery, the setting, certificates."""

import pytest
import torch

from workbench.techniques.flextp import counted
from workbench.techniques.flextp.counted import count_all_reduces, count_setting, count_worked_example
from workbench.techniques.flextp.method import resizing


def values(rows, quantity, **where):
    return [row["value"] for row in rows if row["quantity"] == quantity and where.items() <= row.items()]


@pytest.mark.parametrize("imputation", ["Zero", "Average", "Same"])
def test_half_of_the_multiplications_are_spared_shapes_are_kept_and_columns_are_where_they_belong(imputation):
    rows = count_worked_example([imputation])
    counted_of = {name: values(rows, name) for name in {row["quantity"] for row in rows}}
    assert counted_of["plain_multiplications"] == [24, 24, 24]  # 2 rows · 4 columns · 3 outputs
    assert (counted_of["multiplications"], counted_of["saved_share"]) == ([12] * 3, [0.5] * 3)
    assert values(rows, "shape_difference", imputation=imputation) == [0, 0, 0]
    assert counted_of["kept_columns_off"] == counted_of["missing_columns_off"] == [0, 0]


def test_columns_put_in_the_wrong_place_are_counted(monkeypatch):
    def at_the_left(part, kept, num_columns, imputation):
        return torch.cat([part, part.new_zeros(len(part), num_columns - len(kept))], 1)

    monkeypatch.setattr(resizing, "recovered", at_the_left)  # column 2 comes back as column 1
    rows = count_worked_example(["Zero"])
    # Column 2 of grad_weight is 5 1 7 and of grad_input 6 7: all of it is missing there, and all of it too much in 1.
    assert values(rows, "kept_columns_off") == [3, 2]
    assert values(rows, "missing_columns_off") == [3, 2]
    monkeypatch.setattr(resizing, "recovered", lambda part, *_: part)  # columns are not put back
    rows = count_worked_example(["Zero"])
    assert values(rows, "shape_difference") == [0, 2, 2]  # the output needs no recovery
    assert values(rows, "kept_columns_off") == [6, 4]  # all of them
    with pytest.raises(ValueError, match="imputations is empty"):
        count_worked_example([])


def test_cases_are_the_same_for_a_seed_and_their_gaps_never_negative():
    assert counted.draw_case(3, 2) == counted.draw_case(3, 2) != counted.draw_case(4, 2)
    slow = [rank for rank, each in enumerate(counted.draw_case(3, 2).times) if each.product_s > 1]
    assert slow == [0, 1]
    rows = counted.case_rows([0, 1], [1, 2])
    assert len(rows) == 2 * 2 * 2 * 2  # gaps, solutions, cases, numbers of stragglers
    assert all(row["value"] >= 0 for row in rows)
    with pytest.raises(ValueError, match=r"num_stragglers is 4; it must be in 1..3"):
        counted.draw_case(0, 4)


def test_brute_force_comes_nearer_to_the_best_on_a_finer_grid_and_never_beats_it():
    gaps = [counted.search_rows([0], [[1, num_steps]]) for num_steps in (4, 32)]
    at = {"num_stragglers": 1, "case": 0}
    coarse, fine = (values(rows, "largest_search_slower_by", **at)[0] for rows in gaps)
    assert coarse > 0.05 > fine > 0
    assert all(values(rows, "least_search_slower_by", **at)[0] > -1e-6 for rows in gaps)


def test_gaps_are_summed_up_by_solution_and_number_of_stragglers():
    keys = {"quantity": "slower_by", "solution": "SEMI", "num_stragglers": 2, "unit": "1"}
    cases = [{**keys, "case": case, "value": value} for case, value in enumerate((0.3, 0.0, 0.1))]
    rows = counted.summary_rows(cases)
    assert [(row["quantity"], row["value"]) for row in rows] == [("median_slower_by", 0.1), ("largest_slower_by", 0.3)]


def test_every_layer_all_reduces_twice_forward_and_twice_backward():
    assert count_all_reduces(3) == (6, 6)
    rows = count_setting(2, 10)
    assert values(rows, "all_reduces_of_training", counted="forward and backward") == [96 * 20]
    assert values(rows, "all_reduces_of_training", counted="48 an iteration") == [48 * 20]
