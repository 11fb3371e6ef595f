"""Table I: the model calibrated on six of its ten cells, the epoch it gives for any number of senders, and its errors.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V-C, table I, read from
`reproductions/flextp/published/table-1.csv`. The text shows one sender; table and text have up to four. Which model it
is the text does not say: ViT-1B is taken, which the paper's first figures are about.
What is fitted: the rate of matrix products, so that a plain epoch takes what both cells at share 0 say (one number,
printed twice); and the rate of messages between two ranks, so that scatter-gather of everything takes what its cell
says. Nothing of broadcast-reduce is fitted: link, memory and bytes are those of data sheets and shapes.
Simplified, left out: see `migration`.

How much of scatter-gather's messages products hide was decided with its whole row in view, so all of that row
calibrates, and broadcast-reduce's alone tests. What else was tried, and what it misses scatter-gather's cells at 1/4, 1/2, 3/4 by
(the cell at 1 being fitted): nothing hidden +18, +11, +4 %; results not hidden +7, +6, +2 %; results hidden behind two
thirds +3, 0, -2 %; each receiver sent its own columns alone 0, 0, 0 %, but over links at 15 % of their rate. With one
sender the row cannot say how several share their receivers. Two other ways were tried: all at once, R messages in a
row, is faster than broadcast-reduce at s = 1/4 for x = 3 and 4, and one sender after the other, x R messages, makes
broadcast-reduce's lead grow; the text says otherwise of both.

Units: seconds of an epoch.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import MappingProxyType

from ..method.plan import Scheme
from .iteration import iteration_parts, parts_beside_flops
from .machine import FlexMachine
from .migration import migration_time
from .workload import VIT_1B, Workload

__all__ = [
    "CALIBRATION",
    "CHOSEN_ON",
    "Table1Cell",
    "Table1Error",
    "calibrate",
    "migration_epoch_time_s",
    "migration_errors",
    "paper_machine",
    "published_epochs_s",
]

PUBLISHED = Path(__file__).parents[4] / "reproductions/flextp/published/table-1.csv"
BISECTIONS = 60  # of the logarithm of a rate: exact to rounding
LEAST_EFFICIENCY = 1e-6  # where the search for the rate of messages begins


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1Cell:
    """The place of one number.

    Attributes:
        scheme: how columns travel.
        num_senders: x.
        migrated_share: s.
    """

    scheme: Scheme
    num_senders: int
    migrated_share: float


PLAIN = Table1Cell(scheme=Scheme.BROADCAST_REDUCE, num_senders=1, migrated_share=0.0)
PLAIN_AGAIN = replace(PLAIN, scheme=Scheme.SCATTER_GATHER)
SCATTERED = Table1Cell(scheme=Scheme.SCATTER_GATHER, num_senders=1, migrated_share=1.0)
CALIBRATION: tuple[Table1Cell, ...] = (PLAIN, PLAIN_AGAIN, SCATTERED)
"""The cells that are fitted; they never count as reproduced."""
CHOSEN_ON: tuple[Table1Cell, ...] = tuple(replace(SCATTERED, migrated_share=share) for share in (0.25, 0.5, 0.75))
"""The cells that the model's form was chosen on; nor do they."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Table1Error:
    """A published cell beside ours.

    Attributes:
        cell: which.
        published_s: as printed.
        ours_s: of the model.
        calibrates: whether the model was fitted to it, or its form chosen on it.
    """

    cell: Table1Cell
    published_s: float
    ours_s: float
    calibrates: bool

    @property
    def relative(self) -> float:
        """Ours minus published, as a share of published."""
        return self.ours_s / self.published_s - 1


def migration_epoch_time_s(
    scheme: Scheme | str,
    num_senders: int,
    migrated_share: float,
    *,
    workload: Workload = VIT_1B,
    machine: FlexMachine | None = None,
) -> float:
    """Return the seconds of an epoch in which some ranks, none of them slow, migrate a share of their columns.

    The slowest rank is a receiver: it multiplies its own columns and x s / (N - x) as many for others. That a sender
    has less to multiply saves nothing, because it waits for the others at the next all-reduce.

    Args:
        scheme: "broadcast-reduce" or "scatter-gather".
        num_senders: x, 1 to 7 on eight ranks.
        migrated_share: s, in [0, 1].
        workload: model and batch; ViT-1B with batch 64.
        machine: the paper's, if none is given.

    Raises:
        ValueError: naming the argument that is out of range.
    Source: section V-C, table I.
    """
    machine = paper_machine() if machine is None else machine
    added = migration_time(scheme, workload, machine, num_senders=num_senders, migrated_share=migrated_share)
    return workload.num_iterations * (iteration_parts(workload, machine).own_s + added.total_s)


