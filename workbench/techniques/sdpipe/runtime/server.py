"""The scheduler as a process of its own: a ROUTER of pyzmq around the state machine.

    python -m workbench.techniques.sdpipe.runtime.server '{"num_stages": 2, ...}'

prints its port and serves until its standard input is closed, which its owner's end does. It imports no torch.
"""

import json
import sys
import time
from collections import Counter
from typing import Any

import zmq

from workbench.techniques.sdpipe.method.scheduler import Group, Scheduler, Settings

__all__ = ["main"]

FREQUENT = 2  # groups of the same members from which on their communicator is kept
MOST_KEPT = 16  # communicators that a worker keeps


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


def main(text: str) -> None:
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
    main(sys.argv[1])
