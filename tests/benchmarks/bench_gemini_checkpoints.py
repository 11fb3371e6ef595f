"""Benchmarks of checkpoints on four real ranks: beside training without any, and beside torch's own async_save.

Everything trains the same model for the same iterations, in turn. torch.distributed.checkpoint.async_save copies the
state before it returns and writes files in a thread, one at a time: training waits for the one before. Both are asked
for a checkpoint of every iteration. An ask holds only if the whole interval of the median keeps to it.
"""

import random
import tempfile
import time
import warnings
from statistics import fmean, median

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD
from workbench.techniques.gemini.study.gpt2_training import LEARNING_RATE, Size, Tokens
from workbench.techniques.gemini.study.overhead import measure_overhead
from workbench.techniques.gemini.study.turns import Turns
from workbench.training.measuring import Benchmark, BenchmarkRow, median_interval

SIZE = Size(hidden=64, layers=2, sequence=64, batch=64, dropout=0.0)  # 4096 tokens a rank and iteration
NUM_RANKS = 4
RATE_BYTES_PER_S = 12.5e6  # 100 Mbit/s
TURNS = Turns(rounds=20, length=3, num_profiled=6, reserved_bytes=524_288)
MOST_EXCESS = 0.01  # "does not affect", section 6.7.2
UNCOUNTED = 3  # iterations before the first turn


def gemini() -> list[BenchmarkRow]:
    """Time training with a checkpoint to a peer's memory in each iteration, over training without."""
    found = measure_overhead(
        ["Baseline", "Blocking", "Gemini"], size=SIZE, num_machines=NUM_RANKS, bandwidth_bytes_per_s=RATE_BYTES_PER_S,
        turns=TURNS,
    )  # fmt: skip
    ratios = [row for row in found.rows if row["quantity"] == "over_baseline"]
    return [_row(f"{row['scheme']}, over no checkpoints", row["value"], row["low"], row["high"],
                 row["scheme"] == "Gemini") for row in ratios]  # fmt: skip


def _row(name: str, figure: float, low: float, high: float, is_asked: bool) -> BenchmarkRow:
    asked = {"asked": f"<= {1 + MOST_EXCESS:g}", "holds": high <= 1 + MOST_EXCESS} if is_asked else {}
    return BenchmarkRow(name=name, figure=figure, unit="x", low=low, high=high, **asked)


def async_save() -> list[BenchmarkRow]:
    """Time training with torch's async_save to files in each iteration, over training without."""
    hosts = ShapedHosts(NUM_RANKS, Link(bandwidth_bytes_per_s=RATE_BYTES_PER_S))
    with tempfile.TemporaryDirectory() as folder, Ranks(NUM_RANKS, hosts=hosts, preload=PRELOAD) as ranks:
        by_rank = ranks.run(time_async_save, SIZE, TURNS, folder)
    saved, plain = ([fmean(of_round) for of_round in zip(*each, strict=True)] for each in zip(*by_rank, strict=True))
    ratios = [a / b for a, b in zip(saved, plain, strict=True)]
    low, high = median_interval(ratios)
    return [_row("torch's async_save to local files, over no checkpoints", median(ratios), low, high, False)]


def time_async_save(size: Size, turns: Turns, folder: str) -> tuple[list[float], list[float]]:
    """Return this rank's seconds of an iteration, round by round, with async_save and without; every rank calls it.

    As in `record_turns`, a turn's first iteration is not timed and begins the save that the first timed one pays for.

    Args:
        size: of model and batch.
        turns: how many, how long, and the seed of their order.
        folder: where files go.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed import checkpoint

    warnings.simplefilter("ignore")  # torch's about its own planner
    to_files = dist.new_group()  # async_save's collectives run in a thread, and must not meet training's

    def trial(saves: bool):
        model, tokens = size.model(), Tokens(size, dist.get_rank())
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        pending: list = []

        def iterate() -> None:
            ids_BS = tokens.batch()
            model(ids_BS, ids_BS).backward()
            optimizer.step()
            optimizer.zero_grad()
            if saves:
                finish()
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                pending.append(checkpoint.async_save(state, checkpoint_id=f"{folder}/run", process_group=to_files))

        def finish() -> None:
            while pending:
                pending.pop().result()

        for _ in range(UNCOUNTED):
            iterate()
        finish()
        return iterate, finish

    trials = {"saved": trial(True), "plain": trial(False)}
    order, found = random.Random(turns.seed), {"saved": [], "plain": []}
    for _ in range(turns.rounds):
        for name in order.sample(sorted(trials), len(trials)):
            iterate, finish = trials[name]
            dist.barrier()
            iterate()
            began_s = time.monotonic()
            for _ in range(turns.length):
                iterate()
            found[name].append((time.monotonic() - began_s) / turns.length)
            finish()
            dist.barrier()
    return found["saved"], found["plain"]


BENCHMARKS = [
    Benchmark(name="gemini-checkpoints", asks="A checkpoint to peers in every iteration, over none.", run=gemini),
    Benchmark(name="gemini-async-save", asks="torch's async_save in every iteration, over none.", run=async_save),
]
