"""Measuring: paired ratios of times, and benchmarks that ask something of them.

On a machine that others use too, a time says little and a ratio of two times
taken right after one another says much. `paired_ratio` runs A B A B ..., takes
the ratio of each pair and gives their median with an interval that assumes
nothing about the distribution.

A benchmark is a `Benchmark` in the list `BENCHMARKS` of a file
tests/benchmarks/bench_*.py. `run_benchmarks` runs each file in a process of
its own, with one thread and the environment of a rank, so that allocator and
threads are those of the real thing. ``python -m workbench.training.measuring
[PATTERN]`` does so without the command line tool.

Source: the interval of the median from order statistics is the sign test's
(H. A. David and H. N. Nagaraja, Order Statistics, section 7.1).
Simplified: pairs are taken to be independent of one another.
Left out: pinning to a core and fixing its clock; both need root.
"""

import contextlib
import gc
import importlib.util
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import IO

from workbench.launch.environment import rank_environment

__all__ = ["Benchmark", "BenchmarkRow", "Ratio", "median_interval", "paired_ratio", "run_benchmarks"]

# Probability that the interval of a median misses it, both sides together.
MISS = 0.05
# Fewer pairs than this have no interval at that probability: 2 · 0.5**5 > 0.05.
FEWEST_ROUNDS = 6

BENCHMARK_FOLDER = Path(__file__).parents[2] / "tests" / "benchmarks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Time of A over time of B, measured in pairs.

    median: median of the ratios of the pairs.
    low: lower end of the median's 95 % interval.
    high: upper end of it.
    a_s: median time of A in seconds.
    b_s: median time of B in seconds.
    """

    median: float
    low: float
    high: float
    a_s: float
    b_s: float

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.median <= self.high:
            raise ValueError(f"median is {self.median}: it must lie in the interval {self.low} .. {self.high}, above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRow:
    """One line of a benchmark's result.

    name: what was measured.
    figure: the number, in `unit`.
    unit: "x" for a ratio, else an SI unit or "%".
    asked: what was asked of the figure, in words; empty where nothing was.
    holds: whether it holds; None where nothing was asked.
    low: lower end of the figure's 95 % interval, where there is one.
    high: upper end of it.
    """

    name: str
    figure: float
    unit: str
    asked: str = ""
    holds: bool | None = None
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        if bool(self.asked) != (self.holds is not None):
            raise ValueError(f"holds is {self.holds}: it must be given exactly where something is asked ({self.name})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A named measurement.

    name: short name, matched by patterns.
    asks: what it asks, one sentence.
    run: measures; gives the rows.
    """

    name: str
    asks: str
    run: Callable[[], Sequence[BenchmarkRow]]


def paired_ratio(
    fn_a: Callable[[], object],
    fn_b: Callable[[], object],
    *,
    rounds: int = 11,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Time two functions in turn and give the ratio of A's time to B's.

    Args:
        fn_a: function without arguments; its result is dropped before B starts.
        fn_b: the same.
        rounds: number of pairs, at least 6.
        warmup: number of pairs run before, not counted.
        clock: gives seconds; time.thread_time leaves out what other processes
            take from a function that works in one thread.

    Returns:
        The median ratio, its interval, and both median times.

    Raises:
        ValueError: if rounds or warmup is too small.
    """
    if rounds < FEWEST_ROUNDS:
        raise ValueError(f"rounds is {rounds}: an interval needs at least {FEWEST_ROUNDS} pairs")
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}: it must be at least 0")
    with _no_garbage_collection():
        pairs = [(_seconds(fn_a, clock), _seconds(fn_b, clock)) for _ in range(warmup + rounds)][warmup:]
    ratios = [a / b for a, b in pairs]
    low, high = median_interval(ratios)
    a_s, b_s = (median(times) for times in zip(*pairs, strict=True))
    return Ratio(median=median(ratios), low=low, high=high, a_s=a_s, b_s=b_s)


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Give an interval that holds the median with probability 95 % or more.

    Args:
        values: at least 6 independent values of any one distribution.

    Returns:
        The j-th smallest and the j-th largest value, j as large as a binomial
        distribution with probability 1/2 allows.

    Raises:
        ValueError: if there are too few values.
    """
    if len(values) < FEWEST_ROUNDS:
        raise ValueError(f"values has {len(values)} entries: an interval needs at least {FEWEST_ROUNDS}")
    outside, tail = 0, 2.0 ** -len(values)
    while 2 * (tail + math.comb(len(values), outside + 1) * 2.0 ** -len(values)) <= MISS:
        outside += 1
        tail += math.comb(len(values), outside) * 2.0 ** -len(values)
    ordered = sorted(values)
    return ordered[outside], ordered[-1 - outside]


def run_benchmarks(
    pattern: str = "*", folder: Path | str = BENCHMARK_FOLDER, *, on_row: Callable[[BenchmarkRow], None] | None = None
) -> list[BenchmarkRow]:
    """Run the benchmarks of a folder, each file in a process of its own.

    Args:
        pattern: shell-style pattern of benchmark names.
        folder: where the files bench_*.py are.
        on_row: called with each row as soon as it is there.

    Returns:
        All rows, by file and benchmark.

    Raises:
        ValueError: if the folder has no benchmark of that name.
        RuntimeError: if a file fails.
    """
    files = sorted(Path(folder).glob("bench_*.py"))
    rows = []
    for file in files:
        for row in _rows_of(file, pattern):
            rows.append(row)
            if on_row is not None:
                on_row(row)
    if not rows:
        raise ValueError(f"pattern is {pattern!r}: none of the {len(files)} benchmark files in {folder} has that name")
    return rows


def _seconds(fn: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    result = fn()
    seconds = clock() - start
    del result
    return seconds


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep the collector from running inside a timed call."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _rows_of(file: Path, pattern: str) -> Iterator[BenchmarkRow]:
    """Run one file in a rank's environment and give its rows as they come."""
    command = [sys.executable, "-m", "workbench.training.measuring", "--file", str(file), pattern]
    environment = {**os.environ, **rank_environment()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            for line in process.stdout:
                yield BenchmarkRow(**json.loads(line))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"{file.name} ended with exit code {process.returncode}; its error is above")


def _run_file(file: Path, pattern: str, rows: IO[str]) -> None:
    """Run one file's benchmarks in this process, writing a JSON line a row."""
    for benchmark in _load(file).BENCHMARKS:
        if fnmatchcase(benchmark.name, pattern):
            for row in benchmark.run():
                rows.write(json.dumps(asdict(row)) + "\n")
                rows.flush()


def _load(file: Path) -> ModuleType:
    """Import a file by its path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


def _line(row: BenchmarkRow) -> str:
    """Write a row as one line of text."""
    interval = "" if row.low is None else f"({row.low:.3g} .. {row.high:.3g})"
    verdict = {None: "", True: "holds", False: "DOES NOT HOLD"}[row.holds]
    return f"{row.name:<58} {row.figure:>9.3g} {row.unit:<4} {interval:<22} {row.asked:<16} {verdict}".rstrip()


def _main(arguments: Sequence[str]) -> int:
    """Run benchmarks and write their rows to standard output."""
    if arguments[:1] == ["--file"]:
        with contextlib.redirect_stdout(sys.stderr):
            _run_file(Path(arguments[1]), arguments[2], sys.__stdout__)
        return 0
    rows = run_benchmarks(*arguments[:1], on_row=lambda row: sys.stdout.write(_line(row) + "\n"))
    return int(any(row.holds is False for row in rows))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
