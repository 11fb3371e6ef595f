"""The same training on the hosts of a cluster: torchrun starts one process on each, and they meet in its rendezvous.

The process of rank 0 is the operator. Each process keeps the machines of its host and connects to the operator. Where
a process ends, its machines are gone. torchrun restarts nothing itself:

    export WORKBENCH_SECRET=...                         # on each host the same, made once by openssl rand -hex 32
    torchrun --nnodes 3 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint host:29500 train.py   # on each host

    outcome = run_under_torchrun(train, standbys=1)     # in train.py: two hosts train and one stands by

Nothing is unpickled from a connection before both ends have proved the job's secret, which the user gives to every
host. Each end sends a random number and an HMAC-SHA256 of both numbers, with the secret as key; the secret itself is
never sent. Later messages carry an HMAC with a key of that connection. Messages are not encrypted.
"""

import asyncio
import contextlib
import hmac
import json
import os
import secrets
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import torch.distributed as dist

from workbench.checks import require_counts
from workbench.launch.machines import MachineEnded, Machines, MachineStarted, RankEnded, RankStarted
from workbench.launch.tcp_store import listening_socket

from .training import TrainingOutcome, run_training

__all__ = ["AuthenticatedConnection", "ClusterMachines", "PlainHost", "accept_hosts", "connect_to_operator"]
__all__ += ["read_secret", "run_under_torchrun"]

SECRET_VARIABLE, FILE_VARIABLE = "WORKBENCH_SECRET", "WORKBENCH_SECRET_FILE"
LEAST_CHARACTERS = 32  # who sees a handshake can try out secrets, and must not come to an end
MOST_BYTES = 4096  # of a file
HOW = (
    f"make one secret, and give it to every host of the job: export {SECRET_VARIABLE}=$(openssl rand -hex 32), "
    f"or a file of mode 600 that {FILE_VARIABLE} names"
)
MAGIC = b"workben1"
NONCE_BYTES = MAC_BYTES = 32
HELLO = struct.Struct(f"<8sI{NONCE_BYTES}s")  # magic, rank, nonce of the host
PROOF_S = 10.0  # seconds in which a connection must prove that it knows the secret
MOST_UNPROVEN = 128  # connections at a time; the oldest one makes room


def read_secret() -> bytes:
    """Return the secret of this job: WORKBENCH_SECRET, or the content of a file of mode 600.

    `WORKBENCH_SECRET_FILE` names the file, by default ~/.config/workbench/secret.

    Raises:
        RuntimeError: where there is none; it says how to give one.
        ValueError: where it is too short, or the file is a link, of another user, or open to others.
    """
    name, text = SECRET_VARIABLE, os.environ.get(SECRET_VARIABLE)
    if text is None:
        path = os.environ.get(FILE_VARIABLE) or str(Path.home() / ".config" / "workbench" / "secret")
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise RuntimeError(f"{SECRET_VARIABLE} is not set, and there is no file {path}; {HOW}") from None
        except OSError as error:
            raise ValueError(f"the file {path} cannot be the secret ({error.strerror}); it must be no link") from error
        try:
            known = os.fstat(fd)
            if not stat.S_ISREG(known.st_mode) or known.st_uid != os.geteuid() or known.st_mode & 0o077:
                access = f"of user {known.st_uid} and mode {stat.S_IMODE(known.st_mode):o}"
                raise ValueError(f"the file {path} is {access}; it must be a plain file of your own, of mode 600")
            name, text = f"the secret in {path}", os.read(fd, MOST_BYTES).decode(errors="replace")
        finally:
            os.close(fd)
    text = text.strip()
    if len(text) < LEAST_CHARACTERS:
        raise ValueError(f"{name} has {len(text)} characters; it must have at least {LEAST_CHARACTERS}; {HOW}")
    return text.encode()


class AuthenticatedConnection(Connection):
    """A connection whose ends know one secret; a message that was changed, repeated or left out ends it."""

    def __init__(self, end: socket.socket, secret: bytes, handshake: bytes, is_operator: bool):
        end.setblocking(True)
        super().__init__(end.detach())
        keys = [_mac(secret, name, handshake) for name in (b"from operator", b"from host")]
        self._own_key, self._other_key = keys if is_operator else keys[::-1]
        self._num_sent = self._num_received = 0

    def send(self, value: Any) -> None:
        """Send a picklable object; OSError if the other end is gone."""
        data = cloudpickle.dumps(value)
        self.send_bytes(_mac(self._own_key, b"%d" % self._num_sent, data) + data)
        self._num_sent += 1

    def recv(self) -> Any:
        """Wait for an object; EOFError or ConnectionError if the other end is gone or was not its sender."""
        message = self.recv_bytes()
        data = message[MAC_BYTES:]
        if not hmac.compare_digest(_mac(self._other_key, b"%d" % self._num_received, data), message[:MAC_BYTES]):
            raise ConnectionAbortedError("a message between hosts was not sent by the other host")
        self._num_received += 1
        return cloudpickle.loads(data)


