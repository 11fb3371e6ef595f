"""Machines: the papers' numbers, links between devices, lines through samples, measured rates, costs of codecs."""

import math
import random
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from types import MappingProxyType

import pytest

from tests.cases import refusals
from workbench import cluster
from workbench.cluster import CodecCost, FittedMachine, Link, catalogue

# Paper, machine: devices, gigabit per second between hosts, as the papers state them.
STATED = {
    "activation-compression/4x-p3.8xlarge": (16, 10),
    "flextp/8x-v100": (8, None),
    "zen/16x-v100-25gbps": (128, 25),
    "zen/16x-a100-100gbps": (128, 100),
    "espresso/8x-nvlink-100gbps": (64, 100),
    "espresso/8x-pcie-25gbps": (64, 25),
    "cupcake/8x-v100-pcie": (8, None),
    "cupcake/8x-v100-25gbps": (64, 25),
    "gemini/16x-p4d": (128, 400),
    "gemini/16x-p3dn": (128, 100),
}


def parts_of(thing: object) -> list[object]:
    """Return a description and every description inside it."""
    inside = [getattr(thing, field.name) for field in fields(thing)]
    return [thing, *(part for value in inside if is_dataclass(value) for part in parts_of(value))]


def test_the_catalogue_has_the_papers_devices_and_networks():
    assert catalogue.keys() == STATED.keys()
    for name, (num_devices, num_gigabits) in STATED.items():
        network = catalogue[name].network
        assert catalogue[name].num_devices == num_devices
        assert (network and round(network.bandwidth_bytes_per_s * 8 / 1e9)) == num_gigabits
    amazon = catalogue["activation-compression/4x-p3.8xlarge"].host
    assert amazon.device_link.bandwidth_bytes_per_s == 40e9  # section 4.4
    server = catalogue["cupcake/8x-v100-pcie"].host
    # PCIe 3.0 x16: 8 GT/s, 16 lanes, 128 of 130 bits, 8 bits a byte
    assert server.device_link.bandwidth_bytes_per_s == pytest.approx(15.754e9, rel=1e-4)
    assert "device_link" in server.inferred


def test_every_link_of_every_machine_says_that_no_paper_states_its_latency():
    for machine in catalogue.values():
        links = [part for part in parts_of(machine) if isinstance(part, Link)]
        assert links and all(link.latency_s > 0 and "latency_s" in link.inferred for link in links), machine.name


def test_a_message_takes_latency_and_its_bytes_at_the_bandwidth():
    # 1 Gbit/s is 125 MB/s: 12.5 MB take 100 ms, after 50 microseconds
    assert Link.gigabit().time_s(12.5e6) == pytest.approx(0.10005)
    assert Link.ten_gigabit().time_s(12.5e6) == pytest.approx(0.01005)


test_a_link_with_a_bad_number_is_refused = refusals(
    ({"bandwidth_bytes_per_s": 0}, "bandwidth_bytes_per_s is 0; it must be finite and above 0"),
    ({"bandwidth_bytes_per_s": "1e9"}, "bandwidth_bytes_per_s is '1e9'"),
    ({"latency_s": -1e-6}, "latency_s is -1e-06"),
    ({"source": " "}, "Link.source is ' '"),
    ({"inferred": ("latency",)}, "Link.inferred names 'latency': it must be a field of Link"),
    of=lambda **numbers: Link(**{"bandwidth_bytes_per_s": 1e9, "source": "test", **numbers}),
)


P4D = catalogue["gemini/16x-p4d"]


test_machines_devices_and_messages_that_cannot_be_are_refused = refusals(
    (lambda: Link.gigabit().time_s(-1), "message_bytes is -1"),
    (lambda: replace(P4D.host, num_devices=0), "num_devices is 0"),
    (lambda: replace(P4D.host.device, memory_bytes=-1), "memory_bytes is -1"),
    (lambda: replace(P4D, network=None), "Topology.network is None: 16 hosts must have one"),
    (lambda: catalogue["dgx"], "machine is 'dgx': it must be one of activation-compression/4x"),
)


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


