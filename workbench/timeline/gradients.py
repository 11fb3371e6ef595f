"""The gradients of a training step in the order in which they become ready, with their times."""

from dataclasses import dataclass

from workbench.checks import require_counts, require_not_negative

__all__ = ["FORWARD_SHARE", "Gradients"]

FP32_BYTES = 4
FORWARD_SHARE = 0.5  # assumed forward seconds per backward second: one product a layer against two


@dataclass(frozen=True, kw_only=True, slots=True)
class Gradients:
    """The gradients of one training step, from the output to the input."""

    name: str  # name of the model
    tensors: tuple[str, ...]  # names of the parameters
    num_elements: tuple[int, ...]  # elements of each gradient
    gap_s: tuple[float, ...]  # backward seconds between the previous gradient and this; [0]: before the first one
    forward_s: float  # from the start of the step to the start of the backward pass
    source: str  # origin of the numbers, and assumptions

    def __post_init__(self) -> None:
        lengths = len(self.tensors), len(self.num_elements), len(self.gap_s)
        if min(lengths) < 1 or len(set(lengths)) > 1:
            raise ValueError(f"tensors, num_elements, gap_s have lengths {lengths}; they must be equal and at least 1")
        require_counts(1, **{f"num_elements[{index}]": value for index, value in enumerate(self.num_elements)})
        gaps = {f"gap_s[{index}]": value for index, value in enumerate(self.gap_s)}
        require_not_negative(forward_s=self.forward_s, **gaps)

    @property
    def num_tensors(self) -> int:
        return len(self.tensors)

    @property
    def size_bytes(self) -> tuple[int, ...]:
        """Bytes of each gradient in fp32."""
        return tuple(FP32_BYTES * elements for elements in self.num_elements)

    @property
    def total_bytes(self) -> int:
        return sum(self.size_bytes)

    @property
    def backward_s(self) -> float:
        """Seconds from the start of the backward pass to the last gradient."""
        return sum(self.gap_s)