def connect_to_operator(
    address: tuple[str, int], secret: bytes, rank: int, limit_s: float = 60.0
) -> AuthenticatedConnection:
    """Connect a host, by its torchrun rank, to the operator; RuntimeError if what is there does not know the secret."""
    deadline_s = time.monotonic() + limit_s
    hello = HELLO.pack(MAGIC, rank, secrets.token_bytes(NONCE_BYTES))
    end = None
    try:
        end = socket.create_connection(address, limit_s)
        end.sendall(hello)
        answer = b""
        while len(answer) < NONCE_BYTES + MAC_BYTES:
            end.settimeout(max(0.001, deadline_s - time.monotonic()))
            if not (data := end.recv(NONCE_BYTES + MAC_BYTES - len(answer))):
                raise EOFError("it closed the connection")
            answer += data
        handshake = hello + answer[:NONCE_BYTES]
        if not hmac.compare_digest(_mac(secret, b"operator", handshake), answer[NONCE_BYTES:]):
            raise EOFError("its proof is wrong")
        end.sendall(_mac(secret, b"host", handshake))
    except (OSError, EOFError) as error:
        if end is not None:
            end.close()
        what = f"{address[0]}:{address[1]}, which the rendezvous store names as the operator"
        raise RuntimeError(f"{what}, did not prove that it knows this job's secret: {error or 'no answer'}") from error
    return AuthenticatedConnection(end, secret, handshake, is_operator=False)


def accept_hosts(
    listening: socket.socket, secret: bytes, ranks: Collection[int], limit_s: float
) -> tuple[list[AuthenticatedConnection], int]:
    """Wait for every host, and drop whoever else connects; return the connections by rank, and how many were dropped.

    TimeoutError names the hosts that did not come.
    """
    proven, num_dropped = asyncio.run(_admit(listening, secret, set(ranks), limit_s))
    if missing := sorted(set(ranks) - proven.keys()):
        for connection in proven.values():
            connection.close()
        others = f"{num_dropped} connections did not prove that they know the secret"
        raise TimeoutError(f"hosts {missing} did not come within {limit_s:g} s; {others}")
    return [proven[rank] for rank in sorted(proven)], num_dropped


async def _admit(
    listening: socket.socket, secret: bytes, missing: set[int], limit_s: float
) -> tuple[dict[int, AuthenticatedConnection], int]:
    """Return the hosts that proved the secret until none is missing, or the time is over, and the number of others."""
    num_dropped = 0
    proven: dict[int, AuthenticatedConnection] = {}
    hearing: list[Any] = []  # tasks of connections that have not proved it yet, oldest first
    is_complete = asyncio.Event()

    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_dropped
        task = asyncio.current_task()
        hearing.append(task)
        for oldest in hearing[:-MOST_UNPROVEN]:
            oldest.cancel()
        try:
            async with asyncio.timeout(PROOF_S):
                if (magic := await reader.readexactly(len(MAGIC))) != MAGIC:
                    raise EOFError("it does not speak this protocol")
                hello = magic + await reader.readexactly(HELLO.size - len(MAGIC))
                nonce = secrets.token_bytes(NONCE_BYTES)
                writer.write(nonce + _mac(secret, b"operator", hello + nonce))
                proof = await reader.readexactly(MAC_BYTES)  # the last that a host says before it is asked
            rank = HELLO.unpack(hello)[1]
            if rank not in missing or not hmac.compare_digest(_mac(secret, b"host", hello + nonce), proof):
                raise EOFError("its proof is wrong")
            missing.remove(rank)
            end = socket.socket(fileno=os.dup(writer.get_extra_info("socket").fileno()))
            proven[rank] = AuthenticatedConnection(end, secret, hello + nonce, is_operator=True)
        except (OSError, EOFError, asyncio.CancelledError):
            num_dropped += 1
        finally:
            hearing.remove(task)
            writer.close()
        if not missing:
            is_complete.set()

    server = await asyncio.start_server(hear, sock=listening)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(is_complete.wait(), limit_s if missing else 0)
    server.close()
    for task in hearing:
        task.cancel()
    await asyncio.gather(*hearing, return_exceptions=True)
    return proven, num_dropped


def _mac(key: bytes, purpose: bytes, data: bytes) -> bytes:
    return hmac.digest(key, purpose + b"\0" + data, "sha256")


