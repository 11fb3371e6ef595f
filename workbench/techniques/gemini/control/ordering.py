"""The root's election and its orders as pure functions of the records in the store, lines of JSON (section 6.6.2)."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Self

__all__ = ["ORDER_KEY", "ROOT_KEY", "AgentStatus", "Decision", "Order", "Phase", "Replacement", "RootRecord", "View"]
__all__ += ["decide", "election_step", "status_key"]

ROOT_KEY = "root"  # of the RootRecord
ORDER_KEY = "order"  # of the newest Order


def status_key(name: str) -> str:
    """Return the key of a machine's heartbeat."""
    return f"agents/{name}"


class Phase(StrEnum):
    """The state of a machine's ranks in the generation that its agent has accepted."""

    IDLE = "idle"  # it has none: a standby, or a machine that was replaced
    RUNNING = "running"
    LOST_PEER = "lost peer"  # a rank ended because one of another machine was gone
    FAILED = "failed"  # a rank ended for a reason of its own
    RETURNED = "returned"  # all ranks ended well


class _Record:
    """Turns itself into bytes and back."""

    __slots__ = ()

    def to_bytes(self) -> bytes:
        """Return the record as one line of JSON."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record of one line of JSON; unknown fields are an error."""
        values = json.loads(data)
        for field in fields(cls):
            if isinstance(values[field.name], list):
                values[field.name] = tuple(values[field.name])
        return cls(**values)


@dataclass(frozen=True, kw_only=True, slots=True)
class RootRecord(_Record):
    """The root; a new one takes a higher term."""

    term: int  # grows with every election
    name: str  # machine on which the root agent runs


@dataclass(frozen=True, kw_only=True, slots=True)
class Order(_Record):
    """An order of the root: these machines train together now, whatever ran before."""

    generation: int  # grows with every restart of training
    term: int  # of the root that ordered it
    root: str  # its name
    members: tuple[str, ...]  # machines by machine number
    meeting: str  # host:port at which the ranks meet

    @property
    def identity(self) -> tuple[int, int, str]:
        """The three numbers and names that no other order has."""
        return self.generation, self.term, self.root


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus(_Record):
    """A heartbeat."""

    name: str  # of the machine
    count: int  # grows with every heartbeat
    phase: str  # a Phase
    generation: int  # of the newest order it has accepted; 0 before the first
    term: int  # of that order
    root: str  # of that order
    seen_term: int  # highest term it has seen
    served: bool  # whether it was ever a member of an order
    meeting: str  # host:port at which ranks could meet in the next generation

    @property
    def identity(self) -> tuple[int, int, str]:
        """The order it has accepted."""
        return self.generation, self.term, self.root


def election_step(
    *,
    me: str,  # this machine
    record: RootRecord | None,  # the store's; None at the start, or after it has lost everything
    known: RootRecord | None,  # the newest record that this machine has ever read
    root_is_lost: bool,  # whether the lease of `record` or else of `known` has expired; without either, may I be first?
    seen_term: int,  # highest term in any record, order or heartbeat that this machine has read
) -> RootRecord | None:
    """Return the record that a machine should try to write in place of the one it has read; None for none."""
    # Agents refuse orders of an older term: a root that was succeeded while it slept cannot act any more.
    candidate = RootRecord(term=seen_term + 1, name=me)
    if record is None:
        if known is not None and known.name == me and known.term == seen_term:
            return known  # the store has forgotten me
        return candidate if root_is_lost else None
    if record.name == me:
        return candidate if seen_term > record.term else None
    return candidate if root_is_lost else None


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """The root's view of all machines."""

    order: Order | None  # the newest one, or None at the start
    initial: tuple[str, ...]  # machines by number, before the first order
    roster: tuple[str, ...]  # all machines that the operator has started, oldest first
    alive: frozenset[str]  # machines with a heartbeat and a lease
    lost: frozenset[str]  # machines whose lease has expired
    statuses: Mapping[str, AgentStatus]  # the last heartbeat of each that ever had one
    peer_loss_is_ripe: bool  # whether a rank lost its peer so long ago that a lost machine would be known by now


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """A machine that the operator should replace."""

    lost: str  # its name
    number: int | None  # its machine number; None if it was a standby


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """The next acts of the root."""

    replace: tuple[Replacement, ...] = ()  # to ask of the operator, which replaces a machine only once
    members: tuple[str, ...] | None = None  # of a new order, or None for no new order
    generation: int = 0  # of the new order
    finished: bool = False  # whether all ranks of the newest order have returned
    reason: str = ""  # for a new order, or for waiting


