"""Links on which communication takes the share of an iteration that it takes in the paper.

Source: "Does compressing activations help model parallel training?", table 4 (forward tensor communication takes
150.72 of 646.14 ms without NVLink), table 9 over table 7 (a pipeline boundary takes 88.69 of 1422.4 ms without
compression).
Simplified: communication and the rest of an iteration are lines in the time a byte takes.
Left out: latency.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from types import MappingProxyType

from workbench.cluster import Link
from workbench.launch import Ranks

from ..cost import Setting
from .study import BASELINE, FEWEST_ROUNDS, measure_on, open_ranks

__all__ = [
    "Calibration",
    "ShareOf",
    "Trial",
    "carried_over_share",
    "next_rate",
    "ranks_at_share",
    "share_row",
    "slower_by",
]

CLOSE_ENOUGH = 0.01  # of an iteration
SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e6, 2e9  # what shaped hosts can follow
FARTHEST = 2.0  # a line through two trials is trusted up to this factor of the last rate
APART = 1.05  # closer rates differ by noise alone


class ShareOf(Enum):
    """What takes a share of an iteration."""

    TENSOR = "forward tensor communication"
    """As measured, from the last rank's entry on."""
    BOUNDARY = "the bytes of a pipeline boundary"
    """Over the link's rate, both directions: where 16 ranks share two cores, a boundary's measured time is mostly that
    until its receiver gets a core, which no link makes shorter."""


FIRST_GUESS_BYTES_PER_S = MappingProxyType(
    {ShareOf.TENSOR: 65e6, ShareOf.BOUNDARY: 130e6}
)  # saves a trial on two cores


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A few uncompressed iterations over one link.

    Attributes:
        bandwidth_bytes_per_s: of the link.
        share: that the part took of the iteration.
        part_ms: the communication whose share it is.
        communication_ms: all communication that is slower over a slower link, the part included.
        iteration_ms: of the whole iteration.
    """

    bandwidth_bytes_per_s: float
    share: float
    part_ms: float
    communication_ms: float
    iteration_ms: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A link that was slowed or sped up until communication took its share.

    Attributes:
        link: between hosts.
        of: what takes the share.
        asked: the share it was to take, 0..1.
        trials: the rates that were tried; the last one is the link's.
        tp, pp: of the iterations it was calibrated on.
    """

    link: Link
    of: ShareOf
    asked: float
    trials: tuple[Trial, ...]
    tp: int
    pp: int

    @property
    def reached(self) -> float:
        """The share in the last trial; what the measurement itself reached is in its rows."""
        return self.trials[-1].share

    def as_record(self) -> dict:
        """Return plain values for a record."""
        trials = [asdict(trial) for trial in self.trials]
        return asdict(self) | {"of": self.of.value, "reached": self.reached, "trials": trials}


def carried_over_share(share: float, *, tp: int, to_tp: int) -> float:
    """Carry a share measured with few tensor-parallel ranks over to more of them, on as many devices and links alike.

    With one micro-batch the stages work one after another, so a device's computing is divided by the tensor-parallel
    ranks alone. A ring all-reduce over n ranks takes the time of 2·(n - 1)/n messages on each of their links, and the
    backward pass communicates as much as the forward pass. Nothing overlaps. Of an iteration of 1, computing is
    1 - 2·share; hence

        s' = b·s / (2·b·s + c·(1 - 2·s)),   b = ring(to_tp) / ring(tp),   c = tp / to_tp.

    From table 4's 150.72 of 646.14 ms: b = 1.5, c = 0.5, s' = 36.2 % at TP 4. It is taken to hold for the paper's four
    devices; table 3 agrees with it roughly: A1 saves 111.39 ms at TP 4 and 59.49 ms at TP 2, where that is 69.84 ms of
    the forward communication less what coding costs.

    Args:
        share: of an uncompressed iteration that forward tensor communication takes, 0 < share < 0.5.
        tp: ranks that share a layer there.
        to_tp: ranks that share a layer here.

    Raises:
        ValueError: for a share out of range or a single rank, which communicates nothing.
    """
    _check_share(share)
    for name, ranks in (("tp", tp), ("to_tp", to_tp)):
        if ranks < 2:
            raise ValueError(f"{name}={ranks}: at least 2 ranks communicate")
    communication = share * _ring(to_tp) / _ring(tp)
    return communication / (2 * communication + (1 - 2 * share) * tp / to_tp)


def _ring(ranks: int) -> float:
    """Messages that cross each rank's link in a ring all-reduce."""
    return 2 * (ranks - 1) / ranks


def _check_share(share: float) -> None:
    if not 0 < share < 0.5:
        raise ValueError(f"share={share}: each forward message has a backward twin, so 0 < share < 0.5")


