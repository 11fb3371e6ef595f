"""GLUE (Wang et al., 2018): eight tasks of sentences and sentence pairs, with the columns and labels of `nyu-mll/glue`.

MNLI's validation split is the matched one; the test splits, whose labels are not public, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.datasets.source import Dataset, DataSource, Found, SourceKind, resolve
from workbench.datasets.stand_in import columns_digest, glue_columns

__all__ = ["TASKS", "Task", "load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """What is fixed about one GLUE task."""

    name: str  # such as "sst2"
    text_columns: tuple[str, ...]  # the one or two columns of text
    label_names: tuple[str, ...]  # meaning of the codes 0, 1, ...; empty for a regression (scores 0 to 5)
    metrics: tuple[str, ...]  # GLUE's measures of it, the first one leading
    published_rows: Mapping[str, int]  # split name to the number of rows of the published split

    @property
    def is_regression(self) -> bool:
        """Whether the label is a score rather than a class."""
        return not self.label_names

    @property
    def num_outputs(self) -> int:
        """Width of a classification head: the number of classes, or 1 for a regression."""
        return max(1, len(self.label_names))

    @property
    def validation_split(self) -> str:
        """Name of the split that scores are reported on."""
        return next(split for split in self.published_rows if split.startswith("validation"))


def _task(name: str, texts: str, labels: str, metrics: str, train: int, validation: int) -> Task:
    split = "validation_matched" if name == "mnli" else "validation"
    return Task(
        name=name,
        text_columns=tuple(texts.split()),
        label_names=tuple(labels.split()),
        metrics=tuple(metrics.split()),
        published_rows=MappingProxyType({"train": train, split: validation}),
    )


_ALL = (
    _task("cola", "sentence", "unacceptable acceptable", "matthews", 8_551, 1_043),
    _task("sst2", "sentence", "negative positive", "accuracy", 67_349, 872),
    _task("mrpc", "sentence1 sentence2", "not_equivalent equivalent", "f1 accuracy", 3_668, 408),
    _task("stsb", "sentence1 sentence2", "", "spearman pearson", 5_749, 1_500),
    _task("qqp", "question1 question2", "not_duplicate duplicate", "f1 accuracy", 363_846, 40_430),
    _task("mnli", "premise hypothesis", "entailment neutral contradiction", "accuracy", 392_702, 9_815),
    _task("qnli", "question sentence", "entailment not_entailment", "accuracy", 104_743, 5_463),
    _task("rte", "sentence1 sentence2", "entailment not_entailment", "accuracy", 2_490, 277),
)
TASKS: Mapping[str, Task] = MappingProxyType({task.name: task for task in _ALL})


def load(task: str, split: str = "train", limit: int | None = None, seed: int = 0) -> Dataset:
    """Load a split, or generate a stand-in; `limit` rows are drawn by `seed`, None takes all."""
    if task not in TASKS:
        raise ValueError(f"task is {task!r}, must be one of {', '.join(TASKS)}")
    spec = TASKS[task]
    if split not in spec.published_rows:
        raise ValueError(f"split of {task} is {split!r}, must be one of {', '.join(spec.published_rows)}")
    found = resolve(f"glue/{task}", split)
    columns = _read(found.paths, spec) if found else glue_columns(task, spec.text_columns, split)
    dataset = Dataset(
        name=f"glue/{task}",
        split=split,
        columns=columns,
        text_columns=spec.text_columns,
        source=_source(spec, split, found, columns),
    )
    return dataset.sample(limit, seed)


def _read(paths: Sequence[Path], task: Task) -> dict[str, list[Any]]:
    """Read the task's columns from Parquet files, or from Arrow streams prepared by the `datasets` library."""
    import pyarrow as pa
    from pyarrow import parquet

    wanted = [*task.text_columns, "label", "idx"]
    tables = []
    for path in paths:
        table = parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_stream(path).read_all()
        tables.append(table.select(wanted))
    return pa.concat_tables(tables).to_pydict()


def _source(task: Task, split: str, found: Found | None, columns: Mapping[str, Sequence[Any]]) -> DataSource:
    name, rows, published = f"glue/{task.name}/{split}", len(columns["label"]), task.published_rows[split]
    if found is None:
        detail = f"{rows:,} generated rows; not real data, scores mean nothing"
        digest = columns_digest(columns)
        return DataSource(name=name, kind=SourceKind.STAND_IN, detail=detail, sha256=digest, complete=False)
    complete = rows == published
    warning = f"{rows:,} of {published:,} rows: a subset, scores are not comparable with published ones"
    parts = [f"all {rows:,} rows" if complete else warning, found.note]
    detail = "; ".join(part for part in parts if part)
    return DataSource(name=name, kind=found.kind, detail=detail, sha256=found.sha256, complete=complete)
