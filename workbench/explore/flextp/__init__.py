"""What the lesson on straggler-tolerant tensor parallelism shows."""

from .worked_example import draw_worked_example

__all__ = ["draw_worked_example"]
