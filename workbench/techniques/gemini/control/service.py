"""The log of a training, the agent in a machine, which starts and stops its ranks, and a rank seen from within."""

import datetime
import mmap
import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from typing import Any

import cloudpickle

from workbench.checks import require_counts, require_not_negative
from workbench.launch.machines import Machine, RankEnded, RankExit, RankLink
from workbench.launch.tcp_store import listening_socket, serve_tcp_store

from .agent import ControlAgent, Order, Phase, Timing
from .store import KeyValueStore, SignedKeyValueStore

__all__ = ["Event", "EventName", "Fault", "Logged", "RankContext", "Task", "Victim", "serve_agent", "serve_store"]


class EventName(StrEnum):
    """The events that the control plane logs; ranks may log others."""

    MACHINE_STARTED = "machine started"
    MACHINE_ENDED = "machine ended"
    KILLED = "killed"  # by a fault of the schedule, or on request
    HEARTBEAT_LOST = "heartbeat lost"
    STORE_LOST = "store lost"  # as an agent noticed
    STORE_FOUND = "store found"  # the same agent again
    STORE_REPLACED = "store replaced"  # by the operator, because the old one did not answer
    STORE_STARTED = "store started"
    MESSAGE_DROPPED = "message dropped"  # an agent found in the store what this training had not written, or old news
    ROOT_ELECTED = "root elected"
    FAILURE_DETECTED = "failure detected"  # by the root
    REPLACEMENT_ASKED = "replacement asked"  # of the operator, by the root
    REPLACED = "replaced"
    GENERATION_ORDERED = "generation ordered"
    RANKS_STARTED = "ranks started"  # of one machine
    JOINED = "joined"  # a rank has joined its process group
    RANK_FAILED = "rank failed"  # raised or died
    RETURNED = "returned"  # a rank's function
    FINISHED = "finished"  # all ranks have returned


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """An event, as an agent or a rank logs it."""

    name: str  # an EventName, or what a rank logged
    time_s: float  # when it happened or began, monotonic clock
    details: dict[str, Any] = field(default_factory=dict)  # more of it


@dataclass(frozen=True, kw_only=True, slots=True)
class Event(Logged):
    """An event of a training, and its place."""

    duration_s: float = 0.0  # how long it took
    machine: str = ""  # name of the machine it concerns
    number: int | None = None  # number of that machine, if it had one
    rank: int | None = None  # the rank it concerns
    generation: int | None = None  # in which generation


