"""The settings of a table: methods on meshes, over slow and fast links, with small and large batches.

Source: "Does compressing activations help model parallel training?", tables 2, 3, 4, 6, 7, 9, 12 and figure 1.
Simplified: "with NVLink" is this machine's loopback, which nothing slows; "without" and the network between hosts are
shaped links.
Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

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
        calibrations: of the slow links, one for each of `shares`; none where only the loopback was used.
    """

    rows: list[dict]
    trace: dict
    hosts: list[dict]
    calibrations: tuple[Calibration, ...]


def measure_table(
    methods: Sequence[str],
    meshes: Sequence[Sequence[int]],
    *,
    links: Sequence[str],
    batches: Sequence[Sequence[int]],
    shares: Sequence[Sequence[float]],
    share_of: str,
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
        batches: (micro-batch, sequence) pairs; the first one is what slow links are calibrated on.
        shares: (TP, PP, share): what communication takes of an uncompressed iteration on that mesh over its slow link.
            Other meshes have the first one's link.
        share_of: name of a ShareOf, such as "TENSOR".
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
    slow = {}
    if SLOW in links:
        (micro_batch, sequence), of = batches[0], ShareOf[share_of]
        shape = {"num_hosts": num_hosts, "seed": seed, "micro_batch": micro_batch, "sequence": sequence, **sizes}
        slow = {(tp, pp): link_for_share(share, of=of, tp=tp, pp=pp, **shape) for tp, pp, share in shares}
    rows, trace, hosts = [], {}, []
    for link, (micro_batch, sequence), mesh in product(links, batches, map(tuple, meshes)):
        over = slow.get(mesh, next(iter(slow.values()))).link if link == SLOW else None
        measured = measure_iterations(
            methods, [mesh], link=over, num_hosts=num_hosts, num_iterations=num_iterations, seed=seed,
            keys={"nvlink": int(link == FAST), "micro_batch": micro_batch, "sequence": sequence},
            micro_batch=micro_batch, sequence=sequence, **sizes,
        )  # fmt: skip
        rows, trace = rows + measured.rows, trace or measured.trace
        hosts += [measured.hosts] if measured.hosts and measured.hosts not in hosts else []
    return TableTimes(rows=rows, trace=trace, hosts=hosts, calibrations=tuple(slow.values()))
