"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training; nothing imports torch."""

from workbench.cluster import CodecCost, FittedMachine

from .iteration import IterationTime, boundary_times, iteration_time
from .layer import LayerTime, all_reduce_s, layer_time
from .paper import CALIBRATION, PaperMachines, calibrate, calibration_cells, paper_machine, published_ms
from .scaling import (
    BreakEven,
    LayerSample,
    ScalingModel,
    break_even,
    break_even_map,
    cluster_speedup,
    communication_s,
    fit_scaling,
    flops,
    layer_seconds_by_definition,
    layer_speedup,
    machine_scaling,
    speedup_at,
    v100_scaling,
)
from .setting import PlannedMessages, Purpose, Setting, planned_messages

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
    "Purpose",
    "ScalingModel",
    "Setting",
    "all_reduce_s",
    "boundary_times",
    "break_even",
    "break_even_map",
    "calibrate",
    "calibration_cells",
    "cluster_speedup",
    "communication_s",
    "fit_scaling",
    "flops",
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
