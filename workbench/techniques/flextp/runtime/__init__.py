"""Balancing on real ranks: measured times, plans that all ranks agree on, divided products, and the pre-test."""

from .balancer import PATIENCE, Balancer, Step, balance, check_model
from .division import divide
from .meter import Meter, ModelledTimes
from .policy import ColumnChooser, Policy, check_policy, needs_costs, planner_of
from .pre_test import measure_costs
from .products import FlexibleProduct

__all__ = ["PATIENCE", "Balancer", "ColumnChooser", "FlexibleProduct", "Meter", "ModelledTimes", "Policy", "Step"]
__all__ += ["balance", "check_model", "check_policy", "divide", "measure_costs", "needs_costs", "planner_of"]
