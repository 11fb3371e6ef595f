"""The algorithm on plain numbers, without processes: the decision tree in `options`, the algorithms in `search`."""

from .options import Comm, Comp, Decomp, Option, Phase, Routine, compression_options, subtree_counts

__all__ = ["Comm", "Comp", "Decomp", "Option", "Phase", "Routine", "compression_options", "subtree_counts"]
