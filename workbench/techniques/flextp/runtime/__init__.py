"""Balancing on real ranks: measured times, plans that all ranks agree on, divided products, and the pre-test."""

from .balancer import PATIENCE, Balancer, Step, balance, check_model
from .delivery import BroadcastReduce, Delivery, ScatterGather, delivery_of
from .division import ColumnChooser, Columns, Division, Migration, Own, divide
from .meter import MeasuredTimes, Meter, ModelledTimes, Times
from .policy import Policy, check_policy, needs_costs, planner_of
from .pre_test import measure_costs
from .products import Cut, FlexibleProduct

__all__ = [
    "PATIENCE",
    "Balancer",
    "BroadcastReduce",
    "ColumnChooser",
    "Columns",
    "Cut",
    "Delivery",
    "Division",
    "FlexibleProduct",
    "MeasuredTimes",
    "Meter",
    "Migration",
    "ModelledTimes",
    "Own",
    "Policy",
    "ScatterGather",
    "Step",
    "Times",
    "balance",
    "check_model",
    "check_policy",
    "delivery_of",
    "divide",
    "measure_costs",
    "needs_costs",
    "planner_of",
]
