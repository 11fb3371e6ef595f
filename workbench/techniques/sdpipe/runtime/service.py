"""The scheduler's process, a ROUTER of pyzmq around the state machine (section 4), and a worker's connection to it.

    python -m workbench.techniques.sdpipe.runtime.service '{"num_stages": 2, ...}'

prints its port and serves until its standard input is closed, which its owner's end does. It imports no torch.
"""

import dataclasses
import json
import math
import subprocess
import sys
import time
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import Any

import zmq

from workbench.checks import require_positive
from workbench.launch.environment import own_environment
from workbench.techniques.sdpipe.method.scheduler import Group, Scheduler, Settings

__all__ = ["Client", "Grouped", "SchedulerLost", "Server", "serve"]

SERVER = "workbench.techniques.sdpipe.runtime.service"  # the module that the process runs
LEASE_S = 10.0  # in which a scheduler that is alive answers
PINGS_PER_LEASE = 3
STOPPING_S = 5.0  # in which a server must have ended, or it is killed
FREQUENT = 2  # groups of the same members from which on their communicator is kept
MOST_KEPT = 16  # communicators that a worker keeps
MEASURED = 10  # iterations of each worker whose median gives the window where none is told
FIRST_WINDOW_S = 10.0  # until then: a worker that skips its update holds up the others for no longer


class SchedulerLost(RuntimeError):
    """The scheduler does not answer, or a worker has failed and no group has come; the message says for how long."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The scheduler's answer to a ready signal."""

    members: tuple[int, ...]  # pipelines, ascending
    is_kept: bool  # the members keep their communicator, since they meet often


class Server:
    """Starts the scheduler's process and ends it; it ends by itself when its owner does.

    Arguments are those of `Scheduler`. A window of None is the settings' own, or 1/N of the median of the workers'
    iterations, once each worker has told ten.
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
        told = {"num_stages": num_stages, "num_pipelines": num_pipelines, "history": history, "window_s": window_s}
        told |= {"host": host, "settings": dataclasses.asdict(settings or Settings())}
        command = [sys.executable, "-m", SERVER, json.dumps(told)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, **pipes, env=own_environment(), text=True)
        port = self._process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the scheduler ended with exit code {self._process.wait()} before it served")
        self.address = f"tcp://{host}:{port}"
        self.pid = self._process.pid

    def close(self) -> dict[str, int]:
        """End the process; return what it counted, nothing if it was lost. May be called once."""
        try:
            counted, _ = self._process.communicate(timeout=STOPPING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            counted, _ = self._process.communicate()
        return json.loads(counted) if counted else {}


class Client:
    """A worker's connection to the scheduler.

    Args:
        address: of the server.
        stage, worker: who asks.
        lease_s: seconds without an answer after which the scheduler counts as lost.
    """

    def __init__(self, address: str, stage: int, worker: int, *, lease_s: float = LEASE_S):
        require_positive(lease_s=lease_s)
        self._stage, self._worker, self._lease_s, self._address = stage, worker, lease_s, address
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.connect(address)
        self._is_lost = False

    def signal(self, length_s: float | None = None) -> None:
        """Say that this worker's backward pass is done, and how long its iteration was; returns at once."""
        self._send("signal", length_s)

    def group(self) -> Grouped:
        """Wait for the group of the last signal.

        Raises:
            SchedulerLost: if the scheduler is silent for a lease, or another worker failed and no group comes for one.
            ValueError: if it refused the signal.
        """
        answer = self._hear("members")
        return Grouped(tuple(answer["members"]), answer["is_kept"])

    def leave(self, *, has_failed: bool = False) -> Grouped | None:
        """Say that this worker has ended, so that nobody waits for it; return the group that waits for it already."""
        self._send("leave", has_failed)
        answer = self._hear("members", "has_left")
        return Grouped(tuple(answer["members"]), answer["is_kept"]) if "members" in answer else None

    def wait_for_all(self) -> None:
        """Wait until all workers have left; raises as `group` does."""
        self._hear("is_over")

    def close(self) -> None:
        """Close the connection; what was sent is delivered within a second."""
        self._socket.close(linger=1000)

    def _hear(self, *wanted: str) -> dict[str, Any]:
        """Wait for an answer of a kind; ask meanwhile whether the scheduler lives and whether a worker has failed."""
        heard_s, failed_s = time.monotonic(), math.inf
        lost = f"worker {self._worker} of stage {self._stage}: the scheduler at {self._address} has not answered"
        while not self._is_lost:
            answer = {}
            if self._socket.poll(1e3 * self._lease_s / PINGS_PER_LEASE):
                answer, heard_s = json.loads(self._socket.recv()), time.monotonic()
            elif time.monotonic() - heard_s > self._lease_s:
                self._is_lost = True
            else:
                self._send("ping")
            if "error" in answer:
                raise ValueError(answer["error"])
            if not answer.keys().isdisjoint(wanted):
                return answer
            if failed := answer.get("failed"):
                failed_s = min(failed_s, heard_s)
                if heard_s - failed_s > self._lease_s / 2:  # with the pings before and after it, a lease in all
                    raise SchedulerLost(f"worker {self._worker} of stage {self._stage}: {failed}, and nobody else came")
        raise SchedulerLost(f"{lost} for {self._lease_s:g} s")

    def _send(self, what: str, told: float | bool | None = None) -> None:
        self._socket.send(json.dumps([what, self._stage, self._worker, told]).encode())


