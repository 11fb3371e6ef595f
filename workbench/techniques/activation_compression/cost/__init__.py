"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training."""

from workbench.cluster import CodecCost, FittedMachine

from .iteration import BreakEven, IterationTime, boundary_times, break_even, break_even_map, iteration_time, speedup_at
from .layer import LayerTime, all_reduce_s, layer_time
from .paper import CALIBRATION, PaperMachines, calibrate, calibration_cells, paper_machine, published_ms
from .scaling import (
    TENSOR_RANKS,
    ScalingModel,
    cluster_speedup,
    communication_s,
    flops,
    layer_seconds_by_definition,
    layer_speedup,
    machine_scaling,
    v100_scaling,
)
from .setting import (
    ALL_REDUCES_PER_LAYER,
    SUMMABLE,
    PlannedMessages,
    Purpose,
    Setting,
    Variant,
    planned_messages,
    read_variant,
)

__all__ = ["ALL_REDUCES_PER_LAYER", "CALIBRATION", "SUMMABLE", "TENSOR_RANKS", "BreakEven", "CodecCost"]
__all__ += ["FittedMachine", "IterationTime", "LayerTime", "PaperMachines", "PlannedMessages", "Purpose"]
__all__ += ["ScalingModel", "Setting", "Variant", "all_reduce_s", "boundary_times", "break_even", "break_even_map"]
__all__ += ["calibrate", "calibration_cells", "cluster_speedup", "communication_s", "flops", "iteration_time"]
__all__ += ["layer_seconds_by_definition", "layer_speedup", "layer_time", "machine_scaling", "paper_machine"]
__all__ += ["planned_messages", "published_ms", "read_variant", "speedup_at", "v100_scaling"]
