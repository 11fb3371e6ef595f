"""GLUE (Wang et al., 2018): eight tasks of sentences and sentence pairs, with the columns and labels of `nyu-mll/glue`.

MNLI's validation split is the matched one; the test splits, whose labels are not public, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from workbench.checks import require_one_of
from workbench.datasets.source import Dataset, read_tables, resolve, source_of
from workbench.datasets.stand_in import glue_columns, stand_in_source

__all__ = ["TASKS", "Task", "load"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The fixed properties of one GLUE task."""

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
        """Name of the split whose scores are reported."""
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
    require_one_of(TASKS, task=task)
    spec = TASKS[task]
    if split not in spec.published_rows:
        raise ValueError(f"split of {task} is {split!r}; it must be one of {', '.join(spec.published_rows)}")
    files, name = resolve(f"glue/{task}", split), f"glue/{task}/{split}"
    if files is None:
        columns = glue_columns(task, spec.text_columns, split)
        source = stand_in_source(name, columns, "rows", "scores")
    else:
        columns = read_tables(files.paths, [*spec.text_columns, "label", "idx"])
        warning = "a subset, scores are not comparable with published ones"
        source = source_of(name, files, len(columns["label"]), spec.published_rows[split], "rows", warning)
    texts = spec.text_columns
    return Dataset(name=f"glue/{task}", split=split, columns=columns, text_columns=texts, source=source).sample(
        limit, seed
    )
