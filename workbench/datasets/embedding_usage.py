"""Real records of how the rows of embedding tables are used: One Billion Word, Criteo, and tables at Meta.

Sources: rdspring1/PyTorch_GBW_LM at 99c2b1d (Apache-2.0), whose LSTM has the embedding size of Zen's;
sands-lab/omnireduce-experiments at a2bdc80 (facts only); facebookresearch/dlrm_datasets at 6f46ba7 (MIT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np

from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FILES", "LM1B_RUNS", "EmbeddingReuse", "criteo_field_sizes", "embedding_reuse", "lm1b_batches"]
__all__ += ["lm1b_seconds_per_batch", "lm1b_word_counts", "source"]

FOLDER = "zen-sparsity"

FILES: Mapping[str, str] = MappingProxyType(
    {
        "criteo_field_sizes.csv": "21198fe59ae1bacfaa5f4ce5409991fde79e75185c0c1c4d8f7707bbda50b46b",
        "embedding_reuse_batches.csv": "6cc95ff30d24ec9eb178a76cdce62f161066b3881677e180eba169a4ae5c053b",
        "lm1b_batches.csv.gz": "7814f5e9f8f3dff2b8d1b53ef2412343d7982cf41dcc2f766a3507b48fb35e81",
        "lm1b_training_logs.csv.gz": "0fbc5b4680f6d0f4c42f818e6d6aae2fface773881e545d4d1aa80fe9396524b",
        "lm1b_word_counts.csv.gz": "f9544ea43b00965b543a197a4fd06655c6374a2dcbdf028bba53c5e5cb1095ac",
    }
)
"""The tables and the sha256 of their files."""

LM1B_RUNS = ("batch 128", "batch 128, P100", "batch 1024, V100")  # the runs of the training logs, by number


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingReuse:
    """A batch of lookups, made by Meta to repeat rows as its production does."""

    year: int  # year of publication
    num_samples: int
    num_tables: int
    num_lookups: int  # lookups in all tables
    num_distinct_rows: int


def lm1b_word_counts() -> np.ndarray:
    """Load how often each word of the One Billion Word training set occurs, int64 [793471], the most frequent first."""
    table = _table("lm1b_word_counts.csv.gz")
    return np.repeat(table["count"].to_numpy(np.int64), table["num_words"])


def lm1b_batches() -> list[np.ndarray]:
    """Load the distinct words of 62 batches of 128 x 20 consecutive words of the test set, by their frequency rank."""
    table = _table("lm1b_batches.csv.gz")
    return [rows.to_numpy(np.int64) for _, rows in table.groupby("batch")["row"]]


def lm1b_seconds_per_batch() -> Mapping[str, np.ndarray]:
    """Load the seconds of an iteration of `LM1B_RUNS` on one GPU, a mean of many batches each, in order.

    An epoch's first line is left out: it divides one batch's time by as many as the others.
    """
    table = _table("lm1b_training_logs.csv.gz")
    by_run = table[table["batch"] > 0].groupby("run")["s_per_batch"]
    return MappingProxyType({LM1B_RUNS[run]: seconds.to_numpy(np.float64) for run, seconds in by_run})


def criteo_field_sizes() -> np.ndarray:
    """Load the table rows of each of Criteo's 39 fields in DeepLight, int64: 1 for each of the 13 counts."""
    return _table("criteo_field_sizes.csv")["num_rows"].to_numpy(np.int64)


def embedding_reuse() -> tuple[EmbeddingReuse, ...]:
    """Load lookups and distinct rows of Meta's 33 batches."""
    table = _table("embedding_reuse_batches.csv").drop(columns="batch_file").rename(columns={"samples": "num_samples"})
    return tuple(EmbeddingReuse(**row) for row in table.to_dict("records"))


def source(file: str) -> DataSource:
    """Say for a record where one of `FILES` came from."""
    return DataSource(name=f"{FOLDER}/{file}", kind=SourceKind.PACKAGE, detail="all rows", sha256=FILES[file])


def _table(file: str) -> pd.DataFrame:
    import pandas as pd

    return pd.read_csv(carried_file(f"{FOLDER}/{file}", FILES[file]))
