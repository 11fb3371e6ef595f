"""Tensor codecs that several techniques share: one contract, one file a codec, error feedback as a wrapper."""

from workbench.compression.autoencoder import AutoEncoder
from workbench.compression.casts import FP16, Identity
from workbench.compression.codec import Aggregation, Codec, Payload
from workbench.compression.dgc import DGC, exponential_warmup
from workbench.compression.error_feedback import ErrorFeedback, clear_error_feedback
from workbench.compression.quantize import Quantize, QuantizeFeatures
from workbench.compression.randomk import RandomK
from workbench.compression.signs import EFSign, OneBit
from workbench.compression.topk import TopK

__all__ = ["DGC", "FP16", "Aggregation", "AutoEncoder", "Codec", "EFSign", "ErrorFeedback", "Identity", "OneBit"]
__all__ += ["Payload", "Quantize", "QuantizeFeatures", "RandomK", "TopK", "clear_error_feedback"]
__all__ += ["exponential_warmup"]
