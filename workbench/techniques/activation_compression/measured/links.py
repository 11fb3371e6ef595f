"""Links on which communication takes the share of an iteration that it has in the paper, and tables measured on them.

Table 4: forward tensor communication takes 150.72 of 646.14 ms without NVLink. Table 9 over table 7: a pipeline
boundary takes 88.69 of 1422.4 ms. "With NVLink" is this machine's loopback; "without" and networks are shaped links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import product
from math import prod
from types import MappingProxyType

import pandas as pd

from workbench.cluster import Link
from workbench.launch import Ranks
from workbench.study.rows import value_row
from workbench.study.timing import open_ranks
from workbench.training.measuring import FEWEST_ROUNDS

from ..cost import Setting
from .iterations import BASELINE, PRELOAD, measure_on

__all__ = [
    "SMALL_BERT",
    "Calibration",
    "ShareOf",
    "TableTimes",
    "Trial",
    "beside_largest",
    "carried_over_share",
    "measure_table",
    "next_rate",
    "ranks_at_share",
    "share_row",
    "slower_by",
]

CLOSE_ENOUGH = 0.01  # of an iteration
SLOWEST_BYTES_PER_S, FASTEST_BYTES_PER_S = 1e6, 2e9  # what shaped hosts can follow
FARTHEST = 2.0  # a line through two trials is trusted up to this factor of the last rate
APART = 1.05  # closer rates differ by noise alone
SLOW, CARRIED_OVER, FAST = "slow", "carried over", "fast"
MeshOf = tuple[int, int]  # (TP, PP)
SMALL_BERT = MappingProxyType(
    {"hidden": 256, "layers": 4, "compressed_layers": 2, "value_bytes": 4, "fuse_gradients": True}
)  # an iteration takes some 0.2 s on two cores; half of its layers are compressed, as in the paper
TARGET = MappingProxyType({"tp": 4, "pp": 1, "nvlink": 0})  # where the paper gains most, 17.8 %


class ShareOf(Enum):
    """Part of an iteration that takes the share."""

    TENSOR = "forward tensor communication"  # as measured, from the last rank's entry on
    # Over the link's rate, both directions: where 16 ranks share two cores, a boundary's measured time is mostly the
    # time until its receiver gets a core, which no link makes shorter.
    BOUNDARY = "the bytes of a pipeline boundary"


# Saves a trial on two cores.
FIRST_GUESS_BYTES_PER_S = MappingProxyType({ShareOf.TENSOR: 65e6, ShareOf.BOUNDARY: 130e6})


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A few uncompressed iterations over one link."""

    bandwidth_bytes_per_s: float  # of the link
    share: float  # of the iteration, taken by the part
    part_ms: float  # the communication whose share it is
    communication_ms: float  # all communication that is slower over a slower link, the part included
    iteration_ms: float  # of the whole iteration


@dataclass(frozen=True, kw_only=True, slots=True)
class Calibration:
    """A link that was slowed or sped up until communication took its share."""

    link: Link  # between hosts
    of: ShareOf  # the part that takes the share
    asked: float  # share that the part was to take, 0..1
    trials: tuple[Trial, ...]  # the rates that were tried; the last one is the link's
    tp: int  # of the iterations it was calibrated on
    pp: int  # likewise

    def as_record(self) -> dict:
        """Return plain values for a record; `reached` is the share in the last trial."""
        trials = [asdict(trial) for trial in self.trials]
        return asdict(self) | {"of": self.of.value, "reached": self.trials[-1].share, "trials": trials}


