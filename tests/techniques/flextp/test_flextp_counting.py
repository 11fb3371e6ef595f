"""What the item of figure 2 counts, and that it sees a wrong recovery."""

import pytest
import torch

from workbench.techniques.flextp.counted import count_worked_example
from workbench.techniques.flextp.method import worked_example

pytestmark = pytest.mark.timeout(60)


def values(rows, quantity, **where):
    return [row["value"] for row in rows if row["quantity"] == quantity and where.items() <= row.items()]


def test_half_of_the_multiplications_of_every_product_are_spared():
    rows = count_worked_example(["Zero", "Average"])
    assert values(rows, "plain_multiplications") == [24, 24, 24]  # 2 rows · 4 columns · 3 outputs
    assert values(rows, "multiplications") == [12, 12, 12]
    assert values(rows, "saved_share") == [0.5, 0.5, 0.5]


@pytest.mark.parametrize("imputation", ["Zero", "Average", "Same"])
def test_shapes_are_kept_and_columns_are_where_they_belong(imputation):
    rows = count_worked_example([imputation])
    assert values(rows, "shape_difference", imputation=imputation) == [0, 0, 0]
    assert values(rows, "kept_columns_off", imputation=imputation) == [0, 0]
    assert values(rows, "missing_columns_off", imputation=imputation) == [0, 0]


def test_columns_put_in_the_wrong_place_are_counted(monkeypatch):
    def at_the_left(part, kept, num_columns, imputation):
        return torch.cat([part, part.new_zeros(len(part), num_columns - len(kept))], 1)

    monkeypatch.setattr(worked_example, "recovered", at_the_left)  # column 2 comes back as column 1
    rows = count_worked_example(["Zero"])
    # Column 2 of grad_weight is 5 1 7 and of grad_input 6 7: all of it is missing there, and all of it too much in 1.
    assert values(rows, "kept_columns_off") == [3, 2]
    assert values(rows, "missing_columns_off") == [3, 2]


def test_columns_that_are_not_put_back_are_counted(monkeypatch):
    monkeypatch.setattr(worked_example, "recovered", lambda part, *_: part)
    rows = count_worked_example(["Zero"])
    assert values(rows, "shape_difference") == [0, 2, 2]  # the output needs no recovery
    assert values(rows, "kept_columns_off") == [6, 4]  # all of them


def test_no_imputation_is_refused():
    with pytest.raises(ValueError, match="imputations is empty"):
        count_worked_example([])
