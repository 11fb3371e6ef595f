"""Who computes which migrated column: virtual renumbering of the receivers.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section IV-B: with one straggler
s among N ranks, rank r becomes r' = (r + N - s) mod N in 1..N-1 and computes the columns (r' - 1)·m/(N - 1) up to
r'·m/(N - 1). Ours for several senders: those ranks that are senders, too, are left out of the count. Where m does not
divide, both ends are rounded down, so that shares differ by one column at most.
Left out: receivers of different speeds; every receiver takes as much.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

__all__ = ["Scheme", "column_ranges", "receivers_of", "virtual_number"]


class Scheme(StrEnum):
    """How migrated columns travel; the names of table I."""

    BROADCAST_REDUCE = "broadcast-reduce"
    SCATTER_GATHER = "scatter-gather"


def virtual_number(rank: int, sender: int, num_ranks: int) -> int:
    """Return a rank's number counted from the sender, which is 0 itself.

    Source: section IV-B.
    """
    return (rank + num_ranks - sender) % num_ranks


def receivers_of(sender: int, senders: Sequence[int], num_ranks: int) -> tuple[int, ...]:
    """List the ranks that compute a sender's columns, in the order of their virtual numbers.

    Args:
        sender: rank whose columns are migrated.
        senders: all ranks that migrate columns.
        num_ranks: N.

    Raises:
        ValueError: if the sender is not among the senders, a rank does not exist, or nobody is left to receive.
    """
    if outside := [rank for rank in (sender, *senders) if not 0 <= rank < num_ranks]:
        raise ValueError(f"senders has rank {outside[0]}, must be in 0..{num_ranks - 1}")
    if sender not in senders:
        raise ValueError(f"sender is {sender}, must be among the senders {tuple(senders)}")
    if len(set(senders)) >= num_ranks:
        raise ValueError(f"senders has {len(set(senders))} of {num_ranks} ranks, must leave one to receive")
    order = sorted(range(num_ranks), key=lambda rank: virtual_number(rank, sender, num_ranks))
    return tuple(rank for rank in order if rank not in senders)


def column_ranges(num_columns: int, num_receivers: int) -> tuple[range, ...]:
    """Divide migrated columns among the receivers, in the order of their virtual numbers.

    Args:
        num_columns: m, 0 or more.
        num_receivers: 1 or more.

    Returns:
        One range of positions among the migrated columns for each receiver; together 0..m-1.

    Raises:
        ValueError: for a negative number of columns, or no receiver.
    """
    if num_columns < 0:
        raise ValueError(f"num_columns is {num_columns}, must be 0 or more")
    if num_receivers < 1:
        raise ValueError(f"num_receivers is {num_receivers}, must be at least 1")
    ends = [number * num_columns // num_receivers for number in range(num_receivers + 1)]
    return tuple(range(first, last) for first, last in zip(ends[:-1], ends[1:], strict=True))
