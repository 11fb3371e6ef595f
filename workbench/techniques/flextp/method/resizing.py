"""ZERO-resizing, section III: products of fewer columns whose results keep their shape, and which columns to drop.

Shapes: N = rows of the input, K = columns, O = outputs, C = kept columns, R = rows of any matrix.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from .plan import MOST_REMOVED, Imputation, Selection, require

DECAY = 0.8  # a: share of γ that every layer drops at least (section III-B)
# Share of the distance √n · learning rate below which a column is a candidate; ours. Under Adam (rates 0.0005 and
# 0.003, n = 28 and 112) the median columns of a small perceptron's four weights moved 0.2 to 0.6 of that distance in
# the fourth and in the eighth epoch on the digits, so that layers differ in candidates.
DRIFT_SHARE = 0.25
Multiply = Callable[[Tensor, Tensor], Tensor]
ROWS_AT_ONCE = 64  # of a weight: at usual widths they stay in a core's cache over all four operations


class Buffers(dict[tuple[str, torch.dtype, torch.device], Tensor]):
    """Memory for extracted columns, for all layers of a rank; the next tensor of a name overwrites the one before."""

    def take(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return memory of a shape, with the dtype and device of `like`; two tensors in use at once need two names."""
        key = name, like.dtype, like.device
        return self.setdefault(key, like.new_empty(0)).resize_(shape)


def num_dropped_columns(pruning_ratio: float, num_columns: int) -> int:
    """Return the number of columns that a ratio γ in [0, 1) drops: γK to the nearest, halves up, and at most K − 1."""
    require(0 <= pruning_ratio < 1, "pruning_ratio", pruning_ratio, "in [0, 1)")
    return min(int(pruning_ratio * num_columns + 0.5), num_columns - 1)


def kept_columns(dropped: Tensor | Sequence[int], num_columns: int, name: str = "dropped") -> Tensor:
    """Return the columns [C] that are left, ascending int64; ValueError if the dropped are not distinct, or all."""
    dropped = torch.as_tensor(dropped, dtype=torch.int64)
    outside = dropped[(dropped < 0) | (dropped >= num_columns)]
    if len(outside):
        raise ValueError(f"{name} has column {int(outside[0])}; it must be in [0, {num_columns})")
    is_kept = torch.ones(num_columns, dtype=torch.bool, device=dropped.device)
    is_kept[dropped] = False
    kept = is_kept.nonzero().flatten()
    if len(kept) != num_columns - len(dropped):
        raise ValueError(f"{name} has a column twice; its columns must be distinct")
    if not len(kept):
        raise ValueError(f"{name} has all {num_columns} columns; it must leave at least one")
    return kept


@torch.no_grad()
def product_of_columns(
    x_NK: Tensor, weight_OK: Tensor, columns: Tensor, buffers: Buffers | None = None, multiply: Multiply = torch.mm
) -> Tensor:
    """Return y [N, O] = x[:, columns] weight[:, columns]ᵀ; `columns` are [C] distinct indices, int64.

    `buffers` hold extracted columns, and a meter gives a `multiply` of its own.
    """
    weight_OC = _extracted("weight", weight_OK, columns, buffers)
    return multiply(_extracted("x", x_NK, columns, buffers), weight_OC.t())


@torch.no_grad()
def gradient_of_columns(
    left_RM: Tensor, right_MK: Tensor, columns: Tensor, buffers: Buffers | None = None, multiply: Multiply = torch.mm
) -> Tensor:
    """Return some columns of a gradient, [R, C] = left right[:, columns]; see `product_of_columns`.

    Left is the output's gradient [N, O], right the weight; for the weight's gradient its transpose, and the input.
    """
    return multiply(left_RM, _extracted("x", right_MK, columns, buffers))


def _extracted(name: str, matrix_RK: Tensor, columns: Tensor, buffers: Buffers | None) -> Tensor:
    """Copy some columns into memory of their own; all columns are the matrix itself."""
    if len(columns) == matrix_RK.shape[1]:
        return matrix_RK
    out = None if buffers is None else buffers.take(name, (len(matrix_RK), len(columns)), like=matrix_RK)
    return torch.index_select(matrix_RK, 1, columns, out=out)


