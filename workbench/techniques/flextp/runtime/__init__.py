"""Balancing on real ranks: measured times, plans that all ranks agree on, divided products, and the pre-test."""

from .balancer import PATIENCE, Balancer, Step, balance, check_model
from .delivery import delivery_of
from .division import ColumnChooser, Columns, Migration, divide
from .meter import MeasuredTimes, Meter, ModelledTimes
from .policy import Policy, check_policy, needs_costs, planner_of
from .pre_test import measure_costs
from .products import Cut, FlexibleProduct

__all__ = [
    "PATIENCE",
    "Balancer",
    "ColumnChooser",
    "Columns",
    "Cut",
    "FlexibleProduct",
    "MeasuredTimes",
    "Meter",
    "Migration",
    "ModelledTimes",
    "Policy",
    "Step",
    "balance",
    "check_model",
    "check_policy",
    "delivery_of",
    "divide",
    "measure_costs",
    "needs_costs",
    "planner_of",
]
