"""The scheduler's process, a ROUTER of pyzmq around the state machine (section 4), and a worker's connection to it.

    python -m workbench.techniques.sdpipe.runtime.service

reads its arguments, a line of JSON, from its standard input, prints its port, and serves until its standard input is
closed, which its owner's end does. Connections are encrypted by CURVE; only the training's workers have the key.
It imports no torch.
"""

import dataclasses
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from subprocess import PIPE, Popen, TimeoutExpired
from typing import Any

import zmq
from zmq.utils import z85
from zmq.utils.monitor import recv_monitor_message

from workbench.checks import require_positive
from workbench.launch.environment import own_environment
from workbench.techniques.sdpipe.method.scheduler import Group, Scheduler, Settings

__all__ = ["Client", "Grouped", "Met", "SchedulerLost", "Server", "WorkerLost", "serve"]

SERVER = "workbench.techniques.sdpipe.runtime.service"  # the module that the process runs
LEASE_S = 10.0  # in which a scheduler that is alive answers
PINGS_PER_LEASE = 3
STOPPING_S = 5.0  # in which a server must have ended, or it is killed
FREQUENT = 2  # groups of the same members from which on their communicator is kept
MOST_KEPT = 16  # communicators that a worker keeps
MEASURED = 10  # iterations of each worker whose median gives the window where none is told
FIRST_WINDOW_S = 10.0  # until then
AUTHENTICATION = "inproc://zeromq.zap.01"  # where ZeroMQ asks whether a key is known (RFC 27)

Worker = tuple[int, int]  # its stage and its pipeline


class SchedulerLost(RuntimeError):
    """The scheduler does not answer; the message says for how long, or why."""


class WorkerLost(RuntimeError):
    """A worker that is needed has failed, ended, or been silent for too long; the message names it."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The scheduler's answer to a ready signal."""

    members: tuple[int, ...]  # pipelines, ascending
    is_kept: bool  # the members keep their communicator, since they meet often


@dataclass(frozen=True, slots=True)
class Met:
    """The scheduler's answer to workers that wait for all others."""

    members: tuple[int, ...]  # pipelines that are complete, ascending
    is_over: bool  # all have ended their training
    failed: str  # why the other pipelines are not complete


class Server:
    """Starts the scheduler's process and ends it; it ends by itself when its owner does.

    Arguments are those of `Scheduler`. A window of None is the settings' own, or 1/N of the median of the workers'
    iterations, once each worker has told ten. `access` is what a client needs: address, public key, and the secret key
    of the training's workers.
    """

    def __init__(
        self,
        num_stages: int,
        num_pipelines: int,
        *,
        history: int = 10,
        window_s: float | None = None,
        settings: Settings | None = None,
        host: str = "127.0.0.1",
    ):
        window_s = settings.start_s if window_s is None and settings else window_s
        first_s = FIRST_WINDOW_S if window_s is None else window_s
        Scheduler(num_stages, num_pipelines, history, first_s, settings=settings)  # refuses bad arguments here
        (public, secret), (admitted, secret_of_workers) = ([key.decode() for key in zmq.curve_keypair()] for _ in "ab")
        told = {"num_stages": num_stages, "num_pipelines": num_pipelines, "history": history, "window_s": window_s}
        told |= {"host": host, "settings": dataclasses.asdict(settings or Settings())}
        command = [sys.executable, "-m", SERVER]
        self._process = Popen(command, stdin=PIPE, stdout=PIPE, env=own_environment(), text=True)
        # Not by arguments, which every user of the machine can read.
        self._process.stdin.write(json.dumps(told | {"secret": secret, "admitted": admitted}) + "\n")
        self._process.stdin.flush()
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the scheduler ended with exit code {self._process.wait()} before it served")
        self.access = (f"tcp://{host}:{port}", public, secret_of_workers)
        self.pid = self._process.pid

    def close(self) -> dict[str, int]:
        """End the process; return what it counted, nothing if it was lost. May be called once."""
        try:
            counted, _ = self._process.communicate(timeout=STOPPING_S)
        except TimeoutExpired:
            self._process.kill()
            counted, _ = self._process.communicate()
        return json.loads(counted) if counted else {}


