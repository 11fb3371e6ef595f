"""Network namespaces that live exactly as long as the processes inside them.

System calls (unshare, setns) and netlink messages (pyroute2) build hosts, a bridge and rate-limited cables, without any
other program and, where the kernel allows it, without root. Nothing is named in /var/run/netns: a namespace is held by
open files and processes, so the kernel removes it with the last of them, however that ends.
"""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import subprocess
import sys
from dataclasses import dataclass

from workbench.launch.environment import own_environment

__all__ = ["Cable", "NamespaceError", "build_hosts", "enter_namespace", "probe", "why_unavailable"]

CLONE_NEWUSER = 0x10000000  # <linux/sched.h>
CLONE_NEWNET = 0x40000000  # <linux/sched.h>

INTERFACE = "shaped0"  # the one network card of every host; gloo is told this name
BRIDGE = "bridge0"
SUBNET = "10.77.0"  # private to these namespaces, so two pools may both use it
PREFIX_BITS = 24
TBF_HANDLE = 0x10000  # "1:" in the notation of tc
TBF_INNER_CLASS = 0x10001  # "1:1", where tbf keeps its inner queue
NETEM_HANDLE = 0x100000  # "10:"
PROBE_TIMEOUT_S = 30
NETEM_PACKETS = 100_000  # longer than any queue that the rate limit lets build up
IPV6_OFF = "/proc/sys/net/ipv6/conf/{}/disable_ipv6"
CONGESTION_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


class NamespaceError(RuntimeError):
    """This machine cannot build shaped hosts; the message says what is missing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cable:
    """How one host is joined to the bridge, the same in both directions."""

    rate_bytes_per_s: int  # headers included
    latency_s: float  # delay that is asked of netem; 0 asks for none
    burst_bytes: int  # pass an idle cable at once
    queue_bytes: int  # may wait before packets are dropped
    segment_bytes: int  # largest packet that TCP hands to the cable in one piece
    mtu_bytes: int  # largest packet on the wire


def build_hosts(num_hosts: int, cable: Cable) -> tuple[list[int], dict]:
    """Join fresh namespaces with a bridge, whose namespace this process, which must have one thread, is then in.

    Returns one open file per host, and a description for the record.
    """
    _require_linux()
    _require_one_thread()
    own_user_namespace = _leave_network()
    bridge_file = _open_network()
    host_files = [_new_network() for _ in range(num_hosts)]
    enter_namespace(bridge_file)
    delayed = _build_bridge(host_files, cable)
    for host, host_file in enumerate(host_files):
        enter_namespace(host_file)
        congestion = _finish_host(host, cable)
    enter_namespace(bridge_file)
    os.close(bridge_file)
    built = {
        "user_namespace": own_user_namespace,
        "delay_imposed_s": cable.latency_s if delayed else 0.0,
        "congestion_control": congestion,
    }
    return host_files, built


def enter_namespace(namespace_file: int) -> None:
    """Move the calling thread into the network namespace of an open file."""
    _call("setns", namespace_file, CLONE_NEWNET)


def address_of(host: int) -> str:
    """Return the IPv4 address of a host, counted from 0."""
    return f"{SUBNET}.{host + 1}"


def probe() -> str | None:
    """Try every step in this process, which must be a throw-away one, and return what failed."""
    sizes = {"burst_bytes": 131_072, "queue_bytes": 1_000_000, "segment_bytes": 65_536, "mtu_bytes": 1500}
    cable = Cable(rate_bytes_per_s=125_000_000, latency_s=0.0, **sizes)
    try:
        build_hosts(1, cable)
    except NamespaceError as error:
        return str(error)
    return None


def why_unavailable() -> str | None:
    """Return what this machine lacks for shaped hosts, or None; a separate process tries."""
    try:
        _require_linux()
    except NamespaceError as error:
        return str(error)
    program = "from workbench.launch.namespaces import probe; print(probe() or '')"
    command = [sys.executable, "-c", program]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, env=own_environment())
    except subprocess.TimeoutExpired:
        return f"a kernel that builds them within {PROBE_TIMEOUT_S} s"
    if done.returncode != 0:
        return f"a working probe: {done.stderr.strip().splitlines()[-1]}"
    return done.stdout.strip() or None


def _require_linux() -> None:
    if not sys.platform.startswith("linux"):
        raise NamespaceError(f"Linux: network namespaces do not exist on {sys.platform}")
    if importlib.util.find_spec("pyroute2") is None:
        raise NamespaceError("the Python package pyroute2: pip install pyroute2")


def _require_one_thread() -> None:
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        raise NamespaceError(f"a process with one thread: this one has {num_threads}, and namespaces belong to threads")


def _leave_network() -> bool:
    """Enter a fresh network namespace; return whether it took a user namespace to be allowed to."""
    try:
        _call("unshare", CLONE_NEWNET)
        return False
    except OSError:  # not root, or root of a container without the right
        _enter_user_namespace()
        return True


def _enter_user_namespace() -> None:
    """Become the administrator of a fresh user namespace with its own network, under one's own user number."""
    user, group = os.getuid(), os.getgid()
    try:
        _call("unshare", CLONE_NEWUSER | CLONE_NEWNET)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")
    except OSError as error:
        raise NamespaceError(
            f"root, or unprivileged user and network namespaces (the kernel answered: {error.strerror}); "
            "sysctl user.max_user_namespaces, user.max_net_namespaces, kernel.unprivileged_userns_clone and "
            "kernel.apparmor_restrict_unprivileged_userns decide, and a container's own rules"
        ) from error


