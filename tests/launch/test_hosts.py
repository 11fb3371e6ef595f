"""Shaped hosts: real gloo ranks on rate-limited network namespaces, with and without root."""

import os
import socket
import subprocess
import time
import warnings
from pathlib import Path

import psutil
import pytest
import torch
import torch.distributed as dist
from cases import refusals
from processes_seen import run_python, wait_for
from shaped_all_reduce import NOBODY, all_reduce_s

from workbench.cluster import Algorithm, Collective, Link, collective_time_s
from workbench.launch import Ranks, ShapedHosts, rank_environment, run_on_ranks
from workbench.launch.hosts import HostNamespaces, LatencyNotImposed

# A 16 MB ring all-reduce of 4 ranks at 1 Gbit/s: 2 * 3/4 * 16e6 B / 125e6 B/s.
CLOSED_FORM_S = 0.192
ENOUGH_S = CLOSED_FORM_S / 0.90

MISSING = ShapedHosts.missing()
needs_namespaces = pytest.mark.skipif(MISSING is not None, reason=f"shaped hosts need {MISSING}")
GIGABIT_BYTES_PER_S = 125e6

# A kernel that allows no further namespace: a user namespace with its limits at 0.
WITHOUT_NAMESPACES = """
import ctypes, os
user, group = os.getuid(), os.getgid()
ctypes.CDLL(None).unshare(0x10000000)
for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
    with open(f"/proc/self/{name}", "w") as file:
        file.write(text)
for limit in ("max_user_namespaces", "max_net_namespaces"):
    with open(f"/proc/sys/user/{limit}", "w") as file:
        file.write("0")
"""

OWNER_THAT_WAITS = """
from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
def where():
    return os.getpid(), os.stat("/proc/self/ns/net").st_ino
ranks = Ranks(2, hosts=ShapedHosts(2, link=Link.gigabit()))
say(*sum(ranks.run(where), ()))
time.sleep(60)
"""


