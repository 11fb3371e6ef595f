"""The worked example of figure 2, columns 2 and 4 of 4 dropped, against numbers worked by hand.

x = 1 2 3 1    W = 1 1 2 1    grad_output = 1 0 2
    2 1 1 3        2 1 1 2                  2 1 1
                   1 3 2 1
"""

import pytest

from workbench.techniques.flextp.method.resizing import Imputation, LineageEntry
from workbench.techniques.flextp.method.worked_example import worked_example

pytestmark = pytest.mark.timeout(60)


def test_the_output_of_the_kept_columns_has_its_normal_shape():
    output = worked_example().products[0]
    assert output.left.tolist() == [[1, 3], [2, 1]]  # columns 1 and 3 of x
    assert output.right.T.tolist() == [[1, 2], [2, 1], [1, 2]]
    # [1·1 + 3·2, 1·2 + 3·1, 1·1 + 3·2], [2·1 + 1·2, 2·2 + 1·1, 2·1 + 1·2]
    assert output.result.tolist() == output.computed.tolist() == [[7, 5, 7], [4, 5, 4]]
    assert output.plain.tolist() == [[10, 9, 14], [8, 12, 10]]


def test_grad_weight_comes_out_with_two_columns_and_is_recovered_by_the_lineage():
    grad_weight = worked_example().products[1]
    assert grad_weight.left.tolist() == [[1, 2], [0, 1], [2, 1]]  # grad_output, not pruned
    assert grad_weight.computed.tolist() == [[5, 5], [2, 1], [4, 7]]
    assert grad_weight.result.tolist() == [[5, 0, 5, 0], [2, 0, 1, 0], [4, 0, 7, 0]]
    assert grad_weight.plain.tolist() == [[5, 4, 5, 7], [2, 1, 1, 3], [4, 5, 7, 5]]


def test_grad_input_is_recovered_in_the_same_way():
    grad_input = worked_example().products[2]
    assert grad_input.computed.tolist() == [[3, 6], [5, 7]]
    assert grad_input.result.tolist() == [[3, 0, 6, 0], [5, 0, 7, 0]]
    assert grad_input.plain.tolist() == [[3, 7, 6, 3], [5, 6, 7, 5]]


def test_averages_stand_in_the_missing_columns_where_they_are_asked_for():
    _, grad_weight, grad_input = worked_example(Imputation.AVERAGE).products
    assert grad_weight.result.tolist() == [[5, 5, 5, 5], [2, 1.5, 1, 1.5], [4, 5.5, 7, 5.5]]
    assert grad_input.result.tolist() == [[3, 4.5, 6, 4.5], [5, 6, 7, 6]]


def test_every_product_needs_half_of_its_multiplications():
    example = worked_example()
    # 2 rows · 4 columns · 3 outputs, and 2 · 2 · 3
    assert [(p.plain_multiplications, p.multiplications) for p in example.products] == [(24, 12)] * 3
    assert (example.plain_multiplications, example.multiplications) == (72, 36)


def test_the_lineage_names_the_dropped_columns_of_input_and_weight():
    entries = worked_example().lineage.entries()
    assert entries == [LineageEntry("linear", "input", (1, 3)), LineageEntry("linear", "weight", (1, 3))]
