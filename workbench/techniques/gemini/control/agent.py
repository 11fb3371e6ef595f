"""An agent's control loop, one step at a time: heartbeat, leases, election, orders; it starts no processes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from workbench.checks import require_positive

from .ordering import (
    ORDER_KEY,
    ROOT_KEY,
    AgentStatus,
    Decision,
    Order,
    Phase,
    Replacement,
    RootRecord,
    View,
    decide,
    election_step,
    status_key,
)
from .store import KeyValueStore, StoreUnavailable

__all__ = ["ControlAgent", "LeaseBook", "Step", "Timing", "is_expired_by_definition"]

STANDBY_LEASES = 2.0  # a standby lets the machines with a number go first in an election


def is_expired_by_definition(seen: Sequence[tuple[float, int | None]], lease_s: float, now_s: float) -> bool:
    """Judge a lease from all counts of a machine that a watcher has read, and when; the first look starts the lease."""
    known = [(time_s, count) for time_s, count in seen if count is not None]
    renewed_s = [time_s for place, (time_s, count) in enumerate(known) if all(count > old for _, old in known[:place])]
    return now_s - max([seen[0][0], *renewed_s]) > lease_s


class LeaseBook:
    """Judges who is alive by counters that grow within `lease_s` (at first `start_s`) of the watcher's own clock."""

    def __init__(self, lease_s: float, start_s: float | None = None):
        self.lease_s = lease_s
        self.start_s = lease_s if start_s is None else start_s
        require_positive(lease_s=self.lease_s, start_s=self.start_s)
        self._seen: dict[str, tuple[int | None, float]] = {}  # count, when it was first seen

    def look(self, name: str, count: int | None, now_s: float) -> None:
        """Note the count that was read of a machine; the first look, also at None, starts its lease."""
        last, _ = self._seen.get(name, (None, now_s))
        if name not in self._seen or (count is not None and (last is None or count > last)):
            self._seen[name] = count, now_s

    def is_expired(self, name: str, now_s: float, *, leases: float = 1.0) -> bool:
        """Return whether a machine was silent for so many leases; one that was never looked for is not lost."""
        if name not in self._seen:
            return False
        count, renewed_s = self._seen[name]
        return now_s - renewed_s > leases * (self.start_s if count is None else self.lease_s)

    def pardon(self, now_s: float) -> None:
        """Give all machines a fresh lease, because the watcher itself could not look for a while."""
        self._seen = {name: (count, now_s) for name, (count, _) in self._seen.items()}

    def taken_over(self, start_s: float) -> "LeaseBook":
        """Return a book of the same lease and content, with another `start_s`."""
        book = LeaseBook(self.lease_s, start_s)
        book._seen.update(self._seen)
        return book


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
            rule = f"it must be at least four heartbeats, {4 * self.heartbeat_s}"
            raise ValueError(f"lease_s is {self.lease_s!r}; {rule}")
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
        self._root_leases = LeaseBook(timing.lease_s)
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
            self._store.set(status_key(self.name), self.status().to_bytes())
            record = self._follow_root(now_s, step)
            raw = self._store.get(ORDER_KEY)
            self._accept(raw, step)
            self.leads = record is not None and record.name == self.name
            if self.leads:
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
        generation, term, root = self.order.identity if self.order else (0, 0, "")
        return AgentStatus(
            name=self.name,
            count=self._count,
            phase=self.phase,
            generation=generation,
            term=term,
            root=root,
            seen_term=self._seen_term,
            served=self._served,
            meeting=self._meeting(),
        )

    def _follow_root(self, now_s: float, step: Step) -> RootRecord | None:
        """Read the root's record, and try to become root if it is lost; return the record after that."""
        raw = self._store.get(ROOT_KEY)
        record = RootRecord.from_bytes(raw) if raw else None
        self._note_root(record)
        lost = self._root_is_lost(record or self._known_root, now_s)
        claim = election_step(
            me=self.name, record=record, known=self._known_root, root_is_lost=lost, seen_term=self._seen_term
        )
        if claim is None:
            return record
        now = self._store.compare_set(ROOT_KEY, raw, claim.to_bytes())
        if now is None:
            return None
        is_new = claim != self._known_root
        record = RootRecord.from_bytes(now)
        self._note_root(record)
        if record == claim and is_new:
            self._begin_to_lead()
            step.events.append(("root elected", {"root": self.name, "term": claim.term}))
        return record

    def _note_root(self, record: RootRecord | None) -> None:
        if record is None:
            return
        if self._known_root is None or record.term >= self._known_root.term:
            self._known_root = record
        self._seen_term = max(self._seen_term, record.term)

    def _root_is_lost(self, root: RootRecord | None, now_s: float) -> bool:
        members = self.order.members if self.order else self._initial
        leases = 1.0 if self.name in members else STANDBY_LEASES
        if root is None:  # there was no root yet: machines with a number may be it at once
            self._root_leases.look("", None, now_s)
            return self.name in members or self._root_leases.is_expired("", now_s, leases=leases)
        if root.name == self.name:
            return False
        raw = self._store.get(status_key(root.name))
        count = AgentStatus.from_bytes(raw).count if raw else None
        self._root_leases.look(root.name, count, now_s)
        return self._root_leases.is_expired(root.name, now_s, leases=leases)

    def _accept(self, raw: bytes | None, step: Step) -> None:
        """Take the store's order, if it is newer than the accepted one and of no outdated root."""
        if raw is None:
            return
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
        self._leases = self._root_leases.taken_over(self._timing.start_s)  # the lost root needs no second lease
        self._statuses: dict[str, AgentStatus] = {}
        self._said_lost: set[str] = set()
        self._asked_s: dict[str, float] = {}  # when the operator was last asked
        self._peer_loss: tuple[int, float] | None = None  # generation, when it was first seen
        self._reason = ""  # why it last wanted a new generation

    def _lead(self, record: RootRecord, raw: bytes | None, now_s: float, step: Step) -> None:
        stored = Order.from_bytes(raw) if raw else None
        newest = max((order for order in (stored, self.order) if order), key=lambda order: order.identity, default=None)
        view = self._look_around(newest, now_s, step)
        decision = decide(view)
        if decision.reason and not self._reason and newest is not None:
            step.events.append(("failure detected", {"generation": newest.generation, "reason": decision.reason}))
        self._reason = decision.reason
        self._ask_operator(decision.replace, now_s, step)
        if decision.finished and self._finished != newest.identity:
            self._finished = newest.identity
            step.finished = newest
        if record.term < self._seen_term:
            return  # the next step takes a higher term first
        if decision.members is not None:
            self._order(record, raw, decision, step)
        elif newest is not None and stored != newest:
            self._store.compare_set(ORDER_KEY, raw, newest.to_bytes())  # the store has forgotten it

    def _look_around(self, newest: Order | None, now_s: float, step: Step) -> View:
        members = newest.members if newest else self._initial
        names = dict.fromkeys((*members, *self.roster))
        for name in names:
            raw = self.status().to_bytes() if name == self.name else self._store.get(status_key(name))
            status = AgentStatus.from_bytes(raw) if raw else None
            self._leases.look(name, status.count if status else None, now_s)
            if status is not None and name in self._statuses and status.count < self._statuses[name].count:
                self._note_old(status_key(name), raw, step)
            elif status is not None:
                self._statuses[name] = status
                self._seen_term = max(self._seen_term, status.seen_term)
        lost = frozenset(name for name in names if self._leases.is_expired(name, now_s))
        for name in sorted(lost - self._said_lost):
            step.events.append(("heartbeat lost", {"lost": name}))
        self._said_lost = set(lost)
        return View(
            order=newest,
            initial=self._initial,
            roster=self.roster,
            lost=lost,
            statuses=self._statuses,
            alive=frozenset(name for name in names if name not in lost and name in self._statuses),
            peer_loss_is_ripe=self._peer_loss_is_ripe(newest, now_s),
        )

    def _peer_loss_is_ripe(self, newest: Order | None, now_s: float) -> bool:
        """Return whether ranks lost their peers longer ago than a lease runs, and no lease is about to expire.

        A lost machine's last heartbeat may be read late, so that its lease ends later.
        """
        lost_peer = newest is not None and any(
            status.identity == newest.identity and status.phase == Phase.LOST_PEER for status in self._statuses.values()
        )
        if not lost_peer:
            self._peer_loss = None
            return False
        if self._peer_loss is None or self._peer_loss[0] != newest.generation:
            self._peer_loss = newest.generation, now_s
        others = set(newest.members) - {self.name}
        if any(self._leases.is_expired(name, now_s, leases=0.5) for name in others):
            return False
        return now_s - self._peer_loss[1] > self._timing.lease_s + self._timing.heartbeat_s

    def _ask_operator(self, wanted: tuple[Replacement, ...], now_s: float, step: Step) -> None:
        for replacement in wanted:
            asked_s = self._asked_s.get(replacement.lost)
            if asked_s is None or now_s - asked_s > self._timing.lease_s:
                self._asked_s[replacement.lost] = now_s
                step.replace.append(replacement)

    def _order(self, record: RootRecord, raw: bytes | None, decision: Decision, step: Step) -> None:
        order = Order(
            generation=decision.generation,
            term=record.term,
            root=self.name,
            members=decision.members,
            meeting=self._statuses[decision.members[0]].meeting,
        )
        now = self._store.compare_set(ORDER_KEY, raw, order.to_bytes())
        if now != order.to_bytes():
            return  # another root was faster
        details = {"generation": order.generation, "members": list(order.members), "reason": decision.reason}
        step.events.append(("generation ordered", {**details, "term": order.term}))
        self._accept(now, step)
