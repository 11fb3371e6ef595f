"""Which columns to drop: those whose weights changed least, and why a dropped column keeps its old statistic.

What: once an epoch `ColumnStatistics` measures how far each column of a weight has moved. A priority list orders the
columns, least moved first, and holds until the next epoch; a ratio that changes meanwhile takes more or fewer from its
head, so that choices nest. Differentiated ratios let layers that move little drop more than others.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-B.
Simplified: the micro-threshold did not survive; ours follows from the learning rate (`micro_threshold`).
Left out: Eq. 1, which says how many columns a rank must lose.

Rules of our own where the paper says nothing:
- A column that was never measured counts as moved infinitely far: it is kept, measured, and never dropped unseen for
  ever. Before the first update that is every column, so the first choice is random.
- Equal statistics come in random order, drawn from the caller's generator.
- A column dropped in any iteration of an epoch counts as dropped in it.
- A layer's ratio is capped at `LARGEST_RATIO`; a rank that has nothing to lose (γ = 0) drops nothing in any layer.

Shapes: O = outputs, K = columns of a weight shard.
"""

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

__all__ = [
    "DECAY",
    "LARGEST_RATIO",
    "ColumnStatistics",
    "Selection",
    "candidate_share",
    "change_threshold",
    "column_change_by_definition",
    "first_columns",
    "layer_ratios",
    "micro_threshold",
    "priority_list",
]

DECAY = 0.8
"""a: share of γ that every layer drops at least (section III-B)."""

LARGEST_RATIO = 0.95
"""A layer's largest ratio; the paper only needs it below 1, this value is ours."""

DRIFT_SHARE = 0.25
"""Share of the distance √n · learning rate below which a column is a candidate; ours.

Under Adam (rates 0.0005 and 0.003, n = 28 and 112) the median columns of a small perceptron's four weights moved 0.2
to 0.6 of that distance in the fourth and in the eighth epoch on the digits, so that layers differ in candidates.
"""

ROWS_AT_ONCE = 64
"""Rows of a weight that are measured together: at usual widths they stay in a core's cache over all four operations."""


class Selection(Enum):
    """How the columns, and how many of a layer, are chosen."""

    RANDOM = "Rd"
    PRIORITY = "Pri"
    DIFFERENTIATED_EMPIRICAL = "PriDiffE"
    """Ratios differ over layers; γ is a constant."""
    DIFFERENTIATED = "PriDiffR"
    """Ratios differ over layers; γ follows from Eq. 1."""

    @property
    def is_differentiated(self) -> bool:
        """Whether layers have ratios of their own."""
        return self in (Selection.DIFFERENTIATED_EMPIRICAL, Selection.DIFFERENTIATED)


class ColumnStatistics:
    """How far each column of one weight moved in the last epoch in which it was not dropped.

    Holds a copy of the weight, so it costs as much memory as the weight itself; the paper's comparison with "old
    versions" needs the same.

    Attributes:
        change: mean |W_now - W_then| of each column, [K], fp32; infinite before its first measurement.
        is_incremental: whether dropped columns keep their statistic. Without it, a dropped column has not moved,
            therefore seems unimportant, and is dropped for ever.
    """

    def __init__(self, weight_OK: Tensor, *, is_incremental: bool = True):
        self.is_incremental = is_incremental
        self.change = torch.full(weight_OK.shape[1:], torch.inf, device=weight_OK.device)
        self._then_OK = weight_OK.detach().clone(memory_format=torch.contiguous_format)

    @property
    def num_columns(self) -> int:
        """K."""
        return len(self.change)

    @property
    def num_bytes(self) -> int:
        """Bytes of the copy and of the statistics."""
        return self._then_OK.nbytes + self.change.nbytes

    @torch.no_grad()
    def update_(self, weight_OK: Tensor, dropped: Tensor | Sequence[int]) -> None:
        """Measure the columns anew and remember the weight; at the end of an epoch.

        Args:
            weight_OK: the weight now, [O, K].
            dropped: columns that were dropped in any iteration since the last update.

        Raises:
            ValueError: if the weight's shape is not that of the one before.
        """
        if weight_OK.shape != self._then_OK.shape:
            raise ValueError(f"weight_OK has shape {list(weight_OK.shape)}: it must be {list(self._then_OK.shape)}")
        change = self._measured_(weight_OK)
        if self.is_incremental:
            preserved = torch.as_tensor(dropped, dtype=torch.int64, device=change.device)
            change[preserved] = self.change[preserved]
        self.change = change

    def _measured_(self, weight_OK: Tensor) -> Tensor:
        """Give the mean change of every column, the copy becoming the weight: one pass, no temporary of its size."""
        total = torch.zeros_like(self.change)
        chunks = zip(weight_OK.split(ROWS_AT_ONCE), self._then_OK.split(ROWS_AT_ONCE), strict=True)
        for now, then in chunks:
            total += then.sub_(now).abs_().sum(dim=0, dtype=total.dtype)
            then.copy_(now)
        return total / len(weight_OK)


