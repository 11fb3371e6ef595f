"""Lineage: which columns of which matrix were dropped, so that what comes back later finds its place.

What: a table (layer, matrix) -> dropped columns, written when a choice is made. Backward, which runs much later and
keeps no pruned copies, extracts the same columns and recovers the gradients; on ranks it takes them from the layer's
division, and the table is there to be looked at.
Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section III-A, whose entries are
three-tuples <layer_name, matrix_name, indices>.
Simplified: columns count from 0. One choice a matrix at a time: it must not change between forward and backward.
Left out: the values of the matrices.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from workbench.techniques.flextp.method.resizing import kept_columns

__all__ = ["Lineage", "LineageEntry"]


class LineageEntry(NamedTuple):
    """The paper's three-tuple.

    layer_name: such as "blocks.0.mlp.input".
    matrix_name: such as "input" or "weight".
    dropped: ascending indices.
    """

    layer_name: str
    matrix_name: str
    dropped: tuple[int, ...]


class Lineage:
    """Dropped columns by layer and matrix; prints as a table."""

    def __init__(self):
        self._dropped: dict[tuple[str, str], Tensor] = {}

    def record_(self, layer_name: str, matrix_name: str, dropped: Tensor | Sequence[int]) -> None:
        """Write an entry over the one before it.

        Args:
            layer_name: of the layer.
            matrix_name: of its matrix.
            dropped: distinct indices in any order; none where the matrix is whole.
        """
        indices = torch.as_tensor(dropped, dtype=torch.int64)
        self._dropped[layer_name, matrix_name] = indices.sort().values

    def __getitem__(self, key: tuple[str, str]) -> Tensor:
        """Give the ascending dropped indices of (layer, matrix); KeyError where none were recorded."""
        return self._dropped[key]

    def kept(self, layer_name: str, matrix_name: str, num_columns: int) -> Tensor:
        """Give the columns of a matrix that were not dropped.

        Args:
            layer_name: of the layer.
            matrix_name: of its matrix.
            num_columns: how many it has.

        Returns:
            Ascending indices, int64.

        Raises:
            KeyError: if nothing was recorded of the matrix.
            ValueError: if the matrix has not the columns that were dropped.
        """
        return kept_columns(self[layer_name, matrix_name], num_columns)

    def entries(self) -> list[LineageEntry]:
        """Give the three-tuples in the order of their first recording."""
        return [LineageEntry(*key, tuple(dropped.tolist())) for key, dropped in self._dropped.items()]

    def __len__(self) -> int:
        return len(self._dropped)

    def __str__(self) -> str:
        rows = [("layer", "matrix", "dropped columns"), *((e[0], e[1], _runs(e.dropped)) for e in self.entries())]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{layer:<{widths[0]}}  {matrix:<{widths[1]}}  {dropped}" for layer, matrix, dropped in rows)


def _runs(indices: Sequence[int]) -> str:
    """Write ascending indices, runs of neighbours as first-last: 0-2 5."""
    if not indices:
        return "none"
    starts = [indices[0], *(after for before, after in pairwise(indices) if after != before + 1)]
    ends = [*(before for before, after in pairwise(indices) if after != before + 1), indices[-1]]
    return " ".join(str(start) if start == end else f"{start}-{end}" for start, end in zip(starts, ends, strict=True))