def migration_errors() -> tuple[Table1Error, ...]:
    """Return every published cell of table I beside ours, in the order printed."""
    return tuple(
        Table1Error(
            cell=cell,
            published_s=published_s,
            ours_s=migration_epoch_time_s(cell.scheme, cell.num_senders, cell.migrated_share),
            calibrates=cell in (*CALIBRATION, *CHOSEN_ON),
        )
        for cell, published_s in published_epochs_s().items()
    )


@cache
def paper_machine() -> FlexMachine:
    """Return eight V100 over PCIe 3, fitted to `CALIBRATION`."""
    return calibrate(published_epochs_s(CALIBRATION))


def calibrate(cells_s: Mapping[Table1Cell, float], workload: Workload = VIT_1B) -> FlexMachine:
    """Fit the two rates.

    Args:
        cells_s: seconds of the cells of `CALIBRATION`; no other is looked at.
        workload: what the table is taken to be about.

    Raises:
        ValueError: naming a cell that is missing, or that no rate explains.
    """
    if missing := [cell for cell in CALIBRATION if cell not in cells_s]:
        raise ValueError(f"cells_s lacks {missing[0]}")
    plain_s = (cells_s[PLAIN] + cells_s[PLAIN_AGAIN]) / 2 / workload.num_iterations
    machine = FlexMachine.named(product_flops_per_s=1.0)  # of no consequence for the parts beside
    products_s = plain_s - parts_beside_flops(workload, machine).own_s
    if products_s <= 0:
        raise ValueError(f"cells_s has {cells_s[PLAIN]} s at share 0; links and memory alone take longer")
    flops = workload.product_flops(machine.num_ranks) + workload.attention_flops(machine.num_ranks)
    machine = replace(machine, product_flops_per_s=flops / products_s)
    return replace(machine, message_efficiency=_message_efficiency(machine, workload, cells_s[SCATTERED]))


def published_epochs_s(cells: Iterable[Table1Cell] | None = None) -> Mapping[Table1Cell, float]:
    """Read table I.

    Args:
        cells: which; all if None.

    Raises:
        ValueError: naming a cell that the file does not hold.
    """
    table = _table_s()
    wanted = list(table) if cells is None else list(cells)
    for cell in wanted:
        if cell not in table:
            raise ValueError(f"cells: {cell} is not in {PUBLISHED.name}")
    return MappingProxyType({cell: table[cell] for cell in wanted})


@cache
def _table_s() -> Mapping[Table1Cell, float]:
    with PUBLISHED.open(encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["quantity"] == "epoch_s"]
    return MappingProxyType({_cell_of(row): float(row["value"]) for row in rows})


def _cell_of(row: Mapping[str, str]) -> Table1Cell:
    numbers = {"num_senders": int(row["num_senders"]), "migrated_share": float(row["migrated_share"])}
    return Table1Cell(scheme=Scheme(row["scheme"]), **numbers)


def _message_efficiency(machine: FlexMachine, workload: Workload, epoch_s: float) -> float:
    """Return the efficiency with which scatter-gather of everything takes an epoch that long, by bisection."""

    def is_too_slow(efficiency: float) -> bool:
        fitted = replace(machine, message_efficiency=efficiency)
        return migration_epoch_time_s(Scheme.SCATTER_GATHER, 1, 1.0, workload=workload, machine=fitted) > epoch_s

    least, most = LEAST_EFFICIENCY, 1.0
    if is_too_slow(most) or not is_too_slow(least):
        raise ValueError(f"cells_s has {epoch_s} s for scatter-gather at share 1; no rate of messages explains it")
    for _ in range(BISECTIONS):
        middle = math.sqrt(least * most)
        least, most = (middle, most) if is_too_slow(middle) else (least, middle)
    return math.sqrt(least * most)
