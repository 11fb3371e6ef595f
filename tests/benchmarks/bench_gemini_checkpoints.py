"""Checkpoints of every iteration on four real ranks: to a peer's memory, and by torch's async_save to local files.

The second benchmark trains with plain data parallelism beside torchft (a package of its own), which keeps no
checkpoint: a replica that is lost copies the state of another when it comes back. All train the same model in turn, in
one run. A requirement holds only if the whole interval of the median keeps to it.
"""

from dataclasses import replace

from workbench.parallel.voting import is_installed
from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.study.timing import Turns
from workbench.techniques.gemini.measured.overhead import ASYNC_SAVE, TORCHFT, measure_overhead
from workbench.techniques.gemini.measured.training import Size

SIZE = Size(hidden=128, layers=2, sequence=32, batch=8, dropout=0.0, device_s=1.6)  # processors are mostly free
NUM_RANKS = 4
RATE_BYTES_PER_S = 12.5e6  # 100 Mbit/s
TURNS, RESERVED_BYTES = Turns(rounds=15, length=2), 1_048_576
MOST_EXCESS = 0.01  # "does not affect", section 6.7.2


def checkpoints() -> list[BenchmarkRow]:
    return _over_baseline(["Blocking", "Gemini", ASYNC_SAVE], SIZE)


def voting_replicas() -> list[BenchmarkRow]:
    if not is_installed():
        return [BenchmarkRow(name="torchft is not installed: pip install torchft", figure=float("nan"), unit="x")]
    return _over_baseline(["Gemini", TORCHFT], replace(SIZE, sharded=False))


def _over_baseline(ways: list[str], size: Size) -> list[BenchmarkRow]:
    measured = measure_overhead(
        ["Baseline", *ways],
        size=size,
        num_machines=NUM_RANKS,
        bandwidth_bytes_per_s=RATE_BYTES_PER_S,
        turns=TURNS,
        reserved_bytes=RESERVED_BYTES,
    )
    return [_row(row) for row in measured.rows if row["quantity"] == "over_baseline"]


def _row(row: dict) -> BenchmarkRow:
    is_asked = row["scheme"] == "Gemini"
    asked = {"asked": f"<= {1 + MOST_EXCESS:g}", "holds": row["high"] <= 1 + MOST_EXCESS} if is_asked else {}
    name = f"{row['scheme']}, over no checkpoints"
    return BenchmarkRow(name=name, figure=row["value"], unit="x", low=row["low"], high=row["high"], **asked)


BENCHMARKS = [
    Benchmark(name="gemini-checkpoints", asks="A checkpoint in every iteration, over none.", run=checkpoints),
    Benchmark(name="gemini-torchft", asks="Plain data parallelism with checkpoints or torchft.", run=voting_replicas),
]
