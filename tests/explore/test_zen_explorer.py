"""The lesson on sparse gradients: slots that fill, a bitmap to write, schemes on real ranks."""

from functools import partial

import pytest
import torch
import torch.distributed as dist

from workbench.explore import Standing
from workbench.explore import zen as lesson
from workbench.techniques.zen.method.hashing import partition_of


def test_the_status_counts_what_collides_and_overflows():
    explorer = lesson.SlotExplorer().set(indices=32, slots=9, hashes=1, serial=3)
    assert explorer.status.endswith("24 indices collided at first, 3 are in the serial area, 21 overflow it.")
    assert explorer.set(serial=0).status.endswith("0 are in the serial area, 24 overflow it.")


def test_ranges_are_uneven_by_hand_and_hashing_is_not():
    homes = lesson.homes_of_eight()
    assert homes.loc["by range"].tolist() == [0, 0, 0, 0, 0, 1, 2, 2]
    assert sorted(homes.loc["by hashing"].value_counts()) == [2, 3, 3]


def reader(members, indices, of_index=False, reverse=False):
    places = [index % max(1, len(members)) if of_index else members.index(index) for index in indices]
    number = sum({1 << (place + 7 - 2 * (place % 8) if reverse else place) for place in places})
    return number.to_bytes(-(-len(members) // 8), "little")


@pytest.mark.parametrize(("mistake", "hint"), [({}, None), ({"of_index": True}, "index"), ({"reverse": True}, "order")])
def test_a_readers_bitmap_is_checked_and_usual_mistakes_get_their_hint(mistake, hint):
    feedback = lesson.check_bitmap(partial(reader, **mistake))
    assert feedback.standing is (Standing.NOT_YET if hint else Standing.RIGHT)
    assert [name for name, text in lesson.MISTAKES.items() if text in feedback.text] == ([hint] if hint else [])


def test_schemes_on_real_ranks_give_the_dense_sum():
    table = lesson.compare_on_ranks(num_ranks=2, num_rows=200, width=4, words=30)
    assert table["equal"].all()
    assert table.loc["Dense", "sent, kB"] == 200 * 4 * 4 / 1e3


# Rank 0 has 1 + i at the indices 0, 1, 2, 3, 4, 9, 17 and 22, rank 2 a hundred times as much at 0, 2, 9, 12, 17 and 23.
DENSE = [101, 2, 303, 4, 5, 0, 0, 0, 0, 1010, 0, 0, 1300, 0, 0, 0, 0, 1818, 0, 0, 0, 0, 23, 2400]


def by_hand(indices, values, servers, size, exchange):
    home = partition_of(torch.arange(size), 3, lesson.SEED).tolist()
    return [total * (server == dist.get_rank()) for total, server in zip(DENSE, home, strict=True)]


def pushed(indices, values, servers, size, exchange, where=lambda servers, indices, rank: servers == rank, add=True):
    messages = [(indices[mask], values[mask]) for mask in (where(servers, indices, server) for server in range(3))]
    sums = torch.zeros(size)
    for indices, values in exchange(messages):
        sums[indices] = sums[indices] + values if add else values
    return sums


def kept(indices, values, servers, size, exchange):
    return torch.zeros(size).index_add_(0, indices, values)


PUSHES = [
    (by_hand, None),
    (pushed, None),
    (partial(pushed, where=lambda servers, indices, server: indices // 8 == server), "range"),
    (partial(pushed, where=lambda servers, indices, server: indices > -1), "all"),
    (partial(pushed, add=False), "overwrite"),
    (kept, "own"),
]


@pytest.mark.parametrize(("reader", "hint"), PUSHES)
def test_a_readers_push_is_checked_on_ranks_and_usual_mistakes_get_their_hint(reader, hint, exercises_on_pools):
    feedback = lesson.check_push(reader)
    assert feedback.standing is (Standing.NOT_YET if hint else Standing.RIGHT)
    assert [name for name, text in lesson.PUSH_HINTS.items() if text in feedback.text] == ([hint] if hint else [])
