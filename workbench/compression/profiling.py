"""What a codec takes on this machine, by the size of a tensor: for planners that choose what to compress."""

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
SMALLEST, FACTOR = 2**8, 4  # elements of the first profiled tensor, and from one to the next
LEAST_S = 2e-3  # a timed run lasts so long, by repetition


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecTime:
    """Medians over runs, for one size."""

    num_elements: int  # of the tensor, fp32
    encode_s: float
    decode_s: float  # of one message, which is added to a sum
    payload_bytes: int


def profile_codec(
    make: Callable[[], Codec], num_elements: Sequence[int], *, device: str, runs: int = 9
) -> list[CodecTime]:
    """Time encoding and decoding of tensors of normal numbers.

    Args:
        make: returns a new codec, with its error feedback if it has one; each size has its own.
        num_elements: sizes.
        device: "cpu" or a CUDA device.
        runs: timed runs, whose median is taken.
    """
    require_counts(1, runs=runs, **{f"num_elements[{index}]": size for index, size in enumerate(num_elements)})
    draw, found = torch.Generator(device).manual_seed(0), []
    for size in num_elements:
        codec, x = make().to(device), torch.randn(size, generator=draw, device=device)
        payload, total = codec.encode(x), torch.zeros_like(x)

        def decode(codec=codec, payload=payload, total=total) -> None:
            total.add_(codec.decode(payload))

        encode_s = _median_s(lambda codec=codec, x=x: codec.encode(x), device, runs)
        times = {"encode_s": encode_s, "decode_s": _median_s(decode, device, runs)}
        found.append(CodecTime(num_elements=size, payload_bytes=payload.num_bytes, **times))
    return found


def times_of(name: str, profiles: Mapping[Processor, Sequence[CodecTime]]) -> CodecTimes:
    """Return what a planner wants to know of a codec, from its profiles; what it sends is that of its largest size."""

    def seconds(field: str) -> dict[Processor, Callable]:
        return {
            processor: interpolated([one.num_elements for one in found], [getattr(one, field) for one in found])
            for processor, found in profiles.items()
        }

    largest = max(profiles[Processor.GPU], key=lambda one: one.num_elements)
    sent_bytes = largest.payload_bytes / largest.num_elements
    return CodecTimes(name=name, encode_s=seconds("encode_s"), decode_s=seconds("decode_s"), sent_bytes=sent_bytes)


def profiled_times(codec: str, largest: int, device: str = "cpu", *, runs: int = 5) -> CodecTimes:
    """Measure what a codec of gradients takes on a device and on this machine's CPU, up to `largest` elements."""
    sizes = [SMALLEST]
    while sizes[-1] < largest:
        sizes.append(min(largest, sizes[-1] * FACTOR))
    make = partial(gradient_codec, codec)
    make()
    profiles = {name: profile_codec(make, sizes, device=name, runs=runs) for name in {device, "cpu"}}
    return times_of(codec, {Processor.GPU: profiles[device], Processor.CPU: profiles["cpu"]})


def _median_s(run: Callable[[], object], device: str, runs: int) -> float:
    def finish() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    def timed_s(count: int) -> float:
        finish()
        began_s = time.perf_counter()
        for _ in range(count):
            run()
        finish()
        return (time.perf_counter() - began_s) / count

    for _ in range(WARMUP):
        once_s = timed_s(1)
    count = max(1, round(LEAST_S / max(once_s, 1e-7)))
    return median(timed_s(count) for _ in range(runs))
