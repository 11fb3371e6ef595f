"""Recorded and assumed data of Espresso's authors: gradients of nine models, compression times, constants, settings.

Source: zhuangwang93/Espresso at commit a0294e3 (Apache-2.0).
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from workbench.checks import require_one_of
from workbench.datasets.places import carried_file
from workbench.datasets.source import DataSource, SourceKind
from workbench.timeline.gradients import FORWARD_SHARE, Gradients

__all__ = ["FILES", "MODELS", "CompressionTimes", "GpuCompression", "Settings", "baseline_thresholds", "load", "source"]
__all__ += ["communication_constants", "cpu_compression_times", "experiment_settings", "gpu_compression_constants"]

FOLDER = "espresso-artifact"
GBIT_BYTES = 1e9 / 8

FILES: Mapping[str, str] = MappingProxyType(
    {
        "models/vgg16": "bc769d591b0cf43ab488f457658688793466e6c09cc9357941c60a0950ee434e",
        "models/resnet50": "026c6b784217ce850f60419bc8141eaa2045d084a04f82cfa1071aa822bab207",
        "models/resnet101": "837cf5a67e4901bb6b21860762918e0fcc00e8f7b7c92433a6f2e22e67865e6a",
        "models/ncf": "8456c9e9d6a480190d1dbec751d961371dcd99ea34f89097e3ddcfdeac8473f8",
        "models/gpt2": "2604c53b41d513c32f98847b18b93c619b4972fc7297b230dcefdc25fe7aa3dc",
        "models/ugatit": "11cb8d9c0630b35b4dc57bdd4d17cf79971c80ad2a5e5f75b97b8cfced918f1d",
        "models/lstm": "af631f553ae9bb7255429672744c803ef9270783072b8bb66fdbd7f866c801bc",
        "models/bert_base": "27abb7eb9070ecbdff29bf851574e30fba66f6d9b3c48c94975b486879f6fcb6",
        "models/bert_large": "a0e2bab41ec69d6f4e03883d957aeabf8756c57fab6c16e3f8454d071b1329ba",
        "cpu_compression_times": "e510394ded04cf0c9b67e41b48a6bde695b97a3d22431e13ceb35d7914290c29",
        "gpu_compression_constants": "d8835dfd2512fda16263d7e50a56847e3c9251c5f7c1a53dab02b637566de6a6",
        "communication_constants": "a301767318fb1dd8f013ba8a2680486d17dc3d77b5a96b0915141e2f90999f05",
        "baseline_thresholds": "33ad2c15ffbd7932c74cdc1e803bf5eb4c55b93b18682c2044d0e7c1d8614404",
        "experiment_settings": "e1e5abbdd8a8a919e59ae947264e0bee882a3eb7eea5603cb70e7eee77fd9a50",
    }
)
"""The tables and the sha256 of their files."""

MODELS = tuple(file.removeprefix("models/") for file in FILES if file.startswith("models/"))


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressionTimes:
    """Seconds on a CPU by size, the smallest first."""

    num_elements: tuple[int, ...]  # elements of the fp32 input
    compress_s: tuple[float, ...]  # adding the residual is included
    decompress_s: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuCompression:
    """Seconds on a GPU for up to 2^20 elements of its share; in proportion above."""

    encode_s: float
    decode_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The authors' settings of a training."""

    testbed: str  # "nvlink" (100 Gbit/s between machines) or "pcie" (25 Gbit/s)
    algorithm: str  # compression algorithm
    kept_ratio: float  # share of the values; 1 where all are kept, in fewer bits
    batch_per_gpu: int  # samples
    error_feedback_factor: float  # factor of the residual