def test_more_ranks_than_are_listed_use_the_connections_of_the_next_fewer_and_launching_adds_to_computing():
    connections = [ROUND.connections_of(num_ranks) for num_ranks in (1, 2, 3, 4, 8)]
    assert connections == [(1.0,), (1.0, 2.0), (1.0, 2.0), (4.0,), (4.0,)]
    for power, seconds in ((1.0, 7.0), (2.0, 5.0), (math.inf, 4.0)):  # or hides it
        assert replace(ROUND, overlap_power=power).overlapped_s(3.0, 4.0) == pytest.approx(seconds)


def test_a_record_has_the_numbers_that_are_known_and_a_codec_that_is_not_listed_costs_nothing():
    record = ROUND.as_record()
    assert record["link"]["bandwidth_bytes_per_s"] == 8.0
    assert "head_s" not in record and "codecs" not in record and record["network_share"] == 0.25
    listed = replace(ROUND, codecs={"top-k": CodecCost(encode_s_per_element=0.5, decode_s_per_sent=2.0)})
    assert (listed.codec("top-k").encode_s(10, 4), listed.codec("top-k").decode_s(10, 4)) == (5.0, 8.0)
    assert (listed.codec("code").encode_s(10, 4), listed.codec("code").sample_s(10, 4)) == (0.0, 0.0)


class CountedReads(Sequence):
    """The numbers below a size; counts how many are read."""

    def __init__(self, size: int) -> None:
        self.size, self.num_reads = size, 0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index >= self.size:
            raise IndexError(index)
        self.num_reads += 1
        return index


@pytest.mark.parametrize(
    ("size", "sent"),
    [(100, 4), (100, 6), (64, 6), (4096, 400), (4096, 80), (16384, 1600), (20000, 1950), (1 << 16, 6400)],
)
def test_sampling_lists_the_population_where_cpython_does(size, sent):
    population = CountedReads(size)
    random.Random(0).sample(population, sent)
    assert population.num_reads == (size if cluster.lists_population(size, sent) else sent)


def test_sampling_costs_each_index_and_the_list_of_all_where_there_is_one():
    cost = CodecCost(sample_s_per_sent=1.0, pool_s_per_element=0.1)
    assert cost.sample_s(4096, 80) == 80  # a set of 4^4 = 256 entries and 21 more
    assert cost.sample_s(4096, 400) == pytest.approx(400 + 409.6)  # 4^6 = 4096 entries: the list
    assert cost.sample_s(8192, 800) == pytest.approx(809.6)  # a set again, cheaper than half of it was: level
    assert cost.sample_s(4096, 0) == 0
    grown = CodecCost(sample_s_per_sent=1.0, sample_growth=0.5)
    assert grown.sample_s(1 << 24, 1 << 16) == pytest.approx((1 << 16) / 4)  # a sixteenth of 1 << 20: a quarter each


def test_bisection_finds_where_a_condition_changes():
    assert cluster.bisected(lambda rate: rate < 42.0, 1e-3, 1e6, 60) == pytest.approx(42.0)
    assert cluster.bisected(lambda _: True, 1.0, 4.0, 1) == pytest.approx(math.sqrt(8.0))


test_a_number_out_of_range_is_named = refusals(
    (lambda: replace(ROUND, flops_per_s=0.0), "flops_per_s is 0.0; it must be finite and above 0"),
    (lambda: replace(ROUND, layer_launch_s=-1.0), "layer_launch_s is -1.0"),
    (lambda: replace(ROUND, link_share=1.5), r"link_share is 1.5; it must be in \(0, 1\]"),
    (lambda: replace(ROUND, overlap_power=0.5), "overlap_power is 0.5; it must be at least 1"),
    (lambda: CodecCost(encode_s_per_sent=math.nan), "encode_s_per_sent is nan"),
    (lambda: FittedMachine.named("gemini/16x-p4d", peak_share=0.0), r"peak_share is 0.0; it must be in \(0, 1\]"),
    (lambda: ROUND.require("copy_bytes_per_s"), "copy_bytes_per_s of machine 'round numbers' is None; it must be"),
    (lambda: replace(ROUND, network=None).reached_network, "network is None; machine 'round numbers' must have"),
)


LINK = Link(bandwidth_bytes_per_s=125e6, latency_s=100e-6, source="test")


