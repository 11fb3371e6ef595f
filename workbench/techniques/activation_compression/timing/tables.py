"""The settings of a table: methods on meshes, over slow and fast links, with small and large batches.

Source: "Does compressing activations help model parallel training?", tables 2, 3, 4, 6, 7, 9, 12 and figure 1.
Simplified: "with NVLink" is this machine's loopback, which nothing slows; "without" and the network between hosts are
shaped links.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .links import Calibration, ShareOf, link_for_share
from .study import measure_iterations

__all__ = ["TableTimes", "measure_table"]

SLOW, FAST = "slow", "fast"  # names of links: calibrated, this machine's loopback


@dataclass(frozen=True, kw_only=True, slots=True)
class TableTimes:
    """What was measured for a table.

    Attributes:
        rows: as of `measure_iterations`, with the keys nvlink, micro_batch and sequence.
        trace: Chrome trace of one iteration.
        hosts: descriptions of the shaped hosts.
        calibration: of the slow link; None where only the loopback was used.
    """

    rows: list[dict]
    trace: dict
    hosts: dict | None
    calibration: Calibration | None


def measure_table(
    methods: Sequence[str],
    meshes: Sequence[Sequence[int]],
    *,
    links: Sequence[str],
    batches: Sequence[Sequence[int]],
    share: float,
    share_of: str,
    calibrate_on: Sequence[int],
    num_hosts: int,
    num_iterations: int,
    seed: int = 0,
    **sizes,
) -> TableTimes:
    """Measure all methods on all meshes, links and batches.

    Args:
        methods: names, perhaps with variants; "w/o" among them.
        meshes: (TP, PP) pairs with one product.
        links: "slow", "fast" or both.
        batches: (micro-batch, sequence) pairs; the first one is what the slow link is calibrated on.
        share: of an uncompressed iteration that communication takes over the slow link.
        share_of: name of a ShareOf, such as "TENSOR".
        calibrate_on: (TP, PP) of that iteration.
        num_hosts: that the ranks are spread over.
        num_iterations: of each method.
        seed: of weights and random methods.
        sizes: further fields of Setting.

    Returns:
        Rows, one trace, and what the links were.

    Raises:
        ValueError: for a link that is neither.
    """
    if unknown := set(links) - {SLOW, FAST}:
        raise ValueError(f"links={list(links)}: {sorted(unknown)} is neither {SLOW!r} nor {FAST!r}")
    calibration = None
    if SLOW in links:
        (tp, pp), (micro_batch, sequence) = calibrate_on, batches[0]
        calibration = link_for_share(
            share, of=ShareOf[share_of], tp=tp, pp=pp, num_hosts=num_hosts, seed=seed,
            micro_batch=micro_batch, sequence=sequence, **sizes,
        )  # fmt: skip
    rows, trace, hosts = [], {}, None
    for link in links:
        for micro_batch, sequence in batches:
            measured = measure_iterations(
                methods, [tuple(mesh) for mesh in meshes], link=calibration.link if link == SLOW else None,
                num_hosts=num_hosts, num_iterations=num_iterations, seed=seed,
                keys={"nvlink": int(link == FAST), "micro_batch": micro_batch, "sequence": sequence},
                micro_batch=micro_batch, sequence=sequence, **sizes,
            )  # fmt: skip
            rows += measured.rows
            trace, hosts = trace or measured.trace, hosts or measured.hosts
    return TableTimes(rows=rows, trace=trace, hosts=hosts, calibration=calibration)
