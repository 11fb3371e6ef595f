"""What ATP's authors released: durations of the GPU kernels of one feed-forward block on four A100.

Source: Shenggan/atp at commit c851e58 (MIT).
"""

import csv
import math

from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind

__all__ = ["FOLDER", "PRODUCT_FLOPS", "RING_BYTES", "fastest_s", "source"]

FOLDER = "atp-artifact"
FILE, SHA256 = f"{FOLDER}/feed_forward_kernels.csv", "fcec10137529d3b7be41616c7160f12bcb23f991c0008d9dbbd0d735ebd64c6b"
PRODUCT_FLOPS = 2 * 4096**3  # operations of each product
RING_BYTES = 3 / 4 * 4 * 1024 * 4096 * 2  # bytes that a rank sends to gather or scatter 33.5 MB


def fastest_s() -> dict[str, float]:
    """Return the shortest duration of each operation: "gemm", "all_gather", "reduce_scatter", "copy" and others.

    The others contain waiting for other ranks, and products slow down beside communication.
    """
    seconds: dict[str, float] = {}
    with carried_file(FILE, SHA256).open(newline="") as stream:
        for row in csv.DictReader(stream):
            seconds[row["operation"]] = min(seconds.get(row["operation"], math.inf), float(row["duration_s"]))
    return seconds


def source() -> DataSource:
    """Say for a record where the kernels came from."""
    return DataSource(name=FILE, kind=SourceKind.PACKAGE, detail="all rows", sha256=SHA256)