def carried_over_share(share: float, *, tp: int, to_tp: int) -> float:
    """Carry a share measured with few tensor-parallel ranks over to more of them, on as many devices and links alike.

    With one micro-batch the stages work one after another, so a device's computing is divided by the tensor-parallel
    ranks alone. A ring all-reduce over n ranks takes the time of 2·(n - 1)/n messages on each of their links, and the
    backward pass communicates as much as the forward pass. Nothing overlaps. Of an iteration of 1, computing is
    1 - 2·share; hence

        s' = b·s / (2·b·s + c·(1 - 2·s)),   b = ring(to_tp) / ring(tp),   c = tp / to_tp.

    From table 4's 150.72 of 646.14 ms: b = 1.5, c = 0.5, s' = 36.2 % at TP 4.

    Raises:
        ValueError: For a share outside of 0..0.5 or a single rank, which communicates nothing.
    """
    _check_share(share)
    for name, ranks in (("tp", tp), ("to_tp", to_tp)):
        if ranks < 2:
            raise ValueError(f"{name} is {ranks}; it must be at least 2, or nothing is communicated")
    ring, to_ring = (2 * (ranks - 1) / ranks for ranks in (tp, to_tp))
    communication = share * to_ring / ring
    return communication / (2 * communication + (1 - 2 * share) * tp / to_tp)


def _check_share(share: float) -> None:
    if not 0 < share < 0.5:
        raise ValueError(
            f"share is {share}; it must be in 0 < share < 0.5, since each forward message has a backward twin"
        )


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

    Yields:
        The ranks, closed afterwards, and how their link was calibrated.
    """
    _check_share(share)
    if runs < 2:
        raise ValueError(f"runs is {runs}; it must be at least 2: one to find the rate and one to check it")
    link = Link(bandwidth_bytes_per_s=FIRST_GUESS_BYTES_PER_S[of], source="where the calibration starts")
    setting, trials = Setting(tp=tp, pp=pp, **sizes), []
    for run in range(1, runs + 1):
        with open_ranks(tp * pp, link=link, num_hosts=num_hosts, device=device, preload=PRELOAD) as ranks:
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
    """Return the factor by which the link must become slower on the line through two trials; None where noise rules."""
    x_before, x_last = 1 / before.bandwidth_bytes_per_s, 1 / last.bandwidth_bytes_per_s
    if max(x_before / x_last, x_last / x_before) < APART:
        return None
    missing_before, missing = (share * trial.iteration_ms - trial.part_ms for trial in (before, last))
    gained_per_x = (missing_before - missing) / (x_last - x_before)
    if gained_per_x <= 0:  # noise: the slower link would have given the smaller share
        return None
    factor = 1 + missing / gained_per_x / x_last
    return factor if 1 / FARTHEST < factor < FARTHEST else None


def slower_by(part: float, communication: float, iteration: float, share: float) -> float:
    """Return the factor by which a link must become slower so that a part of its communication takes a share.

    The rest r = iteration - communication stays: part·x / (r + communication·x) = share gives x. Where communication
    grows so fast that no x does, the link becomes ten times slower and the next trial tries again.
    """
    beyond = part - share * communication
    return share * (iteration - communication) / beyond if beyond > 0 else 10.0


def share_row(rows: Sequence[Mapping], link: Link, of: ShareOf, setting: Setting, num_hosts: int) -> dict:
    """Return the share of the uncompressed iterations that a part took: {"value", "low", "high"}."""
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
        raise ValueError(
            f"tp is {setting.tp}; it must be a multiple of the {ranks_of_a_host} ranks of a host, or boundaries differ"
        )
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TableTimes:
    """Measurements for a table."""

    # As of `measure_on`, with the keys link, nvlink, micro_batch and sequence; for each calibrated link share_error, by
    # which the measured share lies above the asked one; for several links speedup_by_link, without the key nvlink.
    rows: list[dict]
    trace: dict  # Chrome trace of one iteration
    hosts: list[dict]  # descriptions of the shaped hosts
    calibrations: tuple[Calibration, ...]  # of the links that are not this machine's loopback


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A link and the meshes that are measured over it."""

    link: str  # its name
    meshes: tuple[MeshOf, ...]  # (TP, PP) pairs; the first one is calibrated where there is a share
    share: float | None = None  # of that mesh's uncompressed iteration; None leaves the ranks on the loopback


