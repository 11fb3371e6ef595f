"""A worker's connection to the scheduler, and the scheduler's process as its owner holds it (section 4's ZeroMQ)."""

import dataclasses
import json
import subprocess
import sys
import time
from dataclasses import dataclass

import zmq

from workbench.checks import require_positive
from workbench.launch.environment import own_environment
from workbench.techniques.sdpipe.method.scheduler import Scheduler, Settings

__all__ = ["Client", "Grouped", "SchedulerLost", "Server"]

SERVER = "workbench.techniques.sdpipe.runtime.server"  # the module that the process runs
LEASE_S = 10.0  # in which a scheduler that is alive answers
PINGS_PER_LEASE = 3
STOPPING_S = 5.0  # in which a server must have ended, or it is killed


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