class Victim(Enum):
    """The kind of thing that a fault kills."""

    MACHINE = "machine"  # agents, ranks and memory of the machines with the given numbers
    RANK = "rank"  # the processes of the given ranks
    ROOT = "root"  # the machine whose agent is root
    STORE = "store"  # the embedded store, which comes back empty
    FROZEN_STORE = "frozen store"  # the embedded store stops to answer, and is not ended


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One failure, at one moment of a training; a victim that is gone already is left alone."""

    kills: Victim  # the kind
    numbers: tuple[int, ...] = ()  # of the machines or ranks, which die at once; empty for all else
    at_iteration: int | None = None  # when a rank first reports this iteration or a later one
    after_event: str | None = None  # or when this event is logged
    occurrence: int = 1  # of that event
    delay_s: float = 0.0  # seconds after that
    down_s: float = 0.5  # seconds until a killed store comes back

    def __post_init__(self) -> None:
        if not isinstance(self.kills, Victim):
            raise ValueError(f"Fault.kills is {self.kills!r}; it must be a Victim")
        if (self.at_iteration is None) == (self.after_event is None):
            times = f"{self.at_iteration!r} and {self.after_event!r}"
            raise ValueError(f"Fault.at_iteration and after_event are {times}; one of them must be given")
        rule = "different numbers" if self.kills in (Victim.MACHINE, Victim.RANK) else "empty"
        if (rule != "empty") != bool(self.numbers) or len(set(self.numbers)) != len(self.numbers):
            raise ValueError(f"Fault.numbers is {self.numbers!r}; for a {self.kills.value} it must be {rule}")
        require_counts(1, **{"Fault.occurrence": self.occurrence})
        require_not_negative(**{"Fault.delay_s": self.delay_s, "Fault.down_s": self.down_s})

    def check_fits(self, num_machines: int, num_ranks: int, has_store: bool) -> None:
        """Refuse a fault that the training cannot have."""
        limit = num_machines if self.kills is Victim.MACHINE else num_ranks
        if any(not 0 <= number < limit for number in self.numbers):
            raise ValueError(f"Fault.numbers is {self.numbers!r}; each must lie in 0..{limit - 1}")
        if self.kills in (Victim.STORE, Victim.FROZEN_STORE) and not has_store:
            raise ValueError(f"Fault.kills is {self.kills!r}; only the embedded store can be killed or stopped")


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """A training and its machines."""

    program: bytes  # function and arguments, packed; an agent never looks inside
    names: tuple[str, ...]  # machines by number, before the first order
    standby_names: tuple[str, ...]  # machines without a number
    ranks_per_machine: int  # how many ranks each has
    etcd_url: str | None  # of an etcd server, or None for the embedded store
    prefix: str  # of this training's keys in etcd
    token: bytes = field(repr=False)  # with which agents sign what they write to the store
    has_hosts: bool  # whether machine i is on shaped host i
    timing: Timing = field(default_factory=Timing)  # of heartbeats and leases
    faults: Sequence[Fault] = ()  # to cause, and when
    replacement_s: float = 0.0  # seconds until the operator has a new machine
    memory_limit_bytes: int | None = None  # of a machine's memory for its ranks; None for no limit

    def __post_init__(self) -> None:
        require_not_negative(replacement_s=self.replacement_s)
        require_counts(0, memory_limit_bytes=self.memory_limit_bytes or 0)
        if self.etcd_url is not None and not self.etcd_url.startswith(("http://", "https://")):
            raise ValueError(f'store is {self.etcd_url!r}; it must be "tcp" or the URL of an etcd server')
        if self.etcd_url is not None and self.has_hosts:
            rule = 'on shaped hosts, which see only each other, it must be "tcp"'
            raise ValueError(f"store is {self.etcd_url!r}; {rule}")
        num_machines = len(self.names)
        for fault in self.faults:
            fault.check_fits(num_machines, num_machines * self.ranks_per_machine, self.etcd_url is None)


STORE_CALL_S = 0.5  # most seconds a call to the store may take, well below a lease
FOREVER_S = 3600.0  # seconds between two looks of a process that has nothing to do


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """The operator tells agents which machines there are."""

    names: tuple[str, ...]  # oldest first


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """The operator asks agents to let the next generation wait."""

    seconds: float  # from now on


def serve_store(machine: Machine, port: int = 0) -> None:
    """Be the embedded store, empty at first, until the owner lets go."""
    listening = listening_socket(machine.address, port)
    address = listening.getsockname()
    server = serve_tcp_store(listening)
    machine.tell(Logged(name=EventName.STORE_STARTED, time_s=time.monotonic(), details={"address": address}))
    while server is not None:
        machine.wait(FOREVER_S)


def serve_agent(machine: Machine, task: Task, roster: tuple[str, ...], connect: Callable[..., KeyValueStore]) -> None:
    """Be the agent of a machine until the owner lets go; `connect(timeout_s=...)` makes a client of the store."""
    service = _Service(machine, task, roster, connect)
    next_beat_s = time.monotonic()
    while True:
        for happening in machine.wait(max(0.0, next_beat_s - time.monotonic())):
            service.hear(happening)
        next_beat_s = time.monotonic() + task.timing.heartbeat_s
        service.beat()


class _Service:
    def __init__(self, machine: Machine, task: Task, roster: tuple[str, ...], connect: Callable[..., KeyValueStore]):
        self._machine, self._task = machine, task
        self._listening = listening_socket(machine.address)
        self._store = SignedKeyValueStore(connect(timeout_s=STORE_CALL_S), task.token)
        self._agent = ControlAgent(
            machine.name,
            self._store,
            initial=task.names,
            roster=roster,
            timing=task.timing,
            meeting=lambda: "{}:{}".format(*self._listening.getsockname()),
        )
        self._exits: dict[int, RankExit] = {}  # of this generation, by rank
        self._waiting: Order | None = None  # whose ranks are not started yet
        self._start_s = 0.0  # before which none are

    def hear(self, happening: Any) -> None:
        match happening:
            case Roster(names=names):
                self._agent.roster = names
            case Pause(seconds=seconds):
                self._start_s = time.monotonic() + seconds
            case RankEnded() if self._agent.order and happening.label == self._agent.order.generation:
                self._exits[happening.rank] = happening.exit
                exits = set(self._exits.values())
                if exits & {RankExit.RAISED, RankExit.KILLED}:
                    self._agent.phase = Phase.FAILED
                elif RankExit.LOST_PEER in exits:
                    self._agent.phase = Phase.LOST_PEER
                elif len(self._exits) == self._task.ranks_per_machine:
                    self._agent.phase = Phase.RETURNED

    def beat(self) -> None:
        step = self._agent.step(time.monotonic())
        now_s = time.monotonic()  # what the step has found happened before
        for key in self._store.take_dropped():
            step.events.append((EventName.MESSAGE_DROPPED, {"key": key, "reason": "not signed by this training"}))
        if step.finished is not None:
            step.events.append((EventName.FINISHED, {"generation": step.finished.generation}))
        for name, details in step.events:
            self._machine.tell(Logged(name=name, time_s=now_s, details=details))
        for replacement in step.replace:
            self._machine.tell(replacement)
        if step.order is not None:
            self._machine.stop_ranks()
            self._exits.clear()
            self._waiting = step.order if self._machine.name in step.order.members else None
        if self._waiting is not None and now_s >= self._start_s:
            self._start_ranks(self._waiting)
            self._waiting = None

    def _start_ranks(self, order: Order) -> None:
        number, num_local = order.members.index(self._machine.name), self._task.ranks_per_machine
        for rank in range(number * num_local, (number + 1) * num_local):
            meeting_fd = -1
            if rank == 0 and order.meeting_place == self._listening.getsockname():
                meeting_fd = self._listening.detach()
                self._listening = listening_socket(self._machine.address)  # for the next generation
            elif rank == 0:
                # The root read a heartbeat of before the last generation; its ranks are dead, and so the port is free.
                meeting_fd = listening_socket(*order.meeting_place).detach()
            function = partial(run_program, task=self._task, order=order, rank=rank, meeting_fd=meeting_fd)
            self._machine.start_rank(rank, function, label=order.generation, keep=meeting_fd)
        details = {"generation": order.generation, "number": number}
        self._machine.tell(Logged(name=EventName.RANKS_STARTED, time_s=time.monotonic(), details=details))


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A rank has done an iteration."""

    iteration: int  # counted from 0 over all generations
    time_s: float  # monotonic clock


