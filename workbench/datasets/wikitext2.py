"""WikiText-2 (Merity et al., 2016): running text of Wikipedia articles, word-level with `<unk>`.

Blanks around a line are dropped, so that the folder layout and the hub's files give equal lines.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path
from types import MappingProxyType

from workbench.datasets.source import Dataset, DataSource, Found, SourceKind, resolve
from workbench.datasets.stand_in import columns_digest, running_text

__all__ = ["PUBLISHED_LINES", "load"]

PUBLISHED_LINES = MappingProxyType({"train": 36_718, "validation": 3_760, "test": 4_358})  # lines of each split


def load(split: str = "train", limit: int | None = None) -> Dataset:
    """Load a split from the first place that has it, or generate it; `limit` keeps the first lines, None keeps all."""
    if split not in PUBLISHED_LINES:
        raise ValueError(f"split is {split!r}, must be one of {', '.join(PUBLISHED_LINES)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}, must be at least 1 or None")
    found = resolve("wikitext-2", split)
    lines = _read(found.paths) if found else running_text(split)
    dataset = Dataset(
        name="wikitext-2",
        split=split,
        columns={"text": lines},
        text_columns=("text",),
        source=_source(split, found, lines),
    )
    return dataset if limit is None else dataset.rows(range(min(limit, len(lines))))


def _read(paths: Sequence[Path]) -> list[str]:
    import pyarrow as pa
    from pyarrow import parquet

    lines: list[str] = []
    for path in paths:
        if path.suffix == ".gz":
            with gzip.open(path, "rt", encoding="utf-8") as stream:
                lines.extend(stream)
        elif path.suffix == ".parquet":
            lines.extend(parquet.read_table(path)["text"].to_pylist())
        else:
            lines.extend(pa.ipc.open_stream(path).read_all()["text"].to_pylist())
    return [line.strip() for line in lines]


def _source(split: str, found: Found | None, lines: Sequence[str]) -> DataSource:
    name, published = f"wikitext-2/{split}", PUBLISHED_LINES[split]
    if found is None:
        detail = f"{len(lines):,} generated lines; not real data, losses mean nothing"
        digest = columns_digest({"text": lines})
        return DataSource(name=name, kind=SourceKind.STAND_IN, detail=detail, sha256=digest, complete=False)
    complete = len(lines) == published
    warning = f"{len(lines):,} of {published:,} lines: not comparable with published losses"
    parts = [f"all {len(lines):,} lines" if complete else warning, found.note]
    detail = "; ".join(part for part in parts if part)
    return DataSource(name=name, kind=found.kind, detail=detail, sha256=found.sha256, complete=complete)
