"""Migrated columns reach their receivers and results come back, by both schemes, on virtual and on real ranks.

Four ranks; rank 1 sends the columns 4, 0, 2, 5, 1. Its receivers are, counted from it, 2, 3 and 0; five columns are
dealt out to them as 1, 2 and 2: column 4 to rank 2, columns 0 and 2 to rank 3, columns 5 and 1 to rank 0.
"""

import pytest
import torch

from workbench.launch import run_on_ranks
from workbench.parallel import ProcessTensorGroup, VirtualTensorGroup
from workbench.parallel.moves import Shape
from workbench.techniques.flextp.runtime.delivery import BroadcastReduce, ScatterGather, Scheme, delivery_of
from workbench.techniques.flextp.runtime.division import Migration

pytestmark = pytest.mark.timeout(60)

PRELOAD = ("workbench.techniques.flextp.runtime.delivery", "pytest")
SENDER, COLUMNS = 1, [4, 0, 2, 5, 1]
FIVE = {2: range(0, 1), 3: range(1, 3), 0: range(3, 5)}
ONE = {2: range(0, 0), 3: range(0, 0), 0: range(0, 1)}  # fewer columns than receivers: the last one gets it
NONE = {2: range(0, 0), 3: range(0, 0), 0: range(0, 0)}
WHOLE = torch.tensor([[10.0, 11.0, 12.0, 13.0, 14.0], [20.0, 21.0, 22.0, 23.0, 24.0]], dtype=torch.float64)


def migration_of(parts):
    num_columns = sum(map(len, parts.values()))
    return Migration(sender=SENDER, columns=torch.tensor(COLUMNS[:num_columns], dtype=torch.int64), parts=parts)


def result(rank, num_columns):
    """[2, w]: what a receiver has computed, here its number and eighths of the column's place."""
    places = torch.arange(num_columns, dtype=torch.float64) / 8
    return (rank + places).expand(2, num_columns)  # not contiguous


def delivered(scheme, parts, group):
    """Start everything that a product has to have delivered, take it in, and give it by local rank."""
    delivery, migration, num_columns = delivery_of(scheme, group), migration_of(parts), sum(map(len, parts.values()))
    held = WHOLE[:, :num_columns] if SENDER in group.local_ranks else None
    shape = Shape.of(WHOLE, (2, num_columns))
    receivers = [rank for rank in group.local_ranks if rank in parts]
    local = {rank: result(rank, len(parts[rank])) for rank in receivers}
    sums = {rank: torch.full((3, 1), 10.0**rank, dtype=torch.float64) for rank in receivers}
    handed = delivery.hand_out_columns(held, migration, shape), delivery.hand_out(held, migration, shape)
    collects = (delivery.add_up(sums, migration, Shape.of(WHOLE, (3, 1))), delivery.bring_back(local, migration, shape))
    found = [{rank: tensor.tolist() for rank, tensor in receive().items()} for receive in handed]
    returned = [collect() for collect in collects]
    ledger = [(message.what, message.message_bytes, message.num_ranks) for message in group.traffic]
    return *found, *(None if each is None else each.tolist() for each in returned), ledger


OWN_COLUMNS = {2: [[10.0], [20.0]], 3: [[11.0, 12.0], [21.0, 22.0]], 0: [[13.0, 14.0], [23.0, 24.0]]}
BROUGHT_BACK = [[2.0, 3.0, 3.125, 0.0, 0.125]] * 2  # in the order of the migrated columns
# fp64: [2, 5] is 80 bytes; [2, 1], [2, 2] and [2, 2] are 16, 32 and 32; a sum's [3, 1] is 24.
LEDGERS = {
    Scheme.BROADCAST_REDUCE: [("broadcast", 80, 4), ("broadcast", 80, 4), ("reduce", 24, 4)],
    Scheme.SCATTER_GATHER: [("send", each, 2) for each in (16, 32, 32, 80, 80, 80, 24, 24, 24)],
}
BACK = [("send", 16, 2), ("send", 32, 2), ("send", 32, 2)]
EMPTY = [[], []]


def by_amount(ledger):
    return sorted((str(what), num_bytes, num_ranks) for what, num_bytes, num_ranks in ledger)


