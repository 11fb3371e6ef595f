"""The operator: the user's process, which owns all machines, replaces them, keeps the log and takes the results."""

import heapq
import itertools
import math
import os
import queue
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from workbench.launch.failures import FailureKind, RankFailed, RankFailure, describe_end
from workbench.launch.machines import MachineEnded, Machines, MachineSaid, MachineStarted, RankEnded, RankExit, RankSaid
from workbench.launch.messages import NotAMessage
from workbench.launch.protocol import Reply

from .agent import Replacement
from .service import Event, EventName, Fault, Logged, Pause, Progress, Roster, Task, Victim, serve_agent, serve_store
from .store import EtcdKeyValueStore, KeyValueStore, StoreUnavailable, TcpKeyValueStore

__all__ = ["Operator", "Repeats"]

MOST_REPEATS = 2  # generations in a row that end with the same error before training is given up
MOST_STALLED = 10  # generations in a row without progress, whatever ended them
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 5.0  # before a restart without progress; each is twice the one before
STORE = "the store"  # name of the process that serves the embedded store
UNREADABLE = "returned a value that cannot be unpickled here"
LOST_LEASES = 2.0  # for which a store of others may be gone when a failure needs it
LOOK_S = 0.05  # seconds between two looks at what is due or was asked for by another thread


class Repeats:
    """Counts generations in a row that ended without progress, and among them those that ended with one error."""

    def __init__(self) -> None:
        self._generation, self._progress, self.num_stalled = 0, -1, 0
        self._signature, self._num_same, self._is_signed = "", 0, False

    def is_new(self, generation: int, progress: int) -> bool:
        """Count the end of a generation that has reached an iteration; False if it was counted before."""
        if generation <= self._generation:
            return False
        if progress > self._progress:
            self.num_stalled = self._num_same = 0
        self.num_stalled += 1
        self._generation, self._progress, self._is_signed = generation, progress, False
        return True

    def note_error(self, signature: str) -> None:
        """Note an error of the generation that was counted last; only its first one counts."""
        if not self._is_signed:
            self._num_same = self._num_same + 1 if signature == self._signature else 1
            self._signature, self._is_signed = signature, True

    @property
    def verdict(self) -> str:
        """Why to give up; "" for going on."""
        if self._is_signed and self._generation == 1 and self._progress < 1:
            return "It failed before its first iteration was done, so it was not restarted."
        if self._num_same >= MOST_REPEATS:
            return "It failed again at the same place after a restart, so it was not restarted once more."
        if self.num_stalled >= MOST_STALLED:
            reached = max(0, self._progress)
            return f"Training was started {MOST_STALLED} times without getting beyond iteration {reached}."
        return ""

    @property
    def pause_s(self) -> float:
        """Seconds to wait before the next generation."""
        return min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (self.num_stalled - 2)) if self.num_stalled > 1 else 0.0


