"""Eight accuracy cells as jobs of a real Slurm of two nodes on this machine, one core each."""

import os
import sys
import tempfile
import time
from pathlib import Path

from workbench.checkout import RESULTS_VARIABLE
from workbench.reproduction import run_cells
from workbench.reproduction.jobs import Engine
from workbench.study.measuring import Benchmark, BenchmarkRow
from workbench.techniques.flextp.measured import accuracy

ITEM = "flextp/fig-5a/measured"
COMPARED = [{"solution": "ZERO", "pruning_ratio": ratio, "everywhere": True} for ratio in (0.25, 0.5, 0.75)]
RECIPE = {"num_ranks": 4, "epochs": 1, "limit": 128}  # as in the item's profile smoke: most of the time is start-up


def seconds_of(max_jobs: int, folder: Path, cluster: dict[str, str]) -> float:
    """Return the wall time of eight new cells, the cluster's delays included."""
    cells = accuracy.training_cells(accuracy.compared_by_seed(COMPARED, [0, 1]), **RECIPE)
    assert len(cells) == 8
    engine = Engine(cluster="slurm", folder=str(folder / "smoke/.jobs"), run="bench", max_jobs=max_jobs, minutes=30)
    os.environ |= cluster | {RESULTS_VARIABLE: str(folder)} | engine.as_variable()
    began_s = time.monotonic()
    run_cells(ITEM, accuracy.train_vit, cells, profile="smoke")
    return time.monotonic() - began_s


def one_and_two_workers() -> list[BenchmarkRow]:
    sys.path.append(str(Path(__file__).parents[1]))
    import slurm_cluster

    if why := slurm_cluster.missing():
        raise RuntimeError(why)
    with tempfile.TemporaryDirectory() as name, slurm_cluster.slurm_cluster(Path(name)) as cluster:
        seconds = {number: seconds_of(number, Path(name, f"results-{number}"), cluster) for number in (1, 2)}
    names = {number: f"Slurm: eight cells, --max-jobs {number}" for number in seconds}
    return [BenchmarkRow(name=names[number], figure=seconds[number], unit="s") for number in seconds]


BENCHMARKS = [
    Benchmark(name="jobs", asks="How long do cells take on one and on two workers of Slurm?", run=one_and_two_workers)
]
