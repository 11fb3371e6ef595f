"""The solutions that are compared, by the paper's names.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections V-A and V-C.
"""

from enum import StrEnum

__all__ = ["COMPARED", "Solution"]


class Solution(StrEnum):
    """How stragglers are helped."""

    BASELINE = "Baseline"
    """Not at all."""
    ZERO = "ZERO"
    """They drop columns."""
    MIG = "MIG"
    """They migrate columns."""
    SEMI = "SEMI"
    """Both, divided by what it costs."""
    GIVEN = "given"
    """What a given plan says, whatever the times."""


COMPARED = (Solution.BASELINE, Solution.ZERO, Solution.MIG, Solution.SEMI)
"""Those that say themselves what each rank does."""
