"""Links on which communication takes the share of an iteration that it takes in the paper.

Source: "Does compressing activations help model parallel training?", table 4 (forward tensor communication takes
150.72 of 646.14 ms without NVLink), tables 7 and 9 (a pipeline boundary takes 88.69 of 1422.4 ms without compression).
Simplified: all transfers are taken to be inversely proportional to the link's rate.
Left out: latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from enum import Enum

from workbench.cluster import Link

from .study import BASELINE, FEWEST_ROUNDS, measure_iterations

__all__ = ["Calibration", "ShareOf", "link_for_share"]

FIRST_GUESS = Link(bandwidth_bytes_per_s=100e6, source="where the calibration starts")
CLOSE_ENOUGH = 0.02  # relative: finer than the rounds differ
SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e6, 2e9  # what shaped hosts can follow


class ShareOf(Enum):
    """What takes a share of an iteration."""

    TENSOR = "forward tensor communication"
    BOUNDARY = "the mean pipeline boundary"


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A link that was slowed or sped up until communication takes its share.

    Attributes:
        link: between hosts.
        of: what takes the share.
        asked: the share it was to take, 0..1.
        reached: the share it took in the last short run.
        tp, pp: of the iterations it was calibrated on.
    """

    link: Link
    of: ShareOf
    asked: float
    reached: float
    tp: int
    pp: int

    def as_record(self) -> dict:
        """Return plain values for a record."""
        return asdict(self) | {"of": self.of.value}


def link_for_share(
    share: float,
    *,
    of: ShareOf = ShareOf.TENSOR,
    tp: int = 2,
    pp: int = 2,
    num_hosts: int = 4,
    runs: int = 3,
    seed: int = 0,
    **sizes,
) -> Calibration:
    """Find the link on which communication takes a share of an uncompressed iteration.

    Args:
        share: to be reached, 0 < share < 0.5.
        of: what is to take it.
        tp, pp: of the iteration.
        num_hosts: hosts that the ranks are spread over.
        runs: short runs at most, at least 2; the last one tells what was really reached.
        seed: of the weights.
        sizes: further fields of Setting.

    Returns:
        The link and the share it reached.

    Raises:
        ValueError: for a share or a number of runs out of range.
    """
    if not 0 < share < 0.5:
        raise ValueError(f"share={share}: each forward message has a backward twin, so 0 < share < 0.5")
    if runs < 2:
        raise ValueError(f"runs={runs}: one to find the rate and one to check it")
    link = FIRST_GUESS
    for run in range(1, runs + 1):
        times = _communication(link, (tp, pp), num_hosts, seed, sizes)
        reached = times[of] / times["iteration_ms"]
        if run == runs or abs(reached / share - 1) < CLOSE_ENOUGH:
            break
        link = _next(link, times, share, of)
    return Calibration(link=link, of=of, asked=share, reached=reached, tp=tp, pp=pp)


def _next(link: Link, times: Mapping, share: float, of: ShareOf) -> Link:
    slower = slower_by(times[of], times["all"], times["iteration_ms"], share)
    rate = min(max(link.bandwidth_bytes_per_s / slower, SLOWEST_BYTES_PER_S), FASTEST_BYTES_PER_S)
    return replace(
        link, bandwidth_bytes_per_s=rate, source=f"calibrated: {of.value} takes about {share:.1%} of an iteration"
    )


def slower_by(part: float, communication: float, iteration: float, share: float) -> float:
    """Return the factor by which a link must become slower so that a part of communication takes a share.

    Args:
        part: time of that part now.
        communication: time of all that crosses the link now, the part included.
        iteration: time of the iteration now, in the same unit.
        share: that the part is to take.

    The rest r = iteration − communication stays: part·x / (r + communication·x) = share gives x. Where communication
    grows so fast that no x does, the link becomes ten times slower and the next run tries again.
    """
    beyond = part - share * communication
    return share * (iteration - communication) / beyond if beyond > 0 else 10.0


def _communication(link: Link, mesh: tuple[int, int], num_hosts: int, seed: int, sizes: Mapping) -> dict:
    """Measure a few uncompressed iterations: ms of each share's part, of all that crosses the link, of all."""
    measured = measure_iterations(
        [BASELINE], [mesh], link=link, num_hosts=num_hosts, num_iterations=FEWEST_ROUNDS, seed=seed, **sizes
    )
    times: dict[str, list[float]] = {}
    for row in measured.rows:
        times.setdefault(row["quantity"], []).append(row["value"])
    boundaries = times.get("boundary_ms", [0.0])
    tensor_over_link = mesh[0] > mesh[0] * mesh[1] // num_hosts  # else a stage's ranks share a host
    forward, backward = times["tensor_ms"][0], times["tensor_backward_ms"][0]
    return {
        "iteration_ms": times["iteration_ms"][0],
        ShareOf.TENSOR: forward,
        ShareOf.BOUNDARY: sum(boundaries) / len(boundaries),
        "all": sum(boundaries) + (forward + backward if tensor_over_link else 0.0),
    }
