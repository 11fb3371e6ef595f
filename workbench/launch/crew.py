"""A crew: one set of running ranks, as their owner sees them.

`Crew.exchange` sends every rank a request and waits for all replies, while it passes on
output and watches for raised exceptions, deaths and silence. After the first failure the
others get a short grace to tell of their own; then whoever is left is stopped.
"""

import contextlib
import dataclasses
import math
import os
import selectors
import socket
import tempfile
import time
import traceback
from collections.abc import Iterable, Sequence
from typing import IO, Any

from workbench.launch.failures import (
    FailureKind,
    RankFailed,
    RankFailure,
    describe_end,
    is_complete,
    own_frames,
    waits_for_peer,
)
from workbench.launch.messages import CannotUnpack, Channel, channel_pair
from workbench.launch.nursery_process import NurseryProcess
from workbench.launch.output import RankOutput
from workbench.launch.parcels import Parcel, SharedFile
from workbench.launch.protocol import Died, Dump, Fork, Forked, Reply, Seat, Stop, Stopped

__all__ = ["Crew"]

STOPPED = "The ranks were stopped; the next run starts new ones, without what put() had kept."
GRACE_S = 0.5  # seconds after the first failure in which others may report theirs
MOST_STACK_BYTES = 1 << 20  # of a stack dump; faulthandler stops after 100 frames a thread
STOP_PATIENCE_S = 10.0  # seconds until a nursery that does not end its ranks is killed
STACK_PATIENCE_S = 1.0  # seconds a silent rank has to write down where it is


