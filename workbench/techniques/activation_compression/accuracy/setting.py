"""What one training under compression is: the method, the layers, the recipe, and the text.

Source: "Does compressing activations help model parallel training?", section 4.1 and tables 5, 8, 15, 16.
Simplified: nothing. Left out: nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from workbench.compression import Codec, ErrorFeedback
from workbench.datasets import glue
from workbench.models.pretrained import DEFAULT_ENCODER
from workbench.parallel import Stage
from workbench.training.loop import Recipe

from ..method import Family, method

__all__ = ["Compressed", "FineTuning", "PreTraining"]

PAPER_DTYPE = torch.float16  # its size decides how many elements T1, T2, R1 and R2 keep, whatever the precision here


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressed:
    """A training of a pretrained encoder whose messages are encoded.

    Attributes:
        method: a row of table 1, such as "A1".
        recipe: how it is trained; its seed is also that of head, codecs and drawn examples.
        layers: how many of the last layers are compressed, or their indices; None is the last half.
        max_tokens: longer sequences are cut to as many tokens.
        error_feedback: each call site adds what its last message lost to the next.
        encoder: a pretrained encoder's name, or "stand-in".
        tp: tensor-parallel ranks.
        pp: pipeline stages.
    """

    method: str
    recipe: Recipe
    layers: int | Sequence[int] | None = None
    max_tokens: int = 128
    error_feedback: bool = False
    encoder: str = DEFAULT_ENCODER
    tp: int = 2
    pp: int = 2

    def __post_init__(self) -> None:
        method(self.method)
        for name in ("max_tokens", "tp", "pp"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, must be at least 1")

    @property
    def is_compressed(self) -> bool:
        """Whether anything is encoded."""
        return method(self.method).family is not Family.NONE

    def compressed_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return the indices of the compressed layers of a model, ascending.

        Raises:
            ValueError: for layers that a model of `num_layers` does not have, that come twice or that are none.
        """
        if self.layers is None or isinstance(self.layers, int):
            count = -(-num_layers // 2) if self.layers is None else self.layers
            if not 1 <= count <= num_layers:
                raise ValueError(f"layers is {self.layers}, must be 1 to {num_layers}; method 'w/o' compresses none")
            return tuple(range(num_layers - count, num_layers))
        chosen = tuple(sorted(self.layers))
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(num_layers)):
            rule = f"must be different indices in 0..{num_layers - 1}, at least one"
            raise ValueError(f"layers is {list(self.layers)}, {rule}")
        return chosen

    def compressed_boundaries(self, num_layers: int) -> tuple[int, ...]:
        """Return the stages whose first layer is compressed, and with it the message that they receive."""
        stages = [Stage(index=index, num_stages=self.pp) for index in range(1, self.pp)]
        chosen = self.compressed_layers(num_layers)
        return tuple(stage.index for stage in stages if stage.layers(num_layers).start in chosen)

    def codec(self, hidden: int) -> Codec:
        """Build the codec that each call site copies.

        Args:
            hidden: h, elements.
        """
        row = method(self.method)
        dtype = torch.float32 if row.family is Family.AUTOENCODER else PAPER_DTYPE  # learned weights stay in fp32
        codec = row.codec(hidden, dtype=dtype, seed=self.recipe.seed)
        return ErrorFeedback(codec) if self.error_feedback else codec


@dataclass(frozen=True, kw_only=True, slots=True)
class FineTuning(Compressed):
    """One cell of tables 5, 15 and 16.

    Attributes:
        task: a GLUE task.
        fixed_length: pad every batch to the longest sequence there is, instead of to its own longest.
        limit: training examples drawn with the seed; None takes all.
    """

    task: str
    fixed_length: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        Compressed.__post_init__(self)  # slots make a new class, which super() misses
        if self.task not in glue.TASKS:
            raise ValueError(f"task is {self.task!r}, must be one of {', '.join(glue.TASKS)}")
        if self.limit is not None and self.limit < self.recipe.batch:
            raise ValueError(f"limit is {self.limit}, must be at least the batch, {self.recipe.batch}")
        if self.error_feedback and not (self.fixed_length and self.recipe.drop_last):
            raise ValueError(
                "error_feedback is True: needs fixed_length, since an error is added to messages of its shape"
            )

    @property
    def glue_task(self) -> glue.Task:
        """The task with its measures."""
        return glue.TASKS[self.task]


@dataclass(frozen=True, kw_only=True, slots=True)
class PreTraining(Compressed):
    """One masked language model of table 8.

    Attributes:
        num_blocks: pieces of running text, of max_tokens each, that are learned from.
    """

    num_blocks: int

    def __post_init__(self) -> None:
        Compressed.__post_init__(self)
        if self.num_blocks < self.recipe.batch:
            raise ValueError(f"num_blocks is {self.num_blocks}, must be at least the batch, {self.recipe.batch}")
