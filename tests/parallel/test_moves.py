"""Messages between some ranks: what arrives, on whom, and what the ledger says, on virtual and on real ranks.

The whole group has four real ranks; a part of it is made of the last three, so that a rank in the part is not the
process's number.
"""

from contextlib import contextmanager

import pytest
import torch
import torch.distributed as dist

from workbench.parallel import ProcessTensorGroup, VirtualTensorGroup
from workbench.parallel.moves import Shape, moves_of


def matrix(rank):
    """[3, 2]: 1 to 6 times ten to the rank, not contiguous, and asking for a gradient."""
    values = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], dtype=torch.float64) * 10**rank
    return values.t().requires_grad_()


def sent(rank, size):
    """Every rank sends [2, rank + 1] to the next one, rank 0 sends one more to the last rank."""
    targets = {(rank + 1) % size: torch.full((2, rank + 1), float(rank), dtype=torch.float64)}
    return {**targets, size - 1: torch.full((5,), 0.5, dtype=torch.float64)} if rank == 0 else targets


def expected(rank, size):
    before = (rank - 1) % size
    shape = Shape(sizes=(2, before + 1), dtype=torch.float64, device=torch.device("cpu"))
    first = {0: Shape(sizes=(5,), dtype=torch.float64, device=shape.device)} if rank == size - 1 else {}
    return {before: shape, **first}


def moved(group):
    """Start all moves, wait for them, last first, and return the arrivals as lists."""
    moves, local, size = moves_of(group), group.local_ranks, group.size
    matrices = [matrix(rank) for rank in local]
    held = [values if rank == 2 else None for rank, values in zip(local, matrices, strict=True)]
    arrivals = {
        "broadcast": moves.broadcast(held, 2, Shape.of(matrix(2))),
        "gather": moves.gather([torch.tensor([rank, -rank]) for rank in local]),
        "reduce": moves.reduce(matrices, 1),
        "exchange": moves.exchange([sent(rank, size) for rank in local], [expected(rank, size) for rank in local]),
    }
    arrived = {name: arrival.wait() for name, arrival in reversed(arrivals.items())}
    assert not any(torch.is_tensor(value) and value.requires_grad for value in arrived.values())
    assert all(torch.equal(values, matrix(rank)) for rank, values in zip(local, matrices, strict=True))  # as they were
    return {name: as_lists(value) for name, value in arrived.items()}


