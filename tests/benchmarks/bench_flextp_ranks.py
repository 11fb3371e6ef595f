"""Benchmarks of balancing on four real ranks: beside the ideal, beside its criterion, and where there is nothing to do.

One straggler of χ = 8, products slowed alike on all ranks so that four ranks' products fit two cores; the share of
products in a plain iteration is named, since all bounds follow from it. Idle, nothing is slowed and no one straggles.
An ask holds only if the whole interval of the median keeps to it.
"""

from workbench.techniques.flextp.study.timing import ASKED, Size, measure_machinery, measure_speed
from workbench.training.measuring import Benchmark, BenchmarkRow

SIZE = Size(hidden=512, layers=1, batch=16)
IDLE_SIZE = Size(hidden=1024, layers=1, batch=64)  # of the item flextp/machinery/measured
NUM_RANKS = 4
SLOWNESS = 8.0
ROUNDS = 12
SETTLING = 8  # Eq. 1 against the current mean takes about six plans from χ = 8
IDLE_ROUNDS = 40
SHOWN = ("share_of_ideal", "share_of_bound", "speedup", "over_unbalanced", "cpu_over_unbalanced")


def rows_of(rows: list[dict], what: str) -> list[BenchmarkRow]:
    """Turn the rows of a study into those of a benchmark."""
    return [_row(row, what) for row in rows if row["quantity"] in SHOWN and row.get("skewness") != 1]


def _row(row: dict, what: str) -> BenchmarkRow:
    told = {"name": f"{row['quantity']} of {row['solution']}, {what}", "figure": row["value"], "unit": "x"}
    asked = next((each for each in ASKED if (each.quantity, each.solution) == (row["quantity"], row["solution"])), None)
    if asked is not None:
        told |= {"asked": asked.words, "holds": asked.holds(row)}
    return BenchmarkRow(**told, low=row["low"], high=row["high"])


def straggling() -> list[BenchmarkRow]:
    """Time all solutions with one straggler."""
    rows = measure_speed(size=SIZE, num_ranks=NUM_RANKS, rounds=ROUNDS, slowness=SLOWNESS, warmup=SETTLING).rows
    plain = [row for row in rows if row["solution"] == "Baseline" and row["skewness"] == 1]
    share = next(row["value"] for row in plain if row["quantity"] == "product_share")
    return rows_of(rows, f"products {share:.0%} of a plain iteration")


def idle() -> list[BenchmarkRow]:
    """Time a model with `balance` beside the same one without."""
    measured = measure_machinery(size=IDLE_SIZE, num_ranks=NUM_RANKS, rounds=IDLE_ROUNDS)
    return rows_of(measured.rows, "no straggler, nothing slowed")


BENCHMARKS = [
    Benchmark(name="flextp-straggler", asks="One straggler of χ = 8 among 4 ranks, over Baseline.", run=straggling),
    Benchmark(name="flextp-idle", asks="Without stragglers, over the model without `balance`.", run=idle),
]
