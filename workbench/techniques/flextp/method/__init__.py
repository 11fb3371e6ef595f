"""The algorithm on plain tensors and numbers: plans, their costs, planners, resized products, and certificates."""

import importlib

_NAMES = {
    "optimum": "best_plan_by_search certify fastest_division gentlest_division",
    "plan": "MOST_REMOVED Costs Imputation Line Plan RankParts RankPlan RankTimes Scheme Selection Solution "
    "column_ranges ideal_s iteration_s rank_parts rank_s receivers_of virtual_number",
    "planners": "Reference SPEED_SHARE have_moved levelled_plan num_senders plan_division "
    "plan_equal_drop plan_for plan_semi pruning_ratio pruning_ratios settled_resizing speedup_bound split_of_one "
    "split_of_one_by_definition stragglers",
    "resizing": "Buffers ColumnStatistics ResizedProduct WorkedExample candidate_share "
    "column_change_by_definition gradient_of_columns kept_columns layer_ratios mean_ratios "
    "micro_threshold num_dropped_columns priority_list product_of_columns recovered resized_gradient_by_definition "
    "resized_product_by_definition worked_example",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    # Lazy: plans and their costs need no torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