class RankContext:
    """A rank's numbers, its machine's memory and the log; a replacement differs from a lost rank in `machine_name`."""

    def __init__(self, link: Any, rank: int, members: Sequence[str], ranks_per_machine: int = 1, generation: int = 1):
        self._link, self.generation = link, generation
        self.rank, self.ranks_per_machine, self.num_machines = rank, ranks_per_machine, len(members)
        self.world_size = self.num_machines * ranks_per_machine
        self.machine, self.local_rank = divmod(rank, ranks_per_machine)
        self.machine_name = members[self.machine]

    def memory(self, name: str, num_bytes: int) -> int:
        """Return the caller's own descriptor of memory, zero at first, that lives as long as the machine."""
        return self._link.memory(name, num_bytes)

    def mapped(self, name: str, num_bytes: int) -> mmap.mmap:
        """Return the same memory mapped for reading and writing."""
        return self._link.mapped(name, num_bytes)

    def memory_names(self) -> dict[str, int]:
        """Return the bytes of each memory that the machine keeps by its name."""
        return self._link.names()

    def report(self, iteration: int) -> None:
        """Report that an iteration is done; schedules of faults and the watch for progress count these."""
        self._tell(Progress(iteration=iteration, time_s=time.monotonic()))

    def log(self, name: str, **details: Any) -> None:
        """Log an event that happened now; its details are small, and picklable."""
        self._tell(Logged(name=name, time_s=time.monotonic(), details=details))

    @contextmanager
    def during(self, name: str, **details: Any) -> Iterator[None]:
        """Log the body with its duration, also when it raises."""
        start_s = time.monotonic()
        try:
            yield
        finally:
            duration_s = time.monotonic() - start_s
            self._tell(Logged(name=name, time_s=start_s, details={"duration_s": duration_s, **details}))

    def _tell(self, message: Any) -> None:
        self._link.tell(message)


def own_gpu(store: Any, rank: int, num_ranks: int) -> int | None:
    """Return the number of a rank's own GPU on its computer, which may have several machines; all ranks call it.

    None if a computer has fewer GPUs than ranks: NCCL refuses two ranks on one.
    """
    import torch

    store.set(f"computer of rank {rank}", f"{torch.cuda.device_count()} {platform.node()}")
    if not torch.cuda.is_available():
        return None
    computers = [store.get(f"computer of rank {other}").decode() for other in range(num_ranks)]
    if any(int(computer.split()[0]) < computers.count(computer) for computer in computers):
        return None
    return computers[:rank].count(computers[rank])


def run_program(link: RankLink, *, task: Task, order: Order, rank: int, meeting_fd: int) -> Any:
    """Join the generation's process group and call the user's function."""
    import torch
    import torch.distributed as dist

    function, args = cloudpickle.loads(task.program)
    context = RankContext(link, rank, order.members, task.ranks_per_machine, order.generation)
    numbers = {"RANK": rank, "WORLD_SIZE": context.world_size, "LOCAL_RANK": context.local_rank}
    os.environ.update({name: str(value) for name, value in numbers.items()})
    timeout = datetime.timedelta(seconds=task.timing.collective_s)
    fd = meeting_fd if meeting_fd >= 0 else None
    size = context.world_size
    server = dist.TCPStore(*order.meeting_place, size, fd is not None, timeout, False, master_listen_fd=fd)
    store = dist.PrefixStore(f"generation-{order.generation}", server)
    gpu = own_gpu(store, rank, size)
    if gpu is not None:
        torch.cuda.set_device(gpu)
    dist.init_process_group(
        "gloo" if gpu is None else "cpu:gloo,cuda:nccl",
        store=store,
        rank=rank,
        world_size=context.world_size,
        timeout=timeout,
    )
    dist.barrier()  # rank 0 serves the store, and must not end before all have read it
    context.log("joined")
    return function(context, *args)
