"""A model of table 6.2 as training with ZeRO-3 sees it: FLOPs and bytes of a layer, of the head, of the update.

Source: thesis, chapter 6 (Gemini), table 6.2 and section 6.7.1 (micro-batch 8, sequence 512, mixed precision,
activations recomputed); FLOPs of a layer: Narayanan et al. (2021), "Efficient large-scale language model training",
appendix: 24·b·s·h² + 4·b·s²·h forward (they count 4 for twice the matrix products of attention), twice that backward,
and once more for recomputing; bytes: ZeRO-3 gathers half-precision parameters before either pass and scatters
half-precision gradients after the backward one (Rajbhandari et al.).
Simplified: the head shares its matrix with the embedding, is computed once and not recomputed; BERT and RoBERTa differ
from GPT-2 here in their parameters alone.
Left out: norms, dropout, element-wise work, the embedding's own lookup.

Units: bytes, FLOPs of one device.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..method.sizes import BYTES_PER_PARAMETER, TABLE_6_2, ModelSizes, num_parameters

__all__ = ["Workload"]

MICRO_BATCH, SEQUENCE = 8, 512  # section 6.7.1
HALF_BYTES = 2  # a parameter or gradient in half precision
# Adam in mixed precision, of one parameter: reads 12 bytes of states and 2 of gradient, writes 12 and 2 of parameter.
UPDATE_BYTES_PER_PARAMETER = 28


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A model and what a device trains it on in an iteration.

    Attributes:
        name: as the paper has it.
        sizes: of the model.
        batch: sequences of one device.
        sequence: tokens of one sequence.
    """

    name: str
    sizes: ModelSizes
    batch: int = MICRO_BATCH
    sequence: int = SEQUENCE

    def __post_init__(self) -> None:
        for name in ("batch", "sequence"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be at least 1")

    @classmethod
    def named(cls, name: str) -> Workload:
        """Return a model of table 6.2, such as "GPT-2 100B".

        Raises:
            ValueError: if there is no such model.
        """
        if name not in TABLE_6_2:
            raise ValueError(f"model is {name!r}; it must be one of {', '.join(map(repr, TABLE_6_2))}")
        return cls(name=name, sizes=TABLE_6_2[name])

    @property
    def num_parameters(self) -> int:
        """Of the whole model."""
        return num_parameters(self.sizes)

    @property
    def checkpoint_bytes(self) -> int:
        """Of the whole model: 12 a parameter."""
        return BYTES_PER_PARAMETER * self.num_parameters

    @property
    def layer_parameters(self) -> int:
        """Matrices of one layer."""
        hidden, inner = self.sizes.hidden_size, self.sizes.intermediate_size
        return 4 * hidden**2 + 2 * hidden * inner

    @property
    def layer_bytes(self) -> int:
        """Half-precision parameters of one layer, or its gradients."""
        return HALF_BYTES * self.layer_parameters

    @property
    def head_bytes(self) -> int:
        """The same for everything outside of layers' matrices."""
        return HALF_BYTES * (self.num_parameters - self.sizes.num_layers * self.layer_parameters)

    @property
    def layer_forward_flops(self) -> float:
        """Of one layer's forward pass: two a parameter and token, and the attention core."""
        tokens = self.batch * self.sequence
        return 2 * tokens * self.layer_parameters + 4 * tokens * self.sequence * self.sizes.hidden_size

    @property
    def layer_backward_flops(self) -> float:
        """Of one layer's backward pass, which computes the forward pass again."""
        return 3 * self.layer_forward_flops

    @property
    def head_flops(self) -> float:
        """Of the language-model head, forward and backward."""
        return 6 * self.batch * self.sequence * self.sizes.hidden_size * self.sizes.vocab_size

    @property
    def flops(self) -> float:
        """Of an iteration."""
        layer = self.layer_forward_flops + self.layer_backward_flops
        return self.sizes.num_layers * layer + self.head_flops
