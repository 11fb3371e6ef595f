"""An agent's control loop, one step at a time: heartbeat, leases, election, orders; it starts no processes.

The root's election and its orders are pure functions of the records in the store, lines of JSON (section 6.6.2).
"""

import json
import math
from collections.abc import Callable, Mapping, Set
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Self

from workbench.checks import require_positive

from .store import KeyValueStore, StoreUnavailable

__all__ = ["ORDER_KEY", "ROOT_KEY", "AgentStatus", "ControlAgent", "Decision", "LeaseBook", "Order", "Phase"]
__all__ += ["Replacement", "RootRecord", "Step", "Timing", "decide", "election_step"]

ROOT_KEY = "root"  # of the RootRecord
ORDER_KEY = "order"  # of the newest Order
STATUS_KEY = "agents/{}"  # of the AgentStatus of a machine with this name


class Phase(StrEnum):
    """The state of a machine's ranks in the generation that its agent has accepted."""

    IDLE = "idle"  # it has none: a standby, or a machine that was replaced
    RUNNING = "running"
    LOST_PEER = "lost peer"  # a rank ended because one of another machine was gone
    FAILED = "failed"  # a rank ended for a reason of its own
    RETURNED = "returned"  # all ranks ended well


@dataclass(frozen=True, kw_only=True, slots=True)
class _Record:
    """Turns itself into bytes and back."""

    def to_bytes(self) -> bytes:
        return json.dumps(asdict(self), sort_keys=True).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the record of one line of JSON; unknown fields are an error."""
        values = {name: tuple(value) if isinstance(value, list) else value for name, value in json.loads(data).items()}
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
        return self.generation, self.term, self.root

    @property
    def meeting_place(self) -> tuple[str, int]:
        address, _, port = self.meeting.rpartition(":")
        return address, int(port)


@dataclass(frozen=True, kw_only=True, slots=True)
class AgentStatus(_Record):
    """A heartbeat."""

    name: str  # of the machine
    count: int  # grows with every heartbeat
    phase: str  # a Phase
    identity: tuple[int, int, str]  # of the newest order that it has accepted; 0, 0 and "" before the first
    seen_term: int  # highest term it has seen
    served: bool  # whether it was ever a member of an order
    meeting: str  # host:port at which ranks could meet in the next generation


def election_step(
    *,
    me: str,  # this machine
    record: RootRecord | None,  # the store's; None at the start, or after it has lost everything
    known: RootRecord | None,  # the newest record that this machine has ever read
    root_is_lost: bool,  # whether the lease of `record` or else of `known` has expired; without either, may I be first?
    seen_term: int,  # highest term in any record, order or heartbeat that this machine has read
) -> RootRecord | None:
    """Return the record that a machine should try to write in place of the one it has read; None for none."""
    if record is None and known == RootRecord(term=seen_term, name=me):
        return known  # the store has forgotten me
    may_claim = root_is_lost if record is None or record.name != me else seen_term > record.term
    # Agents refuse orders of an older term: a root that was succeeded while it slept cannot act any more.
    return RootRecord(term=seen_term + 1, name=me) if may_claim else None


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


def decide(
    order: Order | None,  # the newest one, or None at the start
    initial: tuple[str, ...],  # machines by number, before the first order
    roster: tuple[str, ...],  # all machines that the operator has started, oldest first
    lost: Set[str],  # machines whose lease has expired
    statuses: Mapping[str, AgentStatus],  # the last heartbeat of each that ever had one
    peer_loss_is_ripe: bool,  # whether a rank lost its peer so long ago that a lost machine would be known by now
) -> Decision:
    """Decide what the root does now."""
    members = order.members if order else initial
    phases = {name: status.phase for name, status in statuses.items() if order and status.identity == order.identity}
    if order is not None and all(phases.get(name) == Phase.RETURNED for name in members):
        return Decision(finished=True)
    retired = {name for name, status in statuses.items() if status.served} - set(members)
    numbers = {name: number for number, name in enumerate(members)}
    replace = tuple(
        Replacement(lost=name, number=numbers.get(name))
        for name in dict.fromkeys((*members, *roster))
        if name in lost and name not in retired
    )
    alive = statuses.keys() - lost
    free = [name for name in roster if name in alive and name not in members and not statuses[name].served]
    # A lost machine's own replacement comes first: its name is that of the first of its line, a plus sign and a number.
    missing = [name for name in members if name in lost]
    spares = {name: spare for name in missing for spare in free if spare.partition("+")[0] == name.partition("+")[0]}
    others = [spare for spare in free if spare not in spares.values()]
    spares |= dict(zip((name for name in missing if name not in spares), others, strict=False))
    if waiting := [name for name in missing if name not in spares]:
        return Decision(replace=replace, reason=f"waits for a replacement of {', '.join(waiting)}")
    seats = tuple(spares.get(name, name) for name in members)
    if unheard := [name for name in seats if name not in alive]:
        return Decision(replace=replace, reason=f"waits for {', '.join(unheard)}")
    if seats != members:
        reason = "machines were replaced"
    elif order is None:
        reason = "training begins"
    elif failed := [name for name in members if phases.get(name) == Phase.FAILED]:
        reason = f"a rank of {', '.join(failed)} failed"
    elif peer_loss_is_ripe and any(phases.get(name) == Phase.LOST_PEER for name in members):
        reason = "ranks lost each other"
    elif any(
        status.identity != order.identity and (status.identity[0] >= order.generation or status.seen_term > order.term)
        for status in (statuses[name] for name in members)
    ):  # it holds another order, which it will not give up for this one
        reason = "machines disagree about the newest order"
    else:
        return Decision(replace=replace)
    newest = max([order.generation if order else 0, *(status.identity[0] for status in statuses.values())])
    return Decision(replace=replace, members=seats, generation=newest + 1, reason=reason)


STANDBY_LEASES = 2.0  # a standby lets the machines with a number go first in an election


class LeaseBook:
    """Judges who is alive by counters that grow within `lease_s` (at first `start_s`) of the watcher's own clock."""

    def __init__(self, lease_s: float, start_s: float | None = None):
        self.lease_s = lease_s
        self.start_s = lease_s if start_s is None else start_s
        require_positive(lease_s=self.lease_s, start_s=self.start_s)
        self.seen: dict[str, tuple[int | None, float]] = {}  # by machine: count, when it was first seen

    def look(self, name: str, count: int | None, now_s: float) -> None:
        """Note the count that was read of a machine; the first look, also at None, starts its lease."""
        last, _ = self.seen.get(name, (None, now_s))
        if name not in self.seen or (count is not None and (last is None or count > last)):
            self.seen[name] = count, now_s

    def is_expired(self, name: str, now_s: float, *, leases: float = 1.0) -> bool:
        """Return whether a machine was silent for so many leases; one that was never looked for is not lost."""
        if name not in self.seen:
            return False
        count, renewed_s = self.seen[name]
        return now_s - renewed_s > leases * (self.start_s if count is None else self.lease_s)

    def pardon(self, now_s: float) -> None:
        """Give all machines a fresh lease, because the watcher itself could not look for a while."""
        self.seen = {name: (count, now_s) for name, (count, _) in self.seen.items()}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timing:
    """How often machines show that they are alive, and how long they are believed to be."""

    heartbeat_s: float = 0.1  # seconds between two heartbeats
    lease_s: float = 2.0  # seconds for which a heartbeat counts
    start_s: float = 10.0  # seconds until the first heartbeat of a machine must be seen
    collective_s: float = 1800.0  # seconds for which a rank in a collective waits for the others; torch's own for gloo

    def __post_init__(self) -> None:
        require_positive(heartbeat_s=self.heartbeat_s, collective_s=self.collective_s)
        if not self.lease_s >= 4 * self.heartbeat_s:
            raise ValueError(f"lease_s is {self.lease_s!r}; it must be at least 4 heartbeats, {4 * self.heartbeat_s}")
        if not self.start_s >= self.lease_s:
            raise ValueError(f"start_s is {self.start_s!r}; it must be at least lease_s, {self.lease_s}")


