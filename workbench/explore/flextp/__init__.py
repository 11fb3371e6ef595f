"""What the lesson on straggler-tolerant tensor parallelism shows: a worked example, predicted epochs, real ranks."""

from .explorer import Comparison, Epoch, Remedy, explore_flextp
from .worked_example import draw_worked_example

__all__ = ["Comparison", "Epoch", "Remedy", "draw_worked_example", "explore_flextp"]
