"""Equations 2 to 4, matrices, search and costs by hand-worked values and by the paper's own numbers."""

import math

import pytest

from tests.cases import refusals
from workbench.techniques.atp import cost
from workbench.techniques.atp.cost import Segment
from workbench.techniques.atp.method import (
    PRESETS,
    HierarchicalCommMatrix,
    Layer,
    equations,
    meshes,
    search,
    search_by_torch,
    search_exactly,
)
from workbench.techniques.atp.method.equations import Workload, communication_time_s, exact_time_s, messages
from workbench.techniques.atp.method.matrix import flat
from workbench.techniques.atp.runtime.measure import group_size

GB = 1e9
M2 = Workload(batch=4, sequence=2048, hidden=4096, heads=32)  # table 2


def test_equation_2_by_hand():
    sizes = {"num_layers": 3, "batch": 2, "sequence": 5, "hidden": 8, "value_bytes": 2}
    # 2 L b s v = 120; 7 h / (d1 B2) = 56 / (2 * 10) = 2.8; 2 h / (d2 B1) = 16 / (4 * 5) = 0.8
    assert communication_time_s(**sizes, d1=2, d2=4, b1_bytes_per_s=5.0, b2_bytes_per_s=10.0) == pytest.approx(
        120 * 3.6
    )
    # an axis of one device communicates nothing
    assert communication_time_s(**sizes, d1=8, d2=1, b1_bytes_per_s=5.0, b2_bytes_per_s=10.0) == pytest.approx(
        120 * 3.2
    )
    assert communication_time_s(**sizes, d1=1, d2=1, b1_bytes_per_s=5.0, b2_bytes_per_s=10.0) == 0


def test_the_calibrated_bandwidths_of_ic1_save_what_the_text_says():
    atp1_rates, atp4_rates = PRESETS["IC1"].algorithm(8, 1), PRESETS["IC1"].algorithm(2, 4)
    sizes = {"num_layers": 1, "batch": 4, "sequence": 2048, "hidden": 4096, "value_bytes": 2}
    atp1 = communication_time_s(**sizes, d1=8, d2=1, b1_bytes_per_s=atp1_rates.b1_bytes_per_s, b2_bytes_per_s=math.inf)
    atp4 = communication_time_s(
        **sizes, d1=2, d2=4, b1_bytes_per_s=atp4_rates.b1_bytes_per_s, b2_bytes_per_s=atp4_rates.b2_bytes_per_s
    )
    assert 1 - atp4 / atp1 == pytest.approx(0.455, abs=0.001)  # 46 % by the text, section 5.3


def figure_7a():
    return HierarchicalCommMatrix(
        name="figure 7a", layers=(Layer.switched(4, 25 * GB, 25 * GB), Layer.switched(4, 200 * GB, 600 * GB))
    )


def test_equation_3_gives_the_example_of_the_text():
    shared = figure_7a().shared(8, 2)  # section 3.5
    assert shared.b1_bytes_per_s == 12.5 * GB
    assert shared.b2_bytes_per_s == 200 * GB


def test_equation_4_by_hand():
    bandwidths = figure_7a().algorithm(8, 2)
    assert bandwidths.b1_bytes_per_s == pytest.approx(8 / 14 * 12.5 * GB)
    assert bandwidths.b2_bytes_per_s == pytest.approx(2 / 2 * 200 * GB)


@pytest.mark.parametrize(
    ("shape", "crossed"),
    [
        ((4, 4), ([0], [1])),
        ((16, 1), ([0, 1], [])),
        ((1, 16), ([], [0, 1])),
        ((2, 8), ([0], [0, 1])),
        ((8, 2), ([0, 1], [1])),
    ],
)
def test_the_layers_that_an_axis_crosses(shape, crossed):
    assert tuple(map(list, figure_7a().crossed(*shape))) == crossed


def test_rings_are_counted_device_by_device():
    # Four nodes of two: with mesh (2, 4) a node has two devices, so two rings of axis 1 leave it, not d2 = 4.
    matrix = HierarchicalCommMatrix(name="pairs", layers=(Layer.switched(4, 1, 1), Layer.switched(2, 9, 9)))
    assert matrix.rings(2, 4) == ({0: 2}, {0: 1, 1: 1})
    assert matrix.rings(4, 2) == ({0: 2}, {1: 1})
    assert matrix.rings(8, 1) == ({0: 1, 1: 1}, {})


@pytest.mark.parametrize("shape", [(4, 2), (2, 4), (8, 1), (1, 8)])
def test_exact_bytes_are_those_of_equation_2_and_the_norms(shape):
    d1, d2 = shape
    sent = messages(M2, d1, d2)
    value = M2.num_values * M2.value_bytes
    norms = 2 * 2 * equations.STATISTICS_BYTES * d2 * M2.batch * M2.sequence * (d2 > 1)
    for axis, expected in ((1, 4 * value / d2 * (d1 > 1)), (2, 14 * value / d1 * (d2 > 1) + norms / 2)):
        all_reduced = sum(message.kind.rounds / 2 * message.num_bytes for message in sent if message.axis == axis)
        assert all_reduced == pytest.approx(expected)


def test_sequence_parallelism_sends_as_much_on_axis_1_but_for_gradients_of_parameters():
    def sent(axis, cuts):
        of_axis = [message for message in messages(M2, 4, 2, sequence_parallel=cuts) if message.axis == axis]
        return sum(message.sent_bytes(4) for message in of_axis if "parameters" not in message.what)

    assert sent(1, False) == pytest.approx(sent(1, True), rel=1e-12)
    assert sent(2, False) > sent(2, True)  # norms have fewer positions
    assert sum("parameters" in message.what for message in messages(M2, 4, 2, sequence_parallel=True)) == 6


