"""Activation compression on real and virtual ranks: encoded sums, encoded outputs, and the call that adds them."""

from .compression import CompressedOutput, Compression, compress
from .reduction import CompressedReduction, EncoderGradients, FusedReduction

__all__ = ["CompressedOutput", "CompressedReduction", "Compression", "EncoderGradients", "FusedReduction", "compress"]
