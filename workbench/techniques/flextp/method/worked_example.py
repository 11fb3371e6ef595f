"""The worked example of figure 2: one linear layer, columns 2 and 4 of 4 dropped, with its multiplications counted.

The small integers are our own. As in PyTorch, grad_output arrives and grad_input is handed on.
Shapes: N = 2 rows, K = 4 columns, O = 3 outputs, C = 2 kept columns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from . import resizing
from .resizing import Imputation, Lineage

__all__ = ["ResizedProduct", "WorkedExample", "worked_example"]

INPUT_NK = ((1, 2, 3, 1), (2, 1, 1, 3))
WEIGHT_OK = ((1, 1, 2, 1), (2, 1, 1, 2), (1, 3, 2, 1))
GRAD_OUTPUT_NO = ((1, 0, 2), (2, 1, 1))
DROPPED = (1, 3)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResizedProduct:
    """One of the three products of a linear layer."""

    name: str  # "output", "grad_weight" or "grad_input"
    left: Tensor  # left operand, pruned where it has columns to drop
    right: Tensor  # right operand, likewise
    computed: Tensor  # their product; of a gradient, its kept columns
    result: Tensor  # `computed` in its normal shape, missing columns imputed
    plain: Tensor  # the layer's result without resizing
    multiplications: int  # of numbers, with resizing
    plain_multiplications: int  # without


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorkedExample:
    """The example, step by step."""

    input_NK: Tensor  # [2, 4]
    weight_OK: Tensor  # [3, 4]
    grad_output_NO: Tensor  # arrives from the layer above, [2, 3]
    lineage: Lineage  # dropped columns of input and weight
    products: tuple[ResizedProduct, ResizedProduct, ResizedProduct]  # output, grad_weight, grad_input

    @property
    def multiplications(self) -> int:
        """Multiplications of all three products, with resizing."""
        return sum(product.multiplications for product in self.products)

    @property
    def plain_multiplications(self) -> int:
        """The same without resizing."""
        return sum(product.plain_multiplications for product in self.products)


def worked_example(imputation: Imputation = Imputation.ZERO) -> WorkedExample:
    """Run the example with an imputation; with `Imputation.SAME`, which has no iteration before, zeros."""
    x_NK, weight_OK, grad_NO = (torch.tensor(rows).float() for rows in (INPUT_NK, WEIGHT_OK, GRAD_OUTPUT_NO))
    lineage = Lineage()
    for matrix_name in ("input", "weight"):
        lineage.record_("linear", matrix_name, DROPPED)
    kept = resizing.kept_columns(lineage["linear", "input"], x_NK.shape[1])
    x_NC, weight_OC = x_NK[:, kept], weight_OK[:, kept]
    output = partial(resizing.product_of_columns, x_NK, weight_OK)
    grad_weight = partial(resizing.weight_gradient_of_columns, grad_NO, x_NK)
    grad_input = partial(resizing.input_gradient_of_columns, grad_NO, weight_OK)
    products = (
        _product("output", (x_NC, weight_OC.T), output, kept),
        _product("grad_weight", (grad_NO.T, x_NC), grad_weight, kept, imputation),
        _product("grad_input", (grad_NO, weight_OC), grad_input, kept, imputation),
    )
    return WorkedExample(input_NK=x_NK, weight_OK=weight_OK, grad_output_NO=grad_NO, lineage=lineage, products=products)


def _product(
    name: str,
    operands: tuple[Tensor, Tensor],
    multiply: Callable[[Tensor], Tensor],
    kept: Tensor,
    imputation: Imputation | None = None,
) -> ResizedProduct:
    """Multiply with the kept columns and with all, counting; None: the result needs no recovery."""
    num_columns = len(INPUT_NK[0])
    computed, multiplications = _counted(multiply, kept)
    plain, plain_multiplications = _counted(multiply, torch.arange(num_columns))
    left, right = operands
    return ResizedProduct(
        name=name,
        left=left,
        right=right,
        computed=computed,
        result=computed if imputation is None else resizing.recovered(computed, kept, num_columns, imputation),
        plain=plain,
        multiplications=multiplications,
        plain_multiplications=plain_multiplications,
    )


def _counted(multiply: Callable[[Tensor], Tensor], columns: Tensor) -> tuple[Tensor, int]:
    """Run a product and count its multiplications, which are half of its floating-point operations."""
    with FlopCounterMode(display=False) as counter:
        result = multiply(columns)
    return result, counter.get_total_flops() // 2