OPERATOR_KEY = "workbench/operator"  # of its address, in the rendezvous store, where anybody may write another one
MEETING_S = 300.0  # in which every host must connect to the operator
CLOCK_S = 300.0  # in which a host that has connected must have its machines ready, and say the time
LOOK_S = 0.02  # seconds between two looks of a host at its machines and its operator
KILL_PATIENCE_S = 15.0  # seconds that killed machines may need to be gone
KILLED_STATUS = 9  # wait status of a machine whose host is gone


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainHost:
    """This host as it is, in the form of the shaped hosts that machines may be on; nothing is built or entered."""

    ip: str  # IPv4 address, which the other hosts reach
    interface: str  # network interface with this address
    num_hosts: int = 1
    description: None = None

    def open(self) -> "PlainHost":
        return self

    def enter(self, host: int) -> None:
        pass

    def address(self, host: int) -> str:
        return self.ip

    def close(self) -> None:
        pass


def run_under_torchrun(
    function: Callable[..., Any],
    *,
    standbys: int = 0,  # hosts that wait to take a lost one's number
    preload: Sequence[str] = (),  # modules that are imported once on each host
    **choices: Any,  # ranks_per_machine, args, timing, timeout_s, ...: see `run_training`
) -> TrainingOutcome | None:
    """Train on the hosts of a torchrun job, one process of it on each; return the outcome on rank 0, None elsewhere.

    Raises:
        RuntimeError: where torchrun did not start this process, there are several hosts and no secret (`read_secret`),
            what is found as the operator does not know it, or too few hosts are left.
        TimeoutError: where hosts do not come; it names them.
    """
    if "MASTER_ADDR" not in os.environ or os.environ.get("LOCAL_WORLD_SIZE") != "1":
        raise RuntimeError("run_under_torchrun must be called in a process of torchrun --nproc-per-node 1")
    secret = read_secret() if int(os.environ["WORLD_SIZE"]) > 1 else b""
    store, rank, num_hosts = next(dist.rendezvous("env://"))
    require_counts(1, **{"hosts less standbys": num_hosts - standbys})
    # This host's address and interface are those from which the rendezvous is reached.
    server = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    with socket.create_connection(server, timeout=30.0) as connection:
        ip = connection.getsockname()[0]
    names = [name for name, known in psutil.net_if_addrs().items() if any(place.address == ip for place in known)]
    local: dict[str, Any] = {"hosts": PlainHost(ip=ip, interface=names[0]), "preload": preload}
    if rank != 0:
        data = store.get(OPERATOR_KEY)
        try:
            operator_ip, port = json.loads(data)
            operator = str(operator_ip), int(port)
        except (ValueError, TypeError) as error:
            raise RuntimeError(f"the rendezvous store has {data[:99]!r} as operator; it must be [ip, port]") from error
        hang_up = contextlib.suppress(EOFError, ConnectionError)
        with connect_to_operator(operator, secret, rank) as owner, Machines(**local) as kept, hang_up:
            owner.recv()  # the question for the time
            owner.send(time.monotonic())
            while True:  # start and end machines as the operator asks, until it lets go or is gone
                while owner.poll():
                    name, args, more = owner.recv()
                    with contextlib.suppress(ValueError):  # what is to be told or killed has ended meanwhile
                        getattr(kept, name)(*args, **more)
                for event in kept.wait(LOOK_S):
                    owner.send(event)
        return None
    with listening_socket(ip) as listening:
        store.set(OPERATOR_KEY, json.dumps(listening.getsockname()))
        connections, num_dropped = accept_hosts(listening, secret, range(1, num_hosts), MEETING_S)
    if num_dropped:
        words = f"dropped {num_dropped} connections that did not prove that they know this job's secret"
        print(f"workbench: {words}", file=sys.stderr, flush=True)
    with contextlib.closing(ClusterMachines(Machines(**local), connections, num_hosts - standbys)) as machines:
        return run_training(function, num_hosts - standbys, standbys=standbys, machines=machines, **choices)


