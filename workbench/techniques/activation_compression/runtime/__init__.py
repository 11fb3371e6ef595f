"""Activation compression on real and virtual ranks: encoded sums, encoded outputs, and the call that adds them."""

from .compression import CODEC_NAMES, CompressedOutput, Compression, compress
from .reduction import CompressedReduction, EncoderGradients, FusedReduction

__all__ = ["CODEC_NAMES", "CompressedOutput", "CompressedReduction", "Compression", "EncoderGradients"]
__all__ += ["FusedReduction", "compress"]
