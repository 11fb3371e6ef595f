"""Counting the worked example of figure 2: multiplications spared, shapes kept, columns recovered.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-A, figure 2.
Simplified: extraction and imputation multiply nothing and are not counted.
Left out: seconds.

Every function returns rows (dicts of quantity, value, unit and keys) as `workbench.reproduction.record` takes them.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .method.resizing import Imputation
from .method.worked_example import ResizedProduct, WorkedExample, worked_example

__all__ = ["count_worked_example"]


def count_worked_example(imputations: Sequence[str]) -> list[dict]:
    """Run the example once for each imputation and count.

    Args:
        imputations: such as "Zero".

    Returns:
        Rows of every product: multiplications with and without resizing, saved_share; of every product and imputation:
        shape_difference (rows and columns too many or too few), and of gradients kept_columns_off and
        missing_columns_off (elements that are not what they must be).

    Raises:
        ValueError: for no imputation, or an unknown one.
    """
    if not imputations:
        raise ValueError("imputations is empty; it must name at least one")
    examples = {each: worked_example(Imputation(each)) for each in imputations}
    rows = [row for product in next(iter(examples.values())).products for row in _multiplication_rows(product)]
    return rows + [row for name, example in examples.items() for row in _recovery_rows(name, example)]


def _multiplication_rows(product: ResizedProduct) -> list[dict]:
    counted = [
        ("plain_multiplications", product.plain_multiplications),
        ("multiplications", product.multiplications),
        ("saved_share", 1 - product.multiplications / product.plain_multiplications),
    ]
    return [_row(quantity, value, product=product.name) for quantity, value in counted]


def _recovery_rows(imputation: str, example: WorkedExample) -> list[dict]:
    keys = [{"product": product.name, "imputation": imputation} for product in example.products]
    rows = [
        _row("shape_difference", _shape_difference(product), **key)
        for product, key in zip(example.products, keys, strict=True)
    ]
    dropped = example.lineage["linear", "input"]
    for gradient, key in zip(example.products[1:], keys[1:], strict=True):
        kept = torch.ones(gradient.plain.shape[1], dtype=torch.bool)
        kept[dropped] = False
        missing = _imputed(gradient.plain[:, kept], len(dropped), Imputation(imputation))
        rows.append(_row("kept_columns_off", _off(gradient, kept, gradient.plain[:, kept]), **key))
        rows.append(_row("missing_columns_off", _off(gradient, ~kept, missing), **key))
    return rows


def _imputed(kept: Tensor, num_missing: int, imputation: Imputation) -> Tensor:
    """Return what is to stand in the missing columns in a first iteration, which has nothing to repeat."""
    if imputation is Imputation.AVERAGE:
        return kept.mean(dim=1, keepdim=True).expand(-1, num_missing)
    return kept.new_zeros(len(kept), num_missing)


def _shape_difference(product: ResizedProduct) -> int:
    return sum(abs(one - other) for one, other in zip(product.result.shape, product.plain.shape, strict=True))


def _off(gradient: ResizedProduct, columns: Tensor, wanted: Tensor) -> int:
    """Return how many elements of some columns are not as wanted: all of them in a gradient of another shape."""
    if _shape_difference(gradient):
        return wanted.numel()
    return int((gradient.result[:, columns] != wanted).sum())


def _row(quantity: str, value: float, **keys: str) -> dict:
    return {"quantity": quantity, "value": value, "unit": "1", **keys}
