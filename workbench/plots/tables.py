"""Flat rows as the tables that plots draw and notebooks show."""

from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

__all__ = ["merged", "rows_of", "table_of", "with_intervals"]

NOT_KEYS = ("quantity", "value", "low", "high", "unit")


def table_of(data: pd.DataFrame | Iterable[Mapping], columns: Iterable[str | None]) -> pd.DataFrame:
    """Return rows as a table, and check that it has the named columns; None stands for no column.

    Raises:
        ValueError: if a column is missing.
    """
    table = pd.DataFrame(data)
    for column in columns:
        if column is not None and column not in table:
            raise ValueError(f"column is {column!r}; it must be one of {list(table)!r}")
    return table


def rows_of(rows: pd.DataFrame | Iterable[Mapping], quantity: str, **keys: Any) -> pd.DataFrame:
    """Return the rows of one quantity with the given keys; columns that only other rows have are empty."""
    rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else list(rows)
    wanted = {"quantity": quantity, **keys}
    chosen = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    return pd.DataFrame(chosen, columns=list(dict.fromkeys(key for row in rows for key in row)))


def merged(rows: pd.DataFrame | Iterable[Mapping], quantity: str, columns: list[str], **keys: Any) -> pd.DataFrame:
    """Merge the seeds of one quantity: the columns that tell rows apart, value (mean), low and high."""
    groups = rows_of(rows, quantity, **keys).groupby(columns, sort=False, dropna=False).value
    return groups.agg(value="mean", low="min", high="max").reset_index()


def with_intervals(rows: Iterable[Mapping], *quantities: str, columns: str = "quantity") -> pd.DataFrame:
    """Write values as "value (low to high) unit", a row a setting.

    Args:
        rows: rows of a record.
        quantities: quantities to show; none shows all.
        columns: the key whose values are the columns; all other keys name the rows.
    """
    chosen = [{**row, "written": _written(row)} for row in rows if not quantities or row["quantity"] in quantities]
    table = pd.DataFrame(chosen).dropna(axis="columns", how="all")
    keys = [name for name in table if name not in (*NOT_KEYS[1:], "written", columns)]
    table[keys] = table[keys].astype(object).where(table[keys].notna(), "")
    return table.pivot_table(index=keys, columns=columns, values="written", aggfunc="first", sort=False).fillna("")


def _written(row: Mapping) -> str:
    unit = "" if row["unit"] == "1" else f" {row['unit']}"
    spread = f" ({row['low']:.4g} to {row['high']:.4g})" if row.get("low") != row.get("high") else ""
    return f"{row['value']:.4g}{spread}{unit}"
