"""Rows of the counted items: figure 2, the setting, certificates; the card's references, and that it needs no torch."""

import torch
from cases import values

from workbench.techniques.flextp import counted
from workbench.techniques.flextp.counted import count_all_reduces, count_setting, count_worked_example
from workbench.techniques.flextp.method import resizing


def test_spared_multiplications_and_columns_put_in_the_wrong_place_are_counted(monkeypatch):
    rows = count_worked_example(["Zero", "Average", "Same"])
    assert values(rows, "saved_share") == [0.5] * 3
    quantities = ("shape_difference", "kept_columns_off", "missing_columns_off")
    assert {value for quantity in quantities for value in values(rows, quantity)} == {0}

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


def test_cases_are_the_same_for_a_seed_and_their_gaps_never_negative():
    assert counted.draw_case(3, 2) == counted.draw_case(3, 2) != counted.draw_case(4, 2)
    slow = [rank for rank, each in enumerate(counted.draw_case(3, 2).times) if each.product_s > 1]
    assert slow == [0, 1]
    rows = counted.case_rows([0, 1], [1, 2])
    assert len(rows) == 2 * 2 * 2 * 2  # gaps, solutions, cases, numbers of stragglers
    assert all(row["value"] >= 0 for row in rows)


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
