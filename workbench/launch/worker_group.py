"""A worker group: the ranks of a pool that were forked together, and end together."""

import contextlib
import dataclasses
import itertools
import math
import socket
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import Any

from workbench.launch.failures import (
    GRACE_S,
    FailureKind,
    RankFailed,
    RankFailure,
    describe_end,
    is_complete,
    own_frames,
    waits_for_peer,
)
from workbench.launch.fork_server import ForkServer
from workbench.launch.messages import CannotUnpack, Message, NotAMessage, SharedFile
from workbench.launch.processes import Listener
from workbench.launch.protocol import GroupOrder, RankEnded, RankSaid, RankStarted, Reply
from workbench.launch.rank import STACK_SIGNAL
from workbench.launch.rank_process import RankProcess

__all__ = ["WorkerGroup"]

STOPPED = "The ranks were stopped; the next run starts new ones, without what put() had kept."
LOOK_S = 3600.0  # longest wait between two looks at the clock; a call without limit has no end
STOP_PATIENCE_S = 10.0  # seconds until a fork server that does not end its ranks is killed
STACK_PATIENCE_S = 1.0  # seconds a silent rank has to write down where it is


class WorkerGroup:
    """Ranks that a fork server forks together; `name` tells the group's handles from those of others."""

    def __init__(self, name: str, server: ForkServer, num_ranks: int, echo: bool):
        self.name = name
        self.alive = True  # False once the ranks were stopped
        self._server = server
        self._num_ranks = num_ranks
        self._echo = echo
        self._ranks: dict[int, RankProcess] = {}
        self._interrupt, self._interrupter = socket.socketpair()
        self._listener = Listener()
        self._listener.add(self._interrupt, _raise_interrupt)
        self._listener.add(server.channel, self._hear_server)
        server.send(GroupOrder.START)

    @property
    def pids(self) -> tuple[int, ...]:
        """Process ids in rank order."""
        return tuple(self._ranks[rank].started.pid for rank in sorted(self._ranks))

    def interrupt(self) -> None:
        """Make the exchange that another thread waits for raise KeyboardInterrupt."""
        self._interrupter.send(b"!")

    def exchange(self, messages: Sequence[Message], timeout_s: float) -> list[Any]:
        """Send every rank its request, or one request to all, and return the values of the replies in rank order.

        After the first failure the other ranks get a short grace to report theirs, and the group is stopped. Without a
        request it waits for the ranks to be ready.
        """
        exchange = _Exchange(range(self._num_ranks))
        try:
            self._send(messages)
            self._wait_for_all(exchange, timeout_s)
        except BaseException:
            self.stop()
            raise
        self._show_rest()
        if exchange.failures:
            failed = RankFailed(map(self._with_last_words, exchange.failures.values()), STOPPED)
            self.stop()
            raise failed
        return [exchange.values[rank] for rank in range(self._num_ranks)]

    def _send(self, messages: Sequence[Message]) -> None:
        channels = [self._ranks[rank].channel for rank in sorted(self._ranks)]
        shared = SharedFile(messages[0]) if len(messages) == 1 < len(channels) and messages[0].is_shared else None
        for channel, message in zip(channels, itertools.cycle(messages)):  # one message goes to all
            with contextlib.suppress(ConnectionError):  # its death is reported anyway
                channel.send_shared(shared) if shared else channel.send_message(message)
        if shared:
            shared.close()

    def _wait_for_all(self, exchange: "_Exchange", timeout_s: float) -> None:
        deadline_s = time.monotonic() + timeout_s
        while exchange.waiting:
            now_s = time.monotonic()
            end_s = min(deadline_s, exchange.grace_ends_s)
            if now_s >= end_s:
                if not exchange.failures:
                    self._report_silent_ranks(exchange, timeout_s)
                return
            for event in self._listener.listen(min(end_s - now_s, LOOK_S)):
                exchange.hear(event)

    def _hear_server(self) -> list[Any]:
        message, fds = self._server.receive()
        if message is None:
            self._listener.remove(self._server.channel)
        if isinstance(message, RankStarted):
            self._ranks[message.rank] = RankProcess(message, fds, self._listener, self._echo)
        return [message]

    def _report_silent_ranks(self, exchange: "_Exchange", timeout_s: float) -> None:
        silent = [self._ranks[rank] for rank in sorted(exchange.waiting & set(self._ranks))]
        for process in silent:
            process.send_signal(STACK_SIGNAL)
        patience_ends_s = time.monotonic() + STACK_PATIENCE_S
        while time.monotonic() < patience_ends_s and not all(is_complete(process.stack()) for process in silent):
            time.sleep(0.01)
        for rank in sorted(exchange.waiting):
            stack = self._ranks[rank].stack() if rank in self._ranks else ""
            kind = FailureKind.PEER_LOST if waits_for_peer(stack) else FailureKind.SILENT
            waiting = " because it waits for another rank" if kind is FailureKind.PEER_LOST else ""
            exchange.fail(rank, kind, f"did not answer within {timeout_s:g} s{waiting}", own_frames(stack))

    def _with_last_words(self, failure: RankFailure) -> RankFailure:
        if failure.kind is not FailureKind.DIED or failure.rank not in self._ranks:
            return failure
        return dataclasses.replace(failure, traceback=self._ranks[failure.rank].last_words())

    def _show_rest(self) -> None:
        for process in self._ranks.values():
            process.show_rest()

    def stop(self) -> None:
        """End every rank and all that they started; calling it again does nothing."""
        if not self.alive:
            return
        self.alive = False
        self._server.send(GroupOrder.STOP)
        if not self._server_has_stopped_all():
            self._server.kill()
        self._show_rest()
        for process in self._ranks.values():
            process.close()
        self._listener.close()
        self._interrupt.close()
        self._interrupter.close()

    def _server_has_stopped_all(self) -> bool:
        deadline_s = time.monotonic() + STOP_PATIENCE_S
        listener = Listener()
        listener.add(self._server.channel, self._hear_server)
        with contextlib.closing(listener):
            while self._server.alive and (left_s := deadline_s - time.monotonic()) > 0:
                if GroupOrder.STOP in listener.listen(left_s):
                    return True
        return False


