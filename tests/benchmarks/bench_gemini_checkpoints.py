"""Checkpoints of every iteration on four real ranks: to a peer's memory, and by torch's async_save to local files.

All ways train the same model in turn, in one run; torch.distributed.checkpoint.async_save copies the state before it
returns and writes files in a thread, one save at a time. An ask holds only if the whole interval of the median keeps
to it.
"""

from workbench.techniques.gemini.study.gpt2_training import Size
from workbench.techniques.gemini.study.overhead import measure_overhead
from workbench.techniques.gemini.study.turns import ASYNC_SAVE, Turns
from workbench.training.measuring import Benchmark, BenchmarkRow

SIZE = Size(hidden=64, layers=2, sequence=64, batch=64, dropout=0.0)  # 4096 tokens a rank and iteration
NUM_RANKS = 4
RATE_BYTES_PER_S = 12.5e6  # 100 Mbit/s
TURNS = Turns(rounds=20, length=3, num_profiled=6, reserved_bytes=524_288)
MOST_EXCESS = 0.01  # "does not affect", section 6.7.2


def checkpoints() -> list[BenchmarkRow]:
    """Time training with a checkpoint in each iteration over training without."""
    found = measure_overhead(
        ["Baseline", "Blocking", "Gemini", ASYNC_SAVE], size=SIZE, num_machines=NUM_RANKS,
        bandwidth_bytes_per_s=RATE_BYTES_PER_S, turns=TURNS,
    )  # fmt: skip
    return [_row(row) for row in found.rows if row["quantity"] == "over_baseline"]


def _row(row: dict) -> BenchmarkRow:
    is_asked = row["scheme"] == "Gemini"
    asked = {"asked": f"<= {1 + MOST_EXCESS:g}", "holds": row["high"] <= 1 + MOST_EXCESS} if is_asked else {}
    name = f"{row['scheme']}, over no checkpoints"
    return BenchmarkRow(name=name, figure=row["value"], unit="x", low=row["low"], high=row["high"], **asked)


BENCHMARKS = [Benchmark(name="gemini-checkpoints", asks="A checkpoint in every iteration, over none.", run=checkpoints)]