@pytest.mark.parametrize("scheme", Scheme)
def test_each_receiver_gets_its_own_columns_and_the_sender_everything_back_in_the_order_it_was_dealt_out(scheme):
    columns, whole, total, back, ledger = delivered(scheme, FIVE, VirtualTensorGroup(4))
    assert columns == OWN_COLUMNS
    assert whole == dict.fromkeys((2, 3, 0), WHOLE.tolist())
    assert total == [[1101.0]] * 3  # of ranks 0, 2 and 3; the sender adds nothing
    assert back == BROUGHT_BACK
    assert by_amount(ledger) == by_amount(LEDGERS[scheme] + BACK)


@pytest.mark.parametrize("scheme", Scheme)
def test_a_receiver_without_columns_gets_none_and_sends_none_back(scheme):
    columns, _, total, back, ledger = delivered(scheme, ONE, VirtualTensorGroup(4))
    assert columns == {2: EMPTY, 3: EMPTY, 0: [[10.0], [20.0]]}
    assert (total, back) == ([[1101.0]] * 3, [[0.0]] * 2)
    out = {Scheme.BROADCAST_REDUCE: [("broadcast", 16, 4)], Scheme.SCATTER_GATHER: [("send", 16, 2)]}[scheme]
    assert ledger[:1] == out
    assert ledger[-1:] == [("send", 16, 2)]
    assert [message[0] for message in ledger].count("send") == {"broadcast-reduce": 1, "scatter-gather": 8}[scheme]


@pytest.mark.parametrize("scheme", Scheme)
def test_where_nothing_migrates_nothing_comes_back(scheme):
    columns, _, _, back, ledger = delivered(scheme, NONE, VirtualTensorGroup(4))
    assert (columns, back) == (dict.fromkeys((2, 3, 0), EMPTY), EMPTY)
    assert sum(num_bytes for what, num_bytes, _ in ledger if num_bytes != 24) == 0


def on_a_rank():
    cases = {(scheme, name): parts for scheme in Scheme for name, parts in (("five", FIVE), ("one", ONE))}
    return {key: delivered(key[0], parts, ProcessTensorGroup()) for key, parts in cases.items()}


def test_real_ranks_deliver_what_virtual_ones_do_and_enter_what_they_send_themselves():
    results = run_on_ranks(on_a_rank, 4, timeout_s=50, preload=PRELOAD)
    for scheme, (name, parts) in ((s, case) for s in Scheme for case in (("five", FIVE), ("one", ONE))):
        columns, whole, total, back, ledger = delivered(scheme, parts, VirtualTensorGroup(4))
        found = [each[scheme, name] for each in results]
        for rank, mine in enumerate(found):
            is_receiver = rank != SENDER
            assert mine[0] == ({rank: columns[rank]} if is_receiver else {})
            assert mine[1] == ({rank: whole[rank]} if is_receiver else {})
            assert mine[2:4] == ((None, None) if is_receiver else (total, back))
        sends = [message for mine in found for message in mine[4] if message[0] == "send"]
        assert by_amount(sends) == by_amount(message for message in ledger if message[0] == "send")
        together = [[message for message in mine[4] if message[0] != "send"] for mine in found]
        assert together == [[message for message in ledger if message[0] != "send"]] * 4
    assert by_amount(results[SENDER][Scheme.SCATTER_GATHER, "five"][4]) == by_amount(LEDGERS["scatter-gather"][:6])
    assert by_amount(results[3][Scheme.SCATTER_GATHER, "five"][4]) == [("send", 24, 2), ("send", 32, 2)]
    assert results[3][Scheme.BROADCAST_REDUCE, "five"][4] == [*LEDGERS["broadcast-reduce"], ("send", 32, 2)]


def test_only_broadcast_reduce_leaves_results_where_an_all_reduce_collects_them():
    group = VirtualTensorGroup(2)
    tree, star = delivery_of(Scheme.BROADCAST_REDUCE, group), delivery_of(Scheme.SCATTER_GATHER, group)
    assert (type(tree), tree.merges) == (BroadcastReduce, True)
    assert (type(star), star.merges) == (ScatterGather, False)
