"""The rows of an item's runs, and the paper's, for the chart that a page's script draws of them."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any

from workbench.reproduction.catalogue import published_rows
from workbench.reproduction.project import ItemRun
from workbench.reproduction.records import SealedRecord, merged_rows
from workbench.rows import Row

__all__ = ["chart_data", "chart_script"]

FIXED = ("quantity", "unit", "run", "value", "low", "high")  # columns, before those of the keys
PAPER = "paper"  # the run of the published values
MOST_ROWS = 3000  # of a chart; the largest record has 5,000 values, of which no chart is readable
DIGITS = 6  # of a value


def chart_data(run: ItemRun, runs: Iterable[tuple[str, SealedRecord]]) -> str:
    """Return the rows of runs (name, record) with the published ones beside them, as JSON for a page, or "".

    Only quantities of several values are kept.
    """
    rows = [(name, row) for name, record in runs for row in merged_rows(record)]
    several = {
        quantity for (_, quantity), number in Counter((n, row.quantity) for n, row in rows).items() if number > 1
    }
    units = {(row.quantity, row.unit) for _, row in rows}
    rows += [(PAPER, row) for row in published_rows(run.project, run.item) if (row.quantity, row.unit) in units]
    kept = [(name, row) for name, row in rows if row.quantity in several and math.isfinite(row.value)]
    if not kept or len(kept) > MOST_ROWS:
        return ""
    keys = list(dict.fromkeys(key for _, row in kept for key in row.keys if key not in FIXED))
    table = {"columns": [*FIXED, *keys], "rows": [_cells(name, row, keys) for name, row in kept]}
    return json.dumps(table, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")


def _cells(name: str, row: Row, keys: list[str]) -> list[Any]:
    numbers = [None if value is None else float(f"{value:.{DIGITS}g}") for value in (row.value, row.low, row.high)]
    return [row.quantity, row.unit, name, *numbers, *map(row.keys.get, keys)]


@cache
def chart_script() -> Mapping[str, str]:
    """Return the script of the charts, and the digest by which a page's policy knows it."""
    folder = files(__package__).joinpath("templates")
    script = "".join(folder.joinpath(name).read_text(encoding="utf-8") for name in ("vega.js", "charts.js"))
    return {"script": script, "digest": b64encode(sha256(script.encode()).digest()).decode("ascii")}
