"""Machines: the papers' numbers in the catalogue, links between devices, bad descriptions named."""

import subprocess
import sys
from dataclasses import fields, is_dataclass, replace

import pytest

from workbench.cluster import Link, Wiring, catalogue

# Paper, machine: devices, gigabit per second between hosts, as the papers state them.
STATED = {
    "activation-compression/p3.8xlarge": (4, None),
    "activation-compression/local": (4, None),
    "activation-compression/4x-p3.8xlarge": (16, 10),
    "flextp/8x-v100": (8, None),
    "atp/ic1": (8, None),
    "atp/ic2": (8, None),
    "atp/ic3": (8, None),
    "atp/ic4": (16, 200),
    "atp/ic6": (16, None),
    "sdpipe/16-workers": (16, 10),
    "sdpipe/64-workers": (64, 10),
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
    assert len(catalogue) == len(catalogue.names()) == len(STATED) + 1  # and atp/ic5, whose bandwidth is left open
    for name, (num_devices, num_gigabits) in STATED.items():
        network = catalogue[name].network
        assert catalogue[name].num_devices == num_devices
        assert (network and round(network.bandwidth_bytes_per_s * 8 / 1e9)) == num_gigabits
    assert "atp/ic1" in catalogue
    assert [machine.name for machine in catalogue.of("gemini")] == ["gemini/16x-p3dn", "gemini/16x-p4d"]
    amazon, local = (catalogue[f"activation-compression/{name}"].host for name in ("p3.8xlarge", "local"))
    assert amazon.device_link.bandwidth_bytes_per_s == 40e9  # section 4.4
    assert (local.wiring, local.memory_bytes) == (Wiring.SHARED, 125e9)  # a single PCIe bridge
    # PCIe 3.0 x16: 8 GT/s, 16 lanes, 128 of 130 bits, 8 bits a byte
    assert local.device_link.bandwidth_bytes_per_s == pytest.approx(15.754e9, rel=1e-4)
    assert "device_link" in local.inferred


def test_every_part_of_every_machine_says_where_its_numbers_come_from():
    for machine in catalogue.values():
        for part in parts_of(machine):
            assert part.source.strip()
            if isinstance(part, Link):
                assert part.latency_s > 0
                assert "latency_s" in part.inferred, f"{machine.name}: no paper states a latency"


def test_devices_of_one_nvlink_pair_are_joined_by_it_and_others_by_pcie():
    machine = catalogue["atp/ic2"]
    assert machine.link_between(0, 1).bandwidth_bytes_per_s == 200e9
    assert machine.link_between(1, 2) == machine.host.device_link
    assert machine.slowest_link([0, 1]).bandwidth_bytes_per_s == 200e9
    assert machine.slowest_link(list(range(8))) == machine.host.device_link


def test_devices_of_different_hosts_are_joined_by_the_network():
    machine = catalogue["activation-compression/4x-p3.8xlarge"]
    assert machine.host_of(3) == 0
    assert machine.host_of(4) == 1
    assert machine.link_between(0, 3) == machine.host.device_link
    assert machine.link_between(3, 4) == machine.network
    assert machine.slowest_link([0, 1, 4]) == machine.network


def test_a_message_takes_latency_and_its_bytes_at_the_bandwidth():
    # 1 Gbit/s is 125 MB/s: 12.5 MB take 100 ms, after 50 microseconds
    assert Link.gigabit().time_s(12.5e6) == pytest.approx(0.10005)
    assert Link.ten_gigabit().time_s(12.5e6) == pytest.approx(0.01005)


@pytest.mark.parametrize(
    ("numbers", "rule"),
    [
        ({"bandwidth_bytes_per_s": 0}, "Link.bandwidth_bytes_per_s is 0: it must be a finite number above 0"),
        ({"bandwidth_bytes_per_s": float("nan")}, "Link.bandwidth_bytes_per_s is nan"),
        ({"bandwidth_bytes_per_s": "1e9"}, "Link.bandwidth_bytes_per_s is '1e9'"),
        ({"latency_s": -1e-6}, "Link.latency_s is -1e-06"),
        ({"source": " "}, "Link.source is ' '"),
        ({"inferred": ("latency",)}, "Link.inferred names 'latency': it must be a field of Link"),
    ],
)
def test_a_link_with_a_bad_number_is_refused(numbers, rule):
    with pytest.raises(ValueError, match=rule):
        Link(**{"bandwidth_bytes_per_s": 1e9, "source": "test", **numbers})


def test_the_room_does_not_import_torch():
    program = "import sys, workbench.cluster; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0


IC2 = catalogue["atp/ic2"]


@pytest.mark.parametrize(
    ("call", "rule"),
    [
        (lambda: Link.gigabit().time_s(-1), "message_bytes is -1"),
        (lambda: replace(IC2.host, island_size=3), "island_size is 3: it must divide num_devices = 8"),
        (lambda: replace(IC2.host, island_link=None), "Host.island_link is None"),
        (lambda: replace(IC2.host, num_devices=0), "num_devices is 0"),
        (lambda: replace(IC2.host.device, memory_bytes=-1), "Device.memory_bytes is -1"),
        (lambda: replace(IC2, num_hosts=2), "Topology.network is None: 2 hosts must have one"),
        (lambda: IC2.host_of(8), r"device is 8: it must lie in 0\.\.7"),
        (lambda: IC2.link_between(2, 2), "one and other are both 2"),
        (lambda: IC2.slowest_link([0]), "a ring needs at least two"),
        (lambda: catalogue["dgx"], "machine is 'dgx': it must be one of activation-compression/4x"),
        (lambda: catalogue.of("atm"), "paper is 'atm': it must be one of activation-compression, atp"),
    ],
)
def test_machines_devices_and_messages_that_cannot_be_are_refused(call, rule):
    with pytest.raises(ValueError, match=rule):
        call()