def test_samples_on_a_line_give_back_its_latency_and_bandwidth():
    # 0.5 s and then 1 s for every MB
    fitted = cluster.fit([(1e6, 1.5), (2e6, 2.5), (4e6, 4.5)])
    assert fitted.latency_s == pytest.approx(0.5)
    assert fitted.bandwidth_bytes_per_s == pytest.approx(1e6)
    assert fitted.residuals_s == pytest.approx((0, 0, 0), abs=1e-12)
    assert fitted.r_squared == pytest.approx(1)


def test_samples_of_different_collectives_and_numbers_of_ranks_give_one_link():
    kinds = [
        (cluster.Collective.ALL_REDUCE, cluster.Algorithm.RING, 4),
        (cluster.Collective.ALL_GATHER, cluster.Algorithm.RING, 3),
        (cluster.Collective.BROADCAST, cluster.Algorithm.BINOMIAL, 8),
    ]
    samples = []
    for collective, algorithm, num_ranks in kinds:
        for size in (1e3, 1e6):
            time_s = cluster.collective_time_s(collective, algorithm, num_ranks, size, LINK)
            group = {"num_ranks": num_ranks, "collective": collective, "algorithm": algorithm}
            samples.append(cluster.Sample(message_bytes=size, time_s=time_s, **group))
    fitted = cluster.fit(samples)
    assert fitted.latency_s == pytest.approx(LINK.latency_s)
    assert fitted.bandwidth_bytes_per_s == pytest.approx(LINK.bandwidth_bytes_per_s)
    assert fitted.link("test run").time_s(1e6) == pytest.approx(LINK.time_s(1e6))


def test_relative_errors_count_so_small_messages_keep_their_say():
    # Three times that no line meets. Relative errors of 1/t^2 weight: with x = latency, y = seconds per byte,
    # minimise (x+y-1)^2 + ((x+2y-2)/2)^2 + ((x+3y-4)/4)^2. Its normal equations are
    # (21/16) x + (27/16) y = 7/4 and (27/16) x + (41/16) y = 11/4, so x = (28 * 41 - 27 * 44) / 132 = -40/132 < 0:
    # latency is held at 0 and y = 11/4 / (41/16) = 44/41.
    fitted = cluster.fit([(1, 1.0), (2, 2.0), (3, 4.0)])
    assert fitted.latency_s == 0
    assert 1 / fitted.bandwidth_bytes_per_s == pytest.approx(44 / 41)
    assert fitted.residuals_s == pytest.approx((1 - 44 / 41, 2 - 88 / 41, 4 - 132 / 41))


def test_residuals_and_r_squared_of_a_line_that_misses():
    # With relative weights the two times at size 1 are met between: 1 and 3 s, weights 1 and 1/9; 10 s at size 10.
    fitted = cluster.fit([(1, 1.0), (1, 3.0), (10, 10.0)])
    at_one = (1 * 1 + 3 / 9) / (1 + 1 / 9)  # 1.2
    assert fitted.residuals_s == pytest.approx((1 - at_one, 3 - at_one, 0))
    mean = (1 / 1 + 1 / 3 + 1 / 10) / (1 + 1 / 9 + 1 / 100)
    around_mean = (1 - mean) ** 2 + (3 - mean) ** 2 / 9 + (10 - mean) ** 2 / 100
    around_line = 0.2**2 + 1.8**2 / 9
    assert fitted.r_squared == pytest.approx(1 - around_line / around_mean)


test_bad_samples_are_named = refusals(
    (lambda: cluster.fit([(1e6, 1.0)]), "samples has 1 entries"),
    (lambda: cluster.fit([(1e6, 1.0), (1e6, 1.1)]), "different message sizes"),
    (lambda: cluster.fit([(1e6, 2.0), (2e6, 1.0)]), "no bandwidth fits"),
    (lambda: cluster.fit([(1e6, 0.0), (2e6, 1.0)]), "time_s is 0.0"),
    (lambda: cluster.fit([(1e6, 1.0, 4), (2e6, 1.0)]), "it must hold Samples or pairs"),
    (lambda: cluster.Sample(message_bytes=1, time_s=1, num_ranks=1), "num_ranks is 1"),
)
