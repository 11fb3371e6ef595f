"""What a cut transformer layer holds, sends and multiplies, listed without building it.

What: for planners, simulators and byte counts: every weight of a layer with the
dimension that is cut, every message of a layer and micro-batch with its call site, pass
and shape, and every matrix product of a linear with its sizes on one rank, under the
names that the layers and their ledger use. The same for post-norm and pre-norm layers.
Source: the cut of `workbench.parallel.transformer` (Megatron-LM, section 3).
Simplified: messages without codecs; embeddings, pooler and heads send none.
Left out: messages between pipeline stages, the exchange of tied gradients, and the
products inside attention, which have no weights.
"""

import math
from dataclasses import dataclass

import torch

from workbench.parallel.shards import check_divides
from workbench.parallel.traffic import MessageKind, Phase
from workbench.parallel.transformer import TransformerConfig

__all__ = ["MessageEntry", "ProductEntry", "WeightEntry", "layer_messages", "layer_products", "layer_weights"]

PRODUCTS_PER_LINEAR = 3
"""Output, input gradient and weight gradient: equal in operations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WeightEntry:
    """One parameter of a layer."""

    name: str
    """Name below the layer, without the shard's number."""
    shape: tuple[int, ...]
    """Full shape."""
    cut_dim: int | None
    """Dimension that tensor-parallel ranks share; None if every rank holds it whole."""
    num_tensor_ranks: int
    """Ranks that share it."""

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Shape of one rank's shard."""
        return tuple(
            size // self.num_tensor_ranks if dim == self.cut_dim else size for dim, size in enumerate(self.shape)
        )

    @property
    def local_elements(self) -> int:
        """Elements of one rank's shard."""
        return math.prod(self.local_shape)


@dataclass(frozen=True, kw_only=True, slots=True)
class MessageEntry:
    """One message of one micro-batch."""

    site: str
    """Call site, as in the ledger."""
    what: MessageKind
    """Kind of message."""
    phase: Phase
    """Pass in which it travels."""
    shape: tuple[int, ...]
    """Shape of what one rank contributes."""
    message_bytes: int
    """Bytes of what one rank contributes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ProductEntry:
    """The matrix products of one linear on one rank: y [N, O] = x [N, K] Wᵀ [K, O], and its two gradients."""

    site: str
    """Call site of the linear."""
    num_rows: int
    """N: positions of the micro-batch."""
    num_inputs: int
    """K: the contracted dimension of this rank's shard."""
    num_outputs: int
    """O: outputs of this rank's shard."""

    @property
    def flops(self) -> int:
        """Floating-point operations of one of the three products: a multiplication and an addition each."""
        return 2 * self.num_rows * self.num_inputs * self.num_outputs

    @property
    def iteration_flops(self) -> int:
        """Operations of all three products, forward and backward."""
        return PRODUCTS_PER_LINEAR * self.flops


def layer_weights(config: TransformerConfig, num_tensor_ranks: int = 1) -> tuple[WeightEntry, ...]:
    """List the parameters of one transformer layer.

    Args:
        config: Sizes.
        num_tensor_ranks: Ranks that share the layer.

    Returns:
        Entries in the order of the layer's computation.

    Raises:
        ValueError: If the ranks do not divide the heads or the inner units.
    """
    check_divides("num_heads", config.num_heads, num_tensor_ranks)
    check_divides("mlp_size", config.mlp_size, num_tensor_ranks)
    hidden, inner = config.hidden_size, config.mlp_size
    table = (
        ("attention.query_key_value.weights", (3 * hidden, hidden), 0),
        ("attention.query_key_value.biases", (3 * hidden,), 0),
        ("attention.output.weights", (hidden, hidden), 1),
        ("attention.output.bias", (hidden,), None),
        ("attention_norm.weight", (hidden,), None),
        ("attention_norm.bias", (hidden,), None),
        ("mlp.input.weights", (inner, hidden), 0),
        ("mlp.input.biases", (inner,), 0),
        ("mlp.output.weights", (hidden, inner), 1),
        ("mlp.output.bias", (hidden,), None),
        ("mlp_norm.weight", (hidden,), None),
        ("mlp_norm.bias", (hidden,), None),
    )
    return tuple(
        WeightEntry(name=name, shape=shape, cut_dim=dim, num_tensor_ranks=num_tensor_ranks)
        for name, shape, dim in table
    )


def layer_messages(
    config: TransformerConfig,
    layer: int,
    *,
    batch: int,
    sequence: int,
    num_tensor_ranks: int,
    dtype: torch.dtype = torch.float32,
) -> tuple[MessageEntry, ...]:
    """List the tensor-parallel messages of one layer for one micro-batch.

    Args:
        config: Sizes.
        layer: Which layer, for the call sites.
        batch: B of the micro-batch.
        sequence: S.
        num_tensor_ranks: Ranks that share the layer; one rank alone sends nothing.
        dtype: Of activations.

    Returns:
        Two sums forward, two sums of input gradients backward, in the order sent.
    """
    if num_tensor_ranks == 1:
        return ()
    table = (
        ("attention.output", MessageKind.SUM, Phase.FORWARD),
        ("mlp.output", MessageKind.SUM, Phase.FORWARD),
        ("mlp.input", MessageKind.COPY_BACKWARD, Phase.BACKWARD),
        ("attention.query_key_value", MessageKind.COPY_BACKWARD, Phase.BACKWARD),
    )
    shape = (batch, sequence, config.hidden_size)
    return tuple(_entry(f"layers.{layer}.{site}", what, phase, shape, dtype) for site, what, phase in table)


def layer_products(
    config: TransformerConfig, layer: int, *, batch: int, sequence: int, num_tensor_ranks: int
) -> tuple[ProductEntry, ...]:
    """List the matrix products of one layer's linears on one rank for one micro-batch.

    Args:
        config: Sizes.
        layer: Which layer, for the call sites.
        batch: B of the micro-batch.
        sequence: S.
        num_tensor_ranks: Ranks that share the layer.

    Returns:
        One entry a linear, in the order of the layer's computation.

    Raises:
        ValueError: If the ranks do not divide the heads or the inner units.
    """
    check_divides("num_heads", config.num_heads, num_tensor_ranks)
    inner = check_divides("mlp_size", config.mlp_size, num_tensor_ranks)
    hidden, shard = config.hidden_size, config.hidden_size // num_tensor_ranks
    table = (
        ("attention.query_key_value", hidden, 3 * shard),
        ("attention.output", shard, hidden),
        ("mlp.input", hidden, inner),
        ("mlp.output", inner, hidden),
    )
    return tuple(
        ProductEntry(site=f"layers.{layer}.{site}", num_rows=batch * sequence, num_inputs=inputs, num_outputs=outputs)
        for site, inputs, outputs in table
    )


def _entry(site: str, what: MessageKind, phase: Phase, shape: tuple[int, ...], dtype: torch.dtype) -> MessageEntry:
    num_bytes = math.prod(shape) * dtype.itemsize
    return MessageEntry(site=site, what=what, phase=phase, shape=shape, message_bytes=num_bytes)
