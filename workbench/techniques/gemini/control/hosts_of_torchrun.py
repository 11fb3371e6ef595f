"""The same training on the hosts of a cluster: torchrun starts one process on each, and they meet in its rendezvous.

The process of rank 0 is the operator. Each process keeps the machines of its host and connects to the operator; both
prove that they know a secret, which the user gives to every host, before either loads anything. Where a process ends,
its machines are gone. torchrun restarts nothing itself:

    export WORKBENCH_SECRET=...                         # on each host the same, made once by openssl rand -hex 32
    torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint host:29500 train.py   # on each host

    outcome = run_under_torchrun(train, standbys=1)     # in train.py: two hosts train and one stands by
"""

import contextlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

import psutil
import torch.distributed as dist

from workbench.checks import require_counts
from workbench.launch.machines import MachineEnded, Machines, MachineStarted, RankEnded, RankStarted
from workbench.launch.tcp_store import listening_socket

from .handshake import AuthenticatedConnection, accept_hosts, connect_to_operator, read_secret
from .training import TrainingOutcome, run_training

__all__ = ["ClusterMachines", "PlainHost", "keep_machines", "run_under_torchrun"]

OPERATOR_KEY = "workbench/operator"  # of its address, in the rendezvous store, where anybody may write another one
MEETING_S = 300.0  # in which every host must connect to the operator
CLOCK_S = 300.0  # in which a host that has connected must have its machines ready, and say the time
LOOK_S = 0.02  # seconds between two looks of a host at its machines and its operator
KILL_PATIENCE_S = 15.0  # seconds that killed machines may need to be gone
KILLED_STATUS = 9  # wait status of a machine whose host is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainHost:
    """This host as it is, in the form of the shaped hosts that machines may be on."""

    ip: str  # IPv4 address, which the other hosts reach
    interface: str  # network interface with this address
    num_hosts: int = 1
    description: None = None

    def open(self) -> "PlainHost":
        """Nothing has to be built."""
        return self

    def enter(self, host: int) -> None:
        """The process is there."""

    def address(self, host: int) -> str:
        """Return the address."""
        return self.ip

    def close(self) -> None:
        """Nothing is held."""

    @classmethod
    def facing(cls, address: str, port: int) -> "PlainHost":
        """Describe this host by the interface from which an address is reached."""
        with socket.create_connection((address, port), timeout=30.0) as connection:
            ip = connection.getsockname()[0]
        names = [name for name, known in psutil.net_if_addrs().items() if any(each.address == ip for each in known)]
        return cls(ip=ip, interface=names[0])