def load(model: str, *, forward_s: float | None = None) -> Gradients:
    """Load the gradients of one of `MODELS`; ValueError if it is another.

    Gaps are whole microseconds; gap_s[0] was not recorded and is 0. The forward pass was not recorded either: None
    assumes `FORWARD_SHARE` of the backward. ncf lacks its embeddings' time; ugatit has other work of 0.335 s in gap 60.
    """
    require_one_of(MODELS, model=model)
    rows = _rows(f"models/{model}")
    gap_s = tuple(float(row["gap_s"]) for row in rows)
    return Gradients(
        name=model,
        tensors=tuple(row["tensor"] for row in rows),
        num_elements=tuple(int(row["num_elements"]) for row in rows),
        gap_s=gap_s,
        forward_s=FORWARD_SHARE * sum(gap_s) if forward_s is None else forward_s,
        source=f"Espresso's artifact{', forward assumed' if forward_s is None else ''}",
    )


def source(file: str) -> DataSource:
    """Say for a record where one of `FILES` came from."""
    return DataSource(name=f"{FOLDER}/{file}", kind=SourceKind.PACKAGE, detail="all rows", sha256=FILES[file])


def cpu_compression_times(runs: Collection[int] = (0, 1, 2)) -> Mapping[str, CompressionTimes]:
    """Load the CPU times of "randomk", "dgc" (1 % kept each), "efsignsgd" and "onebit": medians over runs, 0..3.

    Run 3 is disturbed. Only run 0 has 2^26 elements. Times may be 5/6 of the true ones: five rounds divided by six.
    """
    import pandas as pd

    if not runs or not set(runs) <= {0, 1, 2, 3}:
        raise ValueError(f"runs is {runs!r}, must be one or more of 0, 1, 2, 3")
    rows = [row for row in _rows("cpu_compression_times") if int(row["run"]) in runs]
    table = pd.DataFrame(rows).astype({"num_elements": int, "compress_s": float, "decompress_s": float})
    medians = table.groupby(["algorithm", "num_elements"], as_index=False).median(numeric_only=True)
    by_algorithm, names = medians.groupby("algorithm"), CompressionTimes.__slots__
    return {key: CompressionTimes(**{name: tuple(rows[name]) for name in names}) for key, rows in by_algorithm}


def gpu_compression_constants() -> Mapping[tuple[str, str], GpuCompression]:
    """Load GPU times by algorithm and "fp16" (a cast), "one_level" (between machines), "two_level" (inside too)."""
    rows = {(row["algorithm"], row["scope"]): row for row in _rows("gpu_compression_constants")}
    names = GpuCompression.__slots__
    return {key: GpuCompression(**{name: float(row[name]) for name in names}) for key, row in rows.items()}


def communication_constants() -> Mapping[str, float]:
    """Load the constants of the authors' planner, in s, s/B, B/s or counts, without its two formulas of traffic."""
    rows = [row for row in _rows("communication_constants") if not row["constant"].startswith("traffic_factor")]
    return {row["constant"]: float(row["value"]) * (GBIT_BYTES if row["unit"] == "Gbit/s" else 1) for row in rows}


def baseline_thresholds() -> Mapping[tuple[str, str], int]:
    """Load the least elements that a baseline compresses, by model and "hitopkcomm", "hipress", "byteps-compress"."""
    return {(row["model"], row["baseline"]): int(row["threshold_elements"]) for row in _rows("baseline_thresholds")}


def experiment_settings() -> Mapping[str, Settings]:
    """Load the settings of the thesis's six models."""
    settings = {}
    for row in _rows("experiment_settings"):
        settings[row["model"]] = Settings(
            testbed=row["testbed_in_scripts"],
            algorithm=row["algorithm"],
            kept_ratio=float(row["kept_ratio"] or 1),
            batch_per_gpu=int(row["batch_per_gpu"]),
            error_feedback_factor=float(row["error_feedback_factor"]),
        )
    return settings


def _rows(file: str) -> list[dict[str, str]]:
    with carried_file(f"{FOLDER}/{file}.csv", FILES[file]).open(newline="") as stream:
        return list(csv.DictReader(stream))