def decide(view: View) -> Decision:
    """Decide from a view what the root does now."""
    members = view.order.members if view.order else view.initial
    if view.order is not None and _all_returned(view, members):
        return Decision(finished=True)
    replace = _to_replace(view, members)
    seats = _filled(view, members)
    if None in seats:
        waiting = [members[number] for number, name in enumerate(seats) if name is None]
        return Decision(replace=replace, reason=f"waits for a replacement of {', '.join(waiting)}")
    unheard = [name for name in seats if name not in view.alive]
    if unheard:
        return Decision(replace=replace, reason=f"waits for {', '.join(unheard)}")
    reason = "machines were replaced" if seats != members else _reason_to_restart(view, members)
    if not reason:
        return Decision(replace=replace)
    generations = [status.generation for status in view.statuses.values()]
    newest = max([view.order.generation if view.order else 0, *generations])
    return Decision(replace=replace, members=seats, generation=newest + 1, reason=reason)


def _to_replace(view: View, members: tuple[str, ...]) -> tuple[Replacement, ...]:
    numbers = {name: number for number, name in enumerate(members)}
    lost = [name for name in dict.fromkeys((*members, *view.roster)) if name in view.lost]
    served = {name for name, status in view.statuses.items() if status.served} - set(members)
    return tuple(Replacement(lost=name, number=numbers.get(name)) for name in lost if name not in served)


def _filled(view: View, members: tuple[str, ...]) -> tuple[str | None, ...]:
    """Return the members with lost ones replaced, by their own replacements first; None where there is none."""
    spares = [
        name for name in view.roster if name in view.alive and name not in members and not view.statuses[name].served
    ]
    lost = [name for name in members if name in view.lost]
    taken = {name: spare for name in lost for spare in spares if _place_of(spare) == _place_of(name)}
    others = [spare for spare in spares if spare not in taken.values()]
    taken |= {name: others.pop(0) if others else None for name in lost if name not in taken}
    return tuple(taken.get(name, name) for name in members)


def _place_of(name: str) -> str:
    """Return the name of the first machine in the line of replacements."""
    return name.partition("+")[0]


def _all_returned(view: View, members: tuple[str, ...]) -> bool:
    statuses = [view.statuses.get(name) for name in members]
    return all(status is not None and _phase_in(view.order, status) == Phase.RETURNED for status in statuses)


def _reason_to_restart(view: View, members: tuple[str, ...]) -> str:
    if view.order is None:
        return "training begins"
    statuses = [view.statuses[name] for name in members]
    failed = [status.name for status in statuses if _phase_in(view.order, status) == Phase.FAILED]
    if failed:
        return f"a rank of {', '.join(failed)} failed"
    if view.peer_loss_is_ripe and any(_phase_in(view.order, status) == Phase.LOST_PEER for status in statuses):
        return "ranks lost each other"
    if any(_cannot_follow(view.order, status) for status in statuses):
        return "machines disagree about the newest order"
    return ""


def _phase_in(order: Order, status: AgentStatus) -> str:
    return status.phase if status.identity == order.identity else Phase.RUNNING


def _cannot_follow(order: Order, status: AgentStatus) -> bool:
    """Return whether a machine holds another order that it will not give up for this one."""
    if status.generation >= order.generation:
        return status.identity != order.identity
    return status.seen_term > order.term
