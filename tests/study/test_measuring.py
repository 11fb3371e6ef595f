"""Measuring: ratios of pairs from a clock that is set by hand, and benchmarks run by file."""

import textwrap
from pathlib import Path

import pytest

from tests.cases import refusals
from workbench.rows import median_interval
from workbench.study.measuring import BenchmarkRow, Ratio, paired_ratio, run_benchmarks


def test_ratio_is_the_median_over_pairs_without_warm_up_and_not_the_ratio_of_medians():
    # The machine is twice as slow in every second pair; A takes 3 times as long as B, but not in the warm-up.
    seconds = {"a": [100, 3, 6, 3, 6, 3, 6, 3], "b": [1, 1, 2, 1, 2, 1, 2, 1]}
    calls, now_s = [], [0.0]

    def taking(name):
        def fn():
            calls.append(name)
            now_s[0] += seconds[name].pop(0)

        return fn

    ratio = paired_ratio(taking("a"), taking("b"), rounds=7, warmup=1, clock=lambda: now_s[0])
    assert ratio == Ratio(median=3, low=3, high=3, a_s=3, b_s=1)
    assert calls == ["a", "b"] * 8


def test_an_interval_leaves_out_as_many_values_on_each_side_as_95_percent_allow():
    # Of six: 2 · 0.5**6 = 0.031 may be left out, 2 · 7 · 0.5**6 = 0.22 may not.
    assert median_interval([5, 1, 3, 2, 6, 4]) == (1, 6)
    # Of eleven: 2 · (1 + 11) / 2048 = 0.012 may be left out, 2 · (1 + 11 + 55) / 2048 = 0.065 may not.
    assert median_interval(range(11)) == (1, 9)


test_too_few_rounds_rows_without_an_answer_and_unknown_benchmarks_are_refused = refusals(
    (lambda: paired_ratio(int, int, rounds=5), "rounds"),
    (lambda: paired_ratio(int, int, warmup=-1), "warmup"),
    (lambda: BenchmarkRow(name="n", figure=1.0, unit="x", asked="at least 2"), "holds"),
    (lambda: run_benchmarks("nothing", Path("nowhere")), "'nothing'"),
)


def write(folder, name, body):
    (folder / name).write_text(
        "import os\nfrom workbench.study.measuring import Benchmark, BenchmarkRow\n" + textwrap.dedent(body)
    )


def test_benchmarks_run_in_the_environment_of_a_rank_are_chosen_by_name_and_a_file_that_fails_is_named(tmp_path, capfd):
    write(
        tmp_path,
        "bench_one.py",
        """
        def run():
            print("not a row")
            threads = float(os.environ["OMP_NUM_THREADS"])
            return [BenchmarkRow(name="threads", figure=threads, unit="", asked="1", holds=threads == 1)]

        def other():
            raise AssertionError("not chosen")

        BENCHMARKS = [
            Benchmark(name="one-threads", asks="", run=run),
            Benchmark(name="two-threads", asks="", run=other),
        ]
        """,
    )
    seen = []
    rows = run_benchmarks("one-*", tmp_path, on_row=seen.append)
    assert rows == seen == [BenchmarkRow(name="threads", figure=1.0, unit="", asked="1", holds=True)]
    with pytest.raises(RuntimeError, match="bench_one.py ended with exit code 1"):
        run_benchmarks("two-*", tmp_path)
    assert "AssertionError: not chosen" in capfd.readouterr().err
