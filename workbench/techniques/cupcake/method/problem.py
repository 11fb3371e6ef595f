"""The fusion problem (section 5.3.1) and equation 5.1, the time of an iteration with a given fusion.

A fusion is a tuple of group ends: (2, 5) fuses tensors 0 and 1 into the first group and 2, 3, 4 into the second.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, isfinite

import numpy as np

from workbench.checks import require_counts, require_not_negative

__all__ = ["FREE", "ROUNDED_UP", "FlatThenLinear", "FusionProblem", "Linear", "Span", "check_fusion", "fits"]
__all__ += ["iteration_time", "timeline"]

Fusion = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Linear:
    """Seconds of one operation on a group of tensors, the paper's model: α + β·x."""

    startup_s: float  # α
    s_per_byte: float  # β, of the tensors before they are encoded

    def __post_init__(self) -> None:
        require_not_negative(**{field: getattr(self, field) for field in self.__slots__})

    def __call__(self, size_bytes: float) -> float:
        return self.startup_s + self.s_per_byte * size_bytes

    @property
    def numbers(self) -> tuple[float, float, float]:
        """The same as `FlatThenLinear`: seconds of the smallest, bytes up to which they are flat, seconds of a byte."""
        return float(self.startup_s), 0.0, float(self.s_per_byte)


@dataclass(frozen=True, slots=True)
class FlatThenLinear:
    """Seconds of one operation as figures 5.2b and 5.2c show them: constant up to a size, then linear."""

    flat_s: float
    flat_bytes: float  # up to which the time is `flat_s`
    s_per_byte: float  # of each byte above

    def __post_init__(self) -> None:
        require_not_negative(**{field: getattr(self, field) for field in self.__slots__})

    def __call__(self, size_bytes: float) -> float:
        return self.flat_s + self.s_per_byte * np.maximum(0.0, size_bytes - self.flat_bytes)

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Seconds of the smallest, bytes up to which they are flat, seconds of a byte above."""
        return float(self.flat_s), float(self.flat_bytes), float(self.s_per_byte)


Cost = Linear | FlatThenLinear
FREE = Linear(0.0, 0.0)
ROUNDED_UP = 1 + 1e-9  # sums of the same sizes in another order differ by less


@dataclass(frozen=True, slots=True)
class FusionProblem:
    """What one training iteration consists of; tensors stand in the order in which their gradients become ready.

    ValueError, naming the value, if a time or size is negative or not finite, if the sequences have unequal lengths or
    none, or if a tensor is larger than a group may be.
    """

    backward_s: Sequence[float]  # B: seconds of the backward pass for each of the N tensors
    size_bytes: Sequence[float]  # of each gradient, before it is encoded
    forward_s: float  # A: from the start of the iteration to the start of the backward pass
    compress: Cost  # h: encoding a group
    communicate: Cost  # g: sending a group
    decode: Cost = FREE  # of a group, all ranks' parts; done when everything is encoded
    onward: Cost = FREE  # sending a group on over a second link, after the first
    on_cpu: bool = False  # whether a CPU encodes, beside the backward pass
    largest_bytes: float = inf  # of a group: what a buffer holds
    send_plain: Cost | None = None  # sending a group that is not encoded; None: as `communicate`

    def __post_init__(self) -> None:
        for field in ("backward_s", "size_bytes"):
            if not isinstance(getattr(self, field), Iterable):
                raise ValueError(f"{field} is {getattr(self, field)!r}; it must be a sequence of numbers")
            object.__setattr__(self, field, tuple(getattr(self, field)))
            require_not_negative(**{f"{field}[{i}]": value for i, value in enumerate(getattr(self, field))})
        lengths = len(self.backward_s), len(self.size_bytes)
        if min(lengths) < 1 or len(set(lengths)) > 1:
            raise ValueError(f"backward_s and size_bytes have lengths {lengths}; they must be equal and at least 1")
        require_not_negative(forward_s=self.forward_s)
        if self.send_plain is None:
            object.__setattr__(self, "send_plain", self.communicate)
        for field in ("compress", "communicate", "decode", "onward", "send_plain"):
            if not isinstance(getattr(self, field), Cost):
                raise ValueError(f"{field} is {getattr(self, field)!r}; it must be Linear or FlatThenLinear")
        if not self.largest_bytes >= max(self.size_bytes):
            index = max(range(len(self.size_bytes)), key=self.size_bytes.__getitem__)
            rule = f"it must hold size_bytes[{index}] = {self.size_bytes[index]}"
            raise ValueError(f"largest_bytes is {self.largest_bytes}; {rule}")
        self._require_finite_sums()

    def _require_finite_sums(self) -> None:
        """Refuse times and sizes whose sums overflow: every iteration, and every bound of it, is a finite number."""
        total = sum(map(float, self.size_bytes))
        sums = {"size_bytes": total, "backward_s": float(self.forward_s) + sum(map(float, self.backward_s))}
        for field in ("compress", "communicate", "decode", "onward", "send_plain"):
            flat_s, flat_bytes, s_per_byte = getattr(self, field).numbers
            sums[field] = self.num_tensors * (flat_s + s_per_byte * max(0.0, total - flat_bytes))
        for field, value in (sums | {"the sum of all times": sum(sums.values())}).items():
            if not isfinite(value):
                raise ValueError(f"{field} overflows: over {self.num_tensors} tensors it is {value}; it must be finite")

    @property
    def num_tensors(self) -> int:
        """N."""
        return len(self.backward_s)

    @property
    def ready_s(self) -> np.ndarray:
        """Seconds from the iteration's start in which the device has computed the first 0 to N gradients [N + 1]."""
        return self.forward_s + np.concatenate([[0.0], np.cumsum(self.backward_s)])

    @property
    def until_bytes(self) -> np.ndarray:
        """Bytes of the first 0 to N gradients [N + 1]."""
        return np.concatenate([[0.0], np.cumsum(self.size_bytes)])


