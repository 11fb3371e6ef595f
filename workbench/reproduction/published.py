"""The paper's numbers: reproductions/<technique>/published/*.csv.

Source: each row names its own place in the paper in the column `source`.
Simplified: a column left empty in a row does not apply to that row.
Left out: how they are compared with ours, see `workbench.reproduction.claims`.
"""

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import CatalogueError
from workbench.reproduction.project import Project
from workbench.study.rows import Row, read_row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["published_rows", "published_table", "read_published"]

COLUMNS = ("quantity", "value", "unit", "source")  # every file has these


def read_published(path: Path) -> tuple[Row, ...]:
    """Read one file of published numbers.

    Raises:
        CatalogueError: naming the file, and the column or row that is wrong.
    """
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
            columns = reader.fieldnames or []
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from None
    if missing := [name for name in COLUMNS if name not in columns]:
        raise CatalogueError(f"{path}: column {missing[0]!r} is missing; every file has {', '.join(COLUMNS)}")
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise CatalogueError(f"{path}: line {line} does not have {len(columns)} columns")
        if not row["source"].strip():
            raise CatalogueError(f"{path}: line {line} has no source; say where the paper gives the number")
        try:
            read_row(row)
        except ValueError as error:
            raise CatalogueError(f"{path}: line {line}: {error}") from None
    try:
        return read_rows(rows, path.name)
    except ValueError as error:
        raise CatalogueError(f"{path.parent}: {error}") from None


def published_rows(project: Project, item: Reproduction) -> tuple[Row, ...]:
    """Return the published numbers of an item; none where its paper gives none."""
    path = project.published(item)
    return () if path is None else read_published(path)


def published_table(project: Project, item: Reproduction, quantity: str) -> "DataFrame":
    """Return the published rows of one quantity, a key column each, for figures; empty where there are none."""
    import pandas

    rows = [row.to_json() for row in published_rows(project, item) if row.quantity == quantity]
    return pandas.DataFrame(rows, columns=None if rows else list(COLUMNS))
