"""Paired ratios of times, and benchmarks; each benchmark file runs in its own process in the environment of a rank."""

import contextlib
import gc
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import IO

from workbench.launch.environment import rank_environment
from workbench.rows import FEWEST_ROUNDS, median_interval

__all__ = ["Benchmark", "BenchmarkRow", "Ratio", "paired_ratio", "run_benchmarks"]
__all__ += ["without_garbage_collection"]


BENCHMARK_FOLDER = Path(__file__).parents[2] / "tests" / "benchmarks"


@dataclass(frozen=True, kw_only=True, slots=True)
class Ratio:
    """Time of A over time of B, measured in pairs."""

    median: float  # median of the ratios of the pairs
    low: float  # lower end of the median's 95 % interval
    high: float  # upper end of it
    a_s: float  # median time of A
    b_s: float  # median time of B

    def __post_init__(self) -> None:
        if not 0 < self.low <= self.median <= self.high:
            raise ValueError(f"median is {self.median}; it must lie in the interval {self.low} .. {self.high}, above 0")


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchmarkRow:
    """One line of a benchmark's result."""

    name: str  # name of the measurement
    figure: float  # in `unit`
    unit: str  # "x" for a ratio, else an SI unit or "%"
    asked: str = ""  # requirement on the figure, in words; empty if there is none
    holds: bool | None = None  # whether the figure meets the requirement; None without a requirement
    low: float | None = None  # lower end of the figure's 95 % interval
    high: float | None = None  # upper end of it

    def __post_init__(self) -> None:
        if bool(self.asked) != (self.holds is not None):
            raise ValueError(f"holds is {self.holds}; it must be given exactly where something is asked ({self.name})")

    @classmethod
    def of(
        cls, name: str, ratio: Ratio, *, most: float | None = None, equal: bool = True, whole: bool = False
    ) -> "BenchmarkRow":
        """Make the row of a ratio; `most` is a limit of its median or, if `whole`, of its interval.

        `equal` says whether both functions had the same results; otherwise the requirement does not hold.
        """
        row = cls(name=name, figure=ratio.median, unit="x", low=ratio.low, high=ratio.high)
        if most is None:
            return row
        reached = ratio.high if whole else ratio.median
        return replace(row, asked=f"at most {most:g}", holds=equal and reached <= most)

    @classmethod
    def of_seconds(cls, name: str, seconds: float, most_s: float, *, equal: bool = True) -> "BenchmarkRow":
        """Make the row of seconds that must be at most `most_s`."""
        holds = equal and seconds <= most_s
        return cls(name=name, figure=seconds, unit="s", asked=f"at most {most_s:g} s", holds=holds)


@dataclass(frozen=True, kw_only=True, slots=True)
class Benchmark:
    """A named measurement."""

    name: str  # matched by patterns
    asks: str  # its question, one sentence
    run: Callable[[], Sequence[BenchmarkRow]]  # measures and returns the rows


def paired_ratio(
    fn_a: Callable[[], object],
    fn_b: Callable[[], object],
    *,
    rounds: int = 11,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> Ratio:
    """Time two functions in turn (A B A B ...) and return the ratio of A's time to B's over `rounds` pairs."""
    if rounds < FEWEST_ROUNDS:
        raise ValueError(f"rounds is {rounds}; it must be at least {FEWEST_ROUNDS} for an interval")
    if warmup < 0:
        raise ValueError(f"warmup is {warmup}; it must be at least 0")
    with without_garbage_collection():
        pairs = [(_seconds(fn_a, clock), _seconds(fn_b, clock)) for _ in range(warmup + rounds)][warmup:]
    ratios = [a / b for a, b in pairs]
    low, high = median_interval(ratios)
    a_s, b_s = (median(times) for times in zip(*pairs, strict=True))
    return Ratio(median=median(ratios), low=low, high=high, a_s=a_s, b_s=b_s)


@contextlib.contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Collect now, and keep the collector from running inside the body."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def run_benchmarks(
    pattern: str = "*", folder: Path | str = BENCHMARK_FOLDER, *, on_row: Callable[[BenchmarkRow], object] | None = None
) -> list[BenchmarkRow]:
    """Run a folder's benchmarks whose names match a shell pattern, each file in its own process."""
    files = sorted(Path(folder).glob("bench_*.py"))
    rows = []
    for file in files:
        for row in _rows_of(file, pattern):
            rows.append(row)
            if on_row is not None:
                on_row(row)
    if not rows:
        raise ValueError(f"pattern is {pattern!r}; it must match a benchmark of the {len(files)} files in {folder}")
    return rows


def _seconds(fn: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    result = fn()
    seconds = clock() - start
    del result
    return seconds


def _rows_of(file: Path, pattern: str) -> Iterator[BenchmarkRow]:
    command = [sys.executable, "-m", "workbench.study.measuring", str(file), pattern]
    environment = {**os.environ, **rank_environment()}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None  # a pipe
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
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None  # the file ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    for benchmark in module.BENCHMARKS:
        if fnmatchcase(benchmark.name, pattern):
            for row in benchmark.run():
                rows.write(json.dumps(asdict(row)) + "\n")
                rows.flush()


if __name__ == "__main__":
    rows_out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        _run_file(Path(sys.argv[1]), sys.argv[2], rows_out)