def exchange_s(pairs: list[tuple[int, int]], message_bytes: int) -> float:
    """Return the seconds in which every (sender, receiver) pair has passed a message, all at the same time."""
    rank = dist.get_rank()
    moves = [(dist.isend, receiver) for sender, receiver in pairs if sender == rank]
    moves += [(dist.irecv, sender) for sender, receiver in pairs if receiver == rank]
    tensors = [torch.zeros(message_bytes // 4) for _ in moves]
    dist.barrier()
    start = time.perf_counter()
    for handle in [move(tensor, peer) for tensor, (move, peer) in zip(tensors, moves, strict=True)]:
        handle.wait()
    dist.barrier()
    return time.perf_counter() - start


def network_of(pid: int | str = "self") -> int | None:
    """Return the number of the network namespace of a living process."""
    try:
        return os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return None


def pids_in(networks: set[int]) -> set[int]:
    return {pid for pid in psutil.pids() if network_of(pid) in networks}


def in_one_thread(*arguments: str) -> subprocess.CompletedProcess:
    """Run Python with one thread, which namespaces need."""
    return run_python(*arguments, env={**os.environ, **rank_environment(1)})


@pytest.fixture(scope="module")
def one_rank_a_host():
    with Ranks(4, hosts=ShapedHosts(4, link=Link.gigabit())) as ranks:
        yield ranks


@pytest.fixture(scope="module")
def three_slow_hosts():
    """Ranks 0 and 1 on the first host, 2 and 3 on one each; so slow that this machine's own speed is no matter."""
    link = Link(bandwidth_bytes_per_s=12.5e6, source="100 Mbit/s")
    with Ranks(4, hosts=ShapedHosts(3, link=link)) as ranks:
        yield ranks


def fastest(ranks: Ranks, pairs: list[tuple[int, int]], enough_s: float) -> float:
    """Pass 1 MB between each pair, 80 ms on one link alone, until it is fast enough, at most 40 times.

    Another program on this machine may slow any of them down; nothing may make one faster than the links allow.
    """
    best = float("inf")
    for _ in range(40):
        best = min(best, max(ranks.run(exchange_s, pairs, 1_000_000)))
        if best <= enough_s:
            break
    return best


def within_closed_form(seconds: float) -> bool:
    """At least 90 % of the closed form's bandwidth, and no faster than the bursts of 62.5 kB a cable allow."""
    return CLOSED_FORM_S / 1.02 <= seconds <= ENOUGH_S


@needs_namespaces
def test_a_16_mb_all_reduce_among_4_hosts_at_1_gigabit_reaches_90_percent_of_the_closed_form(one_rank_a_host):
    link = Link(bandwidth_bytes_per_s=GIGABIT_BYTES_PER_S, source="nominal")
    closed_form_s = collective_time_s(Collective.ALL_REDUCE, Algorithm.RING, 4, 16_000_000, link)
    assert closed_form_s == pytest.approx(CLOSED_FORM_S)
    assert within_closed_form(min(one_rank_a_host.run(all_reduce_s, 16_000_000, enough_s=ENOUGH_S)[0]))


@needs_namespaces
@pytest.mark.skipif(os.getuid() != 0, reason="already running without root: the test above is this one")
def test_it_reaches_them_without_root_too():
    done = in_one_thread(str(Path(__file__).parent / "shaped_all_reduce.py"), "16000000", str(ENOUGH_S))
    assert done.returncode == 0, done.stderr
    user, user_namespace, *seconds = done.stdout.split()
    assert (int(user), user_namespace) == (NOBODY, "True")
    assert within_closed_form(min(map(float, seconds)))


@needs_namespaces
@pytest.mark.parametrize(
    ("pairs", "least_s", "enough_s"),
    [
        ([(0, 2), (2, 0)], 0.075, 0.120),  # 80 ms if the directions do not share, 160 ms if they did
        ([(2, 0), (3, 1)], 0.150, 0.200),  # 2 MB into one card: 160 ms, although each sender alone would need 80 ms
        ([(0, 2), (1, 3)], 0.150, 0.200),  # 2 MB out of one card: 160 ms, although the receivers have a card each
        ([(0, 1)], 0.0, 0.040),  # would need 80 ms over the card
    ],
    ids=["both ways at once", "two hosts send to one", "two ranks share a card", "inside a host"],
)
def test_each_card_has_the_rate_of_the_link_each_way(three_slow_hosts, pairs, least_s, enough_s):
    assert least_s <= fastest(three_slow_hosts, pairs, enough_s) <= enough_s


@needs_namespaces
def test_two_pools_at_once_have_networks_of_their_own_and_ranks_in_contiguous_blocks(one_rank_a_host, three_slow_hosts):
    running = [ranks.start(all_reduce_s, 100_000) for ranks in (one_rank_a_host, three_slow_hosts)]
    assert [len(run.result()) for run in running] == [4, 4]
    networks, slow = (ranks.run(network_of) for ranks in (one_rank_a_host, three_slow_hosts))
    assert slow[0] == slow[1]
    assert len({*networks, *slow, network_of()}) == 4 + 3 + 1


@needs_namespaces
def test_nothing_is_left_after_the_owner_is_killed(start_owner):
    interfaces_before = socket.if_nameindex()
    owner, words = start_owner(OWNER_THAT_WAITS)
    first_pid, first_network, second_pid, second_network = map(int, words)
    networks = {first_network, second_network}
    assert {first_pid, second_pid} <= pids_in(networks)
    owner.kill()
    wait_for(lambda: not pids_in(networks))
    wait_for(lambda: socket.if_nameindex() == interfaces_before)
    assert not Path("/var/run/netns").exists() or not list(Path("/var/run/netns").iterdir())


@needs_namespaces
def test_a_machine_without_namespaces_is_refused_with_what_it_lacks():
    script = WITHOUT_NAMESPACES + (
        "from workbench.cluster import Link\n"
        "from workbench.launch import Ranks, ShapedHosts\n"
        "print(ShapedHosts.missing())\n"
        "Ranks(2, hosts=ShapedHosts(2, link=Link.gigabit())).close()\n"
    )
    done = in_one_thread("-c", script)
    assert done.stdout.startswith("root, or unprivileged user and network namespaces (the kernel answered: No space")
    assert done.returncode != 0
    assert "user.max_net_namespaces" in done.stderr.splitlines()[-1] or "the ranks cannot start" in done.stderr


@needs_namespaces
def test_a_process_with_threads_is_refused_in_words():
    script = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
        "from workbench.cluster import Link\n"
        "from workbench.launch import ShapedHosts\n"
        "ShapedHosts(2, link=Link.gigabit()).open()\n"
    )
    assert "a process with one thread: this one has 2" in in_one_thread("-c", script).stderr


@needs_namespaces
def test_the_record_says_what_was_built(one_rank_a_host):
    built = one_rank_a_host.hosts
    assert built["num_hosts"] == 4
    assert built["bandwidth_bytes_per_s"] == 125_000_000
    assert built["delay_imposed_s"] in (0.0, Link.gigabit().latency_s)
    # MTU 9000: 9000 - 20 - 32 bytes of payload in 9000 + 14 bytes on the wire.
    assert built["payload_share"] == pytest.approx(8948 / 9014)


test_wrong_hosts_are_refused_before_anything_is_built = refusals(
    (lambda: ShapedHosts(0, Link.gigabit()), "num_hosts is 0; it must be an integer from 1 to 250"),
    (lambda: ShapedHosts(251, Link.gigabit()), "num_hosts is 251"),
    (lambda: ShapedHosts(2, 1e9), "link is 1000000000.0; it must be a Link"),
    (lambda: ShapedHosts(2, Link(bandwidth_bytes_per_s=1e12, source="test")), "bandwidth_bytes_per_s is 10*.0; it"),
    (lambda: Ranks(2, hosts=ShapedHosts(3, Link.gigabit())), "num_ranks is 2; it must be at least the 3 hosts"),
    (lambda: ShapedHosts(3, Link.gigabit()).host_of(3, 3), "rank is 3; it must lie in 0..2"),
    (lambda: HostNamespaces([], {}).enter(0), "host is 0"),  # of hosts that were closed
)


def test_a_stated_latency_that_the_kernel_did_not_impose_is_warned_of():
    stated = Link(bandwidth_bytes_per_s=GIGABIT_BYTES_PER_S, latency_s=0.005, source="test")
    with pytest.warns(LatencyNotImposed, match="latency_s is 0.005.* imposed 0.0 s.*sch_netem"):
        ShapedHosts(2, stated).warn_of({"delay_imposed_s": 0.0})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ShapedHosts(2, stated).warn_of({"delay_imposed_s": 0.005})
        ShapedHosts(2, Link.gigabit()).warn_of({"delay_imposed_s": 0.0})  # this latency was inferred
        ShapedHosts(2, Link(bandwidth_bytes_per_s=1e8, source="test")).warn_of({"delay_imposed_s": 0.0})


def test_a_rate_that_a_processor_may_not_reach_is_noted():
    links = [Link(bandwidth_bytes_per_s=gigabits * 1e9 / 8, source="test") for gigabits in (2.5, 2.6)]
    notes = [ShapedHosts(2, link).rate_note() for link in links]
    assert notes[0] is None and "not measured" in notes[1]


def test_blocks_differ_by_at_most_one_rank():
    hosts = ShapedHosts(3, Link.gigabit())
    assert [hosts.host_of(rank, 8) for rank in range(8)] == [0, 0, 0, 1, 1, 1, 2, 2]


@needs_namespaces
def test_a_stated_latency_is_imposed_or_else_warned_of_and_refused_when_it_is_required():
    link = Link(bandwidth_bytes_per_s=GIGABIT_BYTES_PER_S, latency_s=0.005, source="test")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with Ranks(2, hosts=ShapedHosts(2, link)) as ranks:
            imposed = ranks.hosts["delay_imposed_s"] == 0.005
            times = ranks.run(all_reduce_s, 1_000)[0]
    assert [warning.category for warning in caught] == ([] if imposed else [LatencyNotImposed])
    if imposed:  # an all-reduce of two ranks waits for the link at least twice
        assert min(times) >= 2 * 0.005
    else:
        with pytest.raises(RuntimeError, match="netem"):
            run_on_ranks(int, 2, hosts=ShapedHosts(2, link=link, require_latency=True))
