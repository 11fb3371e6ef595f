"""Gemini on real ranks: their state, replicas in memory, chunks on their way, and going back."""

from .checkpoints import PRELOAD, CheckpointTimeout, InMemoryCheckpoints
from .encoding import PackedTree, pack_tree, unpack_tree
from .replicas import KeptShards, Slot, recover_
from .state import StateMismatch, TrainingState
from .storage import PersistentTier, StorageCorrupt
from .transfer import *  # noqa: F403
from .transfer import __all__ as _of_transfer

__all__ = ["PRELOAD", "CheckpointTimeout", "InMemoryCheckpoints", "KeptShards", "PackedTree", "PersistentTier", "Slot"]
__all__ += ["StateMismatch", "StorageCorrupt", "TrainingState", "pack_tree", "recover_", "unpack_tree", *_of_transfer]
