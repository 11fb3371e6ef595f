"""What migrating costs: bytes and seconds by hand, limits, and table I."""

import itertools
import math
from dataclasses import replace

import pytest

from workbench.cluster import FittedMachine, Link
from workbench.models import Workload
from workbench.techniques.flextp.cost import (
    CALIBRATION,
    CHOSEN_ON,
    VIT_1B,
    VIT_3B,
    Scheme,
    calibrate,
    iteration_parts,
    migration_epoch_time_s,
    migration_time,
    paper_machine,
    published_epochs_s,
    table_1_cell,
    turns,
)

SCHEMES = list(Scheme)
SHARES = (0.25, 0.5, 0.75, 1.0)
# Six rows, hidden 8, four ranks. K x O of the shards: column-parallel 8 x 6, row-parallel 2 x 8, column-parallel
# 8 x 8, row-parallel 8 x 8. Bytes of fp16: weights 96 + 32 + 128 + 128 = 384, inputs of row-parallel layers
# 24 + 96 = 120, of column-parallel ones 96 + 96 = 192, outputs of column-parallel ones 72 + 96 = 168.
TINY = Workload(name="tiny", hidden=8, batch=2, num_layers=1, sequence=3, head_size=4)
FOUR = FittedMachine(
    name="slow",
    source="test",
    devices_per_host=4,
    memory_bytes_per_s=1,
    link=Link(bandwidth_bytes_per_s=1),
    flops_per_s=3 * 2 * 6 * 192 / 9,  # 9 s in products: 48 + 16 + 64 + 64 multiplications a row, three times
    link_share=0.5,
)


def added(scheme: Scheme, num_senders: int, share: float, machine: FittedMachine = FOUR):
    return migration_time(scheme, TINY, machine, num_senders=num_senders, migrated_share=share)


def test_broadcast_reduce_takes_the_time_of_one_copy_out_and_one_back():
    time = added(Scheme.BROADCAST_REDUCE, 1, 0.5)
    assert time.whole_s == 2 * 168  # grad_output out, output back
    assert time.out_s == (384 + 120) / 2
    assert time.back_s == (384 + 120) / 2
    assert time.product_s == 9 * 0.5 / 3  # half of a rank's products over three receivers
    assert time.total_s == time.transfer_s + 1.5


def test_every_sender_more_is_a_copy_more_through_each_receivers_link():
    two, three = added(Scheme.BROADCAST_REDUCE, 2, 0.5), added(Scheme.BROADCAST_REDUCE, 3, 0.5)
    assert (two.whole_s, two.out_s, two.product_s) == (2 * 336, 504, 9 * 0.5 * 2 / 2)
    assert two.back_s == 252  # two receivers send half a share to each of two senders
    assert three.back_s == 3 * 252  # the only receiver sends three shares
    assert three.product_s == 9 * 0.5 * 3


def test_scatter_gather_serves_one_receiver_after_the_other_at_the_rate_of_messages():
    time = added(Scheme.SCATTER_GATHER, 1, 0.5)
    assert time.whole_s == 2 * 168
    assert time.out_s == pytest.approx(3 * (384 + 120) / 2 / 0.5 - 9 / 3)  # less a third of the products
    assert time.back_s == pytest.approx((384 + 120 + 192) / 2 / 0.5 - 9 / 3)  # nothing is merged


def test_messages_hide_behind_products_but_never_give_time_back():
    slow = replace(FOUR, flops_per_s=FOUR.flops_per_s / 1e6)
    time = added(Scheme.SCATTER_GATHER, 1, 0.5, slow)
    assert (time.out_s, time.back_s) == (0, 0)


def test_latencies_count_once_a_hop():
    late = replace(FOUR, link=Link(bandwidth_bytes_per_s=1e30, latency_s=1.0))
    broadcast, scatter = (added(scheme, 1, 1.0, late) for scheme in SCHEMES)
    assert broadcast.whole_s == pytest.approx(2 * 2 * 3)  # two layers, out and back, three hops
    assert broadcast.out_s == pytest.approx(4 * 3)
    assert broadcast.back_s == pytest.approx(4)
    assert scatter.out_s == pytest.approx(4 * 3 - 3)
    assert scatter.back_s == pytest.approx(4 * 2 * 3 - 3)  # two gradients from each of three receivers


@pytest.mark.parametrize(("num_senders", "num_receivers"), [(1, 7), (2, 6), (4, 4), (7, 1)])
def test_messages_in_a_row_are_those_of_senders_that_follow_each_other_from_receiver_to_receiver(
    num_senders, num_receivers
):
    ends = [[0] * num_receivers for _ in range(num_senders)]
    for sender, receiver in itertools.product(range(num_senders), range(num_receivers)):
        sender_free = ends[sender][receiver - 1] if receiver else 0
        receiver_free = ends[sender - 1][receiver] if sender else 0
        ends[sender][receiver] = max(sender_free, receiver_free) + 1
    assert turns(num_senders, num_receivers) == ends[-1][-1] == 7


@pytest.mark.parametrize("scheme", SCHEMES)
def test_nothing_migrated_costs_nothing_and_a_little_costs_what_travels_whole(scheme):
    assert added(scheme, 1, 0.0).total_s == 0
    least = added(scheme, 1, 1e-12)
    assert least.total_s == pytest.approx(least.whole_s, abs=8)  # messages of a byte


