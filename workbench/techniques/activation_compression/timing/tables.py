"""The settings of a table: methods on meshes, over slow and fast links, with small and large batches.

Source: "Does compressing activations help model parallel training?", tables 2, 3, 4, 6, 7, 9, 12 and figure 1.
Simplified: "with NVLink" is this machine's loopback, which nothing slows; "without" and the network between hosts are
shaped links.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from math import prod
from types import MappingProxyType

import pandas as pd

from workbench.launch import Ranks
from workbench.study.rows import value_row

from ..cost import Setting
from .links import Calibration, ShareOf, carried_over_share, ranks_at_share, share_row
from .study import measure_on, open_ranks

__all__ = ["SMALL_BERT", "TableTimes", "beside_largest", "measure_table"]

SLOW, CARRIED_OVER, FAST = "slow", "carried over", "fast"
MeshOf = tuple[int, int]  # (TP, PP)
SMALL_BERT = MappingProxyType(
    {"hidden": 256, "layers": 4, "compressed_layers": 2, "value_bytes": 4, "fuse_gradients": True}
)  # an iteration takes some 0.2 s on two cores; half of its layers are compressed, as in the paper
TARGET = MappingProxyType({"tp": 4, "pp": 1, "nvlink": 0})  # where the paper gains most, 17.8 %


@dataclass(frozen=True, kw_only=True, slots=True)
class TableTimes:
    """What was measured for a table.

    Attributes:
        rows: as of `measure_on`, with the keys link, nvlink, micro_batch and sequence; for each calibrated link
            share_error, what the measurement's share lies above the asked one; where there are several links
            speedup_by_link, without the key nvlink.
        trace: Chrome trace of one iteration.
        hosts: descriptions of the shaped hosts.
        calibrations: of the links that are not this machine's loopback.
    """

    rows: list[dict]
    trace: dict
    hosts: list[dict]
    calibrations: tuple[Calibration, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Place:
    """A link and the meshes that are measured over it.

    Attributes:
        link: its name.
        meshes: (TP, PP) pairs; the first one is calibrated where there is a share.
        share: of that mesh's uncompressed iteration; None leaves the ranks on the loopback.
    """

    link: str
    meshes: tuple[MeshOf, ...]
    share: float | None = None


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
        methods: names, perhaps with variants; "w/o" among them.
        meshes: (TP, PP) pairs with one product.
        links: of "slow", the calibrated one; "fast", the loopback; "carried over", for each mesh with more
            tensor-parallel ranks than `share_mesh` a link on which they communicate as `carried_over_share` says.
        batches: (micro-batch, sequence) pairs; the first one is what links are calibrated on.
        share: what communication takes of an uncompressed iteration over the slow link.
        share_of: name of a ShareOf, such as "TENSOR".
        share_mesh: (TP, PP) that the share belongs to.
        num_hosts: that the ranks are spread over.
        num_iterations: of each method.
        num_iterations_over: a link's name to another number, where an interval has to be narrow.
        seed: of weights, random methods and orders.
        device: "cpu" or "cuda"; None takes WORKBENCH_DEVICE, else "cpu".
        sizes: further fields of Setting.

    Returns:
        Rows, one trace, and what the links were.

    Raises:
        ValueError: for a link that is none of the three, or is not measured, or a slow one that no mesh calibrates.
    """
    meshes, share_mesh = [tuple(mesh) for mesh in meshes], tuple(share_mesh)
    if unknown := set(links) - {SLOW, CARRIED_OVER, FAST}:
        raise ValueError(f"links={list(links)}: {sorted(unknown)} is none of {[SLOW, CARRIED_OVER, FAST]}")
    if SLOW in links and share_mesh not in meshes:
        raise ValueError(f"share_mesh={share_mesh}: it must be one of meshes, {meshes}, where its share is measured")
    rounds = dict.fromkeys(links, num_iterations) | dict(num_iterations_over or {})
    if unknown := set(rounds) - set(links):
        raise ValueError(
            f"num_iterations_over={num_iterations_over}: {sorted(unknown)} is none of links, {list(links)}"
        )
    calibrate = {"of": ShareOf[share_of], "num_hosts": num_hosts, "device": device}
    found = [
        _measure_place(
            place, methods, batches, calibrate, {"num_iterations": rounds[place.link], "seed": seed, **sizes}
        )
        for place in _places(links, meshes, share, share_mesh)
    ]
    rows = [row for one in found for row in one.rows]
    return TableTimes(
        rows=rows + (_by_link(rows) if len(links) > 1 else []),
        trace=found[0].trace,
        hosts=[host for one in found for host in one.hosts],
        calibrations=tuple(calibration for one in found for calibration in one.calibrations),
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
        with open_ranks(prod(place.meshes[0]), link=None, num_hosts=1, device=calibrate["device"]) as ranks:
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
    mine = [row for row in rows if keys.items() <= row.items()]
    reached = share_row(mine, calibration.link, calibration.of, Setting(**mesh, **shape), num_hosts)
    above = {name: value - calibration.asked for name, value in reached.items()}
    return [{"quantity": "share_error", "of": calibration.of.value, **keys, **above, "unit": "1"}]


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
