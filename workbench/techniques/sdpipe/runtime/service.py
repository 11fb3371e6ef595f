"""The scheduler's process, a pyzmq ROUTER around the state machine (section 4), and a worker's connection to it.

    python -m workbench.techniques.sdpipe.runtime.service

reads its arguments, a line of JSON, from standard input and prints its port. It serves until its standard input closes,
which also happens when its owner ends. CURVE encrypts the connections; only the training's workers have the key. The
process does not import torch.
"""

import dataclasses
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from workbench.checks import require_counts, require_positive
from workbench.launch.environment import own_environment
from workbench.techniques.sdpipe.method.scheduler import Group, Scheduler, Settings

__all__ = ["Client", "Grouped", "Options", "SchedulerLost", "Server", "WorkerLost", "serve"]

SERVER = "workbench.techniques.sdpipe.runtime.service"  # the module that the process runs
LEASE_S = 10.0  # time without an answer after which the scheduler counts as lost
PINGS_PER_LEASE = 3
STOPPING_S = 5.0  # time for a server to end before it is killed
FREQUENT = 2  # meetings of the same members after which they keep their communicator
MOST_KEPT = 16  # communicators that a worker keeps
MEASURED = 10  # iterations of each worker, whose median sets a window that is not given
FIRST_WINDOW_S = 10.0  # window until then
KINDS = ("signal", "come", "fail", "ping", "save", "load")  # of a worker's messages
AUTHENTICATION = "inproc://zeromq.zap.01"  # address where ZeroMQ asks whether a key is admitted (RFC 27)

Worker = tuple[int, int]  # stage and pipeline


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """Settings of SDPipe."""

    history: int = 10  # P
    window_s: float | None = None  # T; None takes the settings' T, or else 1/N of the median of ten iterations a worker
    settings: Settings | None = None  # of the scheduler; None for the paper's
    lease_s: float = LEASE_S  # time without an answer after which the scheduler counts as lost
    host: str = "127.0.0.1"  # address of the first rank's host on the network of all ranks

    def __post_init__(self) -> None:
        require_counts(1, history=self.history)
        require_positive(lease_s=self.lease_s)
        if self.window_s is not None and not self.window_s >= 0:
            raise ValueError(f"window_s is {self.window_s!r}; it must be at least 0, infinite, or None")


class SchedulerLost(RuntimeError):
    """The scheduler does not answer; the message says why or for how long."""


class WorkerLost(RuntimeError):
    """A needed worker has failed, ended, or been silent for too long; the message names it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grouped:
    """The scheduler's answer to a ready signal, or to workers that wait for all others."""

    members: tuple[int, ...]  # pipelines, ascending
    is_kept: bool = False  # after a signal: the members keep their communicator because they meet often
    is_over: bool = False  # after all have come: all workers have ended their training
    failed: str = ""  # after all have come: why the other pipelines are incomplete

    def __post_init__(self) -> None:
        object.__setattr__(self, "members", tuple(self.members))  # JSON has lists


class Server:
    """Starts and ends the scheduler's process, which also ends with its owner.

    `access` is for clients: the address, the server's public key, and the secret key of the training's workers.
    """

    def __init__(self, num_stages: int, num_pipelines: int, options: Options):
        require_counts(1, num_stages=num_stages)
        require_counts(2, num_pipelines=num_pipelines)
        public, secret = (key.decode() for key in zmq.curve_keypair())
        worker_public, worker_secret = (key.decode() for key in zmq.curve_keypair())
        arguments = dataclasses.asdict(options) | {"num_stages": num_stages, "num_pipelines": num_pipelines}
        arguments |= {"secret": secret, "admitted": worker_public}
        del arguments["lease_s"]  # the clients' own
        line = json.dumps(arguments) + "\n"
        command = [sys.executable, "-m", SERVER]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, env=own_environment(), text=True)
        assert self._process.stdin is not None and self._process.stdout is not None
        # Keys go through the pipe, since every user of the machine can read a command line.
        self._process.stdin.write(line)
        self._process.stdin.flush()
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the scheduler ended with exit code {self._process.wait()} before it served")
        self.access = (f"tcp://{options.host}:{port}", public, worker_secret)
        self.pid = self._process.pid

    def close(self) -> dict[str, int]:
        """End the process; return its counts, or nothing if it was lost. May be called once."""
        try:
            counts, _ = self._process.communicate(timeout=STOPPING_S)
        except TimeoutExpired:
            self._process.kill()
            counts, _ = self._process.communicate()
        return json.loads(counts) if counts else {}