class Client:
    """A worker's connection to the scheduler.

    Args:
        access: of the server.
        stage, worker: who asks.
        lease_s: seconds without an answer after which the scheduler counts as lost.
        timeout_s: seconds that others are waited for.
    """

    def __init__(
        self, access: Sequence[str], stage: int, worker: int, *, lease_s: float = LEASE_S, timeout_s: float = 1800.0
    ):
        require_positive(lease_s=lease_s, timeout_s=timeout_s)
        self._stage, self._worker, self._lease_s, self._timeout_s = stage, worker, lease_s, timeout_s
        self._ping_s = min(lease_s, timeout_s) / PINGS_PER_LEASE
        self._who, self._lost = f"worker {worker} of stage {stage}", ""
        self._address, public, secret = access
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.curve_serverkey, self._socket.curve_secretkey = public.encode(), secret.encode()
        self._socket.curve_publickey = zmq.curve_public(secret.encode())
        self._socket.connect(self._address)
        self._send("ping")  # whose connection it is

    def signal(self, length_s: float | None = None) -> None:
        """Say that this worker's backward pass is done, and how long its iteration was; returns at once."""
        self._send("signal", length_s)

    def group(self) -> Grouped:
        """Wait for the group of the last signal.

        Raises:
            SchedulerLost: if the scheduler is silent for a lease.
            WorkerLost: if no group comes within `timeout_s`, or this worker's pipeline is not complete any more.
            ValueError: if it refused the signal.
        """
        answer = self._hear("members", limit_s=self._timeout_s, what=f"no group for {self._timeout_s:g} s")
        return Grouped(tuple(answer["members"]), answer["is_kept"])

    def fail(self, why: str = "has failed") -> Grouped | None:
        """Say that this worker has failed, so that nobody waits for it; return the group that does so already."""
        self._send("fail", why)
        answer = self._hear("members", "has_left", limit_s=self._lease_s)
        return Grouped(tuple(answer["members"]), answer["is_kept"]) if "members" in answer else None

    def come(self, *, is_last: bool) -> None:
        """Say that this worker waits until all others do, and whether its training has ended."""
        self._send("come", is_last)

    def meet(self) -> Met:
        """Wait until all come; a worker that has ended may meet several times. Raises as `group` does."""
        answer = self._hear("met", limit_s=self._timeout_s, is_patient=True, what="not all have come")
        return Met(tuple(answer["met"]), answer["is_over"], answer["failed"])

    def blame(self, what: str) -> None:
        """Raise `WorkerLost` of whoever has failed or is silent, after an exchange that did not succeed."""
        self._send("ping")
        self._hear(limit_s=2 * self._ping_s, what=what)

    def state(self) -> dict[str, Any]:
        """Return what the scheduler knows of this worker's stage."""
        self._send("save")
        return self._hear("state", limit_s=self._timeout_s)["state"]

    def load(self, state: dict[str, Any]) -> None:
        """Let the scheduler go on with what it knew of this worker's stage."""
        self._send("load", state)
        self._hear("has_loaded", limit_s=self._timeout_s)

    def close(self) -> None:
        """Close the connection; what was sent is delivered within a second."""
        self._socket.close(linger=1000)

    def _hear(self, *wanted: str, limit_s: float, is_patient: bool = False, what: str = "no answer") -> dict[str, Any]:
        """Wait for an answer of a kind; ask meanwhile whether the scheduler lives, and who is silent.

        With `is_patient` the limit counts only while somebody is silent for as long.
        """
        began_s = heard_s = time.monotonic()
        while not self._lost:
            answer = {}
            if self._socket.poll(1e3 * self._ping_s):
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
                raise WorkerLost(f"{self._who}: {answer['lost']}")
            self._lost = answer.get("ended", self._lost)
            if "silent" not in answer or heard_s - began_s < limit_s:
                continue
            least_s = limit_s if is_patient else 1.5 * self._ping_s
            silent = ", ".join(f"{name} for {age_s:.0f} s" for name, age_s in answer["silent"] if age_s > least_s)
            if silent or not is_patient:
                why = "; ".join([f"silent: {silent}"] * bool(silent) + answer["failed"]) or "all others wait, too"
                raise WorkerLost(f"{self._who}: {what}; {why}")
        raise SchedulerLost(f"{self._who}: {self._lost}")

    def _send(self, what: str, told: Any = None) -> None:
        self._socket.send(json.dumps([what, self._stage, self._worker, told]).encode())


