"""Elements that 2-D and 2.5-D tensor parallelism send, ATP's rivals: the count for one block on q x q x depth ranks."""

from dataclasses import dataclass, replace

__all__ = ["BlockElements", "PassElements", "forward_backward_elements", "share"]


INPUT_HIDDENS = 7  # inputs of a block's four linears, in H: 1 + 1 + 1 + 4
WEIGHT_SQUARES = 12  # their weights, in H^2: 3 + 1 + 4 + 4
VECTOR_HIDDENS = 13  # their biases, 3 + 1 + 4 + 1, and weight and bias of two norms, in H
NUM_STATISTICS = 4  # mean and variance of two norms, each a number a token


@dataclass(frozen=True, kw_only=True, slots=True)
class PassElements:
    """Elements of all messages in which one rank takes part, as source, target or neither, in one pass."""

    row_broadcast: int = 0  # blocks of activations, inside mesh rows
    column_broadcast: int = 0  # blocks of weights, inside mesh columns
    row_reduce: int = 0  # partial gradients of activations
    column_reduce: int = 0  # partial gradients of weights
    row_all_reduce: int = 0  # statistics of norms, and their gradients
    column_all_reduce: int = 0  # gradients of biases and norms
    depth_all_reduce: int = 0  # gradients of all parameters, between mesh layers


@dataclass(frozen=True, kw_only=True, slots=True)
class BlockElements:
    """Elements of the messages of one block in which one rank takes part."""

    forward: PassElements  # in the forward pass
    backward: PassElements  # in the backward pass, nothing computed again


def forward_backward_elements(batch: int, sequence: int, hidden: int, q: int, depth: int = 1) -> BlockElements:
    """Count the elements of the messages of one `SummaBlock` in which a rank takes part.

    The batch, of this many samples on all ranks together, is divisible by q * depth, and hidden by q. The q ranks of a
    group together send q - 1 times the elements of a broadcast or reduce, which gloo makes (q - 1)(1 + 1/q) for a
    reduce (a ring, then the parts to the target), and 2 (q - 1) times those of an all-reduce.
    """
    share("hidden", hidden, "q", q)
    tokens = share("batch", batch, "q * depth", q * depth) * sequence
    is_cut, is_deep = int(q > 1), int(depth > 1)
    # A product has q steps, and each step moves one of q x q blocks: a matrix moves 1/q of its elements a rank.
    activations, weights = is_cut * INPUT_HIDDENS * tokens * hidden, WEIGHT_SQUARES * hidden**2 // q
    vectors, statistics = VECTOR_HIDDENS * hidden // q, is_cut * NUM_STATISTICS * tokens
    forward = PassElements(row_broadcast=activations, column_broadcast=is_cut * weights, row_all_reduce=statistics)
    backward = replace(
        forward,
        row_reduce=activations,
        column_reduce=is_cut * weights,
        column_all_reduce=is_cut * vectors,
        depth_all_reduce=is_deep * (weights // q + vectors),
    )
    return BlockElements(forward=forward, backward=backward)


def share(name: str, total: int, parts: str, num_parts: int) -> int:
    """Return one part of a size; refuse, by its name, a size that the parts do not divide."""
    if num_parts < 1 or total < 1 or total % num_parts:
        raise ValueError(f"{name}: {total} is not divisible by {parts}, {num_parts}")
    return total // num_parts
