"""Idle network spans of 20 iterations of BERT under ZeRO-3, as Gemini's authors recorded them.

Source: zhuangwang93/Gemini_SOSP23 at commit cc591a5 (MIT).
"""

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind

__all__ = ["IdleSpans", "load", "read"]

FILE = "gemini-artifact/bert_idle_spans.csv"
SHA256 = "31d09fb6a9648a3321decf07c3afa3ba6c2f36f459bbafecccc8136d30668471"

Place = tuple[str, int]  # the operation that a span precedes, and its number among those of its iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class IdleSpans:
    """Seconds by iteration and place."""

    iterations: tuple[dict[Place, float], ...]  # spans in their order
    source: DataSource  # origin of the spans


def load() -> IdleSpans:
    """Load the spans; DataError if the file has changed."""
    iterations = read(carried_file(FILE, SHA256))
    detail = f"idle spans of {len(iterations)} iterations of BERT"
    source = DataSource(name=FILE, kind=SourceKind.PACKAGE, detail=detail, sha256=SHA256)
    return IdleSpans(iterations=iterations, source=source)


def read(path: Path) -> tuple[dict[Place, float], ...]:
    """Read a table of iteration, span, operation and duration_s: the spans of an iteration differ in number."""
    iterations: dict[int, dict[Place, float]] = {}
    counts: Counter[tuple[int, str]] = Counter()
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            key = int(row["iteration"]), row["operation"]
            iterations.setdefault(key[0], {})[row["operation"], counts[key]] = float(row["duration_s"])
            counts[key] += 1
    return tuple(iterations[number] for number in sorted(iterations))
