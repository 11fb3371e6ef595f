"""One workload model for planners, simulators and byte counts: a transformer's sizes and its products.

Layers are cut as `workbench.parallel.transformer` cuts them (Megatron-LM, section 3), and call sites have the names of
its ledger. Nothing here imports torch.
"""

import math
from dataclasses import dataclass
from enum import Enum

__all__ = ["OPTIMIZER_BYTES_PER_PARAMETER", "Cut", "Linear", "Workload"]

OPTIMIZER_BYTES_PER_PARAMETER = 28  # Adam on fp32 states: reads 16 (weight, gradient, two moments), writes 12
LAYER_NORM_BYTES = 4  # bytes for an fp16 element: reads 2, writes 2
RESIDUAL_BYTES = 11  # dropout reads 2, writes 2 and a mask of 1; the sum reads 2 + 2, writes 2
ACTIVATION_BYTES = 4  # GELU reads 2, writes 2
SCORE_BYTES = 9  # softmax reads 2, writes 2; dropout reads 2, writes 2 and a mask of 1
PASSES = 3  # element-wise work of forward and backward, in units of forward: backward has a second tensor to read


class Cut(Enum):
    """Along which side a weight [O, K] is cut over tensor-parallel ranks."""

    COLUMN = "column-parallel: O is cut, the input is everywhere, the input's gradient is all-reduced"
    ROW = "row-parallel: K is cut, the output's gradient is everywhere, the output is all-reduced"


@dataclass(frozen=True, kw_only=True, slots=True)
class Linear:
    """One rank's part of a linear layer: y [N, O] = x [N, K] Wᵀ [K, O], and its two gradients."""

    site: str  # call site, as in the ledger
    cut: Cut  # the side that is cut
    num_rows: int  # N, positions of the micro-batch
    num_inputs: float  # K of the shard
    num_outputs: float  # O of the shard
    element_bytes: int = 2  # bytes of every value

    @property
    def input_bytes(self) -> float:
        """Bytes of x, and of its gradient."""
        return self.num_rows * self.num_inputs * self.element_bytes

    @property
    def weight_bytes(self) -> float:
        """Bytes of W, and of its gradient."""
        return self.num_outputs * self.num_inputs * self.element_bytes

    @property
    def output_bytes(self) -> float:
        """Bytes of y, and of its gradient."""
        return self.num_rows * self.num_outputs * self.element_bytes

    @property
    def flops(self) -> float:
        """Operations of one of the three products: a multiplication and an addition each."""
        return 2 * self.num_rows * self.num_inputs * self.num_outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A transformer and one micro-batch of it."""

    hidden: int  # h, elements
    num_layers: int  # L, transformer layers
    batch: int  # b, sequences of a micro-batch
    sequence: int  # s, tokens of a sequence
    name: str = ""  # as a paper calls it
    inner: int | None = None  # units between the two products of an MLP; None is four times the hidden size
    head_size: int = 64  # elements of an attention head
    vocabulary: int = 0  # words of the language-model head; 0 for no such head
    other_parameters: int = 0  # outside of the layers' matrices: embeddings, norms, biases
    element_bytes: int = 2  # bytes of an element of an activation, a weight or a gradient
    num_samples: int | None = None  # sequences of an epoch, where there is one

    def __post_init__(self) -> None:
        least = dict.fromkeys(("hidden", "num_layers", "batch", "sequence", "head_size", "element_bytes"), 1)
        for field, at_least in (least | {"vocabulary": 0, "other_parameters": 0}).items():
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
                raise ValueError(f"{field} is {value!r}; it must be an integer of at least {at_least}")

    @property
    def inner_units(self) -> int:
        """Units between the two products of an MLP."""
        return 4 * self.hidden if self.inner is None else self.inner

    @property
    def num_tokens(self) -> int:
        """Rows of every product."""
        return self.batch * self.sequence

    @property
    def elements(self) -> int:
        """Elements of one activation, b·s·h."""
        return self.num_tokens * self.hidden

    @property
    def activation_bytes(self) -> int:
        """Bytes of one activation, which is also the message of one all-reduce."""
        return self.elements * self.element_bytes

    @property
    def scores(self) -> int:
        """Attention scores of one layer, b·heads·s²."""
        return self.batch * max(1, self.hidden // self.head_size) * self.sequence**2

    @property
    def logits(self) -> int:
        """Elements that the language-model head computes; 0 without a head."""
        return self.num_tokens * self.vocabulary

    @property
    def num_iterations(self) -> int:
        """Iterations of an epoch; the last may be smaller and counts as one."""
        if self.num_samples is None:
            raise ValueError("num_samples is None; an epoch must have a number of sequences")
        return math.ceil(self.num_samples / self.batch)

    @property
    def layer_parameters(self) -> int:
        """Elements of one layer's matrices: 4h² of attention, 2·h·inner of the MLP."""
        return 4 * self.hidden**2 + 2 * self.hidden * self.inner_units

    @property
    def num_parameters(self) -> int:
        """Parameters of the whole model."""
        return self.num_layers * self.layer_parameters + self.other_parameters

    @property
    def linear_flops(self) -> int:
        """Operations of one layer's linears, forward, over all ranks: two a parameter and token."""
        return 2 * self.num_tokens * self.layer_parameters

    @property
    def attention_flops(self) -> int:
        """Operations of one layer's attention core, forward, over all ranks: 4·b·s²·h."""
        return 4 * self.num_tokens * self.sequence * self.hidden

    @property
    def layer_flops(self) -> int:
        """Operations of one layer's forward pass: 24·b·s·h² + 4·b·s²·h where the MLP is four times as wide.

        Source: Narayanan et al. 2021, appendix; they count forward, backward and forward again.
        """
        return self.linear_flops + self.attention_flops

    @property
    def head_flops(self) -> int:
        """Operations of the language-model head, forward."""
        return 2 * self.hidden * self.logits

    def elementwise_bytes(self, num_ranks: int) -> float:
        """Return the bytes that one rank's element-wise operations read and write in an iteration of fp16.

        Layer norms, dropouts and residual sums run on whole hidden states on every rank, GELU and softmax on a part.
        """
        whole = 2 * (LAYER_NORM_BYTES + RESIDUAL_BYTES) * self.elements
        shared = ACTIVATION_BYTES * self.num_tokens * self.inner_units + SCORE_BYTES * self.scores
        return self.num_layers * PASSES * (whole + shared / num_ranks)

    def optimizer_bytes(self, num_ranks: int) -> float:
        """Return the bytes that one rank's optimizer reads and writes in an iteration."""
        return OPTIMIZER_BYTES_PER_PARAMETER * self.num_parameters / num_ranks

    def linears(self, num_ranks: int = 1, *, layer: int = 0) -> tuple[Linear, ...]:
        """List one rank's linears of one layer; a cut that does not divide is taken in fractions of a column."""
        hidden, inner = self.hidden / num_ranks, self.inner_units / num_ranks
        table = (
            ("attention.query_key_value", Cut.COLUMN, self.hidden, 3 * hidden),
            ("attention.output", Cut.ROW, hidden, self.hidden),
            ("mlp.input", Cut.COLUMN, self.hidden, inner),
            ("mlp.output", Cut.ROW, inner, self.hidden),
        )
        common = {"num_rows": self.num_tokens, "element_bytes": self.element_bytes}
        return tuple(
            Linear(site=f"layers.{layer}.{site}", cut=cut, num_inputs=inputs, num_outputs=outputs, **common)
            for site, cut, inputs, outputs in table
        )
