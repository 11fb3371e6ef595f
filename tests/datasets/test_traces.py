"""Data that come with the project: refusing other files; step times and idle spans of real trainings."""

import pandas as pd
import pytest

from workbench.datasets import (
    DataError,
    embedding_usage,
    gpu_performance,
    gradient_traces,
    idle_spans,
    kernel_traces,
    places,
    step_times,
)
from workbench.timeline import StragglerTrace


@pytest.mark.parametrize(
    ("load", "file", "digest"),
    [
        (lambda: step_times.load("AR"), f"{step_times.FOLDER}/trace-AR.parquet", "972bd19fc1c2"),
        (lambda: gradient_traces.load("lstm"), "espresso-artifact/models/lstm.csv", "af631f553ae9"),
        (embedding_usage.criteo_field_sizes, "zen-sparsity/criteo_field_sizes.csv", "21198fe59ae1"),
        (kernel_traces.fastest_s, kernel_traces.FILE, "fcec10137529"),
        (idle_spans.load, idle_spans.FILE, "31d09fb6a964"),
        (gpu_performance.load, gpu_performance.FILE, "e262113969c2"),
    ],
)
def test_a_missing_file_and_another_file_are_refused(load, file, digest, tmp_path, monkeypatch):
    monkeypatch.setattr(places, "CARRIED", tmp_path)
    with pytest.raises(DataError, match=f"{file} is not there: it comes with the project"):
        load()
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).write_text("another table")
    with pytest.raises(DataError, match=f"must be {digest}"):
        load()


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="job is 'x'; it must be one of"):
        step_times.load("x")
    with pytest.raises(ValueError, match="model is 'x'; it must be one of vgg16"):
        gradient_traces.load("x")
    with pytest.raises(ValueError, match=r"runs is \(4,\), must be one or more of 0, 1, 2, 3"):
        gradient_traces.cpu_compression_times((4,))


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
    with pytest.raises(ValueError, match=r"stage is 2; it must be one of \[0, 1\]"):
        step_times.read(operations, stage=2, num_ranks=2)
    with pytest.raises(ValueError, match="num_ranks is 3, must be in 1..2"):
        step_times.read(operations, stage=0, num_ranks=3)


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


def test_the_authors_recorded_twenty_iterations_of_which_the_first_one_has_more_spans():
    spans = idle_spans.load()
    assert len(spans.iterations) == 20 and len(spans.iterations[0]) == 354 and len(spans.iterations[12]) == 124
    assert spans.source.is_real