def run_under_torchrun(
    function: Callable[..., Any],
    *,
    standbys: int = 0,  # hosts that wait to take a lost one's number
    preload: Sequence[str] = (),  # modules that are imported once on each host
    threads_per_rank: int = 1,
    **choices: Any,  # ranks_per_machine, args, kwargs, timing, timeout_s, ...: see `run_training`
) -> TrainingOutcome | None:
    """Train on the hosts of a torchrun job, one process of it on each; return the outcome on rank 0, None elsewhere.

    With more than one host the secret of the job is taken from `WORKBENCH_SECRET`, or from the file of mode 600 that
    `WORKBENCH_SECRET_FILE` names, by default ~/.config/workbench/secret.

    Raises:
        RuntimeError: where torchrun did not start this process, there is no secret, what is found as the operator does
            not know it, or too few hosts are left.
        TimeoutError: where hosts do not come; it names them.
    """
    if "MASTER_ADDR" not in os.environ or os.environ.get("LOCAL_WORLD_SIZE") != "1":
        raise RuntimeError("run_under_torchrun must be called in a process of torchrun --nproc-per-node 1")
    secret = read_secret() if int(os.environ["WORLD_SIZE"]) > 1 else b""
    store, rank, num_hosts = next(dist.rendezvous("env://"))
    require_counts(1, **{"hosts less standbys": num_hosts - standbys})
    host = PlainHost.facing(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    local = {"hosts": host, "preload": preload, "threads_per_rank": threads_per_rank}
    if rank != 0:
        keep_machines(_operator_address(store.get(OPERATOR_KEY)), secret, rank, **local)
        return None
    with listening_socket(host.ip) as listening:
        store.set(OPERATOR_KEY, json.dumps(listening.getsockname()))
        connections, num_dropped = accept_hosts(listening, secret, range(1, num_hosts), MEETING_S)
    if num_dropped:
        words = f"dropped {num_dropped} connections that did not prove that they know this job's secret"
        print(f"workbench: {words}", file=sys.stderr, flush=True)
    with ClusterMachines(Machines(**local), connections, num_needed=num_hosts - standbys) as machines:
        return run_training(function, num_hosts - standbys, standbys=standbys, machines=machines, **choices)


def _operator_address(data: bytes) -> tuple[str, int]:
    try:
        ip, port = json.loads(data)
        return str(ip), int(port)
    except (ValueError, TypeError) as error:
        raise RuntimeError(f"the rendezvous store has {data[:99]!r} as the operator; it must be [ip, port]") from error


def keep_machines(address: tuple[str, int], secret: bytes, rank: int, **choices: Any) -> None:
    """Start and end machines of this host as the operator asks, until it lets go or is gone."""
    with contextlib.closing(connect_to_operator(address, secret, rank)) as operator, Machines(**choices) as machines:
        try:
            operator.receive()  # the question for the time
            operator.send(time.monotonic())
            while True:
                while operator.poll():
                    name, args, more = operator.receive()
                    with contextlib.suppress(ValueError):  # what is to be told or killed has ended meanwhile
                        getattr(machines, name)(*args, **more)
                for event in machines.wait(LOOK_S):
                    operator.send(event)
        except (EOFError, ConnectionError):
            return


@dataclass(slots=True)
class _Host:
    """Another host, as the operator sees it."""

    connection: AuthenticatedConnection
    ahead_s: float  # its clock less this one's
    machines: set[str]

    def ask(self, name: str, *args: Any, **more: Any) -> None:
        try:
            self.connection.send((name, args, more))
        except (BrokenPipeError, ConnectionError):
            return  # its end is heard where events are


class ClusterMachines:
    """Machines on several hosts, with the interface of `Machines`: host 0 is this one, the others are connected."""

    hosts = None  # no description of shaped hosts

    def __init__(self, local: Machines, connections: Sequence[AuthenticatedConnection], num_needed: int):
        self._local, self._num_needed = local, num_needed
        self._others: dict[int, _Host] = {}
        for number, connection in enumerate(connections, 1):
            try:
                connection.send("What time is it?")
                if not connection.poll(CLOCK_S):
                    raise TimeoutError(f"host {number} has not said the time within {CLOCK_S:g} s after it connected")
                ahead_s = connection.receive() - time.monotonic()
            except (EOFError, ConnectionError) as error:
                raise RuntimeError(f"host {number} was lost after it had connected: {error}") from error
            self._others[number] = _Host(connection, ahead_s, set())
        self.shaped = self  # machine i is on host i: the operator asks how many there are
        self.num_hosts = 1 + len(connections)
        self._pids: dict[str, dict[str, Any]] = {}
        self._unread: list[Any] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The machines that have been started and have not been seen to end."""
        return (*self._local.names, *(name for host in self._others.values() for name in host.machines))

    @property
    def pids(self) -> dict[str, dict[str, Any]]:
        """By machine: `agent`, its process id on its host, and `ranks`, theirs by number."""
        return {**self._pids, **self._local.pids}

    def start(self, name: str, function: Callable[..., Any], /, *args: Any, host: int = 0, **more: Any) -> None:
        """Start a machine on a host; one on a host that is gone ends at once."""
        if host == 0:
            self._local.start(name, function, *args, host=0, **more)
        elif host in self._others:
            self._others[host].machines.add(name)
            self._others[host].ask("start", name, function, *args, host=0, **more)
        else:
            self._unread.append(MachineEnded(machine=name, status=KILLED_STATUS, time_s=time.monotonic()))

    def tell(self, name: str, message: Any) -> None:
        """Send a machine's function a message."""
        if name in self._local.names:
            self._local.tell(name, message)
        elif (host := self._host_of(name)) is not None:
            host.ask("tell", name, message)

    def kill_rank(self, name: str, rank: int) -> None:
        """Kill one rank of a machine."""
        if name in self._local.names:
            self._local.kill_rank(name, rank)
        elif (host := self._host_of(name)) is not None:
            host.ask("kill_rank", name, rank)

    def kill(self, *names: str) -> None:
        """Kill machines at once; return when nothing of them is left."""
        self._local.kill(*(name for name in names if name in self._local.names))
        for name in names:
            if (host := self._host_of(name)) is not None:
                host.ask("kill", name)
        deadline_s = time.monotonic() + KILL_PATIENCE_S
        while left := [name for name in names if self._host_of(name) is not None]:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"machines {left!r} are still there {KILL_PATIENCE_S} s after they were killed")
            self._unread += self._heard(LOOK_S)

    def kill_all(self) -> None:
        """Kill all machines, and forget the events that nobody has waited for."""
        self.kill(*self.names)
        self._unread.clear()

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until something happens, for so many seconds at most; RuntimeError where too few hosts are left."""
        events, self._unread = self._unread, []
        deadline_s = time.monotonic() + timeout_s
        while not events:
            events = self._local.wait(0.0) or self._heard(min(LOOK_S, max(0.0, deadline_s - time.monotonic())))
            if time.monotonic() >= deadline_s:
                break
        return events

    def _heard(self, timeout_s: float) -> list[Any]:
        """Receive what the other hosts say, with their moments on this host's clock."""
        events: list[Any] = []
        hosts = {host.connection: (number, host) for number, host in self._others.items()}
        for connection in wait(list(hosts), timeout_s) if hosts else ():
            number, host = hosts[connection]
            try:
                events.append(self._noted(host, connection.receive()))
            except (EOFError, ConnectionError):
                events += self._lost(number)
        return events

    def _noted(self, host: _Host, event: Any) -> Any:
        match event:
            case MachineStarted(machine=name, pid=pid):
                self._pids[name] = {"agent": pid, "ranks": {}}
            case MachineEnded(machine=name):
                host.machines.discard(name)
                self._pids.pop(name, None)
            case RankStarted(machine=name, rank=rank, pid=pid) if name in self._pids:
                self._pids[name]["ranks"][rank] = pid
            case RankEnded(machine=name, rank=rank) if name in self._pids:
                self._pids[name]["ranks"].pop(rank, None)
        if hasattr(message := getattr(event, "message", None), "time_s"):
            event = replace(event, message=replace(message, time_s=message.time_s - host.ahead_s))
        return replace(event, time_s=event.time_s - host.ahead_s) if hasattr(event, "time_s") else event

    def _lost(self, number: int) -> list[MachineEnded]:
        """Note that a host is gone, with all its machines."""
        host = self._others.pop(number)
        host.connection.close()
        if 1 + len(self._others) < self._num_needed:
            rule = f"{1 + len(self._others)} are left, fewer than the {self._num_needed} that train"
            raise RuntimeError(f"host {number} is gone, with {sorted(host.machines)}: {rule}")
        return [
            MachineEnded(machine=name, status=KILLED_STATUS, time_s=time.monotonic()) for name in sorted(host.machines)
        ]

    def _host_of(self, name: str) -> _Host | None:
        return next((host for host in self._others.values() if name in host.machines), None)

    def close(self) -> None:
        """End all machines, also of the other hosts; calling it again does nothing."""
        while self._others:
            self._others.popitem()[1].connection.close()
        self._local.close()

    def __enter__(self) -> "ClusterMachines":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
