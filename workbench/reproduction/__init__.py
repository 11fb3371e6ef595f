"""Declare, run, record, compare and report the results of the papers; what runs items is imported when it is used."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from workbench.reproduction.catalogue import find_item, load_catalogue, published_rows, read_published, select
from workbench.reproduction.claims import Bound, Crossover, Decidable, Ordering, Trend, Whose, Within
from workbench.reproduction.comparing import ClaimVerdict, Comparison, Verdict
from workbench.reproduction.declare import Evidence, Finding, Missed, Page, Profile, Reproduction, Use, Value
from workbench.reproduction.errors import CatalogueError, ClaimError, RecordError, UsageError
from workbench.reproduction.judge import judge
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.recording import published, record, verdicts_of
from workbench.reproduction.records import find_records, load_records, load_verdicts, promote, read_record

if TYPE_CHECKING:
    from workbench.reproduction.cells import CellResult, CellsFailed, run_cells
    from workbench.reproduction.runner import (
        ItemFinished,
        ItemOutcome,
        ItemStarted,
        Outcome,
        Planned,
        PlannedItem,
        Progress,
        Status,
        run,
    )
    from workbench.reproduction.runner.plan import plan

__all__ = ["Bound", "CatalogueError", "CellResult", "CellsFailed", "ClaimError", "ClaimVerdict", "Comparison"]
__all__ += ["Crossover", "Decidable", "Evidence", "Finding", "ItemFinished", "ItemOutcome", "ItemRun", "ItemStarted"]
__all__ += [
    "Missed",
    "Ordering",
    "Outcome",
    "Page",
    "Planned",
    "PlannedItem",
    "Profile",
    "Progress",
    "Project",
    "RecordError",
]
__all__ += ["Reproduction", "Status", "Trend", "UsageError", "Use", "Value", "Verdict", "Whose", "Within"]
__all__ += ["find_item", "find_records", "judge", "load_catalogue", "load_records", "load_verdicts", "plan"]
__all__ += ["promote", "published", "published_rows", "read_published"]
__all__ += ["read_record", "record", "run", "run_cells", "select", "verdicts_of"]


def __getattr__(name: str) -> Any:
    """Import what runs items, and the processes it needs, which `workbench list` can do without."""
    if name in __all__:
        room = "cells" if name in ("CellResult", "CellsFailed", "run_cells") else "runner"
        return getattr(import_module(f"{__name__}.{room}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
