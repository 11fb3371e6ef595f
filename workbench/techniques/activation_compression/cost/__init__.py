"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training.

Source: "Does compressing activations help model parallel training?".
Simplified, left out: see each module.
"""

from .cells import CALIBRATION, PublishedCell, calibration_cells
from .iteration import IterationTime, boundary_times, iteration_time
from .layer import LayerTime, layer_time
from .machine import CodecCost, FittedMachine
from .messages import PlannedMessages, Purpose, Setting, planned_messages
from .paper import PaperMachines, calibrate, paper_machine

__all__ = [
    "CALIBRATION",
    "CodecCost",
    "FittedMachine",
    "IterationTime",
    "LayerTime",
    "PaperMachines",
    "PlannedMessages",
    "PublishedCell",
    "Purpose",
    "Setting",
    "boundary_times",
    "calibrate",
    "calibration_cells",
    "iteration_time",
    "layer_time",
    "paper_machine",
    "planned_messages",
]