@torch.no_grad()
def recovered(
    part_RC: Tensor,
    kept: Tensor,
    num_columns: int,
    imputation: Imputation = Imputation.ZERO,
    previous: Tensor | None = None,
) -> Tensor:
    """Put the computed columns of a gradient [R, C] where they belong and impute the others: [R, K].

    Args:
        kept: distinct indices of the computed columns, [C], int64.
        previous: the recovered gradient of the iteration before, [R, K], for `Imputation.SAME`; None: zeros.
    """
    if len(kept) == num_columns:
        return part_RC
    if imputation is Imputation.AVERAGE:
        full_RK = part_RC.mean(dim=1, keepdim=True).repeat(1, num_columns)
    elif imputation is Imputation.SAME and previous is not None:
        full_RK = previous.clone()
    else:
        full_RK = part_RC.new_zeros(len(part_RC), num_columns)
    return full_RK.scatter_(1, kept.expand_as(part_RC), part_RC)  # faster than index_copy_ along rows


def resized_product_by_definition(x_NK: Tensor, weight_OK: Tensor, dropped: Sequence[int]) -> Tensor:
    """Remove columns from input and weight, then multiply; figure 2 (left)."""
    return _pruned_by_definition(x_NK, dropped) @ _pruned_by_definition(weight_OK, dropped).T


def _pruned_by_definition(matrix_RK: Tensor, dropped: Sequence[int]) -> Tensor:
    return torch.cat([column for k, column in enumerate(matrix_RK.split(1, dim=1)) if k not in dropped], dim=1)


def resized_gradient_by_definition(
    left_RM: Tensor,
    right_MK: Tensor,
    dropped: Sequence[int],
    imputation: Imputation = Imputation.ZERO,
    previous: Tensor | None = None,
) -> Tensor:
    """Multiply with the pruned input or weight; figure 2 (right), section III-A.

    Then go through the columns [R, K]: the next computed one where it was kept, else an imputed one; figure 3.
    """
    part_RC = left_RM @ _pruned_by_definition(right_MK, dropped)
    computed, columns = iter(part_RC.unbind(dim=1)), []
    for column in range(right_MK.shape[1]):
        if column not in dropped:
            columns.append(next(computed))
        elif imputation is Imputation.AVERAGE:
            columns.append(part_RC.mean(dim=1))
        elif imputation is Imputation.SAME and previous is not None:
            columns.append(previous[:, column])
        else:
            columns.append(torch.zeros_like(part_RC[:, 0]))
    return torch.stack(columns, dim=1)


# --- which columns, section III-B: those whose weights changed least, in priority lists renewed once an epoch


class ColumnStatistics:
    """How far each column of one weight moved in the last epoch in which it was not dropped.

    `change` is the mean |W_now - W_then| of each column, [K], fp32, infinite before its first measurement (ours), and
    `then_OK` a copy of W_then. Without `is_incremental` a dropped column has not moved and is dropped for ever.
    """

    def __init__(self, weight_OK: Tensor, *, is_incremental: bool = True):
        self.is_incremental = is_incremental
        self.change = torch.full(weight_OK.shape[1:], torch.inf, device=weight_OK.device)
        self.then_OK = weight_OK.detach().clone(memory_format=torch.contiguous_format)

    @torch.no_grad()
    def update_(self, weight_OK: Tensor, dropped: Tensor | Sequence[int]) -> None:
        """Measure the columns that were not `dropped` since the last update, and remember the weight [O, K]."""
        total = torch.zeros_like(self.change)
        chunks = zip(weight_OK.split(ROWS_AT_ONCE), self.then_OK.split(ROWS_AT_ONCE), strict=True)
        for now, then in chunks:  # the copy becomes the weight: one pass, no temporary of its size
            total += then.sub_(now).abs_().sum(dim=0, dtype=total.dtype)
            then.copy_(now)
        change = total / len(weight_OK)
        if self.is_incremental:
            preserved = torch.as_tensor(dropped, dtype=torch.int64, device=change.device)
            change[preserved] = self.change[preserved]
        self.change = change


def column_change_by_definition(weight_now_OK: Tensor, weight_then_OK: Tensor) -> Tensor:
    """Return the mean absolute change of each column, [K]: w_var_list of section III-B."""
    return (weight_now_OK - weight_then_OK).abs().mean(dim=0)


def priority_list(statistics: ColumnStatistics, *, selection: Selection, generator: torch.Generator) -> Tensor:
    """Order all K columns, those to drop first at the head (pri_list of section III-B); equals are in random order."""
    device = statistics.change.device
    order = torch.randperm(len(statistics.change), generator=generator, device=generator.device)
    if selection is not Selection.RANDOM:
        order = order[statistics.change.to(order.device)[order].argsort(stable=True)]
    return order.to(device)


def micro_threshold(learning_rate: float, iterations_per_epoch: int) -> float:
    """Return θ_micro, the change an iteration below which a column is a candidate (ours; the paper's value is lost).

    Adam's weights end about √n of n steps of the learning rate's size away; θ = n θ_micro is the share `DRIFT_SHARE` of
    that. Steps of plain SGD are as large as its gradients: give a micro-threshold of your own there.
    """
    return DRIFT_SHARE * learning_rate / iterations_per_epoch**0.5


