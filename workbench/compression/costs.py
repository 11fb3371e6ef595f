"""Times and sent bytes of a codec on the processors of a machine, for planners that choose what to compress."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from workbench.checks import require_positive

__all__ = ["CodecTimes", "Processor", "interpolated"]

Seconds = Callable[[np.ndarray], np.ndarray]  # numbers of elements -> seconds


class Processor(StrEnum):
    """Where a tensor is compressed or decompressed."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, kw_only=True, slots=True)
class CodecTimes:
    """Encoding and decoding times of a codec by processor, and the bytes that it sends."""

    name: str
    encode_s: Mapping[Processor, Seconds]
    decode_s: Mapping[Processor, Seconds]  # time to decode one message and add it to a sum
    sent_bytes: float  # bytes sent for one element, 4 without compression
    decodes_at_once: bool = False  # whether `decode_s` is the time of all messages that add up to a tensor

    def __post_init__(self) -> None:
        require_positive(sent_bytes=self.sent_bytes)
        for field in ("encode_s", "decode_s"):
            if missing := set(Processor) - getattr(self, field).keys():
                raise ValueError(f"{field} of {self.name} has no cost on {', '.join(sorted(missing))}")


def interpolated(num_elements: Sequence[int], seconds: Sequence[float]) -> Seconds:
    """Return a function that interpolates measured times: constant below the first, in proportion above the last."""
    xs, ys = np.asarray(num_elements, float), np.asarray(seconds, float)
    return lambda elements: np.interp(elements, xs, ys) * np.maximum(1.0, np.asarray(elements) / xs[-1])
