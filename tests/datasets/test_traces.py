"""Step times and diaries of real trainings: reading them, refusing other files."""

import os

import pandas as pd
import pytest

from workbench.datasets import DataError, idle_spans, step_times
from workbench.timeline import StragglerTrace

needs_data = pytest.mark.skipif(not os.environ.get("WORKBENCH_DATA"), reason="WORKBENCH_DATA names no folder")
TABLE = """date,date_precision,category,event,count,lost_hours
2021-12-06,day,hardware,"hosts down, at the same time",5,
2021-11-17/2021-12-03,range,restarts,many,40,
2022-02,month,hardware_recurrent,about once a week,,3
"""


@pytest.mark.parametrize(
    ("load", "name", "path", "digest"),
    [(step_times.load, "AR", f"{step_times.FOLDER}/trace-AR.parquet", "972bd19fc1c2")],
)
def test_a_missing_file_another_file_and_an_unknown_name_are_refused(load, name, path, digest, tmp_path, monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    file = tmp_path / path
    with pytest.raises(DataError, match=f"{file.name} is not there: WORKBENCH_DATA must name"):
        load(name)
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    file.parent.mkdir(parents=True)
    file.write_text(TABLE)
    with pytest.raises(DataError, match=f"must be {digest}"):
        load(name)
    with pytest.raises(ValueError, match="is 'x', must be one of"):
        load("x")


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
    with pytest.raises(ValueError, match=r"stage is 2, must be one of \[0, 1\]"):
        step_times.read(operations, stage=2, num_ranks=2)
    with pytest.raises(ValueError, match="num_ranks is 3, must be in 1..2"):
        step_times.read(operations, stage=0, num_ranks=3)


@needs_data
def test_the_worker_slowed_on_purpose_is_the_only_straggler():
    times = step_times.load("AR")
    trace = StragglerTrace.measured(times.seconds, iterations_per_epoch=5)
    assert (trace.num_ranks, trace.num_epochs) == (4, 44)
    for epoch in range(44):
        assert trace.skewness(0, 5 * epoch) > 2
        assert max(trace.skewness(rank, 5 * epoch) for rank in (1, 2, 3)) < 1.05
    assert times.source.is_real


def test_idle_spans_are_matched_by_operation_and_not_by_their_place_in_the_file(tmp_path):
    path = tmp_path / "spans.csv"
    rows = ["0,0,all_gather,0.5", "0,1,reduce_scatter,2.0", "1,0,all_gather,0.4", "1,1,all_gather,0.1"]
    path.write_text("\n".join(["iteration,span,operation,duration_s", *rows, "1,2,reduce_scatter,1.9"]))
    first, second = idle_spans.read(path)
    assert first == {("all_gather", 0): 0.5, ("reduce_scatter", 0): 2.0}
    assert second == {("all_gather", 0): 0.4, ("all_gather", 1): 0.1, ("reduce_scatter", 0): 1.9}


@needs_data
def test_the_authors_recorded_twenty_iterations_of_which_the_first_one_has_more_spans():
    spans = idle_spans.load()
    assert len(spans.iterations) == 20 and len(spans.iterations[0]) == 354 and len(spans.iterations[12]) == 124
    assert spans.source.is_real