def candidate_share(statistics: ColumnStatistics, threshold: float) -> float:
    """Return the share of a layer's columns whose change is below a threshold: its candidates over K."""
    return int((statistics.change < threshold).sum()) / len(statistics.change)


def mean_ratios(candidate_shares: Sequence[float], pruning_ratio: float) -> list[float]:
    """Return a ratio for every layer whose mean is γ: a γ, and more in proportion to its share of candidates.

    The straggler is as fast as with γ in every layer (section III-B). What exceeds `MOST_REMOVED`, the others share.
    """
    ratios = [DECAY * pruning_ratio for _ in candidate_shares]
    room, open_layers = (1 - DECAY) * pruning_ratio * len(ratios), set(range(len(ratios)))
    while room > 0 and open_layers:
        total = sum(candidate_shares[layer] for layer in open_layers)
        even = 1 / len(open_layers)
        added = {layer: room * (candidate_shares[layer] / total if total else even) for layer in open_layers}
        full = {layer for layer in open_layers if ratios[layer] + added[layer] >= MOST_REMOVED}
        for layer in full or open_layers:
            taken = min(added[layer], MOST_REMOVED - ratios[layer])
            ratios[layer] += taken
            room -= taken
        open_layers = open_layers - full if full else set()
    return ratios


def layer_ratios(candidate_shares: Sequence[float], pruning_ratio: float) -> list[float]:
    """Return max(candidates / K, a γ) for every layer, at most `MOST_REMOVED`; 0 where γ is 0 (section III-B)."""
    if pruning_ratio == 0:
        return [0.0 for _ in candidate_shares]
    return [min(max(share, DECAY * pruning_ratio), MOST_REMOVED) for share in candidate_shares]


# --- the worked example of figure 2: one linear layer, columns 2 and 4 of 4 dropped, with its multiplications counted
#
# The small integers are our own. As in PyTorch, grad_output arrives and grad_input is handed on.

INPUT_NK = ((1, 2, 3, 1), (2, 1, 1, 3))
WEIGHT_OK = ((1, 1, 2, 1), (2, 1, 1, 2), (1, 3, 2, 1))
GRAD_OUTPUT_NO = ((1, 0, 2), (2, 1, 1))
DROPPED = (1, 3)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResizedProduct:
    """One of the three products of a linear layer."""

    name: str  # "output", "grad_weight" or "grad_input"
    result: Tensor  # in its normal shape, missing columns of a gradient imputed
    plain: Tensor  # without resizing
    multiplications: int  # of numbers, with resizing
    plain_multiplications: int  # without


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorkedExample:
    """The example, step by step."""

    input_NK: Tensor  # [2, 4]
    weight_OK: Tensor  # [3, 4]
    grad_output_NO: Tensor  # arrives from the layer above, [2, 3]
    lineage: Mapping[tuple[str, str], tuple[int, ...]]  # section III-A's table: layer and matrix -> dropped columns
    products: tuple[ResizedProduct, ...]  # output, grad_weight, grad_input


def worked_example(imputation: Imputation = Imputation.ZERO) -> WorkedExample:
    """Run the example with an imputation; with `Imputation.SAME`, which has no iteration before, zeros."""
    x_NK, weight_OK, grad_NO = (torch.tensor(rows).float() for rows in (INPUT_NK, WEIGHT_OK, GRAD_OUTPUT_NO))
    lineage = {("linear", matrix_name): DROPPED for matrix_name in ("input", "weight")}
    kept, products = kept_columns(lineage["linear", "input"], x_NK.shape[1]), []
    for name, multiply in (
        ("output", partial(product_of_columns, x_NK, weight_OK)),
        ("grad_weight", partial(gradient_of_columns, grad_NO.T, x_NK)),
        ("grad_input", partial(gradient_of_columns, grad_NO, weight_OK)),
    ):
        with FlopCounterMode(display=False) as fewer:
            result = multiply(kept)
        with FlopCounterMode(display=False) as full:
            plain = multiply(kept_columns((), x_NK.shape[1]))
        if name != "output":
            result = recovered(result, kept, x_NK.shape[1], imputation)
        # Half of the operations are additions.
        counts = {"multiplications": fewer.get_total_flops() // 2, "plain_multiplications": full.get_total_flops() // 2}
        products.append(ResizedProduct(name=name, result=result, plain=plain, **counts))
    operands = {"input_NK": x_NK, "weight_OK": weight_OK, "grad_output_NO": grad_NO}
    return WorkedExample(**operands, lineage=lineage, products=tuple(products))
