"""Bytes and seconds of compressed activations in tensor- and pipeline-parallel training."""

from workbench.cluster import CodecCost, FittedMachine

from . import iteration, paper, setting
from .iteration import *  # noqa: F403
from .paper import *  # noqa: F403
from .setting import *  # noqa: F403

__all__ = ["CodecCost", "FittedMachine", *iteration.__all__, *paper.__all__, *setting.__all__]