def test_floating_point_operations_are_those_of_table_2_in_units_of_2_to_the_40():
    assert [
        cost.layer_flops(Workload(batch=4, sequence=2048, hidden=h, heads=16)) / 2**40
        for h in (2048, 4096, 8192, 12288)
    ] == pytest.approx([2.625, 9.75, 37.5, 83.25])


def test_exact_time_by_hand():
    matrix = HierarchicalCommMatrix(name="two", layers=(Layer.switched(2, 10.0, 10.0, startup_s=0.5),))
    work = Workload(batch=1, sequence=2, hidden=4, heads=2, value_bytes=2)
    # four all-reduces of 16 bytes on 2 devices: each sends 16 bytes in 2 steps
    assert exact_time_s(work, matrix, 2, 1) == pytest.approx((4 * 16 / 10, 0, 4 * 2 * 0.5))


def test_chunks_hide_messages_behind_computation():
    pair = [Segment(2.0, 2.0)]
    assert cost.overlapped_s(pair, 1) == 4.0
    assert cost.overlapped_s(pair, 2) == 3.0  # 1, then 1 beside the first message, then the second message
    assert cost.overlapped_s([Segment(2.0), Segment(1.0)], 4) == pytest.approx(3.0)
    assert cost.overlapped_s([Segment(1.0, 4.0), Segment(1.0)], 2) == pytest.approx(5.0)  # the link from 0.5 to 4.5
    assert cost.overlapped_s([Segment(1.0, 2.0, meanwhile_s=1.5), Segment(1.0)], 1) == 4.0


def test_meshes_and_strategies_come_best_first():
    assert meshes(6) == [(6, 1), (3, 2), (2, 3), (1, 6)]
    strategies = search(PRESETS["IC3"], 8, M2)
    assert [strategy.name for strategy in strategies] == ["ATP-1", "ATP-2", "ATP-4", "ATP-8"]  # section 5.3 for IC3
    assert all(strategy.total_s == strategy.axis1_s + strategy.axis2_s for strategy in strategies)
    assert strategies[0].axis2_s == 0


def test_start_ups_decide_for_small_messages():
    # A ring of 8 has 14 steps in each all-reduce, one of 2 and one of 4 fewer, but 12 messages more.
    layers = (Layer.switched(2, GB, GB, startup_s=1e-3), Layer.switched(4, GB, GB, startup_s=0.0))
    matrix = HierarchicalCommMatrix(name="slow start", layers=layers)
    small = Workload(batch=1, sequence=8, hidden=16, heads=8, value_bytes=4)
    assert search(matrix, 8, small)[0].d2 != search_exactly(matrix, 8, small, sequence_parallel=(False,))[0].d2


def test_torchs_model_by_hand():
    work = Workload(batch=1, sequence=1, hidden=1000, heads=2, value_bytes=2)
    # four all-reduces of 2,000 bytes on two devices: 2 hops of 0.6 us, 1,000 bytes a hop at 87.7 GB/s, 6.6 us each
    (inside, cut_in_two) = sorted(search_by_torch(2, work, 2), key=lambda strategy: strategy.d2)
    assert inside.total_s == pytest.approx(4 * (6.6e-6 + 2 * 0.6e-6 + 2 * 1000 / (87.7 * 2**30)))
    (between, _) = sorted(search_by_torch(2, work, 1), key=lambda strategy: strategy.d2)
    assert between.total_s == pytest.approx(4 * (6.6e-6 + 2 * 2.7e-6 + 2 * 1000 / (0.22 * 87.7 * 2**30)))
    assert cut_in_two.axis1_s == 0


def test_a_search_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="num_devices is 4; the matrix IC3 has 8"):
        search(PRESETS["IC3"], 4, M2)
    with pytest.raises(ValueError, match="must divide heads 4"):
        search(PRESETS["IC3"], 8, Workload(batch=1, sequence=8, hidden=16, heads=4))


def test_groups_of_neighbours_are_found():
    def pairs(size, block, fast=10.0, slow=1.0):
        return tuple(
            tuple(0.0 if i == j else fast if i // block == j // block else slow for j in range(size))
            for i in range(size)
        )

    assert [group_size(pairs(8, block)) for block in (1, 2, 4, 8)] == [8, 2, 4, 8]


test_bad_input_is_named = refusals(
    (lambda: Layer.switched(2, 1.0, 0.0), "group_bytes_per_s is 0.0"),
    (lambda: Layer.switched(2, 0.0, 1.0), r"p2p_bytes_per_s\[0\] is 0 to all others"),
    (lambda: Layer(p2p_bytes_per_s=((0, 1), (2, 0)), group_bytes_per_s=1), "must be equal"),
    (lambda: Layer(p2p_bytes_per_s=((0, 1),), group_bytes_per_s=1), "it must have 1"),
    (lambda: Layer(p2p_bytes_per_s=((0, -1), (-1, 0)), group_bytes_per_s=1), "not negative"),
    (lambda: Layer(p2p_bytes_per_s=((0, math.nan), (math.nan, 0)), group_bytes_per_s=1), "nan"),
    (lambda: HierarchicalCommMatrix(name="none", layers=()), "layers is"),
    (lambda: flat("f", 4, 1.0, "s").shared(3, 1), "3 x 1 is not the number of devices, 4"),
    (lambda: Workload(batch=0, sequence=1, hidden=1, heads=1), "batch is 0"),
    (lambda: Workload(batch=1, sequence=1, hidden=6, heads=4), "heads is 4; it must divide hidden, 6"),
)
