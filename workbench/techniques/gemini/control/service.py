"""The log of a training, the agent in a machine, which starts and stops its ranks, and a rank seen from within."""

import datetime
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import partial
from typing import Any

import cloudpickle

from workbench.checks import require_counts, require_not_negative
from workbench.launch.machines import Machine, RankEnded, RankExit, RankLink
from workbench.launch.tcp_store import listening_socket, serve_tcp_store

from .agent import ControlAgent, Order, Phase, Step, Timing
from .store import EtcdKeyValueStore, KeyValueStore, SignedKeyValueStore, TcpKeyValueStore

__all__ = ["AgentPlan", "Event", "EventName", "Fault", "Logged", "RankContext", "Seat", "Victim", "run_program"]
__all__ += ["serve_agent", "serve_store"]


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
class Event:
    """An event of a training, and its place."""

    name: str  # an EventName, or what a rank logged
    time_s: float  # when it happened or began, monotonic clock
    duration_s: float = 0.0  # how long it took
    machine: str = ""  # name of the machine it concerns
    number: int | None = None  # number of that machine, if it had one
    rank: int | None = None  # the rank it concerns
    generation: int | None = None  # in which generation
    details: dict[str, Any] = field(default_factory=dict)  # more of it


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


STORE_CALL_S = 0.5  # most seconds a call to the store may take, well below a lease
FOREVER_S = 3600.0  # seconds between two looks of a process that has nothing to do


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentPlan:
    """The operator's message to an agent at its start."""

    initial: tuple[str, ...]  # machines by number, before the first order
    roster: tuple[str, ...]  # all machines, the standbys included
    ranks_per_machine: int  # how many ranks it starts
    timing: Timing  # of heartbeats and leases
    store: tuple[str, Any]  # ("tcp", (address, port)) or ("etcd", (url, prefix))
    token: bytes = field(repr=False)  # of the training, with which values in the store are signed
    program: bytes  # of the ranks, packed; an agent never looks inside


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """The operator tells agents which machines there are."""

    names: tuple[str, ...]  # oldest first


@dataclass(frozen=True, kw_only=True, slots=True)
class Pause:
    """The operator asks agents to let the next generation wait."""

    seconds: float  # from now on


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEnded:
    """The root says that all ranks of a generation have returned."""

    order: Order  # of that generation


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """An event for the log."""

    name: str  # of the event
    time_s: float  # monotonic clock
    details: dict[str, Any] = field(default_factory=dict)  # more of it


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreReady:
    """The embedded store serves."""

    address: tuple[str, int]  # where


def serve_store(machine: Machine, port: int = 0) -> None:
    """Be the embedded store, empty at first, until the owner lets go."""
    listening = listening_socket(machine.address, port)
    address = listening.getsockname()
    server = serve_tcp_store(listening)
    machine.tell(StoreReady(address=address))
    while server is not None:
        machine.wait(FOREVER_S)


def serve_agent(machine: Machine, plan: AgentPlan, start: Callable[..., Any]) -> None:
    """Be the agent of a machine until the owner lets go; each rank calls `start(link, program, seat)`."""
    _Service(machine, plan, start).run()


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """The place of a rank in a generation."""

    generation: int  # grows with every restart
    rank: int  # its number
    world_size: int  # number of ranks
    machine: int  # number of its machine
    machine_name: str  # name of its machine
    num_machines: int  # how many
    meeting: tuple[str, int]  # address at which the ranks meet
    meeting_fd: int  # listening there; -1 on all but rank 0
    collective_s: float  # timeout of collectives