def as_lists(value):
    if isinstance(value, dict):
        return {key: as_lists(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [as_lists(inner) for inner in value]
    return value.tolist() if torch.is_tensor(value) else value


def ledger(group):
    return [(message.what, message.message_bytes, message.num_ranks) for message in group.traffic]


# Among three ranks: 0 sends [2, 1] to 1 and 5 numbers to 2, 1 sends [2, 2] to 2, 2 sends [2, 3] to 0.
BY_HAND = {
    "broadcast": [[100.0, 400.0], [200.0, 500.0], [300.0, 600.0]],
    "gather": [[0, 0], [1, -1], [2, -2]],
    "reduce": [[111.0, 444.0], [222.0, 555.0], [333.0, 666.0]],
    "exchange": [{2: [[2.0] * 3] * 2}, {0: [[0.0]] * 2}, {1: [[1.0] * 2] * 2, 0: [0.5] * 5}],
}
# 6 fp64 are broadcast and reduced, 2 int64 gathered; what is sent: 2, 5, 4 and 6 fp64.
LEDGER_BY_HAND = [
    *(("broadcast", 48, 3), ("gather", 16, 3), ("reduce", 48, 3)),
    *(("send", num_bytes, 2) for num_bytes in (16, 40, 32, 48)),
]


def test_every_move_brings_what_was_asked_for_to_those_that_asked():
    group = VirtualTensorGroup(3)
    assert moved(group) == BY_HAND
    assert ledger(group) == LEDGER_BY_HAND


def watched(group):
    """Give the names of the collectives that are waited for, and those that have been when each one has started."""
    names, moves, (rank,) = [], moves_of(group), group.local_ranks

    @contextmanager
    def watch(name):
        names.append(name)
        yield

    group.watch = watch
    shape, held = Shape.of(matrix(0)), [matrix(0) if rank == 0 else None]
    arrivals = [moves.broadcast(held, 0, shape), moves.gather([torch.zeros(1)]), moves.reduce([matrix(rank)], 0)]
    arrivals.append(moves.exchange([sent(rank, group.size)], [expected(rank, group.size)]))
    before = list(names)
    for arrival in arrivals:
        arrival.wait()
    return before, list(names)


def crossed(group):
    """Two exchanges between the same ranks at once, waited for in the other order; rank 2 takes no part in them."""
    moves, (rank,) = moves_of(group), group.local_ranks
    shape = Shape(sizes=(1,), dtype=torch.int64, device=torch.device("cpu"))
    if rank > 1:
        return moves.exchange([{}], [{}]).wait()
    arrivals = [moves.exchange([{1 - rank: torch.tensor([10 * n + rank])}], [{1 - rank: shape}]) for n in (1, 2)]
    return [arrival.wait()[0][1 - rank].item() for arrival in reversed(arrivals)]


def alone(group):
    """All moves of one rank, whose messages go nowhere."""
    moves, tensor = moves_of(group), matrix(0)
    arrived = [moves.broadcast([tensor], 0, Shape.of(tensor)).wait(), moves.gather([tensor]).wait()[0]]
    arrived += [moves.reduce([tensor], 0).wait(), *moves.exchange([{}], [{}]).wait()]
    return as_lists(arrived), len(group.traffic)


def on_a_rank():
    whole, rank = ProcessTensorGroup(), dist.get_rank()
    last_three = dist.new_group([1, 2, 3])
    ones = [dist.new_group([member]) for member in range(4)]
    result = {"whole": (moved(whole), ledger(whole)), "alone": alone(ProcessTensorGroup(ones[rank]))}
    if rank > 0:
        part = ProcessTensorGroup(last_three)
        result["part"] = moved(part), ledger(part)
        result["watched"], result["crossed"] = watched(part), crossed(part)
    return result


@pytest.fixture(scope="module")
def results_of_ranks(pools):
    return pools(4).run(on_a_rank)


@pytest.mark.parametrize("what", ["whole", "part"])
def test_real_ranks_get_what_virtual_ones_get(results_of_ranks, what):
    results = [result[what] for result in results_of_ranks if what in result]
    twin = VirtualTensorGroup(len(results))
    virtual = moved(twin)
    assert what == "whole" or virtual == BY_HAND
    for rank, (arrived, _) in enumerate(results):
        assert arrived["broadcast"] == virtual["broadcast"]
        assert arrived["gather"] == virtual["gather"]
        assert arrived["reduce"] == (virtual["reduce"] if rank == 1 else None)
        assert arrived["exchange"] == [virtual["exchange"][rank]]


def test_collectives_are_in_every_rank_s_ledger_and_what_is_sent_in_the_sender_s_alone(results_of_ranks):
    ledgers = [result["part"][1] for result in results_of_ranks if "part" in result]
    assert [entries[:3] for entries in ledgers] == [LEDGER_BY_HAND[:3]] * 3
    assert [entries[3:] for entries in ledgers] == [LEDGER_BY_HAND[3:5], LEDGER_BY_HAND[5:6], LEDGER_BY_HAND[6:]]


def test_a_move_is_watched_while_it_is_waited_for_and_not_when_it_is_started(results_of_ranks):
    for result in results_of_ranks[1:]:
        assert result["watched"] == ([], ["broadcast", "gather", "reduce", "exchange"])


def test_messages_between_the_same_ranks_match_by_their_order(results_of_ranks):
    assert [result["crossed"] for result in results_of_ranks[1:]] == [[21, 11], [20, 10], [{}]]


def test_one_rank_alone_sends_nothing_to_itself(results_of_ranks):
    values = matrix(0).tolist()
    for result in (alone(VirtualTensorGroup(1)), *(result["alone"] for result in results_of_ranks)):
        assert result == ([values, values, values, {}], 0)


def test_a_shape_is_the_room_that_a_receiver_makes_and_other_groups_have_no_moves():
    shape = Shape.of(torch.zeros(4, 7, dtype=torch.float16))
    assert (shape.sizes, shape.device) == ((4, 7), torch.device("cpu"))
    wide = shape.with_width(9).empty()
    assert (wide.shape, wide.dtype) == ((4, 9), torch.float16)
    assert Shape.of(torch.zeros(4), [2, 3]).empty().shape == (2, 3)
    with pytest.raises(ValueError, match="object has no moves; it must hold real or virtual ranks"):
        moves_of(object())
