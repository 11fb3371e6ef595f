"""What an iteration, a checkpoint, a recovery and a training under failures should take; nothing here imports torch."""

from . import checkpoints, training
from .checkpoints import *  # noqa: F403
from .training import *  # noqa: F403

__all__ = [*checkpoints.__all__, *training.__all__]