class _Service:
    def __init__(self, machine: Machine, plan: AgentPlan, start: Callable[..., Any]):
        self._machine, self._plan, self._start = machine, plan, start
        self._listening = listening_socket(machine.address)
        kind, (place, rest) = plan.store
        if kind == "tcp":
            store: KeyValueStore = TcpKeyValueStore(place, rest, timeout_s=STORE_CALL_S)
        else:
            store = EtcdKeyValueStore(place, prefix=rest, timeout_s=STORE_CALL_S)
        self._store = SignedKeyValueStore(store, plan.token)
        self._agent = ControlAgent(
            machine.name,
            self._store,
            initial=plan.initial,
            roster=plan.roster,
            timing=plan.timing,
            meeting=lambda: "{}:{}".format(*self._listening.getsockname()),
        )
        self._exits: dict[int, RankExit] = {}  # of this generation, by rank
        self._waiting: Order | None = None  # whose ranks are not started yet
        self._start_s = 0.0  # before which none are

    def run(self) -> None:
        """Beat, listen and obey, until the owner lets go."""
        next_beat_s = time.monotonic()
        while True:
            for happening in self._machine.wait(max(0.0, next_beat_s - time.monotonic())):
                self._hear(happening)
            next_beat_s = time.monotonic() + self._plan.timing.heartbeat_s
            self._obey(self._agent.step(time.monotonic()))

    def _hear(self, happening: Any) -> None:
        match happening:
            case Roster(names=names):
                self._agent.roster = names
            case Pause(seconds=seconds):
                self._start_s = time.monotonic() + seconds
            case RankEnded(rank=rank, label=generation) if self._agent.order and (
                generation == self._agent.order.generation
            ):
                self._exits[rank] = happening.exit
                exits = set(self._exits.values())
                if exits & {RankExit.RAISED, RankExit.KILLED}:
                    self._agent.phase = Phase.FAILED
                elif RankExit.LOST_PEER in exits:
                    self._agent.phase = Phase.LOST_PEER
                elif len(self._exits) == self._plan.ranks_per_machine:
                    self._agent.phase = Phase.RETURNED

    def _obey(self, step: Step) -> None:
        now_s = time.monotonic()
        for key in self._store.take_dropped():
            step.events.append((EventName.MESSAGE_DROPPED, {"key": key, "reason": "not signed by this training"}))
        for name, details in step.events:
            self._machine.tell(Logged(name=name, time_s=now_s, details=details))
        for replacement in step.replace:
            self._machine.tell(replacement)
        if step.finished is not None:
            self._machine.tell(TrainingEnded(order=step.finished))
        if step.order is not None:
            self._machine.stop_ranks()
            self._exits.clear()
            self._waiting = step.order if self._machine.name in step.order.members else None
        if self._waiting is not None and now_s >= self._start_s:
            self._start_ranks(self._waiting)
            self._waiting = None

    def _start_ranks(self, order: Order) -> None:
        number, num_local = order.members.index(self._machine.name), self._plan.ranks_per_machine
        address, _, port = order.meeting.rpartition(":")
        for rank in range(number * num_local, (number + 1) * num_local):
            meeting_fd = self._meeting_socket(address, int(port)) if rank == 0 else -1
            seat = Seat(
                generation=order.generation,
                rank=rank,
                world_size=len(order.members) * num_local,
                machine=number,
                machine_name=self._machine.name,
                num_machines=len(order.members),
                meeting=(address, int(port)),
                meeting_fd=meeting_fd,
                collective_s=self._plan.timing.collective_s,
            )
            function = partial(self._start, program=self._plan.program, seat=seat)
            self._machine.start_rank(rank, function, label=order.generation, keep=meeting_fd)
        details = {"generation": order.generation, "number": number}
        self._machine.tell(Logged(name="ranks started", time_s=time.monotonic(), details=details))

    def _meeting_socket(self, address: str, port: int) -> int:
        """Return the descriptor of the socket that the order names, and listen elsewhere for the next one."""
        if (address, port) != self._listening.getsockname():
            # The root read a heartbeat of before the last generation; its ranks are dead, and so the port is free.
            return listening_socket(address, port).detach()
        taken = self._listening.detach()
        self._listening = listening_socket(self._machine.address)
        return taken


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """A rank has done an iteration."""

    iteration: int  # counted from 0 over all generations
    time_s: float  # monotonic clock


class RankContext:
    """A rank's numbers, its machine's memory and the log; a replacement differs from a lost rank in `machine_name`."""

    def __init__(self, link: RankLink, seat: Seat):
        self._link = link
        self.rank, self.world_size = seat.rank, seat.world_size
        self.machine, self.num_machines, self.machine_name = seat.machine, seat.num_machines, seat.machine_name
        self.ranks_per_machine = seat.world_size // seat.num_machines
        self.local_rank = seat.rank % self.ranks_per_machine
        self.generation = seat.generation

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
            details = {"duration_s": time.monotonic() - start_s, **details}
            self._tell(Logged(name=name, time_s=start_s, details=details))

    def _tell(self, message: Any) -> None:
        self._link.tell(message)


def run_program(link: RankLink, *, program: bytes, seat: Seat) -> Any:
    """Join the generation's process group and call the user's function."""
    import torch
    import torch.distributed as dist

    function, args, kwargs = cloudpickle.loads(program)
    context = RankContext(link, seat)
    numbers = {"RANK": seat.rank, "WORLD_SIZE": seat.world_size, "LOCAL_RANK": context.local_rank}
    os.environ.update({name: str(value) for name, value in numbers.items()})
    has_devices = torch.cuda.is_available() and torch.cuda.device_count() >= context.ranks_per_machine
    if has_devices:
        torch.cuda.set_device(context.local_rank)
    timeout = datetime.timedelta(seconds=seat.collective_s)
    fd = seat.meeting_fd if seat.meeting_fd >= 0 else None
    store = dist.TCPStore(*seat.meeting, seat.world_size, fd is not None, timeout, False, master_listen_fd=fd)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if has_devices else "gloo",
        store=dist.PrefixStore(f"generation-{seat.generation}", store),
        rank=seat.rank,
        world_size=seat.world_size,
        timeout=timeout,
    )
    dist.barrier()  # rank 0 serves the store, and must not end before all have read it
    context.log("joined")
    return function(context, *args, **kwargs)