def measure_table(
    methods: Sequence[str],
    meshes: Sequence[Sequence[int]],
    *,
    links: Sequence[str],
    batches: Sequence[Sequence[int]],
    share: float,
    share_of: str,
    share_mesh: Sequence[int],
    num_hosts: int,
    num_iterations: int,
    num_iterations_over: Mapping[str, int] | None = None,
    seed: int = 0,
    device: str | None = None,
    **sizes,
) -> TableTimes:
    """Measure all methods on all meshes, links and batches.

    Args:
        methods: Names, perhaps with variants; "w/o" among them.
        meshes: (TP, PP) pairs with one product.
        links: Of "slow", the calibrated one; "fast", the loopback; "carried over", for each mesh with more
            tensor-parallel ranks than `share_mesh` a link on which they communicate as `carried_over_share` says.
        batches: (micro-batch, sequence) pairs; links are calibrated on the first one.
        share: Of an uncompressed iteration over the slow link that communication takes.
        share_of: Name of a ShareOf, such as "TENSOR".
        share_mesh: (TP, PP) that the share belongs to.
        num_hosts: Hosts that the ranks are spread over.
        num_iterations: Of each method.
        num_iterations_over: A link's name to another number, where an interval has to be narrow.
        seed: Of weights, random methods and orders.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        sizes: Further fields of Setting.

    Raises:
        ValueError: For a link that is none of the three, or is not measured, or a slow one that no mesh calibrates.
    """
    meshes, share_mesh = [tuple(mesh) for mesh in meshes], tuple(share_mesh)
    if unknown := set(links) - {SLOW, CARRIED_OVER, FAST}:
        raise ValueError(f"links is {sorted(unknown)}; it must be of {[SLOW, CARRIED_OVER, FAST]}")
    if SLOW in links and share_mesh not in meshes:
        raise ValueError(f"share_mesh is {share_mesh}; it must be one of meshes, {meshes}, where its share is measured")
    rounds = dict.fromkeys(links, num_iterations) | dict(num_iterations_over or {})
    if unknown := set(rounds) - set(links):
        raise ValueError(f"num_iterations_over is for {sorted(unknown)}; it must be for links of {list(links)}")
    calibrate = {"of": ShareOf[share_of], "num_hosts": num_hosts, "device": device}
    common = {"seed": seed, **sizes}
    found = [
        _measure_place(place, methods, batches, calibrate, {"num_iterations": rounds[place.link], **common})
        for place in _places(links, meshes, share, share_mesh)
    ]
    rows = [row for place in found for row in place.rows]
    return TableTimes(
        rows=rows + (_by_link(rows) if len(links) > 1 else []),
        trace=found[0].trace,
        hosts=[host for place in found for host in place.hosts],
        calibrations=tuple(calibration for place in found for calibration in place.calibrations),
    )


def _places(links: Sequence[str], meshes: Sequence[MeshOf], share: float, share_mesh: MeshOf) -> Iterator[_Place]:
    for link in links:
        if link == FAST:
            yield _Place(link=link, meshes=tuple(meshes))
        elif link == SLOW:
            others = (mesh for mesh in meshes if mesh != share_mesh)
            yield _Place(link=link, meshes=(share_mesh, *others), share=share)
        else:
            for mesh in meshes:
                if mesh[0] > share_mesh[0]:
                    carried = carried_over_share(share, tp=share_mesh[0], to_tp=mesh[0])
                    yield _Place(link=link, meshes=(mesh,), share=carried)


