"""Declare, run, record, compare and report what the papers show.

Source: the workbench's own conventions; what each item reproduces stands in reproductions/<technique>/catalogue.py.
Simplified: verdicts are agrees, disagrees, not comparable, not run; nothing in between.
Left out: importing torch, papermill or pandas before they are needed, so that listing and checking stay quick.
"""

from workbench.reproduction.catalogue import find_item, load_catalogue, select
from workbench.reproduction.cells import CellResult, CellsFailed, run_cells
from workbench.reproduction.claims import Bound, Crossover, Decidable, Ordering, Trend, Within
from workbench.reproduction.comparing import ClaimVerdict, Comparison, Verdict
from workbench.reproduction.declare import Evidence, Profile, Reproduction
from workbench.reproduction.errors import CatalogueError, ClaimError, RecordError, UsageError
from workbench.reproduction.project import Project
from workbench.reproduction.recorded import diff, promote
from workbench.reproduction.recording import published, record, verdicts_of
from workbench.reproduction.records import find_records, load_records, load_verdicts, read_record
from workbench.reproduction.runner import (
    ItemFinished,
    ItemOutcome,
    ItemStarted,
    Outcome,
    Planned,
    PlannedItem,
    Progress,
    RunFinished,
    Status,
    plan,
    run,
)

__all__ = [
    "Bound",
    "CatalogueError",
    "CellResult",
    "CellsFailed",
    "ClaimError",
    "ClaimVerdict",
    "Comparison",
    "Crossover",
    "Decidable",
    "Evidence",
    "ItemFinished",
    "ItemOutcome",
    "ItemStarted",
    "Ordering",
    "Outcome",
    "Planned",
    "PlannedItem",
    "Profile",
    "Progress",
    "Project",
    "RecordError",
    "Reproduction",
    "RunFinished",
    "Status",
    "Trend",
    "UsageError",
    "Verdict",
    "Within",
    "diff",
    "find_item",
    "find_records",
    "load_catalogue",
    "load_records",
    "load_verdicts",
    "plan",
    "promote",
    "published",
    "read_record",
    "record",
    "run",
    "run_cells",
    "select",
    "verdicts_of",
]
