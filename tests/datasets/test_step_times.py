import os

import pandas as pd
import pytest

from workbench.datasets import DataError, step_times
from workbench.timeline import StragglerTrace

needs_traces = pytest.mark.skipif(
    not os.environ.get("WORKBENCH_DATA"), reason="WORKBENCH_DATA names no folder with the cluster traces"
)


@pytest.fixture
def operations(tmp_path):
    """Two ranks, two steps, two stages: forward 1 s and backward 2 s, rank 1 twice as long in step 7."""
    rows = [
        (rank, stage, step, kind, seconds * (2 if (rank, step) == (1, 7) else 1))
        for rank in (1, 0)
        for stage in (0, 1)
        for step in (7, 3)
        for kind, seconds in (("forward-compute", 1.0), ("backward-compute", 2.0), ("forward-recv", 50.0))
    ]
    path = tmp_path / "trace.parquet"
    pd.DataFrame(rows, columns=["dp_rank", "stage", "step", "optype", "duration"]).to_parquet(path)
    return path


def test_a_rank_s_seconds_are_its_computation_of_one_stage_step_by_step(operations):
    assert step_times.read(operations, stage=1, num_ranks=2) == ((3.0, 3.0), (3.0, 6.0))


def test_a_stage_or_a_rank_that_there_is_not_is_refused(operations):
    with pytest.raises(ValueError, match=r"stage is 2, must be one of \[0, 1\]"):
        step_times.read(operations, stage=2, num_ranks=2)
    with pytest.raises(ValueError, match="num_ranks is 3, must be in 1..2"):
        step_times.read(operations, stage=0, num_ranks=3)


def test_without_the_folder_there_are_no_traces(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    with pytest.raises(DataError, match="trace-AR.parquet is not there: WORKBENCH_DATA must name"):
        step_times.load("AR")
    with pytest.raises(ValueError, match="job is 'XX', must be one of AR, SE, ST"):
        step_times.load("XX")


def test_another_file_of_that_name_is_refused(operations, monkeypatch, tmp_path):
    folder = tmp_path / step_times.FOLDER
    folder.mkdir(parents=True)
    operations.rename(folder / "trace-AR.parquet")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    with pytest.raises(DataError, match="must be 972bd19fc1c2"):
        step_times.load("AR")


@needs_traces
def test_the_worker_slowed_on_purpose_is_the_only_straggler():
    times = step_times.load("AR")
    trace = StragglerTrace.measured(times.seconds, iterations_per_epoch=5)
    assert (trace.num_ranks, trace.num_epochs) == (4, 44)
    for epoch in range(44):
        assert trace.skewness(0, 5 * epoch) > 2
        assert max(trace.skewness(rank, 5 * epoch) for rank in (1, 2, 3)) < 1.05
    assert times.source.is_real
