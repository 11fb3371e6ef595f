"""Measurements on an NVIDIA H100 (80 GB, torch 2.11 for CUDA 13.0, 26 November 2026): gradients and codecs.

`h100_gradients.csv`: `gradients.measure` of `ARCHITECTURES` in TF32, with the batches of Espresso's authors
(`BATCHES`); the row without a tensor is the forward pass.
`h100_codecs.csv`: `compression.profiling` on the GPU ("cuda") and on one thread of that machine's CPU ("cpu"); with
error feedback, 1 % kept and 64-bit indices.
"""

import csv
from collections import defaultdict
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from workbench.cluster import GIGABIT_BYTES_PER_S, Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.compression.profiling import CodecTime, times_of
from workbench.timeline.gradients import Gradients

__all__ = ["BATCHES", "codec", "codec_times", "load", "machines"]

FOLDER = Path(__file__).parent
SOURCE = "measured on an H100 in TF32"
GPUS_PER_MACHINE = 8
NVLINK_BYTES_PER_S = 450e9  # one GPU, one direction: 18 links of 25 GB/s, NVIDIA's data sheet of the H100
BATCHES = {"vgg16": (32, 1), "resnet50": (32, 1), "resnet101": (32, 1)}  # examples, and words of each
BATCHES |= {"bert_base": (8, 384), "gpt2": (4, 1024), "lstm": (80, 70)}
INTRA_STARTUP_S, INTER_STARTUP_S = 10e-6, 50e-6  # orders of magnitude, not measured


def load(model: str) -> Gradients:
    """Return the gradients of one of `architectures.ARCHITECTURES`; ValueError if it is another."""
    rows = [row for row in _rows("h100_gradients") if row["model"] == model]
    if not rows:
        known = ", ".join(dict.fromkeys(row["model"] for row in _rows("h100_gradients")))
        raise ValueError(f"model is {model!r}; it must be one of {known}")
    forward, *tensors = rows
    return Gradients(
        name=model,
        tensors=tuple(row["tensor"] for row in tensors),
        num_elements=tuple(int(row["num_elements"]) for row in tensors),
        gap_s=tuple(float(row["gap_s"]) for row in tensors),
        forward_s=float(forward["gap_s"]),
        source=SOURCE,
    )


@cache
def codec_times() -> Mapping[tuple[str, str], tuple[CodecTime, ...]]:
    """Return times by codec ("randomk", "dgc", "efsignsgd", "onebit", "topk", "fp16") and device ("cuda", "cpu")."""
    profiles = defaultdict(list)
    for row in _rows("h100_codecs"):
        time = CodecTime(
            num_elements=int(row["num_elements"]),
            payload_bytes=int(row["payload_bytes"]),
            encode_s=float(row["encode_s"]),
            decode_s=float(row["decode_s"]),
        )
        profiles[row["codec"], row["device"]].append(time)
    return {key: tuple(profile) for key, profile in profiles.items()}


def codec(name: str) -> CodecTimes:
    """Return the measured times of a codec on an H100 and on a CPU thread of its machine."""
    measured = codec_times()
    return times_of(name, {Processor.GPU: measured[name, "cuda"], Processor.CPU: measured[name, "cpu"]})


def machines(num_machines: int, gigabits_per_s: float) -> Machines:
    """Return machines of 8 H100, joined by a network of this rate."""
    intra = Link(bandwidth_bytes_per_s=NVLINK_BYTES_PER_S, latency_s=INTRA_STARTUP_S)
    inter = Link(bandwidth_bytes_per_s=gigabits_per_s * GIGABIT_BYTES_PER_S, latency_s=INTER_STARTUP_S)
    return Machines(num_machines=num_machines, gpus_per_machine=GPUS_PER_MACHINE, intra=intra, inter=inter)


@cache
def _rows(name: str) -> list[dict[str, str]]:
    with (FOLDER / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))
