"""WikiText-2 (Merity et al., 2016): running text of Wikipedia articles, word-level with `<unk>`.

Blanks around a line are dropped, so that the folder layout and the hub's files give equal lines.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from workbench.checks import require_one_of
from workbench.datasets.source import Dataset, read_tables, resolve, source_of
from workbench.datasets.stand_in import running_text, stand_in_source

__all__ = ["PUBLISHED_LINES", "load"]

PUBLISHED_LINES = MappingProxyType({"train": 36_718, "validation": 3_760, "test": 4_358})  # lines of each split


def load(split: str = "train", limit: int | None = None) -> Dataset:
    """Load a split from the first place that has it, or generate it; `limit` keeps the first lines, None keeps all."""
    require_one_of(PUBLISHED_LINES, split=split)
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1 or None")
    files, name = resolve("wikitext-2", split), f"wikitext-2/{split}"
    lines = _read(files.paths) if files else running_text(split)
    columns = {"text": lines}
    if files is None:
        source = stand_in_source(name, columns, "lines", "losses")
    else:
        warning = "not comparable with published losses"
        source = source_of(name, files, len(lines), PUBLISHED_LINES[split], "lines", warning)
    dataset = Dataset(name="wikitext-2", split=split, columns=columns, text_columns=("text",), source=source)
    return dataset if limit is None else dataset.rows(range(min(limit, len(lines))))


def _read(paths: Sequence[Path]) -> list[str]:
    if paths[0].suffix == ".gz":
        with gzip.open(paths[0], "rt", encoding="utf-8") as stream:
            lines = list(stream)
    else:
        lines = read_tables(paths, ("text",))["text"]
    return [line.strip() for line in lines]
