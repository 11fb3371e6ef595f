"""The worked example of figure 2 as a picture: what is multiplied, what comes out, what is put in its place.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-A, figure 2.
Simplified: faded columns are neither multiplied nor computed; the numbers in those of a result are imputed.
Left out: bias.
"""

from collections.abc import Collection

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from workbench.plots import figure, matrix
from workbench.techniques.flextp.method.worked_example import ResizedProduct, WorkedExample

__all__ = ["draw_worked_example"]

_SIGNS = ("×", "=", "")  # between two matrices
_LARGEST = 4  # rows or columns: every cell is drawn as large as the others
_NAMES = {
    "output": ("input", "weightᵀ", "output"),
    "grad_weight": ("grad_outputᵀ", "input", "grad_weight"),
    "grad_input": ("grad_output", "weight", "grad_input"),
}


def draw_worked_example(example: WorkedExample) -> Figure:
    """Draw a row a product: its operands, its result, and what the plain layer computes.

    Args:
        example: run with any imputation.
    """
    drawn, axes = figure(3, 4, figsize=(8.4, 6.6))
    dropped = tuple(example.lineage["linear", "input"].tolist())
    for row, product in zip(axes, example.products, strict=True):
        _draw_product(row, example, product, dropped)
    return drawn


def _draw_product(
    row: Collection[Axes], example: WorkedExample, product: ResizedProduct, dropped: tuple[int, ...]
) -> None:
    left, right = _operands(example, product.name)
    names = (*_NAMES[product.name], "without resizing")
    is_gradient = product.name != "output"
    faded = [
        {} if is_gradient else {"faded_columns": dropped},
        {"faded_columns": dropped} if is_gradient else {"faded_rows": dropped},
        {"faded_columns": dropped} if is_gradient else {},
        {},
    ]
    pairs = zip(row, (left, right, product.result, product.plain), names, faded, strict=True)
    for place, (ax, values, name, options) in enumerate(pairs):
        matrix(values, ax=ax, **options)
        num_rows, num_columns = values.shape
        ax.set(xlim=_around(num_columns), ylim=_around(num_rows)[::-1])
        ax.text(num_columns / 2, -0.15, name, ha="center", va="bottom")
        if place:
            ax.annotate(_SIGNS[place - 1], (-0.06, 0.5), xycoords="axes fraction", ha="center", va="center")
    spared = f"{product.multiplications} of {product.plain_multiplications} multiplications"
    row[2].text(product.result.shape[1] / 2, product.result.shape[0] + 0.15, spared, ha="center", va="top", fontsize=8)


def _around(size: int) -> tuple[float, float]:
    """Return limits of an axis that put a matrix in the middle."""
    return (size - _LARGEST) / 2, (size + _LARGEST) / 2


def _operands(example: WorkedExample, name: str) -> tuple[Tensor, Tensor]:
    """Return both operands whole."""
    if name == "output":
        return example.input_NK, example.weight_OK.T
    if name == "grad_weight":
        return example.grad_output_NO.T, example.input_NK
    return example.grad_output_NO, example.weight_OK