class _Service:
    """The loop of the server: messages in, groups out."""

    def __init__(self, scheduler: Scheduler, router: zmq.Socket, num_stages: int, num_pipelines: int, measures: bool):
        self._scheduler, self._router, self._num_pipelines = scheduler, router, num_pipelines
        self._here = {(stage, worker) for stage in range(num_stages) for worker in range(num_pipelines)}
        self._num_left = self._num_gone = 0  # workers, connections
        self._failed = ""  # which worker has
        self._measures = measures
        self._lengths_s: dict[tuple[int, int], list[float]] = defaultdict(list)  # of iterations
        self._names: dict[tuple[int, int], bytes] = {}
        self._met: Counter[tuple[int, frozenset[int]]] = Counter()
        self._kept: Counter[tuple[int, int]] = Counter()
        self.num_signals = self.num_groups = 0

    def run(self) -> None:
        poller, gone = zmq.Poller(), self._router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        for heard in (self._router, gone, sys.stdin.fileno()):
            poller.register(heard, zmq.POLLIN)
        while True:
            deadline_s = self._scheduler.next_deadline_s()
            wait_ms = None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1e3
            events = dict(poller.poll(None if wait_ms is None else max(0, round(wait_ms))))
            if sys.stdin.fileno() in events:
                return
            while gone.poll(0):
                gone.recv_multipart()
                self._num_gone += 1
            self._hear_all()
            if self._num_gone > self._num_left:
                self._failed = self._failed or "a worker's process has ended"
            self._tell(self._scheduler.expire(time.monotonic()))

    def _hear_all(self) -> None:
        while self._router.poll(0):
            name, text = self._router.recv_multipart()
            what, stage, worker, told = json.loads(text)
            self._names[stage, worker] = name
            try:
                if what == "ping":
                    self._send(name, {"failed": self._failed})
                elif what == "leave":
                    self._hear_leave(stage, worker, told)
                else:
                    formed = self._scheduler.signal(stage, worker, time.monotonic())
                    self.num_signals += 1
                    self._tell(formed)
                    self._measure((stage, worker), told)
            except ValueError as error:
                self._send(name, {"error": str(error)})

    def _hear_leave(self, stage: int, worker: int, has_failed: bool) -> None:
        self._tell(self._scheduler.leave(stage, worker))
        self._here.discard((stage, worker))
        self._num_left += 1
        if has_failed:
            self._failed = self._failed or f"worker {worker} of stage {stage} has failed"
        self._send(self._names[stage, worker], {"has_left": True})
        for name in () if self._here else self._names.values():
            self._send(name, {"is_over": True})

    def _measure(self, place: tuple[int, int], length_s: float | None) -> None:
        """Set the window when all workers that are here have told their iterations' lengths."""
        if not self._measures or length_s is None:
            return
        self._lengths_s[place].append(length_s)
        if all(len(self._lengths_s[place]) >= MEASURED for place in self._here):
            window_s = median(length_s for of_worker in self._lengths_s.values() for length_s in of_worker)
            self._scheduler.set_window(window_s / self._num_pipelines)
            self._measures = False

    def _tell(self, groups: list[Group]) -> None:
        for group in groups:
            self.num_groups += 1
            answer = {"members": sorted(group.members), "is_kept": self._is_kept(group)}
            for worker in group.members:
                self._send(self._names[group.stage, worker], answer)

    def _is_kept(self, group: Group) -> bool:
        """Decide for all members alike whether they keep a communicator."""
        place = group.stage, group.members
        self._met[place] += 1
        if self._met[place] == FREQUENT:
            if any(self._kept[group.stage, worker] >= MOST_KEPT for worker in group.members):
                self._met[place] = 0
            else:
                self._kept.update((group.stage, worker) for worker in group.members)
        return self._met[place] >= FREQUENT

    def _send(self, name: bytes, answer: dict[str, Any]) -> None:
        self._router.send_multipart([name, json.dumps(answer).encode()])


def serve(text: str) -> None:
    """Serve until standard input is closed; print the port first, and what was counted last."""
    told = json.loads(text)
    measures = told["window_s"] is None
    told["window_s"] = FIRST_WINDOW_S if measures else told["window_s"]
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger = 0
    sys.stdout.write(f"{router.bind_to_random_port('tcp://' + told.pop('host'))}\n")
    sys.stdout.flush()
    scheduler = Scheduler(**told | {"settings": Settings(**told["settings"])})
    service = _Service(scheduler, router, told["num_stages"], told["num_pipelines"], measures)
    service.run()
    counts = {"num_signals": service.num_signals, "num_groups": service.num_groups}
    counts |= {"num_enforced": scheduler.num_enforced, "num_unchecked": scheduler.num_unchecked}
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    serve(sys.argv[1])
