"""Encoding and decoding times of codecs on this machine by tensor size, for planners that choose what to compress."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from workbench.checks import require_counts
from workbench.compression.codec import Codec
from workbench.compression.costs import CodecTimes, Processor, interpolated
from workbench.compression.gradients import gradient_codec

__all__ = ["CodecTime", "profile_codec", "profiled_times", "times_of"]

WARMUP = 2  # runs that are not counted
SMALLEST = 2**8  # elements of the first profiled tensor
FACTOR = 4  # ratio of successive tensor sizes
LEAST_S = 2e-3  # a timed run repeats the call until it lasts about this long


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecTime:
    """Median times of a codec for one tensor size."""

    num_elements: int  # elements of the fp32 tensor
    encode_s: float
    decode_s: float  # time to decode one message and add it to a sum
    payload_bytes: int


def profile_codec(
    make: Callable[[], Codec], num_elements: Sequence[int], *, device: str, runs: int = 9, ranks_a_core: float = 0.0
) -> list[CodecTime]:
    """Time encoding and decoding of normally distributed tensors.

    Args:
        make: returns a new codec, with its error feedback if it has one; it is called for each size.
        num_elements: tensor sizes.
        device: "cpu" or a CUDA device.
        runs: number of timed runs; the result is their median.
        ranks_a_core: of ranks that share cores, above 0: seconds are this rank's processor seconds times it. A run is
            shorter than a turn of the scheduler, so that a clock would not see the others.
    """
    require_counts(1, runs=runs, **{f"num_elements[{index}]": size for index, size in enumerate(num_elements)})
    generator = torch.Generator(device).manual_seed(0)
    profile = []
    for size in num_elements:
        codec = make().to(device)
        x = torch.randn(size, generator=generator, device=device)
        payload = codec.encode(x)
        total = torch.zeros_like(x)

        def decode(codec=codec, payload=payload, total=total) -> None:
            total.add_(codec.decode(payload))

        clock, factor = (time.process_time, ranks_a_core) if ranks_a_core else (time.perf_counter, 1.0)
        encode_s = factor * _median_s(partial(codec.encode, x), device, runs, clock)
        decode_s = factor * _median_s(decode, device, runs, clock)
        profile.append(
            CodecTime(num_elements=size, payload_bytes=payload.num_bytes, encode_s=encode_s, decode_s=decode_s)
        )
    return profile


def times_of(name: str, profiles: Mapping[Processor, Sequence[CodecTime]]) -> CodecTimes:
    """Summarise profiles by processor for a planner; bytes per element are those of the largest profiled tensor."""

    def seconds(field: str) -> dict[Processor, Callable]:
        return {
            processor: interpolated([row.num_elements for row in rows], [getattr(row, field) for row in rows])
            for processor, rows in profiles.items()
        }

    largest = max(profiles[Processor.GPU], key=lambda row: row.num_elements)
    sent_bytes = largest.payload_bytes / largest.num_elements
    return CodecTimes(name=name, encode_s=seconds("encode_s"), decode_s=seconds("decode_s"), sent_bytes=sent_bytes)


def profiled_times(
    codec: str, largest: int, device: str = "cpu", *, runs: int = 5, ranks_a_core: float = 0.0
) -> CodecTimes:
    """Profile a gradient codec on a device and on this machine's CPU, for tensors of up to `largest` elements.

    `ranks_a_core`: as for `profile_codec`.
    """
    sizes = [SMALLEST]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * FACTOR))
    make = partial(gradient_codec, codec)
    make()  # refuses an unknown codec before any measurement
    profiles = {
        name: profile_codec(make, sizes, device=name, runs=runs, ranks_a_core=ranks_a_core if name == "cpu" else 0.0)
        for name in {device, "cpu"}
    }
    return times_of(codec, {Processor.GPU: profiles[device], Processor.CPU: profiles["cpu"]})


def _median_s(run: Callable[[], object], device: str, runs: int, clock: Callable[[], float]) -> float:
    def finish() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    def timed_s(count: int) -> float:
        finish()
        began_s = clock()
        for _ in range(count):
            run()
        finish()
        return (clock() - began_s) / count

    for _ in range(WARMUP):
        once_s = timed_s(1)
    count = max(1, round(LEAST_S / max(once_s, 1e-7)))
    return median(timed_s(count) for _ in range(runs))