class Client:
    """A worker's connection to the scheduler.

    Args:
        access: that of the server.
        stage, worker: this worker's stage, and the number of its pipeline.
        lease_s: time without an answer after which the scheduler counts as lost.
        timeout_s: longest wait for other workers.
    """

    def __init__(
        self, access: Sequence[str], stage: int, worker: int, *, lease_s: float = LEASE_S, timeout_s: float = 1800.0
    ):
        require_positive(lease_s=lease_s, timeout_s=timeout_s)
        self._stage = stage
        self._worker = worker
        self._lease_s = lease_s
        self._timeout_s = timeout_s
        self._ping_s = min(lease_s, timeout_s) / PINGS_PER_LEASE
        self._name = f"worker {worker} of stage {stage}"
        self._lost = ""  # why the scheduler counts as lost
        self._address, public, secret = access
        context: zmq.Context = zmq.Context.instance()
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.curve_serverkey = public.encode()
        self._socket.curve_secretkey = secret.encode()
        self._socket.curve_publickey = zmq.curve_public(secret.encode())
        self._socket.connect(self._address)
        self._send("ping")  # tells the server the worker of this connection

    def signal(self, length_s: float | None = None) -> None:
        """Report the end of this worker's backward pass, and the length of its iteration; returns at once."""
        self._send("signal", length_s)

    def group(self) -> Grouped:
        """Wait for the group of the last signal.

        Raises:
            SchedulerLost: if the scheduler is silent for a lease.
            WorkerLost: if no group comes within `timeout_s`, or if this worker's pipeline has become incomplete.
            ValueError: if the scheduler refused the signal.
        """
        what = f"no group for {self._timeout_s:g} s"
        return Grouped(**self._wait("is_kept", limit_s=self._timeout_s, what=what))

    def fail(self, why: str = "has failed") -> Grouped | None:
        """Report that this worker has failed, so that no worker waits for it; return the group that already waits."""
        self._send("fail", why)
        answer = self._wait("is_kept", "has_left", limit_s=self._lease_s)
        return None if "has_left" in answer else Grouped(**answer)

    def come(self, *, is_last: bool) -> None:
        """Report that this worker waits for all others, and whether its training has ended."""
        self._send("come", is_last)

    def meet(self) -> Grouped:
        """Wait until all workers come; a worker that has ended may meet several times. Raises as `group` does."""
        what = "not all have come"
        return Grouped(**self._wait("is_over", limit_s=self._timeout_s, is_patient=True, what=what))

    def blame(self, what: str) -> None:
        """Raise `WorkerLost` with the names of failed or silent workers, after an exchange has failed."""
        self._send("ping")
        self._wait(limit_s=2 * self._ping_s, what=what)

    def state(self) -> dict[str, Any]:
        """Return the scheduler's state of this worker's stage."""
        self._send("save")
        return self._wait("state", limit_s=self._timeout_s)["state"]

    def load(self, state: dict[str, Any]) -> None:
        """Load the scheduler's state of this worker's stage."""
        self._send("load", state)
        self._wait("has_loaded", limit_s=self._timeout_s)

    def close(self) -> None:
        """Close the connection within a second, after sent messages are delivered."""
        self._socket.close(linger=1000)

    def _wait(self, *wanted: str, limit_s: float, is_patient: bool = False, what: str = "no answer") -> dict[str, Any]:
        """Wait for an answer with a wanted key; meanwhile ask for a sign of life and the silent workers.

        With `is_patient` the limit applies only while a worker has been silent for that long.
        """
        began_s = heard_s = time.monotonic()
        while not self._lost:
            answer = {}
            if self._socket.poll(int(1e3 * self._ping_s)):
                answer, heard_s = json.loads(self._socket.recv()), time.monotonic()
            elif time.monotonic() - heard_s > self._lease_s:
                self._lost = f"the scheduler at {self._address}, a process of rank 0, has not answered"
                self._lost += f" for {self._lease_s:g} s"
            else:
                self._send("ping")
            if "error" in answer:
                raise ValueError(answer["error"])
            if not answer.keys().isdisjoint(wanted):
                return answer
            if "lost" in answer:
                raise WorkerLost(f"{self._name}: {answer['lost']}")
            self._lost = answer.get("ended", self._lost)
            if "silent" not in answer or heard_s - began_s < limit_s:
                continue
            least_s = limit_s if is_patient else 1.5 * self._ping_s
            silent = ", ".join(f"{name} for {age_s:.0f} s" for name, age_s in answer["silent"] if age_s > least_s)
            if silent or not is_patient:
                why = "; ".join([f"silent: {silent}"] * bool(silent) + answer["failed"]) or "all others wait, too"
                raise WorkerLost(f"{self._name}: {what}; {why}")
        raise SchedulerLost(f"{self._name}: {self._lost}")

    def _send(self, kind: str, content: Any = None) -> None:
        self._socket.send(json.dumps([kind, self._stage, self._worker, content]).encode())