def column_change_by_definition(weight_now_OK: Tensor, weight_then_OK: Tensor) -> Tensor:
    """Give the mean absolute change of each column, [K], as `ColumnStatistics` measures it in one pass.

    Source: section III-B, w_var_list.
    """
    return (weight_now_OK - weight_then_OK).abs().mean(dim=0)


def priority_list(statistics: ColumnStatistics, *, selection: Selection, generator: torch.Generator) -> Tensor:
    """Order the columns, those to drop first at the head.

    Args:
        statistics: of the weight.
        selection: random, or by change; the differentiated ones order as PRIORITY does.
        generator: of random orders and of the order of equals; every call draws K numbers from it.

    Returns:
        All K indices, int64, on the statistics' device.

    Source: section III-B, pri_list.
    """
    device = statistics.change.device
    order = torch.randperm(statistics.num_columns, generator=generator, device=generator.device)
    if selection is not Selection.RANDOM:
        order = order[statistics.change.to(order.device)[order].argsort(stable=True)]
    return order.to(device)


def first_columns(columns: Tensor, num_dropped: int) -> Tensor:
    """Take the head of a priority list.

    Args:
        columns: the list, [K].
        num_dropped: how many, in [0, K).

    Returns:
        [num_dropped] indices, ascending. A larger number contains the choice of every smaller one.

    Raises:
        ValueError: if there are not so many to drop.
    """
    if not 0 <= num_dropped < len(columns):
        raise ValueError(f"num_dropped is {num_dropped}: it must be in [0, {len(columns)}), so that one column is kept")
    return columns[:num_dropped].sort().values


def micro_threshold(learning_rate: float, iterations_per_epoch: int) -> float:
    """Give θ_micro, the change an iteration below which a column is a candidate.

    A weight that makes n steps of the learning rate's size in random directions ends √n steps away (root mean square),
    which is about what Adam's do once training is past its first epoch. θ = n θ_micro is the share `DRIFT_SHARE` of
    that distance. Steps of plain SGD are as large as its gradients: give a micro-threshold of your own there.

    Args:
        learning_rate: mean of the epoch, of an optimizer whose steps are about as large.
        iterations_per_epoch: n.

    Raises:
        ValueError: if one of them is not positive.
    """
    if learning_rate <= 0:
        raise ValueError(f"learning_rate is {learning_rate}: it must be positive")
    if iterations_per_epoch < 1:
        raise ValueError(f"iterations_per_epoch is {iterations_per_epoch}: it must be at least 1")
    return DRIFT_SHARE * learning_rate / iterations_per_epoch**0.5


def change_threshold(iterations_per_epoch: int, micro_threshold: float) -> float:
    """Give θ = iterations per epoch · θ_micro, in the unit of weights.

    Source: section III-B.

    Raises:
        ValueError: if there is no iteration or the micro-threshold is negative.
    """
    if iterations_per_epoch < 1:
        raise ValueError(f"iterations_per_epoch is {iterations_per_epoch}: it must be at least 1")
    if micro_threshold < 0:
        raise ValueError(f"micro_threshold is {micro_threshold}: it must be at least 0")
    return iterations_per_epoch * micro_threshold


def candidate_share(statistics: ColumnStatistics, threshold: float) -> float:
    """Give the share of a layer's columns whose change is below a threshold.

    Source: section III-B, the candidate set's size over K.
    """
    return int((statistics.change < threshold).sum()) / statistics.num_columns


def layer_ratios(candidate_shares: Sequence[float], pruning_ratio: float, decay: float = DECAY) -> list[float]:
    """Give every layer its own ratio: max(candidates / K, a γ), at most `LARGEST_RATIO`; 0 everywhere where γ is 0.

    Args:
        candidate_shares: of every layer, in [0, 1].
        pruning_ratio: γ of the rank, in [0, 1).
        decay: a in [0, 1].

    Returns:
        One ratio in [0, 1) for every layer.

    Raises:
        ValueError: if a value is outside its range.

    Source: section III-B.
    """
    if not 0 <= pruning_ratio < 1:
        raise ValueError(f"pruning_ratio is {pruning_ratio}: it must be in [0, 1)")
    if not 0 <= decay <= 1:
        raise ValueError(f"decay is {decay}: it must be in [0, 1]")
    for share in candidate_shares:
        if not 0 <= share <= 1:
            raise ValueError(f"candidate_shares has {share}: each must be in [0, 1]")
    if pruning_ratio == 0:
        return [0.0 for _ in candidate_shares]
    return [min(max(share, decay * pruning_ratio), LARGEST_RATIO) for share in candidate_shares]
