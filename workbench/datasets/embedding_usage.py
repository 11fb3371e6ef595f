"""Real records of how the rows of embedding tables are used: One Billion Word and Criteo.

Sources: rdspring1/PyTorch_GBW_LM at 99c2b1d (Apache-2.0), whose LSTM has the embedding size of Zen's;
sands-lab/omnireduce-experiments at a2bdc80 (facts only).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FILES", "criteo_field_sizes", "lm1b_batches", "lm1b_word_counts", "source"]

FOLDER = "zen-sparsity"

FILES: Mapping[str, str] = MappingProxyType(
    {
        "criteo_field_sizes.csv": "21198fe59ae1bacfaa5f4ce5409991fde79e75185c0c1c4d8f7707bbda50b46b",
        "lm1b_batches.csv.gz": "7814f5e9f8f3dff2b8d1b53ef2412343d7982cf41dcc2f766a3507b48fb35e81",
        "lm1b_word_counts.csv.gz": "f9544ea43b00965b543a197a4fd06655c6374a2dcbdf028bba53c5e5cb1095ac",
    }
)
"""The tables and the sha256 of their files."""


def lm1b_word_counts() -> np.ndarray:
    """Load how often each word of the One Billion Word training set occurs, int64 [793471], the most frequent first."""
    table = _table("lm1b_word_counts.csv.gz")
    return np.repeat(table["count"].to_numpy(np.int64), table["num_words"])


def lm1b_batches() -> list[np.ndarray]:
    """Load the distinct words of 62 batches of 128 x 20 consecutive words of the test set, by their frequency rank."""
    table = _table("lm1b_batches.csv.gz")
    return [rows.to_numpy(np.int64) for _, rows in table.groupby("batch")["row"]]


def criteo_field_sizes() -> np.ndarray:
    """Load the table rows of each of Criteo's 39 fields in DeepLight, int64: 1 for each of the 13 counts."""
    return _table("criteo_field_sizes.csv")["num_rows"].to_numpy(np.int64)


def source(file: str) -> DataSource:
    """Say for a record where one of `FILES` came from."""
    return DataSource(name=f"{FOLDER}/{file}", kind=SourceKind.PACKAGE, detail="all rows", sha256=FILES[file])


def _table(file: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(carried_file(f"{FOLDER}/{file}", FILES[file]))