@dataclass(kw_only=True, slots=True)
class Step:
    """The requests of one step of the loop to its surroundings."""

    order: Order | None = None  # newly accepted: stop the old ranks, start those of this machine
    replace: list[Replacement] = field(default_factory=list)  # to ask of the operator
    finished: Order | None = None  # all its ranks have returned
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # for the log


class ControlAgent:
    """The agent of one machine."""

    def __init__(
        self,
        name: str,  # of the machine, in no other's use
        store: KeyValueStore,
        *,
        initial: tuple[str, ...],  # machines by number, before the first order
        roster: tuple[str, ...],  # all machines; to be set when the operator starts another
        timing: Timing,
        meeting: Callable[[], str] = lambda: "",  # gives host:port at which this machine's ranks could let others meet
    ):
        self.name = name
        self.roster = tuple(roster)
        self.phase: Phase = Phase.IDLE
        self.order: Order | None = None
        self.leads = False
        self._store = store
        self._initial = tuple(initial)
        self._timing = timing
        self._meeting = meeting
        self._count = 0
        self._served = False
        self._seen_term = 0
        self._known_root: RootRecord | None = None
        self._root_leases = LeaseBook(timing.lease_s)  # of roots alone
        self._finished: tuple[int, int, str] | None = None
        self._old: dict[str, bytes] = {}  # by key, what was read and is older than what this agent knows
        self._had_outage = False
        self._last_step_s = -math.inf
        self._begin_to_lead()

    def step(self, now_s: float) -> Step:
        """Do one round of the loop and return its requests; none while the store does not answer."""
        step = Step()
        try:
            if self._had_outage or now_s - self._last_step_s > self._timing.lease_s / 2:
                # This machine could not look, or not write: silence says nothing about the others.
                self._leases.pardon(now_s)
                self._root_leases.pardon(now_s)
            self._last_step_s = now_s
            self._count += 1
            self._store.set(STATUS_KEY.format(self.name), self.status().to_bytes())
            record = self._follow_root(now_s, step)
            raw = self._store.get(ORDER_KEY)
            if raw is not None:
                self._accept(raw, step)
            self.leads = record is not None and record.name == self.name
            if record is not None and self.leads:
                self._lead(record, raw, now_s, step)
            if self._had_outage:
                step.events.append(("store found", {}))
            self._had_outage = False
        except StoreUnavailable as error:
            self.leads = False
            if not self._had_outage:
                step.events.append(("store lost", {"reason": str(error)}))
            self._had_outage = True
        return step

    def status(self) -> AgentStatus:
        """Return the heartbeat of this moment."""
        return AgentStatus(
            name=self.name,
            count=self._count,
            phase=self.phase,
            identity=self.order.identity if self.order else (0, 0, ""),
            seen_term=self._seen_term,
            served=self._served,
            meeting=self._meeting(),
        )

    def _follow_root(self, now_s: float, step: Step) -> RootRecord | None:
        """Read the root's record, and try to become root if it is lost; return the record after that."""
        raw = self._store.get(ROOT_KEY)
        record = self._noted_root(raw)
        known, seen_term = self._known_root, self._seen_term
        is_lost = self._root_is_lost(record or known, now_s)
        claim = election_step(me=self.name, record=record, known=known, root_is_lost=is_lost, seen_term=seen_term)
        if claim is None:
            return record
        record = self._noted_root(self._store.compare_set(ROOT_KEY, raw, claim.to_bytes()))
        if record == claim and claim != known:
            self._begin_to_lead()
            step.events.append(("root elected", {"root": self.name, "term": claim.term}))
        return record

    def _noted_root(self, raw: bytes | None) -> RootRecord | None:
        record = RootRecord.from_bytes(raw) if raw else None
        if record is not None:
            if self._known_root is None or record.term >= self._known_root.term:
                self._known_root = record
            self._seen_term = max(self._seen_term, record.term)
        return record

    def _root_is_lost(self, root: RootRecord | None, now_s: float) -> bool:
        members = self.order.members if self.order else self._initial
        leases = 1.0 if self.name in members else STANDBY_LEASES
        if root is None:  # there was no root yet: machines with a number may be it at once
            self._root_leases.look("", None, now_s)
            return self.name in members or self._root_leases.is_expired("", now_s, leases=leases)
        if root.name == self.name:
            return False
        raw = self._store.get(STATUS_KEY.format(root.name))
        count = AgentStatus.from_bytes(raw).count if raw else None
        self._root_leases.look(root.name, count, now_s)
        return self._root_leases.is_expired(root.name, now_s, leases=leases)

    def _accept(self, raw: bytes, step: Step) -> None:
        """Take the store's order, if it is newer than the accepted one and of no outdated root."""
        order = Order.from_bytes(raw)
        if self.order and order.generation < self.order.generation:
            self._note_old(ORDER_KEY, raw, step)
        if order.term < self._seen_term or (self.order and order.generation <= self.order.generation):
            return
        self._seen_term = order.term
        self.order = step.order = order
        is_member = self.name in order.members
        self._served = self._served or is_member
        self.phase = Phase.RUNNING if is_member else Phase.IDLE

    def _note_old(self, key: str, raw: bytes, step: Step) -> None:
        """Log, once, that something old was read: it was written late, or again by somebody who had read it."""
        if self._old.get(key) != raw:
            self._old[key] = raw
            step.events.append(("message dropped", {"key": key, "reason": "older than what is known"}))

    def _begin_to_lead(self) -> None:
        self._leases = LeaseBook(self._timing.lease_s, self._timing.start_s)
        self._leases.seen |= self._root_leases.seen  # the lost root needs no second lease
        self._statuses: dict[str, AgentStatus] = {}
        self._said_lost: set[str] = set()
        self._asked_s: dict[str, float] = {}  # when the operator was last asked
        self._peer_loss: tuple[int, float] | None = None  # generation, when it was first seen
        self._reason = ""  # why it last wanted a new generation

    def _lead(self, record: RootRecord, raw: bytes | None, now_s: float, step: Step) -> None:
        """Decide what to do about the machines as they are now, and write a new order if there is one."""
        stored = Order.from_bytes(raw) if raw else None
        newest = max((order for order in (stored, self.order) if order), key=lambda order: order.identity, default=None)
        lost = self._look(newest, now_s, step)
        is_ripe = newest is not None and self._peer_loss_is_ripe(newest, now_s)
        decision = decide(newest, self._initial, self.roster, lost, self._statuses, is_ripe)
        if decision.reason and not self._reason and newest is not None:
            step.events.append(("failure detected", {"generation": newest.generation, "reason": decision.reason}))
        self._reason = decision.reason
        for replacement in decision.replace:  # again after a lease, because the operator may not have heard it
            if now_s - self._asked_s.get(replacement.lost, -math.inf) > self._timing.lease_s:
                self._asked_s[replacement.lost] = now_s
                step.replace.append(replacement)
        if decision.finished and newest is not None and self._finished != newest.identity:
            self._finished = newest.identity
            step.finished = newest
        if record.term < self._seen_term:
            return  # the next step takes a higher term first
        if decision.members is None:
            if newest is not None and stored != newest:
                self._store.compare_set(ORDER_KEY, raw, newest.to_bytes())  # the store has forgotten it
            return
        members, meeting = decision.members, self._statuses[decision.members[0]].meeting
        order = Order(
            generation=decision.generation, term=record.term, root=self.name, members=members, meeting=meeting
        )
        written = order.to_bytes()
        if self._store.compare_set(ORDER_KEY, raw, written) == written:  # otherwise another root was faster
            details = {"generation": order.generation, "members": list(order.members), "reason": decision.reason}
            step.events.append(("generation ordered", {**details, "term": order.term}))
            self._accept(written, step)

    def _look(self, newest: Order | None, now_s: float, step: Step) -> set[str]:
        """Read the heartbeats of all machines; return those whose lease has expired, and log the new ones of them."""
        names = dict.fromkeys((*(newest.members if newest else self._initial), *self.roster))
        for name in names:
            key = STATUS_KEY.format(name)
            raw = self.status().to_bytes() if name == self.name else self._store.get(key)
            if raw is None:
                self._leases.look(name, None, now_s)
                continue
            status = AgentStatus.from_bytes(raw)
            self._leases.look(name, status.count, now_s)
            if name in self._statuses and status.count < self._statuses[name].count:
                self._note_old(key, raw, step)
            else:
                self._statuses[name] = status
                self._seen_term = max(self._seen_term, status.seen_term)
        lost = {name for name in names if self._leases.is_expired(name, now_s)}
        step.events += [("heartbeat lost", {"lost": name}) for name in sorted(lost - self._said_lost)]
        self._said_lost = lost
        return lost

    def _peer_loss_is_ripe(self, newest: Order, now_s: float) -> bool:
        """Return whether ranks lost their peers longer ago than a lease runs, and no lease is about to expire.

        A lost machine's last heartbeat may be read late, so that its lease ends later.
        """
        statuses = [status for status in self._statuses.values() if status.identity == newest.identity]
        if not any(status.phase == Phase.LOST_PEER for status in statuses):
            self._peer_loss = None
            return False
        if self._peer_loss is None or self._peer_loss[0] != newest.generation:
            self._peer_loss = newest.generation, now_s
        others = set(newest.members) - {self.name}
        if any(self._leases.is_expired(name, now_s, leases=0.5) for name in others):
            return False
        return now_s - self._peer_loss[1] > self._timing.lease_s + self._timing.heartbeat_s
