"""Zen on plain tensors: hierarchical hashing, the hash bitmap, measures of sparsity, and the space of schemes."""

from .formats import HashBitmap
from .hashing import hierarchical_hash, partition, partition_by_definition

__all__ = ["HashBitmap", "hierarchical_hash", "partition", "partition_by_definition"]
