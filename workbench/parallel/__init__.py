"""Plain tensor, pipeline and data parallelism on real and virtual ranks: the baselines of the techniques."""

from workbench.parallel.groups import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.linear import ColumnParallelLinear, RowParallelLinear
from workbench.parallel.pipeline import Stage
from workbench.parallel.seeds import generator_for
from workbench.parallel.shards import cut, join
from workbench.parallel.traffic import Message, MessageKind, Phase, Traffic
from workbench.parallel.transformer import Dropout, PreNormTransformerLayer, TransformerConfig, TransformerLayer

__all__ = ["ColumnParallelLinear", "Dropout", "Message", "MessageKind", "Phase", "PreNormTransformerLayer"]
__all__ += ["ProcessTensorGroup", "RowParallelLinear", "Stage", "TensorGroup", "Traffic", "TransformerConfig"]
__all__ += ["TransformerLayer", "VirtualTensorGroup", "cut", "generator_for", "join"]
