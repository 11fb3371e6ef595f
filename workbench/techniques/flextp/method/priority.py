"""Which columns to drop, section III-B: those whose weights changed least, in priority lists renewed once an epoch.

Shapes: O = outputs, K = columns of a weight shard.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .plan import MOST_REMOVED, Selection, require

DECAY = 0.8  # a: share of γ that every layer drops at least (section III-B)
# Share of the distance √n · learning rate below which a column is a candidate; ours. Under Adam (rates 0.0005 and
# 0.003, n = 28 and 112) the median columns of a small perceptron's four weights moved 0.2 to 0.6 of that distance in
# the fourth and in the eighth epoch on the digits, so that layers differ in candidates.
DRIFT_SHARE = 0.25
ROWS_AT_ONCE = 64  # of a weight: at usual widths they stay in a core's cache over all four operations


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
        if weight_OK.shape != self.then_OK.shape:
            raise ValueError(f"weight_OK has shape {list(weight_OK.shape)}; it must be {list(self.then_OK.shape)}")
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


def first_columns(columns: Tensor, num_dropped: int) -> Tensor:
    """Return the first `num_dropped` of a priority list [K], ascending; larger choices contain smaller ones."""
    require(0 <= num_dropped < len(columns), "num_dropped", num_dropped, f"in [0, {len(columns)}): one column is kept")
    return columns[:num_dropped].sort().values


def micro_threshold(learning_rate: float, iterations_per_epoch: int) -> float:
    """Return θ_micro, the change an iteration below which a column is a candidate (ours; the paper's value is lost).

    Adam's weights end about √n of n steps of the learning rate's size away; θ = n θ_micro is the share `DRIFT_SHARE` of
    that. Steps of plain SGD are as large as its gradients: give a micro-threshold of your own there.
    """
    require(learning_rate > 0, "learning_rate", learning_rate, "positive")
    require(iterations_per_epoch >= 1, "iterations_per_epoch", iterations_per_epoch, "at least 1")
    return DRIFT_SHARE * learning_rate / iterations_per_epoch**0.5


def candidate_share(statistics: ColumnStatistics, threshold: float) -> float:
    """Return the share of a layer's columns whose change is below a threshold: its candidates over K."""
    return int((statistics.change < threshold).sum()) / len(statistics.change)


def mean_ratios(candidate_shares: Sequence[float], pruning_ratio: float) -> list[float]:
    """Return a ratio for every layer whose mean is γ: a γ, and more in proportion to its share of candidates.

    The straggler is as fast as with γ in every layer (section III-B). What exceeds `MOST_REMOVED`, the others share.
    """
    _check_ratios(candidate_shares, pruning_ratio)
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
    _check_ratios(candidate_shares, pruning_ratio)
    if pruning_ratio == 0:
        return [0.0 for _ in candidate_shares]
    return [min(max(share, DECAY * pruning_ratio), MOST_REMOVED) for share in candidate_shares]


def _check_ratios(candidate_shares: Sequence[float], pruning_ratio: float) -> None:
    require(0 <= pruning_ratio < 1, "pruning_ratio", pruning_ratio, "in [0, 1)")
    for share in candidate_shares:
        require(0 <= share <= 1, "candidate_shares", share, "shares in [0, 1]")
