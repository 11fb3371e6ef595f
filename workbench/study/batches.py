"""Batches of token sequences of about the same length: all are in memory, chosen by length, padded together.

Shapes: B = batch, S = longest sequence of the batch.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

__all__ = ["Batch", "Examples", "shuffled_batches", "sorted_batches"]

POOL_BATCHES = 16  # batches that are drawn at random before they are sorted among themselves


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """Padded sequences with their labels."""

    ids_BS: Tensor  # int64; 0 is padding
    mask_BS: Tensor  # int64; 1 for tokens, 0 for padding
    types_BS: Tensor  # int64; the segment of each token
    labels: Tensor  # [B]; int64 classes or float32 scores

    @property
    def inputs(self) -> Tensor:
        """The first argument of a model: the ids."""
        return self.ids_BS

    @property
    def context(self) -> dict[str, Tensor]:
        """The further arguments of a model, by name."""
        return {"attention_mask": self.mask_BS, "token_type_ids": self.types_BS}


@dataclass(frozen=True, kw_only=True, slots=True)
class Examples:
    """Encoded sequences with their labels."""

    ids: Sequence[Tensor]  # token ids of each row
    types: Sequence[Tensor]  # segments of each row's tokens
    labels: Tensor  # one a row, int64 or float32
    padded_to: int = 0  # number of tokens that every batch is padded to; 0 pads each to its longest sequence

    def __post_init__(self) -> None:
        if not len(self.ids) == len(self.types) == len(self.labels):
            raise ValueError(f"labels has {len(self.labels)} rows; it must have {len(self.ids)}, as ids and types")
        if self.padded_to and self.padded_to < self.longest:
            raise ValueError(f"padded_to is {self.padded_to}; it must be at least the longest sequence, {self.longest}")

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row."""
        return np.array([len(row) for row in self.ids])

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return int(self.lengths.max(initial=0))

    def batch(self, rows: Sequence[int] | np.ndarray, device: str | torch.device = "cpu") -> Batch:
        """Pad the rows of these numbers to the longest of them, or to `padded_to`."""
        width = self.padded_to or max(len(self.ids[row]) for row in rows)
        ids_BS, mask_BS, types_BS = (torch.zeros(len(rows), width, dtype=torch.int64) for _ in range(3))
        for place, row in enumerate(rows):
            length = len(self.ids[row])
            ids_BS[place, :length] = self.ids[row]
            types_BS[place, :length] = self.types[row]
            mask_BS[place, :length] = 1
        labels = self.labels[torch.as_tensor(rows)]
        return Batch(
            ids_BS=ids_BS.to(device), mask_BS=mask_BS.to(device), types_BS=types_BS.to(device), labels=labels.to(device)
        )


def sorted_batches(lengths: np.ndarray, size: int) -> list[np.ndarray]:
    """Cut all rows into batches of `size` rows, from the longest to the shortest; for evaluation."""
    return _cut(np.argsort(-lengths, kind="stable"), size)


def shuffled_batches(
    lengths: np.ndarray, size: int, draw: np.random.Generator, *, drop_last: bool = False
) -> Iterator[np.ndarray]:
    """Yield an epoch's batches in random order: shuffled rows in pools of 16 batches, each sorted by length."""
    rows = draw.permutation(len(lengths))
    if drop_last:
        rows = rows[: len(rows) // size * size]
    pools = _cut(rows, POOL_BATCHES * size)
    batches = [batch for pool in pools for batch in _cut(pool[np.argsort(lengths[pool], kind="stable")], size)]
    for place in draw.permutation(len(batches)):
        yield batches[place]


def _cut(rows: np.ndarray, size: int) -> list[np.ndarray]:
    if size < 1:
        raise ValueError(f"size is {size}; it must be at least 1")
    return [rows[start : start + size] for start in range(0, len(rows), size)]
