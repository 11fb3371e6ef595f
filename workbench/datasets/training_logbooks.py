"""The dated failures of two large trainings, from the public diaries of BLOOM and OPT-175B.

Source: facts read by hand from bigscience-workshop/bigscience, `train/tr11-176B-ml/chronicles.md`, and
facebookresearch/metaseq, `projects/OPT/chronicles/` (MIT). Most of OPT's restarts are only counted there. The files
come from `WORKBENCH_DATA` or not at all.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType

from workbench.datasets.places import trusted_file
from workbench.datasets.source import DataSource, SourceKind

__all__ = ["LOGBOOKS", "Logbook", "LoggedEvent", "load", "read"]

FOLDER = "cluster-traces/training-logbooks"

LOGBOOKS: Mapping[str, str] = MappingProxyType(
    {
        "bloom-176b": "2c2f2fd5ece8f4adae4e5eb71ac0696f54df7f525f9f83687a204cb041cd7528",
        "opt-175b": "d0295014c16454ed0a32a0a0baf8765b5e67a8dcbac057fe56d599d2f80afdf2",
    }
)
"""The diaries and the sha256 of their tables."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LoggedEvent:
    """One line of a diary."""

    first_day: date  # on which it can have happened at the earliest
    last_day: date  # at the latest
    category: str  # such as "hardware", "software_hang", "milestone"
    text: str  # what happened, in words
    # how many of them, or how many machines, as the text says; None where the table has no number
    count: int | None = None
    lost_hours: float | None = None  # that were lost; None where the diary does not say


@dataclass(frozen=True, kw_only=True, slots=True)
class Logbook:
    """A diary."""

    name: str  # one of LOGBOOKS
    events: tuple[LoggedEvent, ...]  # in the order of the table
    source: DataSource  # where it came from


def load(name: str) -> Logbook:
    """Load one diary: "bloom-176b" or "opt-175b"."""
    if name not in LOGBOOKS:
        raise ValueError(f"name is {name!r}, must be one of {', '.join(LOGBOOKS)}")
    events = read(trusted_file(f"{FOLDER}/{name.replace('-', '_')}_events.csv", LOGBOOKS[name]))
    detail = f"{len(events)} events, dated to the day or a range of days"
    source = DataSource(name=f"{FOLDER}/{name}", kind=SourceKind.WORKBENCH_DATA, detail=detail, sha256=LOGBOOKS[name])
    return Logbook(name=name, events=events, source=source)


def read(path: Path) -> tuple[LoggedEvent, ...]:
    """Read the events of a CSV table with the columns date, category, event, and count or lost_hours or both."""
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(_event(row) for row in csv.DictReader(file))


def _event(row: Mapping[str, str]) -> LoggedEvent:
    first_day, last_day = _days(row["date"])
    return LoggedEvent(
        first_day=first_day,
        last_day=last_day,
        category=row["category"],
        text=row["event"],
        count=int(row["count"]) if row.get("count") else None,
        lost_hours=float(row["lost_hours"]) if row.get("lost_hours") else None,
    )


def _days(text: str) -> tuple[date, date]:
    """Read 2022-03-21, 2022-04, or 2021-11-05/2021-11-11."""
    first, _, last = text.partition("/")
    try:
        if len(first) == len("2022-04"):
            month = date.fromisoformat(f"{first}-01")
            return month, (month + timedelta(days=31)).replace(day=1) - timedelta(days=1)
        return date.fromisoformat(first), date.fromisoformat(last or first)
    except ValueError:
        raise ValueError(f"date is {text!r}; it must be a day, a month or a range of days") from None