@pytest.mark.parametrize("scheme", SCHEMES)
def test_an_infinitely_fast_link_leaves_the_receivers_products(scheme):
    fast = replace(FOUR, link=Link(bandwidth_bytes_per_s=1e30))
    assert added(scheme, 2, 1.0, fast).total_s == pytest.approx(9.0)  # two ranks' products on two receivers


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_senders", range(1, 8))
def test_an_epoch_takes_longer_the_more_is_migrated(scheme, num_senders):
    epochs_s = [migration_epoch_time_s(scheme, num_senders, share) for share in (0.0, *SHARES)]
    assert all(one < other for one, other in itertools.pairwise(epochs_s))
    assert epochs_s[0] == pytest.approx(373)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("share", SHARES)
def test_an_epoch_takes_longer_the_more_ranks_migrate(scheme, share):
    epochs_s = [migration_epoch_time_s(scheme, num_senders, share) for num_senders in range(1, 8)]
    assert all(one < other for one, other in itertools.pairwise(epochs_s))


@pytest.mark.parametrize("share", SHARES)
def test_broadcast_reduce_is_ahead_and_its_lead_narrows_with_up_to_four_senders(share):
    epochs_s = {
        scheme: [migration_epoch_time_s(scheme, num_senders, share) for num_senders in (1, 2, 3, 4)]
        for scheme in SCHEMES
    }
    pairs = zip(epochs_s[Scheme.SCATTER_GATHER], epochs_s[Scheme.BROADCAST_REDUCE], strict=True)
    leads_s = [scattered - broadcast for scattered, broadcast in pairs]
    assert leads_s[-1] > 0
    assert all(one > other for one, other in itertools.pairwise(leads_s))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_all_of_seven_ranks_columns_on_the_eighth_take_at_least_eight_ranks_products(scheme):
    parts = iteration_parts(VIT_1B, paper_machine())
    assert migration_epoch_time_s(scheme, 7, 1.0) > 782 * (parts.other_s + 8 * parts.product_s)


def published_error(scheme: Scheme, share: float) -> float:
    """Return how far the model is off a cell of table I, as a share."""
    cell = table_1_cell(scheme, 1, share)
    return migration_epoch_time_s(scheme, 1, share) / published_epochs_s((cell,))[cell] - 1


def test_the_model_hits_the_cells_that_it_is_fitted_to_and_the_others_within_a_twentieth():
    for scheme, share in itertools.product(SCHEMES, (0.0, *SHARES)):
        is_fitted = table_1_cell(scheme, 1, share) in CALIBRATION
        assert published_error(scheme, share) == pytest.approx(0, abs=1e-9 if is_fitted else 0.05)
    assert len(CHOSEN_ON) == 3


def test_no_other_cell_than_those_named_is_looked_at():
    cells = dict(published_epochs_s())
    assert calibrate(cells | dict.fromkeys(CHOSEN_ON, 1.0)) == calibrate(cells) == paper_machine()
    for cell in CALIBRATION:
        assert calibrate(cells | {cell: 1.01 * cells[cell]}) != calibrate(cells)


def test_a_cell_that_is_missing_or_impossible_is_named():
    cells = dict(published_epochs_s(CALIBRATION))
    with pytest.raises(ValueError, match="cells_s lacks .*migrated_share 1.0"):
        calibrate({cell: cells[cell] for cell in CALIBRATION[:2]})
    with pytest.raises(ValueError, match="cells_s has 400 s for scatter-gather at share 1"):
        calibrate(cells | {CALIBRATION[2]: 400})
    with pytest.raises(ValueError, match="links and memory alone take longer"):
        calibrate(cells | {CALIBRATION[0]: 10.0, CALIBRATION[1]: 10.0})
    with pytest.raises(ValueError, match="table-1 has 0 rows of epoch_s with .*'num_senders': 3"):
        published_epochs_s((table_1_cell("scatter-gather", 3, 0.0),))


def test_any_model_and_machine_can_be_asked_about():
    slower = paper_machine().with_bandwidth(paper_machine().link.bandwidth_bytes_per_s / 2)
    for scheme in SCHEMES:
        here_s = migration_epoch_time_s(scheme, 2, 1 / 3)
        assert migration_epoch_time_s(scheme, 2, 1 / 3, machine=slower) > here_s
        assert migration_epoch_time_s(scheme, 2, 1 / 3, workload=VIT_3B) > here_s


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scheme": "gossip"}, "scheme is 'gossip'; it must be one of 'broadcast-reduce', 'scatter-gather'"),
        ({"num_senders": 0}, "num_senders is 0; it must be an integer in 1..7"),
        ({"num_senders": 8}, "num_senders is 8; it must be an integer in 1..7"),
        ({"num_senders": 1.5}, "num_senders is 1.5; it must be an integer in 1..7"),
        ({"migrated_share": -0.1}, r"migrated_share is -0.1; it must be in \[0, 1\]"),
        ({"migrated_share": 1.01}, r"migrated_share is 1.01; it must be in \[0, 1\]"),
        ({"migrated_share": math.nan}, r"migrated_share is nan; it must be in \[0, 1\]"),
    ],
)
def test_an_argument_out_of_range_is_named_with_its_rule(arguments, message):
    with pytest.raises(ValueError, match=message):
        migration_epoch_time_s(**{"scheme": "broadcast-reduce", "num_senders": 1, "migrated_share": 0.5} | arguments)
