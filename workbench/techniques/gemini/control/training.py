"""Training that outlives the loss of ranks, machines, the root and the store: the launcher that restarts."""

import contextlib
import secrets
import threading
import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from workbench.checks import require_counts
from workbench.launch.machines import Machines
from workbench.launch.main_of_rank import dumps_by_value

from .agent import Timing
from .operator import Operator
from .service import Event, EventName, Fault, Task, Victim
from .store import EtcdKeyValueStore, StoreUnavailable

__all__ = ["Fault", "Timing", "Training", "TrainingOutcome", "Victim", "run_training"]

TOKEN_BYTES = 32
EMBEDDED = "tcp"  # the store that needs no server of its own: torch's TCPStore


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingOutcome:
    """The results and the log of a training."""

    results: tuple[Any, ...]  # of the ranks of the last generation, in rank order
    events: tuple[Event, ...]  # the log, in the order in which it was heard
    hosts: dict | None  # description of the shaped hosts for a record

    @property
    def num_generations(self) -> int:
        """Number of times that the ranks were started."""
        return max(event.generation or 0 for event in self.events)

    @property
    def num_dropped(self) -> int:
        """Number of messages in the store that agents have dropped, because the training had not written them now."""
        return len(self.named(EventName.MESSAGE_DROPPED))

    def named(self, name: str) -> tuple[Event, ...]:
        """Return the events of one name, earliest first."""
        return tuple(sorted((event for event in self.events if event.name == name), key=lambda event: event.time_s))


class Training(contextlib.AbstractContextManager["Training"]):
    """A training on machines of its own, which can be hurt while it runs; bad arguments start nothing."""

    _is_closed = False

    def __init__(
        self,
        function: Any,  # called as `function(context, *args)` on every rank of every generation
        num_machines: int,
        ranks_per_machine: int = 1,
        *,
        args: Sequence[Any] = (),
        standbys: int = 0,  # machines that wait to take a lost one's number
        store: str = EMBEDDED,  # or the URL of an etcd server, http://host:port
        hosts: Any = None,  # ShapedHosts, one for each machine and standby
        machines: Machines | None = None,  # warm ones, none running; they then say the hosts and the last two options
        preload: Sequence[str] = (),  # modules that are imported once, before machines are forked
        echo: bool = True,  # whether the output and the errors of ranks are shown at once
        **choices: Any,  # timing, faults, replacement_s, memory_limit_bytes: see `Task`
    ):
        if machines is not None and hosts is not None:
            raise ValueError("hosts is given beside machines; give them to the machines")
        if machines is not None and machines.names:
            raise ValueError(f"machines has {machines.names!r} running; there must be none")
        hosts = hosts if machines is None else machines.shaped
        require_counts(1, num_machines=num_machines, ranks_per_machine=ranks_per_machine)
        require_counts(0, standbys=standbys)
        self._task = Task(
            program=dumps_by_value((function, tuple(args))),
            names=tuple(map("machine-{}".format, range(num_machines))),
            standby_names=tuple(map("standby-{}".format, range(standbys))),
            ranks_per_machine=ranks_per_machine,
            etcd_url=None if store == EMBEDDED else str(store),
            prefix=f"workbench/{uuid.uuid4().hex}/",
            token=secrets.token_bytes(TOKEN_BYTES),
            has_hosts=hosts is not None,
            **choices,
        )
        if hosts is not None and hosts.num_hosts != (needed := num_machines + standbys):
            raise ValueError(f"hosts.num_hosts is {hosts.num_hosts!r}; it must be {needed}, standbys included")
        self._owns_machines = machines is None
        self._machines = machines or Machines(hosts=hosts, preload=preload, echo=echo)
        self._operator = Operator(self._machines, self._task, echo)
        self._thread: threading.Thread | None = None
        self._end: Future[TrainingOutcome] = Future()

    @property
    def events(self) -> tuple[Event, ...]:
        """The log so far."""
        return tuple(self._operator.events)

    @property
    def pids(self) -> dict[str, dict[str, Any]]:
        """By machine: `agent`, its process id, and `ranks`, theirs by number."""
        return self._machines.pids

    def run(self, timeout_s: float | None = None) -> TrainingOutcome:
        """Train, and wait for the end.

        It raises RankFailed if an error comes before the first iteration, if the same error ends 2 generations in a row
        without progress, or if 10 end so for any reason; TimeoutError if it takes longer than asked for; and
        RuntimeError if it was closed meanwhile.
        """
        results = self._operator.run(_positive("timeout_s", timeout_s))
        return TrainingOutcome(results=tuple(results), events=self.events, hosts=self._machines.hosts)

    def start(self, timeout_s: float | None = None) -> None:
        """Train in another thread, so that a notebook can look on and `strike`; `result` waits for the end."""
        _positive("timeout_s", timeout_s)
        if self._thread is not None:
            raise RuntimeError("this training was started before; make another one")

        def work() -> None:
            try:
                self._end.set_result(self.run(timeout_s))
            except BaseException as error:
                self._end.set_exception(error)

        self._thread = threading.Thread(target=work, name="workbench-training", daemon=True)
        self._thread.start()

    def strike(self, kills: Victim, *numbers: int) -> None:
        """Kill something now."""
        fault = Fault(kills=kills, numbers=numbers, at_iteration=0)
        replace(self._task, faults=[fault])  # it is checked
        self._operator.requests.put(fault)

    def result(self) -> TrainingOutcome:
        """Wait for the end of a training that was started; raises what `run` raises."""
        if self._thread is None:
            raise RuntimeError("this training was not started")
        return self._end.result()

    def close(self) -> None:
        """End all machines and everything they started; calling it again does nothing."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._thread is not None:
            self._operator.give_up.set()
            self._thread.join()
        if self._owns_machines:
            self._machines.close()
        else:
            self._machines.kill_all()
        if self._task.etcd_url is not None:  # it outlives the training: remove its keys
            store = EtcdKeyValueStore(self._task.etcd_url, prefix=self._task.prefix)
            with contextlib.closing(store), contextlib.suppress(StoreUnavailable):
                store.delete_all()

    def __exit__(self, *error: object) -> None:
        self.close()


def run_training(
    function: Any, num_machines: int, ranks_per_machine: int = 1, *, timeout_s: float | None = None, **choices: Any
) -> TrainingOutcome:
    """Train a function on machines, again after every failure; choices and errors are those of `Training`."""
    _positive("timeout_s", timeout_s)
    with Training(function, num_machines, ranks_per_machine, **choices) as training:
        return training.run(timeout_s)


def _positive(name: str, value: float | None) -> float | None:
    if value is not None and not value > 0:
        raise ValueError(f"{name} is {value!r}; it must be above 0")
    return value
