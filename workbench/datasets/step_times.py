"""Compute seconds of real ranks, step by step: three training jobs of ByteDance, one with a worker slowed on purpose.

Source: the traces published with Lin et al., "Understanding stragglers in large model training using what-if analysis",
2025 (Apache-2.0). Ranks of equal work are the data-parallel ranks of a pipeline stage; their times divided by the
fastest one's are a real `StragglerTrace`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from workbench.checks import require_one_of
from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind

__all__ = ["JOBS", "StepTimes", "load", "read"]

FOLDER = "cluster-traces/bytedance-stragglers"
COMPUTE = ("forward-compute", "backward-compute")

JOBS: Mapping[str, str] = MappingProxyType(
    {
        "AR": "972bd19fc1c219adf91b02e3d8a74508f182dca417483b2f24fd414de1529a16",
        "SE": "fd5b233d784712acb3c8f3b859fce982787361db7a4dfd8b1e7d39f269954940",
        "ST": "44dd2c65a8f0d9cb8931cc6b35bee2de97fe228270bbfb241a837ef620b55346",
    }
)
"""The jobs and the sha256 of their files: a worker slowed on purpose, sequences and stages of unequal length."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Compute seconds of ranks with equal work."""

    seconds: tuple[tuple[float, ...], ...]  # compute seconds by rank and step
    source: DataSource  # origin of the times


def load(job: str = "AR", *, stage: int = 0, num_ranks: int = 4) -> StepTimes:
    """Load the compute seconds of a job's first ranks in one stage: "AR" has 4 ranks a stage, "SE" 32, "ST" 2."""
    require_one_of(JOBS, job=job)
    seconds = read(carried_file(f"{FOLDER}/trace-{job}.parquet", JOBS[job]), stage=stage, num_ranks=num_ranks)
    detail = f"compute seconds of {num_ranks} ranks of stage {stage}, {len(seconds[0])} steps"
    source = DataSource(name=f"{FOLDER}/{job}", kind=SourceKind.PACKAGE, detail=detail, sha256=JOBS[job])
    return StepTimes(seconds=seconds, source=source)


def read(path: Path, *, stage: int, num_ranks: int) -> tuple[tuple[float, ...], ...]:
    """Read a row a rank of compute seconds, by step, from a Parquet table of operations (seconds)."""
    import pandas as pd

    table = pd.read_parquet(path, columns=["dp_rank", "stage", "step", "optype", "duration"])
    stages = sorted(table["stage"].unique().tolist())
    if stage not in stages:
        raise ValueError(f"stage is {stage!r}; it must be one of {stages}")
    of_stage = table[(table["stage"] == stage) & table["optype"].isin(COMPUTE)].astype({"duration": "float64"})
    seconds = of_stage.pivot_table(index="dp_rank", columns="step", values="duration", aggfunc="sum")
    if not 1 <= num_ranks <= len(seconds):
        raise ValueError(f"num_ranks is {num_ranks!r}, must be in 1..{len(seconds)}")
    return tuple(tuple(row) for row in seconds.iloc[:num_ranks].to_numpy().tolist())