def _new_network() -> int:
    _step("another network namespace (sysctl user.max_net_namespaces)", _call, "unshare", CLONE_NEWNET)
    return _open_network()


def _open_network() -> int:
    return os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _build_bridge(host_files: list[int], cable: Cable) -> bool:
    """Make the bridge in this namespace and run a cable into every host; return whether the cables delay."""
    from pyroute2 import IPRoute

    with IPRoute() as bridge_side:
        _quiet_ipv6()
        _lift(bridge_side, "lo")
        _step("a bridge", bridge_side.link, "add", ifname=BRIDGE, kind="bridge")
        _lift(bridge_side, BRIDGE)
        delayed = [_plug(bridge_side, host, host_file, cable) for host, host_file in enumerate(host_files)]
        return all(delayed)  # after all hosts are plugged in: all() itself stops at the first without a delay


def _plug(bridge_side, host: int, host_file: int, cable: Cable) -> bool:
    """Run a cable from the bridge into a host and limit what the host receives; return whether it is delayed."""
    port = f"port{host}"
    peer = {"ifname": INTERFACE, "net_ns_fd": host_file}
    _step("a veth pair", bridge_side.link, "add", ifname=port, kind="veth", peer=peer)
    index = _set_up(bridge_side, port, cable)
    bridge = bridge_side.link_lookup(ifname=BRIDGE)[0]
    _step("a bridge port", bridge_side.link, "set", index=index, master=bridge)
    _limit(bridge_side, index, cable)
    return _delay(bridge_side, index, cable)


def _finish_host(host: int, cable: Cable) -> str:
    """Address the card of the host that this process is in and limit what it sends; return its TCP's flavour."""
    from pyroute2 import IPRoute

    _quiet_ipv6()
    with IPRoute() as host_side:
        _lift(host_side, "lo")
        index = _set_up(host_side, INTERFACE, cable)
        address = address_of(host)
        _step("an address", host_side.addr, "add", index=index, address=address, prefixlen=PREFIX_BITS)
        _limit(host_side, index, cable)
    return _choose_congestion_control()


def _set_up(side, name: str, cable: Cable) -> int:
    index = side.link_lookup(ifname=name)[0]
    sizes = {"mtu": cable.mtu_bytes, "gso_max_size": cable.segment_bytes}
    _step("the packet size of an interface", side.link, "set", index=index, **sizes)
    _step("an interface", side.link, "set", index=index, state="up")
    return index


def _lift(side, name: str) -> None:
    _step("an interface", side.link, "set", index=side.link_lookup(ifname=name)[0], state="up")


def _limit(side, index: int, cable: Cable) -> None:
    sizes = {"rate": cable.rate_bytes_per_s, "burst": cable.burst_bytes, "limit": cable.queue_bytes}
    _step("the tbf queue (kernel module sch_tbf)", side.tc, "add", "tbf", index, TBF_HANDLE, **sizes)


def _delay(side, index: int, cable: Cable) -> bool:
    """Delay what the host receives, if the kernel can; return whether it does."""
    if cable.latency_s == 0:
        return True
    from pyroute2.netlink.exceptions import NetlinkError

    delay_us = max(1, round(cable.latency_s * 1e6))
    try:
        side.tc("add", "netem", index, NETEM_HANDLE, parent=TBF_INNER_CLASS, delay=delay_us, limit=NETEM_PACKETS)
    except NetlinkError as error:
        if error.code != errno.ENOENT:
            raise NamespaceError(f"the netem queue (the kernel answered: {error})") from error
        return False
    return True


def _quiet_ipv6() -> None:
    """Turn IPv6 off where that is allowed: its duplicate-address check delays the first use of an interface."""
    for scope in ("all", "default"):
        _write_if_allowed(IPV6_OFF.format(scope), "1")


def _choose_congestion_control() -> str:
    """Ask for reno, which every namespace may use and which fills a link; return what the namespace uses."""
    _write_if_allowed(CONGESTION_CONTROL, "reno")
    with open(CONGESTION_CONTROL) as file:
        return file.read().strip()


def _write_if_allowed(path: str, text: str) -> None:
    try:
        _write(path, text)
    except (FileNotFoundError, PermissionError):
        return
    except OSError as error:
        if error.errno != errno.EROFS:
            raise


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def _step(what: str, function, *args, **kwargs) -> None:
    """Do one netlink request and say in words what this machine lacks if it is refused."""
    from pyroute2.netlink.exceptions import NetlinkError

    try:
        function(*args, **kwargs)
    except (NetlinkError, OSError) as error:
        raise NamespaceError(f"{what} (the kernel answered: {error})") from error


def _call(name: str, *args: int) -> None:
    """Call a function of the C library and raise what it reports."""
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*args) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), name)