def _raise_interrupt() -> None:
    raise KeyboardInterrupt


class _Exchange:
    """The state of one exchange: which ranks have answered, and how."""

    def __init__(self, ranks: Iterable[int]):
        self.waiting = set(ranks)
        self.values: dict[int, Any] = {}
        self.failures: dict[int, RankFailure] = {}
        self.grace_ends_s = math.inf

    def hear(self, event: Any) -> None:
        """Take a rank's reply or its end, or None for the end of the fork server."""
        match event:
            case RankSaid(rank=rank, message=Reply(failure=None, value=value)):
                self.values[rank] = value
                self.waiting.discard(rank)
            case RankSaid(rank=rank, message=Reply(failure=FailureKind() as kind) as reply):
                self.fail(rank, kind, reply.message, reply.traceback, reply.time_s)
            case RankSaid(rank=rank, message=CannotUnpack() as error):
                lines = traceback.format_exception(error.__cause__)
                words = f"returned what cannot be unpickled here: {error}"
                self.fail(rank, FailureKind.RAISED, words, "".join(lines))
            case RankSaid(rank=rank, message=NotAMessage() as error):
                self.fail(rank, FailureKind.RAISED, f"sent what cannot be read: {error}")
            case RankEnded(rank=rank, status=status, time_s=time_s):
                self.fail(rank, FailureKind.DIED, describe_end(status), time_s=time_s)
            case None:
                for rank in sorted(self.waiting):
                    self.fail(rank, FailureKind.DIED, "ended with its fork server, which was killed")

    def fail(
        self, rank: int, kind: FailureKind, message: str, traceback: str = "", time_s: float | None = None
    ) -> None:
        """Note a rank's failure; its first one counts."""
        time_s = time.monotonic() if time_s is None else time_s
        failure = RankFailure(rank=rank, kind=kind, time_s=time_s, message=message, traceback=traceback)
        self.failures.setdefault(rank, failure)
        self.waiting.discard(rank)
        self.grace_ends_s = min(self.grace_ends_s, time.monotonic() + GRACE_S)
