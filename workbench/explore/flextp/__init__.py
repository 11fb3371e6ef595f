"""What the lesson on straggler-tolerant tensor parallelism shows: a worked example, predicted epochs, real ranks."""

from .exercises import bound_of_eight, columns_of_receivers, ratio_of_straggler, split_of_columns
from .explorer import CHOICES, Choice, Comparison, Epoch, explore_flextp
from .ranks import PRELOAD, WatchedIteration, WatchedRank, iteration_timeline, watch_training
from .timelines import parts_timeline, plan_timeline
from .worked_example import draw_worked_example

__all__ = [
    "CHOICES",
    "PRELOAD",
    "Choice",
    "Comparison",
    "Epoch",
    "WatchedIteration",
    "WatchedRank",
    "bound_of_eight",
    "columns_of_receivers",
    "draw_worked_example",
    "explore_flextp",
    "iteration_timeline",
    "parts_timeline",
    "plan_timeline",
    "ratio_of_straggler",
    "split_of_columns",
    "watch_training",
]
