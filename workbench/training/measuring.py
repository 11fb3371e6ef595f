"""Paired ratios of times, and benchmarks; each benchmark file runs in its own process in the environment of a rank.

The interval of a median is the sign test's: H. A. David and H. N. Nagaraja, Order Statistics, section 7.1.
``python -m workbench.training.measuring [PATTERN]`` runs benchmarks without the command line tool.
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
from typing import IO

from workbench.launch.environment import rank_environment

__all__ = ["Benchmark", "BenchmarkRow", "Ratio", "median_interval", "paired_ratio", "run_benchmarks"]
__all__ += ["without_garbage_collection"]

MISS = 0.05  # probability that the interval of a median misses it, both sides together
FEWEST_ROUNDS = 6  # fewer values have no interval at that probability: 2 · 0.5**5 > 0.05

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
        asked, reached = {}, ratio.high if whole else ratio.median
        if most is not None:
            asked = {"asked": f"at most {most:g}", "holds": equal and reached <= most}
        return cls(name=name, figure=ratio.median, unit="x", low=ratio.low, high=ratio.high, **asked)

    @classmethod
    def of_seconds(cls, name: str, seconds: float, most_s: float, *, equal: bool = True) -> "BenchmarkRow":
        """Make the row of seconds that must be at most `most_s`."""
        asked = {"asked": f"at most {most_s:g} s", "holds": equal and seconds <= most_s}
        return cls(name=name, figure=seconds, unit="s", **asked)


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


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Return an interval that holds the median with probability 95 % or more.

    Args:
        values: At least 6 independent values of any one distribution.

    Returns:
        The j-th smallest and the j-th largest value, j as large as a binomial distribution with probability 1/2 allows.

    Raises:
        ValueError: If there are too few values.
    """
    if len(values) < FEWEST_ROUNDS:
        raise ValueError(f"values has {len(values)} entries; it must have at least {FEWEST_ROUNDS} for an interval")
    outside, tail = 0, 2.0 ** -len(values)
    while 2 * (tail + math.comb(len(values), outside + 1) * 2.0 ** -len(values)) <= MISS:
        outside += 1
        tail += math.comb(len(values), outside) * 2.0 ** -len(values)
    ordered = sorted(values)
    return ordered[outside], ordered[-1 - outside]


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
    pattern: str = "*", folder: Path | str = BENCHMARK_FOLDER, *, on_row: Callable[[BenchmarkRow], None] | None = None
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
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    for benchmark in module.BENCHMARKS:
        if fnmatchcase(benchmark.name, pattern):
            for row in benchmark.run():
                rows.write(json.dumps(asdict(row)) + "\n")
                rows.flush()


def _line(row: BenchmarkRow) -> str:
    interval = "" if row.low is None else f"({row.low:.3g} .. {row.high:.3g})"
    verdict = {None: "", True: "holds", False: "DOES NOT HOLD"}[row.holds]
    return f"{row.name:<58} {row.figure:>9.3g} {row.unit:<4} {interval:<22} {row.asked:<16} {verdict}".rstrip()


def _main(arguments: Sequence[str]) -> int:
    if arguments[:1] == ["--file"]:
        with contextlib.redirect_stdout(sys.stderr):
            _run_file(Path(arguments[1]), arguments[2], sys.__stdout__)
        return 0
    rows = run_benchmarks(*arguments[:1], on_row=lambda row: sys.stdout.write(_line(row) + "\n"))
    return int(any(row.holds is False for row in rows))


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
