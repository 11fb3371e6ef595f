"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training."""

from workbench.cluster import CodecCost, FittedMachine

from .iteration import (
    TENSOR_RANKS,
    BreakEven,
    IterationTime,
    ScalingModel,
    boundary_times,
    break_even,
    break_even_map,
    cluster_speedup,
    communication_s,
    flops,
    iteration_time,
    layer_seconds_by_definition,
    layer_speedup,
    machine_scaling,
    speedup_at,
    v100_scaling,
)
from .paper import CALIBRATION, PaperMachines, calibrate, calibration_cells, paper_machine, published_ms
from .setting import (
    ALL_REDUCES_PER_LAYER,
    SUMMABLE,
    LayerTime,
    PlannedMessages,
    Purpose,
    Setting,
    Variant,
    all_reduce_s,
    layer_time,
    planned_messages,
    read_variant,
)

__all__ = ["ALL_REDUCES_PER_LAYER", "CALIBRATION", "SUMMABLE", "TENSOR_RANKS", "BreakEven", "CodecCost"]
__all__ += ["FittedMachine", "IterationTime", "LayerTime", "PaperMachines", "PlannedMessages", "Purpose"]
__all__ += ["ScalingModel", "Setting", "Variant", "all_reduce_s", "boundary_times", "break_even", "break_even_map"]
__all__ += ["calibrate", "calibration_cells", "cluster_speedup", "communication_s", "flops", "iteration_time"]
__all__ += ["layer_seconds_by_definition", "layer_speedup", "layer_time", "machine_scaling", "paper_machine"]
__all__ += ["planned_messages", "published_ms", "read_variant", "speedup_at", "v100_scaling"]
