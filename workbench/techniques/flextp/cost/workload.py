"""What one iteration of a Vision Transformer asks of every tensor-parallel rank: linear layers, FLOPs, bytes.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", sections II and V-A (24 layers,
hidden 2048 with batch 64, CIFAR-10). Inferred as `workbench.models.vit_config` does, and for its reasons: hidden 3072
with batch 32 for ViT-3B, 65 tokens an image, heads of 64, fp16.
Simplified: a cut that does not divide is taken as it is, in fractions of a column.
Left out: embedding, head, loss, biases; reading images.

Units: elements, FLOPs (a multiplication and an addition are two), bytes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

__all__ = ["ELEMENT_BYTES", "VIT_1B", "VIT_3B", "Cut", "ShardedLinear", "Workload"]

ELEMENT_BYTES = 2  # fp16: the 112 TFLOPS that the paper names are those of the tensor cores
NUM_PRODUCTS = 3  # of a linear layer: output, grad_weight, grad_input
LAYER_NORM_BYTES = 4  # of an element: reads 2, writes 2
RESIDUAL_BYTES = 11  # dropout reads 2, writes 2 and a mask of 1; the sum reads 2 + 2, writes 2
ACTIVATION_BYTES = 4  # GELU reads 2, writes 2
SCORE_BYTES = 9  # softmax reads 2, writes 2; dropout reads 2, writes 2 and a mask of 1
PASSES = 3  # element-wise work of forward and backward, in units of forward: backward has a second tensor to read
OPTIMIZER_BYTES_PER_PARAMETER = 28  # Adam on fp32 states: reads 16 (weight, gradient, two moments), writes 12


class Cut(Enum):
    """Along which side a weight [O, K] is cut over the ranks."""

    COLUMN = "column-parallel: O is cut, the input is everywhere, grad_input is all-reduced"
    ROW = "row-parallel: K is cut, the gradient of the output is everywhere, the output is all-reduced"


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardedLinear:
    """One rank's part of a linear layer, y [N, O] = x [N, K] W [O, K] transposed.

    Attributes:
        cut: which side is cut.
        num_rows: N, tokens of the batch.
        num_columns: K of the shard.
        num_outputs: O of the shard.
    """

    cut: Cut
    num_rows: float
    num_columns: float
    num_outputs: float

    @property
    def input_bytes(self) -> float:
        """x, and grad_input."""
        return self.num_rows * self.num_columns * ELEMENT_BYTES

    @property
    def weight_bytes(self) -> float:
        """W, and grad_weight."""
        return self.num_outputs * self.num_columns * ELEMENT_BYTES

    @property
    def output_bytes(self) -> float:
        """y, and grad_output."""
        return self.num_rows * self.num_outputs * ELEMENT_BYTES

    @property
    def flops(self) -> float:
        """All three products."""
        return NUM_PRODUCTS * 2 * self.num_rows * self.num_columns * self.num_outputs


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """A Vision Transformer and its batch.

    Attributes:
        name: as the paper calls it.
        hidden: h.
        batch: images of an iteration.
        num_layers: transformer layers.
        sequence: tokens of an image.
        head_size: elements of an attention head.
        num_images: of an epoch; CIFAR-10 trains on 50,000 of its 60,000.
    """

    name: str
    hidden: int
    batch: int
    num_layers: int = 24
    sequence: int = 65
    head_size: int = 64
    num_images: int = 50_000

    def __post_init__(self) -> None:
        for field in ("hidden", "batch", "num_layers", "sequence", "head_size", "num_images"):
            value = getattr(self, field)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{field} is {value!r}; it must be an integer of at least 1")

    @property
    def num_tokens(self) -> int:
        """Rows of every product."""
        return self.batch * self.sequence

    @property
    def num_iterations(self) -> int:
        """Iterations of an epoch; the last may be smaller and counts as one."""
        return math.ceil(self.num_images / self.batch)

    @property
    def num_parameters(self) -> int:
        """Of the linear layers, which are all but a thousandth of the model."""
        return 12 * self.hidden**2 * self.num_layers

    @property
    def message_bytes(self) -> int:
        """Of one all-reduce: the hidden states of a batch."""
        return self.num_tokens * self.hidden * ELEMENT_BYTES

    def linears(self, num_ranks: int) -> tuple[ShardedLinear, ...]:
        """Return one rank's four linear layers of one transformer layer: two of attention, two of the perceptron."""
        cut_h = self.hidden / num_ranks
        shapes = (
            (Cut.COLUMN, self.hidden, 3 * cut_h),
            (Cut.ROW, cut_h, self.hidden),
            (Cut.COLUMN, self.hidden, 4 * cut_h),
            (Cut.ROW, 4 * cut_h, self.hidden),
        )
        return tuple(
            ShardedLinear(cut=cut, num_rows=self.num_tokens, num_columns=columns, num_outputs=outputs)
            for cut, columns, outputs in shapes
        )

    def product_flops(self, num_ranks: int) -> float:
        """Return one rank's FLOPs in linear layers in an iteration."""
        return self.num_layers * math.fsum(linear.flops for linear in self.linears(num_ranks))

    def attention_flops(self, num_ranks: int) -> float:
        """Return one rank's FLOPs of scores and their products with values in an iteration, 12 b s^2 h / N a layer."""
        return self.num_layers * 12 * self.batch * self.sequence**2 * self.hidden / num_ranks

    def elementwise_bytes(self, num_ranks: int) -> float:
        """Return the bytes that one rank's element-wise operations read and write in an iteration.

        Layer norms, dropouts and residual sums run on whole hidden states on every rank, GELU and softmax on a part.
        """
        whole = 2 * (LAYER_NORM_BYTES + RESIDUAL_BYTES) * self.num_tokens * self.hidden
        gelu = ACTIVATION_BYTES * self.num_tokens * 4 * self.hidden / num_ranks
        num_scores = self.batch * self.sequence**2 * self.hidden / self.head_size / num_ranks
        return self.num_layers * PASSES * (whole + gelu + SCORE_BYTES * num_scores)

    def optimizer_bytes(self, num_ranks: int) -> float:
        """Return the bytes that one rank's optimizer reads and writes in an iteration."""
        return OPTIMIZER_BYTES_PER_PARAMETER * self.num_parameters / num_ranks

    def extraction_bytes(self, num_ranks: int, kept: float) -> float:
        """Return the bytes that taking columns out and putting gradients back moves in an iteration.

        Input and weight are read and written once forward and once backward for the kept columns; each gradient is
        read for the kept columns and written whole.

        Args:
            num_ranks: N.
            kept: share of its columns that the rank still multiplies.
        """
        whole = math.fsum(linear.input_bytes + linear.weight_bytes for linear in self.linears(num_ranks))
        return self.num_layers * whole * (4 * kept + kept + 1)


VIT_1B = Workload(name="ViT-1B", hidden=2048, batch=64)
VIT_3B = Workload(name="ViT-3B", hidden=3072, batch=32)
