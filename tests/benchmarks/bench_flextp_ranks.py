"""Balancing on four real ranks: the items speed and machinery in fewer rounds, without plans that no claim names.

One straggler has χ = 8; all ranks' products are slowed alike, so that those of four ranks fit two cores. Idle, nothing
is slowed and no rank straggles. A bound holds only if the whole interval of the median keeps it.
"""

from workbench.reproduction import Bound, Project, Reproduction, Verdict, find_item, load_catalogue
from workbench.reproduction.judge import judge
from workbench.rows import read_rows
from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.techniques.flextp import measured

STRAGGLING_ROUNDS, IDLE_ROUNDS = 12, 60  # of 20 and 240 in full
SHOWN = ("share_of_ideal", "share_of_bound", "speedup", "over_unbalanced", "cpu_over_unbalanced")


def rows_of(rows: list[dict], what: str) -> list[BenchmarkRow]:
    """Turn the rows of a study into those of a benchmark."""
    return [_row(row, what) for row in rows if row["quantity"] in SHOWN and row.get("skewness") != 1]


def _row(row: dict, what: str) -> BenchmarkRow:
    fields = {"name": f"{row['quantity']} of {row['solution']}, {what}", "figure": row["value"], "unit": "x"}
    for claim in _bounds():
        if (claim.quantity, claim.where["solution"]) == (row["quantity"], row["solution"]):
            (judged,) = judge([claim], read_rows([row], "values"), ())
            side = "most" if claim.at_least is None else "least"
            fields |= {"asked": f"at {side} {claim.limit:g}", "holds": judged.verdict is Verdict.AGREES}
    return BenchmarkRow(**fields, low=row["low"], high=row["high"])


def _bounds() -> list[Bound]:
    """Return what the catalogue asks for."""
    return [claim for name in ("speed", "machinery") for claim in _item(name).claims if isinstance(claim, Bound)]


def _item(name: str) -> Reproduction:
    return find_item(load_catalogue(Project()), f"flextp/{name}/measured")


def _arguments(name: str, rounds: int, *names: str) -> dict:
    """Return how the item is measured in full, in fewer rounds."""
    parameters = _item(name).parameters["full"]
    more = {key: parameters[key] for key in ("num_ranks", *names)}
    return {"size": measured.Size(**parameters["sizes"]), "rounds": rounds, **more}


def straggling() -> list[BenchmarkRow]:
    compared, keys = (_item("speed").parameters["full"][name] for name in ("compared", "keys"))
    compared = [each for each in compared if each["solution"] in ("Baseline", "ZERO") or each.get("refine")]
    named = {"variants": measured.variants_of(compared, keys), "keys": measured.keys_of(compared, keys)}
    rows = measured.measure_variants(**named, **_arguments("speed", STRAGGLING_ROUNDS, "slowness", "warmup")).rows
    plain = [row for row in rows if row["solution"] == "Baseline" and row["skewness"] == 1]
    share = next(row["value"] for row in plain if row["quantity"] == "product_share")
    return rows_of(rows, f"products {share:.0%} of a plain iteration")


def idle() -> list[BenchmarkRow]:
    rows = measured.measure_machinery(**_arguments("machinery", IDLE_ROUNDS, "turn")).rows
    balanced = [row for row in rows if row["solution"] == measured.BALANCED]
    return rows_of(balanced, "no straggler, nothing slowed")


BENCHMARKS = [
    Benchmark(name="flextp-straggler", asks="One straggler of χ = 8 among 4 ranks, over Baseline.", run=straggling),
    Benchmark(name="flextp-idle", asks="Without stragglers, over the model without `balance`.", run=idle),
]
