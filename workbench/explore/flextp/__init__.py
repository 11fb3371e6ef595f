"""What the lesson on straggler-tolerant tensor parallelism shows: a worked example, predicted epochs, real ranks."""

from .coding import check_columns_to_drop, check_own_columns
from .exercises import bound_of_eight, columns_of_receivers, ratio_of_straggler, split_of_columns
from .explorer import (
    CHOICES,
    PRELOAD,
    Choice,
    WatchedIteration,
    WatchedRank,
    draw_worked_example,
    explore_flextp,
    iteration_timeline,
    plan_timeline,
    watch_training,
)

__all__ = ["CHOICES", "PRELOAD", "Choice", "WatchedIteration", "WatchedRank", "bound_of_eight"]
__all__ += ["check_columns_to_drop", "check_own_columns", "columns_of_receivers", "draw_worked_example"]
__all__ += ["explore_flextp", "iteration_timeline", "plan_timeline", "ratio_of_straggler", "split_of_columns"]
__all__ += ["watch_training"]
