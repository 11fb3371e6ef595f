"""Measuring: ratios of pairs from a clock that is set by hand, and benchmarks run by file."""

import textwrap

import pytest

from workbench.training.measuring import BenchmarkRow, Ratio, median_interval, paired_ratio, run_benchmarks


class Hands:
    """A clock that a function moves on by so many seconds."""

    def __init__(self):
        self.now, self.calls = 0.0, []

    def __call__(self):
        return self.now

    def takes(self, name, *seconds):
        left = list(seconds)

        def fn():
            self.calls.append(name)
            self.now += left.pop(0)

        return fn


def test_ratio_is_the_median_over_pairs_and_not_the_ratio_of_medians():
    clock = Hands()
    # The machine is twice as slow in every second pair; A takes 3 times as long as B.
    a = clock.takes("a", 3, 6, 3, 6, 3, 6, 3)
    b = clock.takes("b", 1, 2, 1, 2, 1, 2, 1)
    ratio = paired_ratio(a, b, rounds=7, warmup=0, clock=clock)
    assert ratio == Ratio(median=3, low=3, high=3, a_s=3, b_s=1)
    assert clock.calls == ["a", "b"] * 7


def test_warm_up_is_not_counted():
    clock = Hands()
    a, b = clock.takes("a", 100, *[2] * 6), clock.takes("b", 1, *[1] * 6)
    assert paired_ratio(a, b, rounds=6, warmup=1, clock=clock).median == 2


def test_interval_of_six_values_reaches_from_the_smallest_to_the_largest():
    # 2 · 0.5**6 = 0.031 may be left out, 2 · 7 · 0.5**6 = 0.22 may not.
    assert median_interval([5, 1, 3, 2, 6, 4]) == (1, 6)


def test_interval_of_eleven_values_leaves_out_one_on_each_side():
    # 2 · (1 + 11) / 2048 = 0.012 may be left out, 2 · (1 + 11 + 55) / 2048 = 0.065 may not.
    assert median_interval(range(11)) == (1, 9)


@pytest.mark.parametrize("arguments", [{"rounds": 5}, {"warmup": -1}])
def test_too_few_rounds_are_refused(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        paired_ratio(lambda: None, lambda: None, **arguments)


def test_a_row_that_asks_must_say_whether_it_holds():
    with pytest.raises(ValueError, match="holds"):
        BenchmarkRow(name="n", figure=1.0, unit="x", asked="at least 2")


def write(folder, name, body):
    (folder / name).write_text(
        "import os\nfrom workbench.training.measuring import Benchmark, BenchmarkRow\n" + textwrap.dedent(body)
    )


def test_benchmarks_run_in_the_environment_of_a_rank_and_are_chosen_by_name(tmp_path):
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


def test_a_file_that_fails_is_named(tmp_path, capfd):
    write(tmp_path, "bench_broken.py", "BENCHMARKS = [Benchmark(name='b', asks='', run=lambda: 1 / 0)]")
    with pytest.raises(RuntimeError, match="bench_broken.py ended with exit code 1"):
        run_benchmarks("*", tmp_path)
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_pattern_without_a_benchmark_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'nothing'"):
        run_benchmarks("nothing", tmp_path)
