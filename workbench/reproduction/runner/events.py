"""Events of a run: the plan, the start and end of each item, the time spent and to go, the outcome."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from workbench.reproduction.cells.store import CellProgress, CellsThere

__all__ = [
    "Action",
    "Event",
    "ItemFinished",
    "ItemOutcome",
    "ItemStarted",
    "OnEvent",
    "Outcome",
    "Planned",
    "PlannedItem",
    "Progress",
    "RunFinished",
    "Status",
]


class Action(StrEnum):
    """The part of an item in a run."""

    RUN = "run"
    NOTHING = "nothing"  # it is up to date
    SKIP = "skip"  # it is not declared for the profile


class Status(StrEnum):
    """The state of an item after a run."""

    RECORDED = "recorded"  # ran, and its record was written
    UP_TO_DATE = "up to date"  # nothing had to be done
    FAILED = "failed"  # its old record, if any, was kept
    NOT_DECLARED = "not declared"  # it has no parameters for the profile


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedItem:
    """The plan for one item."""

    id: str  # of the item
    action: Action
    why: str  # the reason, such as which part of its fingerprint changed
    expected_s: float  # seconds it is expected to take if it runs
    times: bool  # whether it runs alone
    cells: CellsThere | None = None  # how many of its cells are there, where that is known


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The run has been checked and planned; sent once, first."""

    items: Sequence[PlannedItem]  # in the order of the catalogue
    expected_s: float  # seconds expected for those that run, with the jobs given


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemStarted:
    """An item's kernel is being started."""

    id: str  # of the item
    number: int  # 1 for the first item started
    num_items: int  # items that run in all
    expected_s: float  # seconds it is expected to take


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """Sent about once a second while items run."""

    running: Mapping[str, float]  # id to seconds so far
    num_done: int  # items that have ended
    num_items: int  # items that run in all
    elapsed_s: float  # seconds since the run began
    remaining_s: float  # estimate of the seconds to go
    cells: Mapping[str, CellProgress] = field(default_factory=dict)  # id to how far its cells are, where it has any


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemOutcome:
    """The outcome of one item."""

    id: str  # of the item
    status: Status
    seconds: float = 0.0  # it took in this run
    reason: str = ""  # of a failure, in one line
    verdicts: Mapping[str, int] = field(default_factory=dict)  # verdict to the number of claims


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemFinished:
    """An item has ended and its folder is in place."""

    outcome: ItemOutcome


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of a run."""

    profile: str  # it ran in
    items: Sequence[ItemOutcome]  # in the order of the catalogue
    seconds: float  # it took

    @property
    def failed(self) -> tuple[ItemOutcome, ...]:
        """The items that failed."""
        return tuple(item for item in self.items if item.status is Status.FAILED)

    @property
    def did_nothing(self) -> bool:
        """Whether no item had to run."""
        return not any(item.status in (Status.RECORDED, Status.FAILED) for item in self.items)

    @property
    def exit_code(self) -> int:
        """1 if an item failed, else 0, whatever the verdicts."""
        return 1 if self.failed else 0


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFinished:
    """The run has ended; sent once, last."""

    outcome: Outcome


Event = Planned | ItemStarted | Progress | ItemFinished | RunFinished
OnEvent = Callable[[Event], None]
