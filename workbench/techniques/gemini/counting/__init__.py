"""What the counted items record: rows of sizes, placements and probabilities, the same on any machine.

Source: thesis, chapters 2.4 and 6 (Gemini).
Simplified, left out: see each module. Nothing here imports torch.
"""

from .placements import (
    FIGURE_6_3,
    count_bounds,
    count_gaps,
    count_placements,
    count_probabilities,
    count_racks,
    count_theorem,
)
from .sizes import count_checkpoints, count_memory, count_parameters

__all__ = [
    "FIGURE_6_3",
    "count_bounds",
    "count_checkpoints",
    "count_gaps",
    "count_memory",
    "count_parameters",
    "count_placements",
    "count_probabilities",
    "count_racks",
    "count_theorem",
]
