"""Fusing gradients for compression: the problem, its exact solution, algorithm 5.1, and simpler rules."""

from .optimal import optimal_fusion
from .problem import FlatThenLinear, FusionProblem, Linear, Span, iteration_time, timeline
from .rivals import best_of, ddp_buckets, rules
from .search import Pruning, brute_force_fusion, search_fusion

__all__ = ["FlatThenLinear", "FusionProblem", "Linear", "Pruning", "Span", "best_of", "brute_force_fusion"]
__all__ += ["ddp_buckets", "iteration_time", "optimal_fusion", "rules", "search_fusion", "timeline"]