class _Service:
    """The loop of the server: messages in, groups out."""

    def __init__(self, scheduler: Scheduler, router: zmq.Socket, keys: zmq.Socket, told: dict[str, Any]):
        self._scheduler, self._router, self._keys = scheduler, router, keys
        self._num_pipelines, self._admitted = told["num_pipelines"], z85.decode(told["admitted"])
        self._here = {(stage, worker) for stage in range(told["num_stages"]) for worker in range(self._num_pipelines)}
        self._met: set[Worker] = set()  # that wait for all
        self._left: set[Worker] = set()  # that have ended, and wait for all
        self._failed: dict[int, str] = {}  # pipelines that are not complete any more, and why
        self._is_over = False
        self._measures = told["window_s"] is None
        self._lengths_s: dict[Worker, list[float]] = defaultdict(list)  # of iterations
        self._names: dict[Worker, bytes] = {}
        self._workers: dict[int, Worker] = {}  # by their connections
        self._heard_s = dict.fromkeys(self._here, time.monotonic())
        self._met_often: Counter[tuple[int, frozenset[int]]] = Counter()
        self._kept: Counter[Worker] = Counter()
        self.counts = Counter(num_signals=0, num_groups=0, num_refused=0)

    def run(self) -> None:
        poller, gone = zmq.Poller(), self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for heard in (self._router, self._keys, gone, sys.stdin.fileno()):
            poller.register(heard, zmq.POLLIN)
        while True:
            deadline_s = self._scheduler.next_deadline_s()
            wait_ms = None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1e3
            events = dict(poller.poll(None if wait_ms is None else max(0, round(wait_ms))))
            if sys.stdin.fileno() in events:
                break
            if self._keys in events:
                self._admit()
            while gone.poll(0):
                worker = self._workers.pop(recv_monitor_message(gone)["value"], None)
                if worker is None:
                    self.counts["num_refused"] += 1  # a connection without the key, or without a message
                else:
                    self._lose(worker, "has ended its process")
            self._hear_all()
            self._tell(self._scheduler.expire(time.monotonic()))
        ended = "; ".join(["rank 0 has ended, and the scheduler with it", *self._failed.values()])
        for name in self._names.values():
            self._send(name, {"ended": ended})

    def _admit(self) -> None:
        """Answer whether a connection's key is the workers' (RFC 27)."""
        version, number, *_, key = self._keys.recv_multipart()
        status = b"200" if key == self._admitted else b"400"
        self._keys.send_multipart([version, number, status, b"", b"", b""])

    def _hear_all(self) -> None:
        hear = {"signal": self._hear_signal, "come": self._hear_come, "fail": self._hear_failed}
        hear |= {"ping": self._hear_ping, "save": self._save, "load": self._load}
        while self._router.poll(0):
            name, *frames = self._router.recv_multipart(copy=False)
            try:
                what, stage, number, told = json.loads(frames[-1].bytes)
                worker, hear_it = (stage, number), hear[what]
                if worker not in self._heard_s:
                    raise ValueError(f"worker is {worker}")
            except (ValueError, TypeError, LookupError, RecursionError):
                self.counts["num_refused"] += 1
                continue
            self._heard_s[worker], self._names[worker] = time.monotonic(), name.bytes
            self._workers[frames[-1].get(zmq.SRCFD)] = worker
            if worker not in self._here and what in ("signal", "come", "ping"):
                self._answer(worker, {"lost": self._failed[worker[1]]})
                continue
            try:
                hear_it(worker, told)
            except ValueError as error:
                self._answer(worker, {"error": str(error)})

    def _hear_signal(self, worker: Worker, length_s: float | None) -> None:
        formed = self._scheduler.signal(*worker, time.monotonic())
        self.counts["num_signals"] += 1
        self._tell(formed)
        if not self._measures or length_s is None:
            return
        self._lengths_s[worker].append(length_s)
        if all(len(self._lengths_s[place]) >= MEASURED for place in self._here - self._left):
            window_s = median(length_s for of_worker in self._lengths_s.values() for length_s in of_worker)
            self._scheduler.set_window(window_s / self._num_pipelines)
            self._measures = False

    def _hear_ping(self, worker: Worker, _: None) -> None:
        now_s = time.monotonic()
        silent = sorted(((now_s - self._heard_s[other], other) for other in self._here - {worker}), reverse=True)
        told = [[f"worker {number} of stage {stage}", length_s] for length_s, (stage, number) in silent]
        self._answer(worker, {"silent": told, "failed": [*self._failed.values()]})

    def _hear_failed(self, worker: Worker, why: str) -> None:
        self._lose(worker, why)
        self._answer(worker, {"has_left": True})

    def _hear_come(self, worker: Worker, is_last: bool) -> None:
        self._tell(self._scheduler.leave(*worker))
        (self._left if is_last else self._met).add(worker)
        self._let_meet()

    def _let_meet(self) -> None:
        """Tell all workers that they have met, if they have; those that train on come back."""
        if self._is_over or not self._here or self._met | self._left != self._here:
            return
        self._is_over = not self._met
        for worker in self._met:
            self._scheduler.join(*worker)
        self._met = set()
        answer = {"met": sorted({number for _, number in self._here}), "is_over": self._is_over}
        for worker in self._here:
            self._answer(worker, answer | {"failed": "; ".join(self._failed.values())})

    def _lose(self, worker: Worker, why: str) -> None:
        """Go on without the pipeline of a worker."""
        if self._is_over or worker not in self._here:
            return
        reason = f"worker {worker[1]} of stage {worker[0]} {why}"
        self._failed[worker[1]] = reason
        for other in {place for place in self._here if place[1] == worker[1]}:
            self._here.discard(other)
            if other not in self._met | self._left:
                self._tell(self._scheduler.leave(*other))
            if other != worker and other in self._names:
                self._answer(other, {"lost": reason})
        self._met, self._left = self._met & self._here, self._left & self._here
        self._let_meet()

    def _save(self, worker: Worker, _: None) -> None:
        state = self._scheduler.state_dict(worker[0]) | {"measures": self._measures}
        self._answer(worker, {"state": state})

    def _load(self, worker: Worker, state: dict[str, Any]) -> None:
        self._scheduler.load_state_dict(worker[0], state)
        self._measures = state["measures"]
        self._answer(worker, {"has_loaded": True})

    def _tell(self, groups: list[Group]) -> None:
        for group in groups:
            self.counts["num_groups"] += 1
            answer = {"members": sorted(group.members), "is_kept": self._is_kept(group)}
            for worker in group.members:
                self._answer((group.stage, worker), answer)

    def _is_kept(self, group: Group) -> bool:
        """Decide for all members alike whether they keep a communicator."""
        place = group.stage, group.members
        self._met_often[place] += 1
        if self._met_often[place] == FREQUENT:
            if any(self._kept[group.stage, worker] >= MOST_KEPT for worker in group.members):
                self._met_often[place] = 0
            else:
                self._kept.update((group.stage, worker) for worker in group.members)
        return self._met_often[place] >= FREQUENT

    def _answer(self, worker: Worker, answer: dict[str, Any]) -> None:
        self._send(self._names[worker], answer)

    def _send(self, name: bytes, answer: dict[str, Any]) -> None:
        self._router.send_multipart([name, json.dumps(answer).encode()])


def serve() -> None:
    """Serve until standard input is closed; print the port first, and what was counted last."""
    told, context = json.loads(sys.stdin.readline()), zmq.Context.instance()
    keys, router = context.socket(zmq.REP), context.socket(zmq.ROUTER)
    keys.bind(AUTHENTICATION)
    router.linger, keys.linger = 1000, 0  # ms, in which the workers hear that it ends
    router.curve_server, router.curve_secretkey, router.zap_domain = True, told["secret"].encode(), b"sdpipe"
    sys.stdout.write(f"{router.bind_to_random_port('tcp://' + told['host'])}\n")
    sys.stdout.flush()
    window_s = FIRST_WINDOW_S if told["window_s"] is None else told["window_s"]
    settings = Settings(**told["settings"])
    scheduler = Scheduler(told["num_stages"], told["num_pipelines"], told["history"], window_s, settings=settings)
    service = _Service(scheduler, router, keys, told)
    service.run()
    counts = {**service.counts, "num_enforced": scheduler.num_enforced, "num_unchecked": scheduler.num_unchecked}
    sys.stdout.write(json.dumps(counts))
    router.close(), keys.close()


if __name__ == "__main__":
    serve()