class Crew:
    """Ranks forked together, which end together.

    Args:
        name: tells this crew's handles from those of others.
        nursery: forks them.
        num_ranks: how many.
        echo: whether their output is shown.

    Attributes:
        alive: False once the ranks were stopped.
        nursery_lives: False once the nursery was found dead or was killed.
        pids: process ids in rank order.
    """

    def __init__(self, name: str, nursery: NurseryProcess, num_ranks: int, echo: bool):
        self.name = name
        self.alive = True
        self.nursery_lives = True
        self.pids: tuple[int, ...] = ()
        self._nursery = nursery
        self._selector = selectors.DefaultSelector()
        self._interrupt, self._interrupter = socket.socketpair()
        self._channels: list[Channel] = []
        self._outputs: list[tuple[RankOutput, RankOutput]] = []
        self._stacks: list[IO[bytes]] = []
        for rank in range(num_ranks):
            self._offer_seat(rank, echo)
        for item in (self._interrupt, nursery.channel):
            self._selector.register(item, selectors.EVENT_READ)
        self._tell_nursery(Fork())

    def _tell_nursery(self, message: Any, fds: Sequence[int] = ()) -> None:
        with contextlib.suppress(ConnectionError):  # its end is noticed where answers are read
            self._nursery.channel.send(message, fds)

    def _offer_seat(self, rank: int, echo: bool) -> None:
        ours, theirs = channel_pair()
        outputs, writing_ends = [], []
        for name in ("stdout", "stderr"):
            reading_end, writing_end = os.pipe()
            outputs.append(RankOutput(rank, reading_end, name, echo))
            writing_ends.append(writing_end)
        stacks = tempfile.TemporaryFile()
        self._tell_nursery(Seat(rank=rank), [theirs.fileno(), *writing_ends, stacks.fileno()])
        theirs.close()
        for fd in writing_ends:
            os.close(fd)
        self._channels.append(ours)
        self._outputs.append(tuple(outputs))
        self._stacks.append(stacks)
        for item in (ours, *outputs):
            self._selector.register(item, selectors.EVENT_READ, rank)

    def interrupt(self) -> None:
        """Make the exchange that another thread waits for raise KeyboardInterrupt."""
        self._interrupter.send(b"!")

    def exchange(self, parcels: Sequence[Parcel], timeout_s: float) -> list[Any]:
        """Send every rank its parcel, or one parcel to all, and wait for the replies.

        Args:
            parcels: requests in rank order; one for all; none to wait for readiness.
            timeout_s: seconds after which silent ranks count as failed.

        Returns:
            The values in rank order.

        Raises:
            RankFailed: if a rank raised, died or kept silent; the crew is then stopped.
        """
        exchange = _Exchange(range(len(self._channels)))
        try:
            self._send(parcels)
            self._wait_for_all(exchange, timeout_s)
        except BaseException:
            self.stop()
            raise
        self._show_the_rest()
        if exchange.failures:
            failed = RankFailed(self._with_last_words(exchange.failures.values()), STOPPED)
            self.stop()
            raise failed
        return [exchange.values[rank] for rank in range(len(self._channels))]

    def _send(self, parcels: Sequence[Parcel]) -> None:
        common = parcels[0] if len(parcels) == 1 and len(self._channels) > 1 else None
        if common is None:
            for channel, parcel in zip(self._channels, parcels):
                with contextlib.suppress(ConnectionError):  # its death is reported anyway
                    channel.send_parcel(parcel)
            return
        shared = SharedFile(common) if common.travels_shared else None
        for channel in self._channels:
            with contextlib.suppress(ConnectionError):
                channel.send_shared(shared) if shared else channel.send_parcel(common)
        if shared:
            shared.close()

    def _wait_for_all(self, exchange: "_Exchange", timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while exchange.waiting:
            now = time.monotonic()
            end = min(deadline, exchange.grace_ends_s)
            if now >= end:
                if not exchange.failures:
                    self._blame_the_silent(exchange, timeout_s)
                return
            for key, _ in self._selector.select(end - now):
                self._handle(key, exchange)

    def _handle(self, key: selectors.SelectorKey, exchange: "_Exchange") -> None:
        source = key.fileobj
        if source is self._interrupt:
            raise KeyboardInterrupt
        if source is self._nursery.channel:
            self._hear_nursery(exchange)
        elif isinstance(source, RankOutput):
            if not source.pass_on():
                self._selector.unregister(source)
        elif not exchange.hear_rank(key.data, source):
            self._selector.unregister(source)

    def _hear_nursery(self, exchange: "_Exchange") -> None:
        match self._message_of_nursery():
            case Forked(pids=pids):
                self.pids = tuple(pids)
            case Died(rank=rank, status=status, time_s=time_s):
                exchange.fail(rank, FailureKind.DIED, describe_end(status), time_s=time_s)
            case None:
                for rank in sorted(exchange.waiting):
                    exchange.fail(rank, FailureKind.DIED, "ended with its nursery, which was killed")

    def _message_of_nursery(self) -> Any:
        try:
            return self._nursery.channel.receive()
        except (EOFError, ConnectionError):
            self.nursery_lives = False
            return None

    def _blame_the_silent(self, exchange: "_Exchange", timeout_s: float) -> None:
        silent = sorted(exchange.waiting)
        self._tell_nursery(Dump(ranks=silent))
        patience_ends = time.monotonic() + STACK_PATIENCE_S
        while not all(is_complete(self._stack_of(rank)) for rank in silent):
            if time.monotonic() > patience_ends:
                break
            time.sleep(0.01)
        for rank in silent:
            stack = self._stack_of(rank)
            kind = FailureKind.PEER_LOST if waits_for_peer(stack) else FailureKind.SILENT
            waiting = " because it waits for another rank" if kind is FailureKind.PEER_LOST else ""
            message = f"did not answer within {timeout_s:g} s{waiting}"
            exchange.fail(rank, kind, message, own_frames(stack))

    def _stack_of(self, rank: int) -> str:
        # Not seek and read: the rank writes through the same open file and its position.
        text = os.pread(self._stacks[rank].fileno(), MOST_STACK_BYTES, 0)
        return text.decode(errors="replace")

    def _with_last_words(self, failures: Iterable[RankFailure]) -> list[RankFailure]:
        """Add what dead ranks wrote last: a fatal signal's stack, or lines of standard error."""
        told = []
        for failure in failures:
            if failure.kind is FailureKind.DIED:
                lines = "\n".join(self._outputs[failure.rank][1].last_lines)
                words = own_frames(self._stack_of(failure.rank)) or lines
                failure = dataclasses.replace(failure, traceback=words)
            told.append(failure)
        return told

    def stop(self) -> None:
        """End every rank and all that they started; calling it again does nothing."""
        if not self.alive:
            return
        self.alive = False
        self._tell_nursery(Stop())
        if not self._nursery_has_stopped_all():
            self.nursery_lives = False
            self._nursery.kill()
        self._show_the_rest()
        self._selector.close()
        everything = (*self._channels, *self._all_outputs(), *self._stacks)
        for item in (*everything, self._interrupt, self._interrupter):
            item.close()

    def _nursery_has_stopped_all(self) -> bool:
        deadline = time.monotonic() + STOP_PATIENCE_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._nursery.channel, selectors.EVENT_READ)
            while self.nursery_lives and selector.select(max(0.0, deadline - time.monotonic())):
                if isinstance(self._message_of_nursery(), Stopped):
                    return True
        return False

    def _show_the_rest(self) -> None:
        """Show what the pipes hold: all that the ranks wrote before they answered or ended."""
        for output in self._all_outputs():
            output.pass_on()
            output.finish_line()

    def _all_outputs(self) -> list[RankOutput]:
        return [output for pair in self._outputs for output in pair]


class _Exchange:
    """The state of one exchange: who has answered what."""

    def __init__(self, ranks: Iterable[int]):
        self.waiting = set(ranks)
        self.values: dict[int, Any] = {}
        self.failures: dict[int, RankFailure] = {}
        self.grace_ends_s = math.inf

    def hear_rank(self, rank: int, channel: Channel) -> bool:
        """Take a rank's reply; return False when its channel has ended."""
        try:
            reply: Reply = channel.receive()
        except (EOFError, ConnectionError):
            return False  # the nursery tells how it died
        except CannotUnpack as error:
            lines = traceback.format_exception(error.__cause__)
            words = f"returned what cannot be unpickled here: {error}"
            self.fail(rank, FailureKind.RAISED, words, "".join(lines))
            return True
        if reply.failure is not None:
            self.fail(rank, reply.failure, reply.message, reply.traceback, reply.time_s)
        else:
            self.values[rank] = reply.value
            self.waiting.discard(rank)
        return True

    def fail(
        self, rank: int, kind: FailureKind, message: str, traceback: str = "", time_s: float | None = None
    ) -> None:
        """Note a rank's failure; its first one counts."""
        time_s = time.monotonic() if time_s is None else time_s
        failure = RankFailure(rank=rank, kind=kind, time_s=time_s, message=message, traceback=traceback)
        self.failures.setdefault(rank, failure)
        self.waiting.discard(rank)
        self.grace_ends_s = min(self.grace_ends_s, time.monotonic() + GRACE_S)
