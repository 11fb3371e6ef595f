"""The scheduler's process, a ROUTER of pyzmq around the state machine (section 4), and a worker's connection to it.

    python -m workbench.techniques.sdpipe.runtime.service '{"num_stages": 2, ...}'

prints its port and serves until its standard input is closed, which its owner's end does. It imports no torch.
"""

import dataclasses
import json
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
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


class SchedulerLost(RuntimeError):
    """The scheduler does not answer; the message says for how long."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """The scheduler's answer to a ready signal."""

    members: tuple[int, ...]  # pipelines, ascending
    is_kept: bool  # the members keep their communicator, since they meet often


class Server:
    """Starts the scheduler's process and ends it; it ends by itself when its owner does."""

    def __init__(
        self,
        num_stages: int,
        num_pipelines: int,
        *,
        history: int = 10,
        window_s: float,
        settings: Settings | None = None,
        host: str = "127.0.0.1",
    ):
        Scheduler(num_stages, num_pipelines, history, window_s, settings=settings)  # refuses bad arguments here
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

    def signal(self) -> None:
        """Say that this worker's update is done; returns at once."""
        self._send("signal")

    def group(self) -> Grouped:
        """Wait for the group of the last signal.

        Raises:
            SchedulerLost: if the scheduler is silent for a lease.
            ValueError: if it refused the signal.
        """
        heard_s = time.monotonic()
        while True:
            if self._socket.poll(1e3 * self._lease_s / PINGS_PER_LEASE):
                heard_s, answer = time.monotonic(), json.loads(self._socket.recv())
                if "error" in answer:
                    raise ValueError(answer["error"])
                if "members" in answer:
                    return Grouped(tuple(answer["members"]), answer["is_kept"])
            elif (silent_s := time.monotonic() - heard_s) > self._lease_s:
                who = f"worker {self._worker} of stage {self._stage}"
                raise SchedulerLost(f"{who}: the scheduler at {self._address} has not answered for {silent_s:.1f} s")
            else:
                self._send("ping")

    def leave(self) -> None:
        """Say that this worker has ended, so that nobody waits for it."""
        self._send("leave")

    def close(self) -> None:
        """Close the connection; what was sent is delivered within a second."""
        self._socket.close(linger=1000)

    def _send(self, what: str) -> None:
        self._socket.send(json.dumps([what, self._stage, self._worker]).encode())


class _Service:
    """The loop of the server: messages in, groups out."""

    def __init__(self, scheduler: Scheduler, router: zmq.Socket):
        self._scheduler, self._router = scheduler, router
        self._names: dict[tuple[int, int], bytes] = {}
        self._met: Counter[tuple[int, frozenset[int]]] = Counter()
        self._kept: Counter[tuple[int, int]] = Counter()
        self.num_signals = self.num_groups = 0

    def run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(sys.stdin.fileno(), zmq.POLLIN)
        while True:
            deadline_s = self._scheduler.next_deadline_s()
            wait_ms = None if deadline_s is None else max(0.0, deadline_s - time.monotonic()) * 1e3
            events = dict(poller.poll(None if wait_ms is None else max(0, round(wait_ms))))
            if sys.stdin.fileno() in events:
                return
            if self._router in events:
                self._hear_all()
            self._tell(self._scheduler.expire(time.monotonic()))

    def _hear_all(self) -> None:
        while self._router.poll(0):
            name, text = self._router.recv_multipart()
            what, stage, worker = json.loads(text)
            try:
                self._hear(name, what, stage, worker)
            except ValueError as error:
                self._send(name, {"error": str(error)})

    def _hear(self, name: bytes, what: str, stage: int, worker: int) -> None:
        if what == "ping":
            self._send(name, {})
        elif what == "leave":
            self._tell(self._scheduler.leave(stage, worker))
        else:
            formed = self._scheduler.signal(stage, worker, time.monotonic())
            self.num_signals += 1
            self._names[stage, worker] = name
            self._tell(formed)

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
    router = zmq.Context.instance().socket(zmq.ROUTER)
    router.linger = 0
    sys.stdout.write(f"{router.bind_to_random_port('tcp://' + told.pop('host'))}\n")
    sys.stdout.flush()
    scheduler = Scheduler(**told | {"settings": Settings(**told["settings"])})
    service = _Service(scheduler, router)
    service.run()
    counts = {"num_signals": service.num_signals, "num_groups": service.num_groups}
    counts |= {"num_enforced": scheduler.num_enforced, "num_unchecked": scheduler.num_unchecked}
    sys.stdout.write(json.dumps(counts))


if __name__ == "__main__":
    serve(sys.argv[1])