def check_fusion(problem: FusionProblem, fusion: Sequence[int]) -> None:
    """Raise ValueError if a fusion is not of whole numbers that rise to the last tensor, or a group is too large."""
    if not isinstance(fusion, Sequence | np.ndarray):
        raise ValueError(f"fusion is {fusion!r}; it must be a sequence of group ends")
    ends = tuple(fusion)
    require_counts(1, **{f"fusion[{group}]": end for group, end in enumerate(ends)})
    if not ends or ends[-1] != problem.num_tensors:
        raise ValueError(f"fusion is {ends}; it must end at {problem.num_tensors}, after the last tensor")
    if any(later <= earlier for earlier, later in pairwise((0, *ends))):
        raise ValueError(f"fusion is {ends}; ends must rise from 1")
    if too_large := [pair for pair in pairwise((0, *ends)) if not fits(problem, *pair)]:
        start, end = too_large[0]
        size = sum(problem.size_bytes[start:end])
        raise ValueError(f"fusion is {ends}; tensors {start} to {end - 1} have {size:g} of {problem.largest_bytes:g} B")


def fits(problem: FusionProblem, start: int, end: int) -> bool:
    """Say whether tensors from `start` to before `end` may be one group."""
    return sum(problem.size_bytes[start:end]) <= problem.largest_bytes * ROUNDED_UP


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """When something is done for a group."""

    resource: str  # "device", "CPU", "link" or "second link"
    what: str  # "forward", "backward", "encode", "send", "send on" or "decode"
    group: int  # -1: the forward pass
    start_s: float
    end_s: float


def timeline(problem: FusionProblem, fusion: Sequence[int], compressed: Sequence[bool] | None = None) -> list[Span]:
    """Place the operations of every group, as the paper's figures draw them.

    The device computes a group's gradients, then encodes it, then goes on. A link sends one group after the other, each
    when it is encoded. What encodes also decodes, after the last group is encoded: to wait delays no other group.

    Args:
        problem: of N tensors.
        fusion: group ends.
        compressed: whether each group is; the others are sent as they are. None: all.
    """
    check_fusion(problem, fusion)
    flags = [True] * len(fusion) if compressed is None else list(compressed)
    if len(flags) != len(fusion):
        raise ValueError(f"compressed has {len(flags)} values; it must have one for each of {len(fusion)} groups")
    coder = "CPU" if problem.on_cpu else "device"
    spans = [Span(resource="device", what="forward", group=-1, start_s=0.0, end_s=problem.forward_s)]
    free_s = {"device": problem.forward_s, "CPU": 0.0, "link": 0.0, "second link": 0.0}

    def place(resource: str, what: str, group: int, earliest_s: float, seconds: float) -> float:
        start_s = max(free_s[resource], earliest_s)
        free_s[resource] = start_s + seconds
        spans.append(Span(resource=resource, what=what, group=group, start_s=start_s, end_s=free_s[resource]))
        return free_s[resource]

    arrived, sizes = [], []
    for group, (start, end) in enumerate(pairwise((0, *fusion))):
        sizes.append(sum(problem.size_bytes[start:end]))
        ready_s = place("device", "backward", group, 0.0, sum(problem.backward_s[start:end]))
        if flags[group]:
            ready_s = place(coder, "encode", group, ready_s, float(problem.compress(sizes[group])))
        send = problem.communicate if flags[group] or problem.send_plain is None else problem.send_plain
        sent_s = place("link", "send", group, ready_s, float(send(sizes[group])))
        if problem.onward != FREE:
            sent_s = place("second link", "send on", group, sent_s, float(problem.onward(sizes[group])))
        arrived.append(sent_s)
    for group, flag in enumerate(flags):
        if flag and problem.decode != FREE:
            place(coder, "decode", group, arrived[group], float(problem.decode(sizes[group])))
    return spans


def iteration_time(problem: FusionProblem, fusion: Sequence[int], compressed: Sequence[bool] | None = None) -> float:
    """Return the seconds of an iteration, equation 5.1: until the last operation of `timeline` ends."""
    return max(span.end_s for span in timeline(problem, fusion, compressed))
