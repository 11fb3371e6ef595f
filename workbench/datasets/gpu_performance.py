"""Speeds of 16 shared GPUs of a public cloud over nine hours, as shares of their peak: SDPipe's figure 7a.

Source: digitised from the picture in the artifact of SDPipe (Hsword/VLDB2023_SDPipe at commit 2ced65f). The line's
width hides dips shorter than a quarter of an hour.
"""

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind

__all__ = ["GpuPerformance", "load", "read"]

FILE = "cluster-traces/sdpipe/gpu_performance_fig10_digitised.csv"
SHA256 = "e262113969c23a01346df5a16c41890c266241b22c5ec31d8dfb7cb0a7e7eacf"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuPerformance:
    """Speeds of workers over time."""

    speeds: tuple[tuple[float, ...], ...]  # a row a worker, each a share of the peak every 2.7 minutes
    source: DataSource  # origin of the numbers


def load() -> GpuPerformance:
    """Load the speeds, the middle of the drawn line; DataError if the file has changed."""
    speeds = read(carried_file(FILE, SHA256))
    detail = f"speeds of {len(speeds)} workers at {len(speeds[0])} times"
    source = DataSource(name=FILE, kind=SourceKind.PACKAGE, detail=detail, sha256=SHA256)
    return GpuPerformance(speeds=speeds, source=source)


def read(path: Path) -> tuple[tuple[float, ...], ...]:
    """Read a table of worker, time_h, flops_min, flops_max; all workers are cut to the shortest of them."""
    by_worker = defaultdict(list)
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            by_worker[int(row["worker"])].append((float(row["flops_min"]) + float(row["flops_max"])) / 2)
    length = min(len(row) for row in by_worker.values())
    return tuple(tuple(by_worker[worker][:length]) for worker in sorted(by_worker))
