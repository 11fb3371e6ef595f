"""Shaped hosts: ranks on this machine whose traffic really takes as long as over a given link.

`ShapedHosts(4, link=Link.gigabit())` puts ranks on network namespaces. Each host has one network card that its ranks
share and that sends and receives at the link's rate, packet headers included; ranks of one host talk over its loopback,
which is not limited. A message should be well above `burst_bytes`, which an idle card lets through at once.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass

from workbench.cluster import Link
from workbench.launch.namespaces import (
    INTERFACE,
    Cable,
    NamespaceError,
    address_of,
    build_hosts,
    enter_namespace,
    why_unavailable,
)

__all__ = ["HostNamespaces", "LatencyNotImposed", "NamespaceError", "ShapedHosts"]

MAX_HOSTS = 250  # addresses of one /24 network
# Bytes per second; tbf's plain rate has 32 bits.
MAX_RATE_BYTES_PER_S = 2**32 - 1
MIN_RATE_BYTES_PER_S = 10_000

# Above this a processor that copies every byte is likely to be slower than the link (2.5 Gbit/s).
NOTED_RATE_BYTES_PER_S = 2.5e9 / 8

MTU_BYTES = 9000  # jumbo frames, as clouds use between their instances; they keep the share of headers below 1 %
ETHERNET_HEADER_BYTES = 14  # counted by tbf, as are the next
IP_TCP_HEADER_BYTES = 20 + 32  # IPv4, and TCP with time stamps
MAX_SEGMENT_BYTES = 65_536  # largest packet that the kernel forms for IPv4 (GSO)
SEGMENT_TIME_S = 0.25e-3  # a packet should not hold a slow link longer than this
BURST_TIME_S = 0.5e-3  # covers the kernel waking up late; shorter, and a busy machine misses the rate by 20 %
QUEUE_TIME_S = 50e-3  # what a switch port buffers before it drops
MIN_QUEUE_BYTES = 1_000_000


class LatencyNotImposed(UserWarning):
    """The hosts do not have the latency that their link states."""


@dataclass(frozen=True)
class ShapedHosts:
    """Hosts to put ranks on, in contiguous blocks."""

    num_hosts: int  # how many
    link: Link  # joins each of them to all others
    require_latency: bool = False  # refuse, rather than record it, when the kernel cannot impose the link's latency

    def __post_init__(self) -> None:
        whole = isinstance(self.num_hosts, int) and not isinstance(self.num_hosts, bool)
        if not whole or not 1 <= self.num_hosts <= MAX_HOSTS:
            raise ValueError(f"num_hosts is {self.num_hosts!r}; it must be an integer from 1 to {MAX_HOSTS}")
        if not isinstance(self.link, Link):
            raise ValueError(f"link is {self.link!r}; it must be a Link")
        rate = self.link.bandwidth_bytes_per_s
        if not MIN_RATE_BYTES_PER_S <= rate <= MAX_RATE_BYTES_PER_S:
            rule = f"it must lie between {MIN_RATE_BYTES_PER_S} and {MAX_RATE_BYTES_PER_S}"
            raise ValueError(f"link.bandwidth_bytes_per_s is {rate!r}; {rule}")

    def open(self) -> HostNamespaces:
        """Build the hosts around this process, which must have one thread and ends in the namespace of the switch.

        After a NamespaceError, which says what this machine lacks, the process should end.
        """
        files, built = build_hosts(self.num_hosts, self.cable())
        hosts = HostNamespaces(files, self._describe(built))
        imposed = built["delay_imposed_s"] == self.link.latency_s
        if self.require_latency and not imposed:
            hosts.close()
            raise NamespaceError("the netem queue (kernel module sch_netem), to impose the latency of the link")
        return hosts

    def warn_of(self, description: dict) -> None:
        """Warn where hosts, as described, lack the link's latency, unless the link's source does not state it."""
        imposed_s = description["delay_imposed_s"]
        if "latency_s" in self.link.inferred or imposed_s == self.link.latency_s:
            return
        warnings.warn(
            f"ShapedHosts.link.latency_s is {self.link.latency_s!r} s, but this machine imposed {imposed_s!r} s: "
            "it lacks the netem queue (kernel module sch_netem); require_latency=True refuses such hosts",
            LatencyNotImposed,
            stacklevel=3,  # the caller of Ranks
        )

    def rate_note(self) -> str | None:
        """Return a remark on the rate, or None if a processor, which copies every byte several times, keeps up."""
        if self.link.bandwidth_bytes_per_s <= NOTED_RATE_BYTES_PER_S:
            return None
        return "above 2.5 Gbit/s the processor may be slower than the link; the rate reached was not measured"

    def cable(self) -> Cable:
        """Return the sizes of queues and packets that make a veth pair behave like the link."""
        rate = round(self.link.bandwidth_bytes_per_s)
        segment = int(min(MAX_SEGMENT_BYTES, max(2 * MTU_BYTES, rate * SEGMENT_TIME_S)))
        burst = int(max(2 * segment, rate * BURST_TIME_S))
        return Cable(
            rate_bytes_per_s=rate,
            latency_s=self.link.latency_s,
            burst_bytes=burst,
            queue_bytes=int(max(MIN_QUEUE_BYTES, rate * QUEUE_TIME_S)) + burst,
            segment_bytes=segment,
            mtu_bytes=MTU_BYTES,
        )

    @staticmethod
    def missing() -> str | None:
        """Return in words what this machine lacks to run shaped hosts, or None."""
        return why_unavailable()

    def host_of(self, rank: int, num_ranks: int) -> int:
        """Return the host of a rank: contiguous blocks, the first hosts one rank larger if it does not divide."""
        if num_ranks < self.num_hosts:
            raise ValueError(f"num_ranks is {num_ranks}; it must be at least the {self.num_hosts} hosts")
        if not 0 <= rank < num_ranks:
            raise ValueError(f"rank is {rank}; it must lie in 0..{num_ranks - 1}")
        block, larger = divmod(num_ranks, self.num_hosts)
        boundary = larger * (block + 1)
        if rank < boundary:
            return rank // (block + 1)
        return larger + (rank - boundary) // block

    def _describe(self, built: dict) -> dict:
        cable = self.cable()
        return {
            "num_hosts": self.num_hosts,
            "bandwidth_bytes_per_s": cable.rate_bytes_per_s,
            "rate_note": self.rate_note(),
            "latency_s": self.link.latency_s,
            "payload_share": (MTU_BYTES - IP_TCP_HEADER_BYTES) / (MTU_BYTES + ETHERNET_HEADER_BYTES),
            "burst_bytes": cable.burst_bytes,
            "queue_bytes": cable.queue_bytes,
            "segment_bytes": cable.segment_bytes,
            "mtu_bytes": cable.mtu_bytes,
            "source": self.link.source,
            **built,
        }


class HostNamespaces:
    """The hosts of one pool, held by open files; they vanish with the last process that is in them or holds one."""

    interface = INTERFACE  # name of every host's network card, for GLOO_SOCKET_IFNAME

    def __init__(self, files: list[int], description: dict) -> None:
        self._files = list(files)
        self.description = description  # of the hosts, for the record

    def enter(self, host: int) -> None:
        """Move the calling process, which must have one thread, onto a host."""
        if not 0 <= host < len(self._files):
            raise ValueError(f"host is {host}; it must lie in 0..{len(self._files) - 1}")
        enter_namespace(self._files[host])

    def address(self, host: int) -> str:
        """Return the IPv4 address of a host."""
        return address_of(host)

    def close(self) -> None:
        """Let go of the hosts; calling it again does nothing."""
        while self._files:
            os.close(self._files.pop())
