"""Messages between ranks, large and small: what arrives, and that receives begin before sends."""

import pytest
import torch
import torch.distributed as dist

from workbench.parallel import messages
from workbench.parallel.messages import LARGE_BYTES, all_to_all, begin_messages

NUM = 3


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(NUM)


def sent_by(rank, lengths):
    """Numbers that say from whom they come and to whom they go."""
    return [torch.full((length,), 10 * rank + to, dtype=torch.uint8) for to, length in enumerate(lengths[rank])]


def swap(lengths):
    rank = dist.get_rank()
    arrived = [torch.zeros(lengths[of][rank], dtype=torch.uint8) for of in range(NUM)]
    begun, begin = [], messages.dist.batch_isend_irecv
    messages.dist.batch_isend_irecv = lambda ops: begun.extend(op.op.__name__ for op in ops) or begin(ops)
    try:
        all_to_all(arrived, sent_by(rank, lengths), group=None)
    finally:
        messages.dist.batch_isend_irecv = begin
    return [tensor.unique().tolist() for tensor in arrived], begun


def test_large_and_small_and_empty_messages_arrive_and_receives_of_large_ones_begin_first(ranks):
    large, small = LARGE_BYTES, LARGE_BYTES - 1
    # from rank 0: none to 0, a large one to 1, a small one to 2; and so on
    results = ranks.run(swap, [[0, large, small], [large + 5, large, 1], [7, 0, small]])
    assert results[0] == ([[], [10], [20]], ["irecv", "isend"])
    assert results[1] == ([[1], [11], []], ["irecv", "isend"])
    assert results[2] == ([[2], [12], [22]], [])


def one_way():
    rank = dist.get_rank()
    arriving = {1: torch.zeros(4)} if rank == 0 else {}
    sending = {0: torch.arange(4.0)} if rank == 1 else {}
    for work in begin_messages(arriving, sending, group=None):
        work.wait()
    return [tensor.tolist() for tensor in arriving.values()]


def test_a_rank_may_send_only_receive_only_or_do_neither(ranks):
    assert ranks.run(one_way) == [[[0.0, 1.0, 2.0, 3.0]], [], []]
