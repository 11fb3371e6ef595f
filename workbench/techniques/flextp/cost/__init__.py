"""Seconds of an epoch under stragglers, with and without resizing and migration, on the paper's machine or another.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control".
Simplified, left out: see each module. Nothing here imports torch.
"""

from ..method.plan import Scheme, Solution
from .iteration import IterationParts, extraction_s, iteration_parts
from .machine import PAPER_MACHINE, FlexMachine
from .migration import MigrationTime, migration_time
from .solutions import (
    PlannedEpoch,
    division_epochs,
    epoch_of_plan,
    epoch_time_s,
    model_costs,
    model_times,
    planned_epoch,
)
from .table_1 import (
    CALIBRATION,
    CHOSEN_ON,
    Table1Cell,
    Table1Error,
    calibrate,
    migration_epoch_time_s,
    migration_errors,
    paper_machine,
    published_epochs_s,
)
from .winners import MapPoint, winner_map, winner_of
from .workload import VIT_1B, VIT_3B, Workload

__all__ = [
    "CALIBRATION",
    "CHOSEN_ON",
    "PAPER_MACHINE",
    "VIT_1B",
    "VIT_3B",
    "FlexMachine",
    "IterationParts",
    "MapPoint",
    "MigrationTime",
    "PlannedEpoch",
    "Scheme",
    "Solution",
    "Table1Cell",
    "Table1Error",
    "Workload",
    "calibrate",
    "division_epochs",
    "epoch_of_plan",
    "epoch_time_s",
    "extraction_s",
    "iteration_parts",
    "migration_epoch_time_s",
    "migration_errors",
    "migration_time",
    "model_costs",
    "model_times",
    "paper_machine",
    "planned_epoch",
    "published_epochs_s",
    "winner_map",
    "winner_of",
]
