"""Activation compression on ranks: what travels in place of an activation.

`reduction` has the encoded sum over a tensor-parallel group and its cheaper twin for linear codes, `output` the encoded
output of any module, `encoder_gradients` one message for all learned codes, `compression` the one call that puts them
into a model.

Source: "Does compressing activations help model parallel training?", sections 3.2 (tensor parallelism) and 3.3
(pipeline boundaries).
The same code serves real ranks and virtual ranks in one process: the group decides. Left out: DTensor-parallel models
(`parallelize_module`), whose reductions cannot be replaced from outside; their layers can be compressed at the output.
"""

from .compression import Compression, compress
from .encoder_gradients import EncoderGradients
from .output import CompressedOutput
from .reduction import CompressedReduction, FusedReduction

__all__ = ["CompressedOutput", "CompressedReduction", "Compression", "EncoderGradients", "FusedReduction", "compress"]