@contextmanager
def ranks_at_share(
    share: float,
    *,
    of: ShareOf = ShareOf.TENSOR,
    tp: int = 2,
    pp: int = 2,
    num_hosts: int = 4,
    runs: int = 4,
    seed: int = 0,
    device: str | None = None,
    **sizes,
) -> Iterator[tuple[Ranks, Calibration]]:
    """Open ranks over the link on which communication takes a share of an uncompressed iteration.

    Args:
        share: to be reached, 0 < share < 0.5.
        of: what is to take it.
        tp, pp: of the iteration.
        num_hosts: hosts that the ranks are spread over.
        runs: trials at most, at least 2; each opens ranks, and those of the last one stay for the measurement.
        seed: of the weights.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        sizes: further fields of Setting.

    Yields:
        The ranks, closed afterwards, and how their link was found.

    Raises:
        ValueError: for a share or a number of runs out of range.
    """
    _check_share(share)
    if runs < 2:
        raise ValueError(f"runs={runs}: one to find the rate and one to check it")
    link = Link(bandwidth_bytes_per_s=FIRST_GUESS_BYTES_PER_S[of], source="where the calibration starts")
    setting, trials = Setting(tp=tp, pp=pp, **sizes), []
    for run in range(1, runs + 1):
        with open_ranks(tp * pp, link=link, num_hosts=num_hosts, device=device) as ranks:
            rows = measure_on(
                ranks, [BASELINE], [(tp, pp)], num_iterations=FEWEST_ROUNDS, warmup=2, seed=seed, **sizes
            ).rows
            trials.append(_trial(rows, link, of, setting, num_hosts))
            if run == runs or abs(trials[-1].share - share) < CLOSE_ENOUGH:
                yield ranks, Calibration(link=link, of=of, asked=share, trials=tuple(trials), tp=tp, pp=pp)
                return
        source = f"calibrated: {of.value} takes about {share:.1%} of an iteration"
        link = replace(link, bandwidth_bytes_per_s=next_rate(trials, share), source=source)


def next_rate(trials: Sequence[Trial], share: float) -> float:
    """Choose the bandwidth to try next, in bytes/s.

    Through two trials the part and the iteration are lines in x, the seconds a byte takes; where they are in the ratio
    `share` is the next x. With a single trial, or where that leads far away, all transfers are proportional to x.
    """
    last = trials[-1]
    slower = slower_by(last.part_ms, last.communication_ms, last.iteration_ms, share)
    if len(trials) > 1 and (factor := _on_the_line(trials[-2], last, share)) is not None:
        slower = factor
    return min(max(last.bandwidth_bytes_per_s / slower, SLOWEST_BYTES_PER_S), FASTEST_BYTES_PER_S)


def _on_the_line(before: Trial, last: Trial, share: float) -> float | None:
    """Return by which factor the link must become slower on the line through two trials; None where it says nothing."""
    x_before, x_last = 1 / before.bandwidth_bytes_per_s, 1 / last.bandwidth_bytes_per_s
    if max(x_before / x_last, x_last / x_before) < APART:
        return None
    missing_before, missing = (share * one.iteration_ms - one.part_ms for one in (before, last))
    gained_per_x = (missing_before - missing) / (x_last - x_before)
    if gained_per_x <= 0:  # noise: the slower link would have given the smaller share
        return None
    factor = 1 + missing / gained_per_x / x_last
    return factor if 1 / FARTHEST < factor < FARTHEST else None


def slower_by(part: float, communication: float, iteration: float, share: float) -> float:
    """Return the factor by which a link must become slower so that a part of communication takes a share.

    Args:
        part: time of that part now.
        communication: time of all that crosses the link now, the part included.
        iteration: time of the iteration now, in the same unit.
        share: that the part is to take.

    The rest r = iteration - communication stays: part·x / (r + communication·x) = share gives x. Where communication
    grows so fast that no x does, the link becomes ten times slower and the next run tries again.
    """
    beyond = part - share * communication
    return share * (iteration - communication) / beyond if beyond > 0 else 10.0


def share_row(rows: Sequence[Mapping], link: Link, of: ShareOf, setting: Setting, num_hosts: int) -> dict:
    """Return which share of the uncompressed iterations a part took: {"value", "low", "high"}.

    Args:
        rows: of `measure_on`, of one mesh and batch.
        link: that they ran over.
        of: the part.
        setting: of the iterations.
        num_hosts: that the ranks were spread over.
    """
    plain = {row["quantity"]: row for row in rows if row["method"] == BASELINE and "boundary" not in row}
    if of is ShareOf.TENSOR:
        return {name: plain["communication_share"][name] for name in ("value", "low", "high")}
    boundary_ms, iteration_ms = _boundary_ms(link, setting, num_hosts), plain["iteration_ms"]
    turned = {"value": "value", "low": "high", "high": "low"}  # a longer iteration makes the share smaller
    return {name: boundary_ms / iteration_ms[other] for name, other in turned.items()}


def _boundary_ms(link: Link, setting: Setting, num_hosts: int) -> float:
    """Return what an iteration's messages and gradients over one boundary take by the link's rate alone."""
    ranks_of_a_host = setting.tp * setting.pp // num_hosts
    if setting.tp % ranks_of_a_host:
        raise ValueError(f"tp={setting.tp}: a multiple of the {ranks_of_a_host} ranks of a host, or boundaries differ")
    messages = 2 * setting.num_micro_batches * ranks_of_a_host  # all ranks of a host share its card
    return 1e3 * messages * setting.activation_bytes() / link.bandwidth_bytes_per_s


def _trial(rows: Sequence[Mapping], link: Link, of: ShareOf, setting: Setting, num_hosts: int) -> Trial:
    boundaries_ms = sum(row["value"] for row in rows if row["quantity"] == "boundary_ms")
    times = {row["quantity"]: row["value"] for row in rows if row["unit"] == "ms" and "boundary" not in row}
    if of is ShareOf.TENSOR:
        part_ms, communication_ms = times["tensor_ms"], times["tensor_ms"] + times["tensor_backward_ms"] + boundaries_ms
    else:  # with several micro-batches boundaries overlap: an iteration becomes longer by one of them at most
        part_ms = communication_ms = _boundary_ms(link, setting, num_hosts)
    return Trial(
        bandwidth_bytes_per_s=link.bandwidth_bytes_per_s,
        share=share_row(rows, link, of, setting, num_hosts)["value"],
        part_ms=part_ms,
        communication_ms=communication_ms,
        iteration_ms=times["iteration_ms"],
    )
