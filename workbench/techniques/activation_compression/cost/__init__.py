"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training.

Source: "Does compressing activations help model parallel training?".
Simplified, left out: see each module.
"""

from .break_even import BreakEven, break_even, break_even_map, speedup_at
from .cells import CALIBRATION, PublishedCell, calibration_cells, published_ms
from .iteration import IterationTime, boundary_times, iteration_time
from .layer import LayerTime, layer_time
from .machine import CodecCost, FittedMachine
from .messages import PlannedMessages, Purpose, Setting, planned_messages
from .paper import PaperMachines, calibrate, paper_machine
from .scaling import (
    LayerSample,
    ScalingModel,
    cluster_speedup,
    fit_scaling,
    layer_seconds_by_definition,
    layer_speedup,
    machine_scaling,
    v100_scaling,
)

__all__ = [
    "CALIBRATION",
    "BreakEven",
    "CodecCost",
    "FittedMachine",
    "IterationTime",
    "LayerSample",
    "LayerTime",
    "PaperMachines",
    "PlannedMessages",
    "PublishedCell",
    "Purpose",
    "ScalingModel",
    "Setting",
    "boundary_times",
    "break_even",
    "break_even_map",
    "calibrate",
    "calibration_cells",
    "cluster_speedup",
    "fit_scaling",
    "iteration_time",
    "layer_seconds_by_definition",
    "layer_speedup",
    "layer_time",
    "machine_scaling",
    "paper_machine",
    "planned_messages",
    "published_ms",
    "speedup_at",
    "v100_scaling",
]
