"""Fitting: latency and bandwidth of a link by least squares of relative errors, and a rate by bisection.

The model is time = a * latency + b / bandwidth, where a and b are the latencies and the bytes in series that
`collective_cost` gives for each sample. Without weights of 1 / time squared the largest messages alone would decide.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from workbench.checks import require_counts, require_not_negative, require_positive
from workbench.cluster.collectives import Algorithm, Collective, collective_cost
from workbench.cluster.machines import Link

__all__ = ["Fit", "Sample", "bisected", "fit"]

MIN_SAMPLES = 2  # as many as there are unknowns


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One measured time."""

    message_bytes: float  # size of the message, as for collective_cost
    time_s: float  # measured time
    num_ranks: int = 2  # number of participating ranks
    collective: Collective = Collective.SEND  # operation of the ranks
    algorithm: Algorithm = Algorithm.DIRECT  # algorithm of the operation

    def __post_init__(self) -> None:
        require_not_negative(message_bytes=self.message_bytes)
        require_positive(time_s=self.time_s)
        require_counts(2, num_ranks=self.num_ranks)  # one rank sends nothing
        collective_cost(self.collective, self.algorithm, self.num_ranks, self.message_bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Fit:
    """The line through the samples."""

    latency_s: float  # fitted latency; 0 where the samples would have made it negative
    bandwidth_bytes_per_s: float  # fitted bandwidth
    residuals_s: tuple[float, ...]  # measured minus fitted time of each sample, in the order given
    r_squared: float  # share of the weighted variation of the times that the line explains; 1 is perfect

    def link(self, source: str) -> Link:
        """Return the fitted link; `source` says what was measured where."""
        return Link(bandwidth_bytes_per_s=self.bandwidth_bytes_per_s, latency_s=self.latency_s, source=source)


def fit(samples: Iterable[Sample | tuple[float, float]]) -> Fit:
    """Fit a link to measured times.

    Args:
        samples: Samples, or pairs (message_bytes, time_s) of messages from one rank to another.

    Returns:
        the latency and bandwidth with the least sum of squared relative errors, neither negative.

    Raises:
        ValueError: fewer than two samples, or samples that cannot tell latency from bandwidth (all of one size), or
            times that do not grow with size.
    """
    measured = [sample if isinstance(sample, Sample) else _pair(sample) for sample in samples]
    if len(measured) < MIN_SAMPLES:
        raise ValueError(f"samples has {len(measured)} entries: it must have at least {MIN_SAMPLES}")
    costs = [
        collective_cost(sample.collective, sample.algorithm, sample.num_ranks, sample.message_bytes)
        for sample in measured
    ]
    latencies = [float(cost.num_latencies) for cost in costs]
    series_bytes = [cost.bytes_in_series for cost in costs]
    times_s = [sample.time_s for sample in measured]
    latency_s, s_per_byte = _solve(latencies, series_bytes, times_s)
    fitted = [latency_s * a + s_per_byte * b for a, b in zip(latencies, series_bytes, strict=True)]
    residuals = tuple(real - line for real, line in zip(times_s, fitted, strict=True))
    return Fit(
        latency_s=latency_s,
        bandwidth_bytes_per_s=1 / s_per_byte,
        residuals_s=residuals,
        r_squared=_r_squared(times_s, residuals),
    )


def bisected(is_low: Callable[[float], bool], low: float, high: float, num_steps: int) -> float:
    """Return where a condition changes, by halving the logarithm of the interval.

    Args:
        is_low: whether the place lies above a number; true at `low`, false at `high`.
        low: above 0.
        high: above `low`.
        num_steps: halvings.
    """
    for _ in range(num_steps):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return math.sqrt(low * high)


def _pair(sample: tuple[float, float]) -> Sample:
    try:
        message_bytes, time_s = sample
    except (TypeError, ValueError):
        raise ValueError(f"samples has {sample!r}: it must hold Samples or pairs (message_bytes, time_s)") from None
    return Sample(message_bytes=message_bytes, time_s=time_s)


def _solve(latencies: Sequence[float], series_bytes: Sequence[float], times_s: Sequence[float]) -> tuple[float, float]:
    """Return latency and seconds per byte by the normal equations of the relative errors."""
    a = [count / time for count, time in zip(latencies, times_s, strict=True)]
    b = [size / time for size, time in zip(series_bytes, times_s, strict=True)]
    aa, ab, bb = _dot(a, a), _dot(a, b), _dot(b, b)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:  # a and b point the same way to rounding
        raise ValueError("samples all have the same mix of latency and bytes: they must have different message sizes")
    latency_s = (sum(a) * bb - sum(b) * ab) / determinant
    s_per_byte = (sum(b) * aa - sum(a) * ab) / determinant
    if s_per_byte <= 0:
        raise ValueError("samples do not take longer when messages grow: no bandwidth fits them")
    if latency_s < 0:  # the least squares with latency held at 0
        return 0.0, sum(b) / bb
    return latency_s, s_per_byte


def _r_squared(times_s: Sequence[float], residuals: Sequence[float]) -> float:
    weights = [1 / time**2 for time in times_s]
    mean = sum(weight * time for weight, time in zip(weights, times_s, strict=True)) / sum(weights)
    around_mean = sum(weight * (time - mean) ** 2 for weight, time in zip(weights, times_s, strict=True))
    around_line = sum(weight * residual**2 for weight, residual in zip(weights, residuals, strict=True))
    if around_mean == 0:
        raise ValueError("samples all took the same time: no line can be judged by them")
    return 1 - around_line / around_mean


def _dot(xs: Sequence[float], ys: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(xs, ys, strict=True))
