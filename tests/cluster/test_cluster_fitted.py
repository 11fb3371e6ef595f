"""Fitted machines: the catalogue's numbers with rates of one's own, costs of codecs, and a rate found by bisection."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest

from workbench.cluster import CodecCost, FittedMachine, Link, bisected, catalogue, lists_population

ROUND = FittedMachine(
    name="round numbers",
    source="worked by hand",
    flops_per_s=100.0,
    link=Link(bandwidth_bytes_per_s=8.0, latency_s=1.0),
    connections=MappingProxyType({2: (1.0, 2.0), 4: (4.0,)}),
    network=Link(bandwidth_bytes_per_s=4.0),
    peak_flops_per_s=200.0,
    link_share=0.5,
    network_share=0.25,
    num_hosts=2,
    devices_per_host=4,
)


def test_a_machine_of_the_catalogue_has_its_numbers_and_those_that_are_fitted():
    machine, topology = FittedMachine.named("gemini/16x-p4d", peak_share=0.5), catalogue["gemini/16x-p4d"]
    device = topology.host.device
    assert (machine.num_hosts, machine.devices_per_host, machine.num_devices) == (16, 8, 128)
    assert (machine.flops_per_s, machine.peak_flops_per_s) == (156e12, 312e12)
    assert (machine.link, machine.network) == (topology.host.device_link, topology.network)
    assert (machine.memory_bytes_per_s, machine.host_memory_bytes) == (device.memory_bytes_per_s, 1152 * 2**30)
    assert machine.storage_bytes_per_s == 2.5e9  # 20 Gbit/s
    assert FittedMachine.named("flextp/8x-v100", flops_per_s=7.0).flops_per_s == 7.0


def test_messages_reach_a_share_of_what_links_and_networks_have():
    assert ROUND.message_link == replace(ROUND.link, bandwidth_bytes_per_s=4.0)
    assert (ROUND.reached_network.bandwidth_bytes_per_s, ROUND.network_bytes_per_s) == (1.0, 1.0)
    assert ROUND.with_bandwidth(16.0).message_link.time_s(8) == 1.0 + 1.0
    assert ROUND.with_network(8).network_bytes_per_s == 1e9 / 4
    assert ROUND.with_peak_share(0.25).flops_per_s == 50.0


def test_more_ranks_than_are_listed_use_the_connections_of_the_next_fewer():
    assert [ROUND.connections_of(ranks) for ranks in (1, 2, 3, 4, 8)] == [
        (1.0,),
        (1.0, 2.0),
        (1.0, 2.0),
        (4.0,),
        (4.0,),
    ]


def test_launching_adds_to_computing_or_hides_it():
    powers = ((1.0, 7.0), (2.0, 5.0), (math.inf, 4.0))
    assert [replace(ROUND, overlap_power=power).overlapped_s(3.0, 4.0) for power, _ in powers] == [
        pytest.approx(expected) for _, expected in powers
    ]


def test_a_record_has_the_numbers_that_are_known():
    record = ROUND.as_record()
    assert record["link"]["bandwidth_bytes_per_s"] == 8.0
    assert "head_s" not in record and "codecs" not in record and record["network_share"] == 0.25


def test_a_codec_that_is_not_listed_costs_nothing():
    listed = replace(ROUND, codecs={"top-k": CodecCost(encode_s_per_element=0.5, decode_s_per_sent=2.0)})
    assert (listed.codec("top-k").encode_s(10, 4), listed.codec("top-k").decode_s(10, 4)) == (5.0, 8.0)
    assert (listed.codec("code").encode_s(10, 4), listed.codec("code").sample_s(10, 4)) == (0.0, 0.0)


class Noted(Sequence):
    """The numbers up to a size, counting how often one is asked for."""

    def __init__(self, size: int) -> None:
        self.size, self.asked = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index >= self.size:
            raise IndexError(index)
        self.asked += 1
        return index


@pytest.mark.parametrize(
    ("size", "sent"),
    [(100, 4), (100, 6), (64, 6), (4096, 400), (4096, 80), (16384, 1600), (20000, 1950), (1 << 16, 6400)],
)
def test_sampling_lists_the_population_where_cpython_does(size, sent):
    noted = Noted(size)
    random.Random(0).sample(noted, sent)
    assert noted.asked == (size if lists_population(size, sent) else sent)


def test_an_index_costs_more_the_more_are_drawn():
    grown = CodecCost(sample_s_per_sent=1.0, sample_growth=0.5)
    assert grown.sample_s(1 << 24, 1 << 20) == pytest.approx(1 << 20)
    assert grown.sample_s(1 << 24, 1 << 16) == pytest.approx((1 << 16) / 4)  # a sixteenth as many: a quarter each


def test_sampling_costs_each_index_and_the_list_of_all_where_there_is_one():
    cost = CodecCost(sample_s_per_sent=1.0, pool_s_per_element=0.1)
    assert cost.sample_s(4096, 80) == 80  # a set of 4^4 = 256 entries and 21 more
    assert cost.sample_s(4096, 400) == pytest.approx(400 + 409.6)  # 4^6 = 4096 entries: the list
    assert cost.sample_s(8192, 800) == pytest.approx(809.6)  # a set again, cheaper than half of it was: level
    assert cost.sample_s(4096, 0) == 0


def test_bisection_finds_where_a_condition_changes():
    assert bisected(lambda rate: rate < 42.0, 1e-3, 1e6, 60) == pytest.approx(42.0)
    assert bisected(lambda _: True, 1.0, 4.0, 1) == pytest.approx(math.sqrt(8.0))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(ROUND, flops_per_s=0.0), "flops_per_s is 0.0: it must be a finite number above 0"),
        (lambda: replace(ROUND, memory_bytes_per_s=-1.0), "memory_bytes_per_s is -1.0"),
        (lambda: replace(ROUND, layer_launch_s=-1.0), "layer_launch_s is -1.0"),
        (lambda: replace(ROUND, num_hosts=0), "num_hosts is 0"),
        (lambda: replace(ROUND, link_share=1.5), r"link_share is 1.5; it must be in \(0, 1\]"),
        (lambda: replace(ROUND, overlap_power=0.5), "overlap_power is 0.5; it must be at least 1"),
        (lambda: CodecCost(encode_s_per_sent=math.nan), "encode_s_per_sent is nan"),
        (lambda: FittedMachine.named("gemini/16x-p4d", peak_share=0.0), r"peak_share is 0.0; it must be in \(0, 1\]"),
        (lambda: FittedMachine.named("gemini/17x"), "machine is 'gemini/17x': it must be one of"),
        (lambda: ROUND.require("copy_bytes_per_s"), "copy_bytes_per_s of machine 'round numbers' is None; it must be"),
        (lambda: replace(ROUND, network=None).reached_network, "network is None; machine 'round numbers' must have"),
    ],
)
def test_a_number_out_of_range_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