class Operator:
    """Runs one training on machines, of which none is started yet; other threads add to `requests` or set `give_up`."""

    def __init__(self, machines: Machines, task: Task, shows_errors: bool = True):
        self.events: list[Event] = []
        self.requests: queue.SimpleQueue[Fault] = queue.SimpleQueue()
        self.give_up = threading.Event()
        self._machines, self._task, self._shows_errors = machines, task, shows_errors
        self._num_ranks = len(task.names) * task.ranks_per_machine
        self._roster: list[str] = []
        self._members: tuple[str, ...] = task.names
        self._host_of: dict[str, int] = {}
        self._lives: Counter[str] = Counter()  # replacements by the name of the first
        self._arriving: set[str] = set()  # replacements not started yet
        self._root = ""
        self._store_address: tuple[str, int] | None = None
        self._store_started_s = 0.0
        self._storeless_s: dict[str, float] = {}  # since when a machine has no answer of the store
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._waiting = list(task.faults)
        self._counts: Counter[str] = Counter()  # of events by name
        self._progress, self._generation = -1, 0
        self._results: dict[int, dict[int, Any]] = {}
        self._finished: int | None = None  # the generation whose ranks have all returned
        self._repeats = Repeats()
        self._shown: set[str] = set()  # signatures of errors whose tracebacks were shown
        self._failed_s = math.inf  # when a failure began that no generation has followed yet

    def run(self, timeout_s: float | None) -> list[Any]:
        """Start everything and wait for the results, in rank order; an error says what was going on."""
        deadline_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
        self._start_store()
        while self._store_address is None:
            self._turn(deadline_s, timeout_s)
        self._roster = [*self._task.names, *self._task.standby_names]
        self._host_of = {name: host for host, name in enumerate(self._roster)}
        for name in self._roster:
            self._start(name)
        while True:
            results = self._results.get(self._finished, {}) if self._finished else {}
            if len(results) == self._num_ranks:
                return [results[rank] for rank in sorted(results)]
            self._turn(deadline_s, timeout_s)

    def _turn(self, deadline_s: float, timeout_s: float | None) -> None:
        """Do what is due, then wait a little for machines to say something."""
        now_s = time.monotonic()
        if now_s > deadline_s:
            raise TimeoutError(f"training did not end within {timeout_s:g} s: {self._situation()}")
        if self.give_up.is_set():
            raise RuntimeError(f"training was closed before its end: {self._situation()}")
        self._look_after_store(now_s)
        while self._due and self._due[0][0] <= now_s:
            heapq.heappop(self._due)[2]()
        while not self.requests.empty():
            self._kill(self.requests.get())
        next_s = self._due[0][0] if self._due else math.inf
        for happening in self._machines.wait(max(0.0, min(LOOK_S, next_s - now_s))):
            self._hear(happening)

    def _situation(self) -> str:
        """Say which ranks and machines a training waits for; a rank that hangs is behind the others."""
        done = self._results.get(self._generation, {})
        missing = [rank for rank in range(self._num_ranks) if rank not in done]
        ended = [name for name in self._members if name not in self._machines.names]
        events = [event for event in self.events if event.generation == self._generation]
        joined = {event.rank for event in events if event.name == EventName.JOINED}
        absent = [rank for rank in missing if rank not in joined]
        reached = {event.rank: event.details["iteration"] for event in events if event.name == "iteration"}
        most = max(reached.values(), default=0)
        behind = [f"rank {rank} at iteration {number}" for rank, number in sorted(reached.items()) if number < most]
        words = f"generation {self._generation}, no result of ranks {missing}"
        words += f", ranks {absent} have not joined" if absent else ""
        words += f", behind the others' iteration {most}: {', '.join(behind)}" if behind else ""
        words += f", machines {ended} are gone" if ended else ""
        return f"{words}; last event: {self.events[-1].name}" if self.events else words

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (time.monotonic() + delay_s, next(self._numbers), action))

    # Machines

    def _start_store(self) -> None:
        """Start the embedded store, if it does not run: at its old port, if it had one."""
        if self._task.etcd_url is not None:
            self._store_address = ("", 0)
        elif STORE not in self._machines.names:
            self._store_started_s = time.monotonic()
            port = self._store_address[1] if self._store_address else 0
            self._machines.start(STORE, serve_store, port, host=0 if self._task.has_hosts else None)

    def _look_after_store(self, now_s: float) -> None:
        """Replace an embedded store that does not answer; give up where another one is needed and has gone."""
        lease_s = self._task.timing.lease_s
        lost_s = now_s - max(min(self._storeless_s.values(), default=now_s), self._store_started_s)
        if self._task.etcd_url is None:
            if lost_s > lease_s and STORE in self._machines.names:
                self._store_started_s = now_s
                self._note(EventName.STORE_REPLACED)
                self._machines.kill(STORE)  # its end starts the next one
        elif lost_s > LOST_LEASES * lease_s and now_s - self._failed_s > LOST_LEASES * lease_s:
            words = f"the store at {self._task.etcd_url} has not answered for {lost_s:.1f} s"
            raise StoreUnavailable(f"{words}, and training cannot restart without it: {self._situation()}")

    def _start(self, name: str) -> None:
        task = self._task
        connect: Callable[..., KeyValueStore] = partial(TcpKeyValueStore, *(self._store_address or ()))
        if task.etcd_url is not None:
            connect = partial(EtcdKeyValueStore, task.etcd_url, prefix=task.prefix)
        arguments, limit_bytes = (task, tuple(self._roster), connect), task.memory_limit_bytes
        host = self._host_of[name] if task.has_hosts else None
        self._machines.start(name, serve_agent, *arguments, host=host, memory_limit_bytes=limit_bytes)

    def _replace(self, lost: str, number: int | None) -> None:
        """Start a machine in a lost one's place, once; it keeps its host, and the root gives it a number."""
        if lost not in self._roster:
            return
        if lost in self._machines.names:
            self._machines.kill(lost)  # it may only have seemed dead, and must not come back
        first = lost.partition("+")[0]
        self._lives[first] += 1
        name = f"{first}+{self._lives[first]}"
        self._host_of[name] = self._host_of[lost]
        self._roster = [other for other in self._roster if other != lost] + [name]
        self._note(EventName.REPLACEMENT_ASKED, machine=lost, number=number, details={"by": name})
        self._arriving.add(name)
        self._later(self._task.replacement_s, lambda: self._deliver(name))

    def _deliver(self, name: str) -> None:
        """Start a machine that was asked for, and tell the others of it."""
        self._arriving.discard(name)
        if name in self._roster:
            self._start(name)
            running = tuple(other for other in self._roster if other in self._machines.names)
            for other in running:
                self._machines.tell(other, Roster(names=running))

    # Messages and ends

    def _hear(self, happening: Any) -> None:
        match happening:
            case MachineStarted(machine=name, time_s=time_s) if name != STORE:
                self._note(EventName.MACHINE_STARTED, time_s, machine=name, details={"pid": happening.pid})
            case MachineEnded(machine=name) if name == STORE:
                if not any(action == self._start_store for _, _, action in self._due):
                    self._start_store()
            case MachineEnded(machine=name, time_s=time_s):
                self._note_end_of_machine(name, time_s, happening.status)
            case MachineSaid(message=Replacement(lost=lost, number=number)):
                self._replace(lost, number)
            case MachineSaid(machine=name, message=Logged(name=what, time_s=time_s, details=details)):
                self._note_log(name, what, time_s, dict(details))
            case MachineSaid(machine=name, message=Reply() | Exception() as message):
                words = getattr(message, "traceback", "") or str(message)
                raise RuntimeError(f"machine {name!r} cannot run its agent: {words}")
            case RankSaid(machine=name, rank=rank, label=generation, message=message):
                self._note_message(name, rank, generation, message)
            case RankEnded(rank=rank, label=generation, time_s=time_s, status=status, exit=RankExit.KILLED):
                failure = RankFailure(rank=rank, kind=FailureKind.DIED, time_s=time_s, message=describe_end(status))
                self._note_failure(failure, generation, happening.machine)

    def _note_end_of_machine(self, name: str, time_s: float, status: int) -> None:
        """Note that a machine ended; replace all machines if none is alive or starting."""
        details = {"exit_code": os.waitstatus_to_exitcode(status)}
        self._note(EventName.MACHINE_ENDED, time_s, machine=name, details=details)
        self._storeless_s.pop(name, None)
        if name in self._members:
            self._note_end(self._generation, time_s, f"machine {name!r} ended")
        available = {*self._machines.names, *self._arriving}
        if self._finished is None and not available & set(self._roster):
            for lost in tuple(self._roster):
                self._replace(lost, self._number_of(lost))

    def _note_log(self, name: str, what: str, time_s: float, details: dict[str, Any]) -> None:
        """Note an event of an agent or the store, and what it changes."""
        concerned = details.pop("lost", name)
        generation = details.pop("generation", None)
        match what:
            case EventName.STORE_STARTED:
                self._store_address, concerned = details.pop("address"), ""
            case EventName.STORE_LOST:
                self._storeless_s[name] = time_s
            case EventName.STORE_FOUND:
                self._storeless_s.pop(name, None)
            case EventName.ROOT_ELECTED:
                self._root = details.pop("root")
            case EventName.FINISHED:
                self._finished = generation
            case EventName.GENERATION_ORDERED:
                self._failed_s, self._generation = math.inf, generation
                before, self._members = self._members, tuple(details["members"])
                for old, new in zip(before, self._members, strict=True):
                    if old != new:
                        place = {"machine": new, "generation": generation}
                        self._note(EventName.REPLACED, time_s, **place, details={"lost": old})
        self._note(what, time_s, machine=concerned, generation=generation, details=details)

    def _note_message(self, name: str, rank: int, generation: int, message: Any) -> None:
        """Note what a rank said: progress, an event, its result or its error."""
        common: dict[str, Any] = {"machine": name, "rank": rank, "generation": generation}
        match message:
            case Progress(iteration=iteration, time_s=time_s):
                self._progress = max(self._progress, iteration)
                self._note("iteration", time_s, **common, details={"iteration": iteration})
                self._trigger(lambda fault: fault.at_iteration is not None and iteration >= fault.at_iteration)
            case Logged(name=what, time_s=time_s, details=details):
                details = dict(details)
                duration_s = details.pop("duration_s", 0.0)
                self._note(what, time_s, **common, duration_s=duration_s, details=details)
            case Exception():
                what = "sent what cannot be read" if isinstance(message, NotAMessage) else UNREADABLE
                words, now_s = f"{what}: {message}", time.monotonic()
                raise RankFailed([RankFailure(rank=rank, kind=FailureKind.RAISED, time_s=now_s, message=words)])
            case Reply(failure=None, value=value, time_s=time_s):
                self._results.setdefault(generation, {})[rank] = value
                self._note(EventName.RETURNED, time_s, **common)
            case Reply(failure=FailureKind() as kind, message=words, traceback=traceback, time_s=time_s):
                failure = RankFailure(rank=rank, kind=kind, time_s=time_s, message=words, traceback=traceback)
                self._note_failure(failure, generation, name)

    def _note_failure(self, failure: RankFailure, generation: int, name: str) -> None:
        details = {"kind": failure.kind.value, "message": failure.message}
        common: dict[str, Any] = {"machine": name, "rank": failure.rank, "generation": generation}
        self._note(EventName.RANK_FAILED, failure.time_s, **common, details=details)
        if generation == self._generation:
            self._note_end(generation, failure.time_s, failure)

    def _note_end(self, generation: int, time_s: float, cause: RankFailure | str) -> None:
        """Count the end of a generation; give up, or let the next one wait, where nothing is gained by restarts."""
        if self._repeats.is_new(generation, self._progress):
            self._failed_s = time_s
            if pause_s := self._repeats.pause_s:
                for name in self._roster:
                    if name in self._machines.names:
                        self._machines.tell(name, Pause(seconds=pause_s))
        if isinstance(cause, RankFailure) and cause.kind is FailureKind.RAISED:
            # Errors are told apart by class and place, without their words.
            frames = [line.strip() for line in cause.traceback.splitlines() if line.strip().startswith("File ")]
            signature = f"{cause.message.partition(':')[0]} at {frames[-1]}" if frames else cause.message
            if self._shows_errors:
                again = f"rank {cause.rank} {cause.message}, at the same place"
                print(f"workbench: {again if signature in self._shown else cause}", file=sys.stderr, flush=True)
            self._shown.add(signature)
            self._repeats.note_error(signature)
        if verdict := self._repeats.verdict:
            if not isinstance(cause, RankFailure):
                raise RuntimeError(f"{cause}. {verdict}")
            # Where a peer was lost, its own end says more, and follows at once if there is one.
            if cause.kind is not FailureKind.PEER_LOST or self._repeats.num_stalled > MOST_STALLED:
                raise RankFailed([cause], verdict)

    def _number_of(self, machine: str) -> int | None:
        return self._members.index(machine) if machine in self._members else None

    def _note(self, name: str, time_s: float | None = None, *, machine: str = "", **fields: Any) -> None:
        fields = {"number": self._number_of(machine), **fields}
        time_s = time.monotonic() if time_s is None else time_s
        self.events.append(Event(name=str(name), time_s=time_s, machine=machine, **fields))
        self._counts[name] += 1
        self._trigger(lambda fault: fault.after_event == name and self._counts[name] >= fault.occurrence)

    # Faults

    def _trigger(self, is_due: Callable[[Fault], bool]) -> None:
        for fault in [fault for fault in self._waiting if is_due(fault)]:
            self._waiting.remove(fault)
            self._later(fault.delay_s, partial(self._kill, fault))

    def _kill(self, fault: Fault) -> None:
        """Kill the victims of a fault that are still there."""
        match fault.kills:
            case Victim.RANK:
                for rank in fault.numbers:
                    name = self._members[rank // self._task.ranks_per_machine]
                    if rank in self._machines.pids.get(name, {}).get("ranks", {}):
                        self._note_kill("rank", machine=name, rank=rank)
                        self._machines.kill_rank(name, rank)
            case Victim.MACHINE | Victim.ROOT:
                names = [self._members[number] for number in fault.numbers] or [self._root]
                running = [name for name in names if name in self._machines.names]
                for name in running:
                    self._note_kill("machine", machine=name)
                if running:
                    self._machines.kill(*running)
            case Victim.STORE if STORE in self._machines.names:
                self._note_kill("store")
                self._later(fault.down_s, self._start_store)
                self._machines.kill(STORE)
            case Victim.FROZEN_STORE if STORE in self._machines.names:
                self._note_kill("frozen store")
                os.kill(self._machines.pids[STORE]["agent"], signal.SIGSTOP)

    def _note_kill(self, what: str, **fields: Any) -> None:
        self._note(EventName.KILLED, **fields, generation=self._generation, details={"what": what})
