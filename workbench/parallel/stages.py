"""Which layers a pipeline stage holds: equal runs; the first stage also embeds, the last has the head."""

from dataclasses import dataclass

__all__ = ["WHOLE", "Stage"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Stage:
    """One stage of a pipeline."""

    index: int
    """Position in the pipeline, from 0."""
    num_stages: int
    """Length of the pipeline."""

    def __post_init__(self):
        if self.num_stages < 1:
            raise ValueError(f"num_stages: {self.num_stages} must be at least 1")
        if not 0 <= self.index < self.num_stages:
            raise ValueError(f"index: {self.index} is not in 0..{self.num_stages - 1}")

    @property
    def is_first(self) -> bool:
        """Whether the stage reads the model's input."""
        return self.index == 0

    @property
    def is_last(self) -> bool:
        """Whether the stage computes the model's output."""
        return self.index == self.num_stages - 1

    def layers(self, num_layers: int) -> range:
        """Give the stage its layers.

        Args:
            num_layers: Layers of the whole model.

        Returns:
            Their indices in the whole model.

        Raises:
            ValueError: If the stages do not divide the layers.
        """
        if num_layers % self.num_stages:
            raise ValueError(f"num_layers: {num_layers} is not divisible by {self.num_stages} pipeline stages")
        share = num_layers // self.num_stages
        return range(self.index * share, (self.index + 1) * share)


WHOLE = Stage(index=0, num_stages=1)
"""A model that is not cut into stages."""