class ClusterMachines:
    """Machines on several hosts, with the interface of `Machines`: host 0 is this one, the others are connected."""

    hosts = None  # no description of shaped hosts

    def __init__(self, local: Machines, connections: Sequence[AuthenticatedConnection], num_needed: int):
        self._local, self._num_needed = local, num_needed
        self._others = dict(enumerate(connections, 1))
        self._ahead_s: dict[int, float] = {}  # the clocks of other hosts less this one's
        self._host_of: dict[str, int] = {}  # of machines on other hosts
        self._pids: dict[str, dict[str, Any]] = {}  # of these
        for number, connection in self._others.items():
            try:
                connection.send("What time is it?")
                if not connection.poll(CLOCK_S):
                    raise TimeoutError(f"host {number} has not said the time within {CLOCK_S:g} s after it connected")
                self._ahead_s[number] = connection.recv() - time.monotonic()
            except (EOFError, ConnectionError) as error:
                raise RuntimeError(f"host {number} was lost after it had connected: {error}") from error
        self.shaped = self  # machine i is on host i: the operator asks how many there are
        self.num_hosts = 1 + len(connections)
        self._unread: list[Any] = []

    @property
    def names(self) -> tuple[str, ...]:
        return *self._local.names, *self._host_of

    @property
    def pids(self) -> dict[str, dict[str, Any]]:
        return {**{name: pids for name, pids in self._pids.items() if name in self._host_of}, **self._local.pids}

    def start(self, name: str, function: Callable[..., Any], /, *args: Any, host: int = 0, **more: Any) -> None:
        """Start a machine on a host; one on a host that is gone ends at once."""
        if host == 0:
            self._local.start(name, function, *args, host=0, **more)
        elif host in self._others:
            self._host_of[name] = host
            self._ask("start", name, function, *args, host=0, **more)
        else:
            self._unread.append(MachineEnded(machine=name, status=KILLED_STATUS, time_s=time.monotonic()))

    def tell(self, name: str, message: Any) -> None:
        self._ask("tell", name, message)

    def kill_rank(self, name: str, rank: int) -> None:
        self._ask("kill_rank", name, rank)

    def kill(self, *names: str) -> None:
        local = [name for name in names if name in self._local.names]
        self._local.kill(*local)
        for name in set(names) - set(local):
            self._ask("kill", name)
        deadline_s = time.monotonic() + KILL_PATIENCE_S
        while left := [name for name in names if name in self._host_of]:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"machines {left!r} are still there {KILL_PATIENCE_S} s after they were killed")
            self._unread += self._received(LOOK_S)

    def kill_all(self) -> None:
        """Kill all machines, and forget the events that nobody has waited for."""
        self.kill(*self.names)
        self._unread.clear()

    def wait(self, timeout_s: float) -> list[Any]:
        """Wait until something happens, for so many seconds at most; RuntimeError where too few hosts are left."""
        events, self._unread = self._unread, []
        deadline_s = time.monotonic() + timeout_s
        while not events:
            events = self._local.wait(0.0) or self._received(min(LOOK_S, max(0.0, deadline_s - time.monotonic())))
            if time.monotonic() >= deadline_s:
                break
        return events

    def _received(self, timeout_s: float) -> list[Any]:
        """Receive what the other hosts say, with their moments on this host's clock."""
        events: list[Any] = []
        ready = wait(list(self._others.values()), timeout_s) if self._others else ()
        for number, connection in [(number, end) for number, end in self._others.items() if end in ready]:
            try:
                event = connection.recv()
            except (EOFError, ConnectionError):
                events += self._lost(number)
                continue
            match event:
                case MachineStarted(machine=name, pid=pid):
                    self._pids[name] = {"agent": pid, "ranks": {}}
                case MachineEnded(machine=name):
                    self._host_of.pop(name, None)
                case RankStarted(machine=name, rank=rank, pid=pid) if name in self._pids:
                    self._pids[name]["ranks"][rank] = pid
                case RankEnded(machine=name, rank=rank) if name in self._pids:
                    self._pids[name]["ranks"].pop(rank, None)
            message: Any = getattr(event, "message", None)
            if hasattr(message, "time_s"):
                event = replace(event, message=replace(message, time_s=message.time_s - self._ahead_s[number]))
            if hasattr(event, "time_s"):
                event = replace(event, time_s=event.time_s - self._ahead_s[number])
            events.append(event)
        return events

    def _lost(self, number: int) -> list[MachineEnded]:
        """Note that a host is gone, with all its machines."""
        self._others.pop(number).close()
        names = sorted(name for name, host in self._host_of.items() if host == number)
        for name in names:
            del self._host_of[name]
        if 1 + len(self._others) < self._num_needed:
            rule = f"{1 + len(self._others)} are left, fewer than the {self._num_needed} that train"
            raise RuntimeError(f"host {number} is gone, with {names}: {rule}")
        return [MachineEnded(machine=name, status=KILLED_STATUS, time_s=time.monotonic()) for name in names]

    def _ask(self, request: str, name: str, *args: Any, **more: Any) -> None:
        """Ask for something to be done with a machine, on its host, if it is still there."""
        if name in self._local.names:
            getattr(self._local, request)(name, *args)
        elif name in self._host_of:
            with contextlib.suppress(ConnectionError):  # its end is heard where events are
                self._others[self._host_of[name]].send((request, (name, *args), more))

    def close(self) -> None:
        """End all machines, also of the other hosts; calling it again does nothing."""
        while self._others:
            self._others.popitem()[1].close()
        self._local.close()
