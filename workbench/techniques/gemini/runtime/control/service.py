"""The control agent in a machine: it beats, follows orders, and starts and stops the ranks of its machine.

Source: thesis, sections 6.3.2 and 6.6.2.
Simplified: the operator (in the paper a cloud's auto scaling group) is the process that started the machines; requests
and the list of machines travel over the machine's own channel to it, as they would over the operator's own interface,
so that they do not depend on the store.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from workbench.launch.machines import Machine, RankEnded, RankExit

from .member import ControlAgent, Step, Timing
from .ordering import Replacement
from .records import Order, Phase
from .store import KeyValueStore
from .tcp_store import TcpKeyValueStore, listening_socket, serve_tcp_store

__all__ = ["AgentPlan", "Logged", "Roster", "StoreReady", "TrainingEnded", "Wanted", "serve_agent", "serve_store"]

STORE_CALL_S = 0.5  # most seconds a call to the store may take, well below a lease
FOREVER_S = 3600.0  # seconds between two looks of a process that has nothing to do


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentPlan:
    """What an agent is told at its start."""

    initial: tuple[str, ...]  # machines by number, before the first order
    roster: tuple[str, ...]  # all machines, the standbys included
    ranks_per_machine: int  # how many ranks it starts
    timing: Timing  # of heartbeats and leases
    store: tuple[str, Any]  # ("tcp", (address, port)) or ("etcd", (url, prefix))
    program: bytes  # what the ranks run, packed; an agent never looks inside


@dataclass(frozen=True, kw_only=True, slots=True)
class Roster:
    """The operator tells agents which machines there are."""

    names: tuple[str, ...]  # oldest first


@dataclass(frozen=True, kw_only=True, slots=True)
class Wanted:
    """The root asks the operator to replace a machine."""

    replacement: Replacement  # which


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingEnded:
    """The root says that all ranks of a generation have returned."""

    order: Order  # of that generation


@dataclass(frozen=True, kw_only=True, slots=True)
class Logged:
    """Something happened that belongs into the log."""

    name: str  # what
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
    """Be the agent of a machine until the owner lets go."""
    _Service(machine, plan, start).run()


@dataclass(frozen=True, kw_only=True, slots=True)
class Seat:
    """Where a rank sits in a generation."""

    generation: int  # grows with every restart
    rank: int  # its number
    world_size: int  # number of ranks
    machine: int  # number of its machine
    machine_name: str  # name of its machine
    num_machines: int  # how many
    meeting: tuple[str, int]  # where the ranks meet
    meeting_fd: int  # listening there; -1 on all but rank 0


class _Service:
    def __init__(self, machine: Machine, plan: AgentPlan, start: Callable[..., Any]):
        self._machine = machine
        self._plan = plan
        self._start = start
        self._listening = listening_socket(machine.address)
        self._agent = ControlAgent(
            machine.name,
            _opened(plan.store),
            initial=plan.initial,
            roster=plan.roster,
            timing=plan.timing,
            meeting=self._meeting,
        )
        self._exits: dict[int, RankExit] = {}  # of this generation, by rank

    def _meeting(self) -> str:
        address, port = self._listening.getsockname()
        return f"{address}:{port}"

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
            case RankEnded(rank=rank, label=generation) if generation == self._agent.order.generation:
                self._exits[rank] = happening.exit
                self._agent.phase = self._phase()

    def _phase(self) -> Phase:
        exits = set(self._exits.values())
        if exits & {RankExit.RAISED, RankExit.KILLED}:
            return Phase.FAILED
        if RankExit.LOST_PEER in exits:
            return Phase.LOST_PEER
        return Phase.RETURNED if len(self._exits) == self._plan.ranks_per_machine else Phase.RUNNING

    def _obey(self, step: Step) -> None:
        now_s = time.monotonic()
        for name, details in step.events:
            self._machine.tell(Logged(name=name, time_s=now_s, details=details))
        for replacement in step.replace:
            self._machine.tell(Wanted(replacement=replacement))
        if step.finished is not None:
            self._machine.tell(TrainingEnded(order=step.finished))
        if step.order is not None:
            self._carry_out(step.order)

    def _carry_out(self, order: Order) -> None:
        self._machine.stop_ranks()
        self._exits.clear()
        if self._machine.name not in order.members:
            return
        number = order.members.index(self._machine.name)
        for local in range(self._plan.ranks_per_machine):
            self._start_rank(order, number, number * self._plan.ranks_per_machine + local)
        details = {"generation": order.generation, "number": number}
        self._machine.tell(Logged(name="ranks started", time_s=time.monotonic(), details=details))

    def _start_rank(self, order: Order, number: int, rank: int) -> None:
        address, _, port = order.meeting.rpartition(":")
        meeting_fd = self._meeting_socket(address, int(port)) if rank == 0 else -1
        seat = Seat(
            generation=order.generation,
            rank=rank,
            world_size=len(order.members) * self._plan.ranks_per_machine,
            machine=number,
            machine_name=self._machine.name,
            num_machines=len(order.members),
            meeting=(address, int(port)),
            meeting_fd=meeting_fd,
        )
        function = partial(self._start, program=self._plan.program, seat=seat)
        self._machine.start_rank(rank, function, label=order.generation, keep=meeting_fd)

    def _meeting_socket(self, address: str, port: int) -> int:
        """Return the descriptor of the socket that the order names, and listen elsewhere for the next one."""
        if (address, port) != self._listening.getsockname():
            # The root read a heartbeat of before the last generation; its ranks are dead, and so the port is free.
            return listening_socket(address, port).detach()
        taken = self._listening.detach()
        self._listening = listening_socket(self._machine.address)
        return taken


def _opened(store: tuple[str, Any]) -> KeyValueStore:
    kind, place = store
    if kind == "tcp":
        return TcpKeyValueStore(*place, timeout_s=STORE_CALL_S)
    from .etcd_store import EtcdKeyValueStore

    return EtcdKeyValueStore(place[0], prefix=place[1], timeout_s=STORE_CALL_S)
