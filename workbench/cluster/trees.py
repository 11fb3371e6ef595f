"""Trees: who sends to whom in the tree-shaped collectives.

What: gloo's binomial broadcast tree and NCCL's two complementary binary trees.
Source: gloo, gloo/broadcast.cc; P. Sanders, J. Speck, J. L. Traeff, Parallel Computing 35 (2009); NCCL's release
notes 2.4 for the mirrored and shifted second tree.
Simplified: NCCL's trees join machines and run a chain inside each; here they join ranks.
Left out: rooted reductions.
"""

from __future__ import annotations

__all__ = ["binomial_series", "num_binomial_children", "num_double_tree_edges"]


def num_binomial_children(rank: int, num_ranks: int) -> int:
    """Return how many ranks a rank sends a broadcast of rank 0 to.

    Step i doubles the ranks that have the message: those below 2^i send to the one 2^i above.
    """
    first_step = rank.bit_length()
    last_step = (num_ranks - 1).bit_length()
    return sum(rank + (1 << step) < num_ranks for step in range(first_step, last_step))


def binomial_series(num_ranks: int) -> int:
    """Return when the last rank has a broadcast of rank 0, in units of the time one message takes on a link.

    A rank starts sending to its k children when it has the message, and they, sharing its link, all have it k
    messages later.
    """
    ready = [0] * num_ranks
    for rank in range(num_ranks):
        done = ready[rank] + num_binomial_children(rank, num_ranks)
        for step in range(rank.bit_length(), (num_ranks - 1).bit_length()):
            child = rank + (1 << step)
            if child < num_ranks:
                ready[child] = done
    return max(ready)


def num_double_tree_edges(rank: int, num_ranks: int) -> tuple[int, int]:
    """Return how many neighbours a rank has in the first and in the second tree.

    The second tree is the first one mirrored, or, for an odd number of ranks, shifted by one: the inner nodes of
    one are then leaves of the other.
    """
    twin = num_ranks - 1 - rank if num_ranks % 2 == 0 else (rank - 1) % num_ranks
    return _num_tree_edges(rank, num_ranks), _num_tree_edges(twin, num_ranks)


def _num_tree_edges(node: int, num_nodes: int) -> int:
    children = sum(_tree_parent(other, num_nodes) == node for other in range(1, num_nodes))
    return children + (node != 0)


def _tree_parent(node: int, num_nodes: int) -> int:
    """Return the parent of a node above 0: a node hangs from the next multiple of twice its lowest set bit."""
    bit = node & -node
    parent = (node ^ bit) | (bit << 1)
    return parent if parent < num_nodes else node ^ bit