def _measure_place(
    place: _Place, methods: Sequence[str], batches: Sequence[Sequence[int]], calibrate: dict, common: dict
) -> TableTimes:
    """Measure all methods over one link, on the ranks that its calibration leaves open."""
    rows, trace, keys = [], {}, {"link": place.link, "nvlink": int(place.link == FAST)}
    with _ranks_over(place, batches[0], calibrate, common) as (ranks, calibration):
        for (micro_batch, sequence), mesh in product(batches, place.meshes):
            shape = {"micro_batch": micro_batch, "sequence": sequence}
            measured = measure_on(ranks, methods, [mesh], keys=keys | shape, **shape, **common)
            rows, trace = rows + measured.rows, trace or measured.trace
    if calibration is None:
        return TableTimes(rows=rows, trace=trace, hosts=[], calibrations=())
    rows += _share_error(rows, calibration, place.link, calibrate["num_hosts"], _shape(batches[0], common))
    return TableTimes(rows=rows, trace=trace, hosts=[measured.hosts], calibrations=(calibration,))


@contextmanager
def _ranks_over(
    place: _Place, batch: Sequence[int], calibrate: dict, common: dict
) -> Iterator[tuple[Ranks, Calibration | None]]:
    """Open ranks over a place's link."""
    if place.share is None:
        with open_ranks(prod(place.meshes[0]), device=calibrate["device"], preload=PRELOAD) as ranks:
            yield ranks, None
    else:
        tp, pp = place.meshes[0]
        with ranks_at_share(
            place.share, tp=tp, pp=pp, seed=common["seed"], **calibrate, **_shape(batch, common)
        ) as opened:
            yield opened


def _by_link(rows: Sequence[dict]) -> list[dict]:
    """Repeat the speedups without the paper's key nvlink, so that one method's stand side by side for all links."""
    speedups = [row for row in rows if row["quantity"] == "speedup"]
    plain = [{name: key for name, key in row.items() if name != "nvlink"} for row in speedups]
    return [row | {"quantity": "speedup_by_link"} for row in plain]


def _shape(batch: Sequence[int], common: dict) -> dict:
    """Return the fields of Setting that a batch and the sizes of all batches give."""
    sizes = {name: value for name, value in common.items() if name not in ("num_iterations", "seed")}
    return {"micro_batch": batch[0], "sequence": batch[1], **sizes}


def _share_error(rows: Sequence[dict], calibration: Calibration, link: str, num_hosts: int, shape: dict) -> list[dict]:
    """Say by how much the share in the measurement lies above the one that was asked for."""
    mesh = {"tp": calibration.tp, "pp": calibration.pp}
    keys = {"link": link, **mesh, "micro_batch": shape["micro_batch"], "sequence": shape["sequence"]}
    own = [row for row in rows if keys.items() <= row.items()]
    reached = share_row(own, calibration.link, calibration.of, Setting(**mesh, **shape), num_hosts)
    above = {name: value - calibration.asked for name, value in reached.items()}
    return [value_row("share_error", above.pop("value"), **above, of=calibration.of.value, **keys)]


def beside_largest(rows: Iterable[Mapping], published: pd.DataFrame) -> list[dict]:
    """Put the speedup of the paper's fastest learned code, at TP 4 without NVLink, beside ours of the same code.

    Returns:
        Rows of quantity largest_speedup: published and measured (key of), for each link and each way to execute the
        code (keys link, execution); none where either side has no such setting.
    """
    ours = [row for row in rows if row["quantity"] == "speedup" and TARGET.items() <= row.items()]
    if "nvlink" not in published or not ours:
        return []
    theirs = published[(published[list(TARGET)] == list(TARGET.values())).all(axis=1)]
    largest = theirs.loc[theirs.value.idxmax()]
    executions = {largest.method: "as in the paper", f"{largest.method} fused": "fused"}
    found = []
    for row in ours:
        if row["method"] in executions:
            keys = {"link": row["link"], "execution": executions[row["method"]]}
            found.append(value_row("largest_speedup", float(largest.value), **keys, of="published"))
            spread = {"low": row["low"], "high": row["high"]}
            found.append(value_row("largest_speedup", row["value"], **spread, **keys, of="measured"))
    return found
