"""Declare, run, record, compare and report the results of the papers."""

from workbench.reproduction.catalogue import find_item, load_catalogue, published_rows, read_published, select
from workbench.reproduction.cells import CellResult, CellsFailed, run_cells
from workbench.reproduction.claims import Bound, Crossover, Decidable, Ordering, Trend, Within
from workbench.reproduction.comparing import ClaimVerdict, Comparison, Verdict
from workbench.reproduction.declare import Evidence, Profile, Reproduction
from workbench.reproduction.errors import CatalogueError, ClaimError, RecordError, UsageError
from workbench.reproduction.judge import judge
from workbench.reproduction.project import Project
from workbench.reproduction.recording import published, record, verdicts_of
from workbench.reproduction.records import (
    diff,
    find_records,
    load_records,
    load_verdicts,
    promote,
    promoted_figure,
    promoted_path,
    read_record,
)
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

__all__ = ["Bound", "CatalogueError", "CellResult", "CellsFailed", "ClaimError", "ClaimVerdict", "Comparison"]
__all__ += ["Crossover", "Decidable", "Evidence", "ItemFinished", "ItemOutcome", "ItemStarted", "Ordering", "Outcome"]
__all__ += ["Planned", "PlannedItem", "Profile", "Progress", "Project", "RecordError", "Reproduction", "RunFinished"]
__all__ += ["Status", "Trend", "UsageError", "Verdict", "Within", "diff", "find_item", "find_records", "judge"]
__all__ += ["load_catalogue", "load_records", "load_verdicts", "plan", "promote", "promoted_figure", "promoted_path"]
__all__ += ["published", "published_rows", "read_published", "read_record", "record", "run", "run_cells", "select"]
__all__ += ["verdicts_of"]