class _Service:
    """The loop of the server: messages in, groups out."""

    def __init__(self, arguments: dict[str, Any]):
        context: zmq.Context = zmq.Context.instance()
        self._keys, self._router = context.socket(zmq.REP), context.socket(zmq.ROUTER)
        self._keys.bind(AUTHENTICATION)
        self._router.linger, self._keys.linger = 1000, 0  # ms; the last messages tell workers that the scheduler ends
        self._router.curve_server, self._router.curve_secretkey = True, arguments["secret"].encode()
        self._router.zap_domain = b"sdpipe"
        self._admitted = z85.decode(arguments["admitted"])
        self.port = self._router.bind_to_random_port(f"tcp://{arguments['host']}")
        settings = Settings(**(arguments["settings"] or {}))
        window_s = settings.start_s if arguments["window_s"] is None else arguments["window_s"]
        self._measures = window_s is None
        sizes = num_stages, self._num_pipelines = arguments["num_stages"], arguments["num_pipelines"]
        first_s = FIRST_WINDOW_S if window_s is None else window_s
        self._scheduler = Scheduler(*sizes, arguments["history"], first_s, settings=settings)
        self._present: set[Worker] = {*product(range(num_stages), range(self._num_pipelines))}
        self._waiting: set[Worker] = set()  # workers that wait for all others and train on
        self._ended: set[Worker] = set()  # workers that wait for all others and have ended
        self._failed: dict[int, str] = {}  # incomplete pipelines, and why
        self._is_over = False
        self._lengths_s: dict[Worker, list[float]] = defaultdict(list)  # of iterations
        self._names: dict[Worker, bytes] = {}  # ZeroMQ's names of the connections
        self._workers: dict[int, Worker] = {}  # by socket number
        self._heard_s = dict.fromkeys(self._present, time.monotonic())
        self._num_met: Counter[tuple[int, frozenset[int]]] = Counter()
        self._kept: Counter[Worker] = Counter()
        self._counts = Counter(num_signals=0, num_groups=0, num_enforced=0, num_refused=0)

    def run(self) -> dict[str, int]:
        """Serve until standard input closes; return the counts."""
        poller = zmq.Poller()
        disconnected = self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for source in (self._router, self._keys, disconnected, sys.stdin.fileno()):
            poller.register(source, zmq.POLLIN)
        while True:
            deadline_s = self._scheduler.next_deadline_s()
            wait_ms = None if deadline_s is None else max(0, round(1e3 * (deadline_s - time.monotonic())))
            events = dict(poller.poll(wait_ms))
            if sys.stdin.fileno() in events:
                break
            if self._keys in events:  # is a connection's key the workers' (RFC 27)?
                version, number, *_, key = self._keys.recv_multipart()
                status = b"200" if key == self._admitted else b"400"
                self._keys.send_multipart([version, number, status, b"", b"", b""])
            while disconnected.poll(0):
                worker = self._workers.pop(recv_monitor_message(disconnected)["value"], None)
                if worker is None:
                    self._counts["num_refused"] += 1  # the connection had no key, or sent no message
                else:
                    self._lose(worker, "has ended its process")
            self._receive_all()
            self._tell(self._scheduler.expire(time.monotonic()))
        ended = "; ".join(["rank 0 has ended, and the scheduler with it", *self._failed.values()])
        for worker in self._names:
            self._answer(worker, ended=ended)
        self._router.close()
        self._keys.close()
        return {**self._counts, "num_unchecked": self._scheduler.num_unchecked}

    def _receive_all(self) -> None:
        while self._router.poll(0):
            name, *frames = self._router.recv_multipart(copy=False)
            try:
                kind, stage, number, content = json.loads(frames[-1].bytes)
                worker = (stage, number)
                if worker not in self._heard_s or kind not in KINDS:
                    raise ValueError(f"worker is {worker}, kind is {kind}")
            except (ValueError, TypeError, LookupError, RecursionError):
                self._counts["num_refused"] += 1
                continue
            self._heard_s[worker] = time.monotonic()
            self._names[worker] = name.bytes
            self._workers[frames[-1].get(zmq.SRCFD)] = worker
            if worker not in self._present and kind in ("signal", "come", "ping"):
                self._answer(worker, lost=self._failed[worker[1]])
                continue
            try:
                self._handle(worker, kind, content)
            except ValueError as error:
                self._answer(worker, error=str(error))

    def _handle(self, worker: Worker, kind: str, content: Any) -> None:
        match kind:
            case "signal":
                self._tell(self._scheduler.signal(*worker, time.monotonic()))
                self._counts["num_signals"] += 1
                if self._measures and content is not None:
                    self._measure(worker, content)
            case "come":
                self._tell(self._scheduler.leave(*worker))
                (self._ended if content else self._waiting).add(worker)  # has its training ended?
                self._let_meet()
            case "fail":
                self._lose(worker, content)
                self._answer(worker, has_left=True)
            case "ping":
                now_s, others = time.monotonic(), self._present - {worker}
                silent = sorted(((now_s - self._heard_s[other], other) for other in others), reverse=True)
                ages = [[f"worker {number} of stage {stage}", age_s] for age_s, (stage, number) in silent]
                self._answer(worker, silent=ages, failed=[*self._failed.values()])
            case "save":
                self._answer(worker, state=self._scheduler.state_dict(worker[0]) | {"measures": self._measures})
            case "load":
                self._scheduler.load_state_dict(worker[0], content)
                self._measures = content["measures"]
                self._answer(worker, has_loaded=True)

    def _measure(self, worker: Worker, length_s: float) -> None:
        """Take in the length of an iteration; set the window when each worker has reported enough of them."""
        self._lengths_s[worker].append(length_s)
        if all(len(self._lengths_s[place]) >= MEASURED for place in self._present - self._ended):
            window_s = median(length_s for of_worker in self._lengths_s.values() for length_s in of_worker)
            self._scheduler.set_window(window_s / self._num_pipelines)
            self._measures = False

    def _let_meet(self) -> None:
        """If all workers have come, tell them; workers that train on join the scheduler again."""
        if self._is_over or not self._present or self._waiting | self._ended != self._present:
            return
        self._is_over = not self._waiting
        for worker in self._waiting:
            self._scheduler.join(*worker)
        self._waiting = set()
        members, failed = sorted({number for _, number in self._present}), "; ".join(self._failed.values())
        for worker in self._present:
            self._answer(worker, members=members, is_over=self._is_over, failed=failed)

    def _lose(self, worker: Worker, why: str) -> None:
        """Continue without the pipeline of a worker."""
        if self._is_over or worker not in self._present:
            return
        reason = f"worker {worker[1]} of stage {worker[0]} {why}"
        self._failed[worker[1]] = reason
        for other in {place for place in self._present if place[1] == worker[1]}:
            self._present.discard(other)
            if other not in self._waiting | self._ended:
                self._tell(self._scheduler.leave(*other))
            if other != worker and other in self._names:
                self._answer(other, lost=reason)
        self._waiting &= self._present
        self._ended &= self._present
        self._let_meet()

    def _tell(self, groups: list[Group]) -> None:
        for group in groups:
            self._counts.update(num_groups=1, num_enforced=int(group.enforced))
            is_kept = self._is_kept(group)
            for worker in group.members:
                self._answer((group.stage, worker), members=sorted(group.members), is_kept=is_kept)

    def _is_kept(self, group: Group) -> bool:
        """Decide, for all members together, whether they keep a communicator."""
        place = group.stage, group.members
        self._num_met[place] += 1
        if self._num_met[place] == FREQUENT:
            if any(self._kept[group.stage, worker] >= MOST_KEPT for worker in group.members):
                self._num_met[place] = 0
            else:
                self._kept.update((group.stage, worker) for worker in group.members)
        return self._num_met[place] >= FREQUENT

    def _answer(self, worker: Worker, **answer: Any) -> None:
        self._router.send_multipart([self._names[worker], json.dumps(answer).encode()])


def serve() -> None:
    """Serve until standard input closes; print the port first and the counts last."""
    service = _Service(json.loads(sys.stdin.readline()))
    sys.stdout.write(f"{service.port}\n")
    sys.stdout.flush()
    sys.stdout.write(json.dumps(service.run()))


if __name__ == "__main__":
    serve()
