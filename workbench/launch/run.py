"""A run that goes on while its owner does something else."""

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Generator
from typing import Any

__all__ = ["Run"]

# A Jupyter kernel acts on an interrupt of an awaiting cell only when its event loop wakes.
INTERRUPT_LATENCY_S = 0.2


class Run:
    """A call on every rank that was started and not waited for.

    `result()` waits; `await run` does so in a notebook cell. The output of the ranks goes to
    the cell that started the run.

    Args:
        exchange: performs the call; run in a thread.
        interrupt: makes `exchange` stop the ranks and raise KeyboardInterrupt.
    """

    def __init__(self, exchange: Callable[[], list[Any]], interrupt: Callable[[], None]):
        self._interrupt = interrupt
        self._future: concurrent.futures.Future[list[Any]] = concurrent.futures.Future()
        self._thread = threading.Thread(target=self._perform, args=[exchange], daemon=True)
        self._thread.start()

    def _perform(self, exchange: Callable[[], list[Any]]) -> None:
        self._future.set_running_or_notify_cancel()
        try:
            self._future.set_result(exchange())
        except BaseException as error:
            self._future.set_exception(error)

    def done(self) -> bool:
        """Return whether every rank has answered or the run has failed."""
        return self._future.done()

    def result(self) -> list[Any]:
        """Wait for the values in rank order; Ctrl-C stops the ranks.

        Raises:
            RankFailed: if the run failed.
        """
        try:
            return self._future.result()
        except KeyboardInterrupt:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the ranks and wait until they have ended; nothing if the run is over."""
        if not self.done():
            self._interrupt()
        self._thread.join()

    def __await__(self) -> Generator[Any, None, list[Any]]:
        return self._wait().__await__()

    async def _wait(self) -> list[Any]:
        future = asyncio.wrap_future(self._future)
        future.add_done_callback(_retrieve)
        try:
            while not future.done():
                await asyncio.wait([future], timeout=INTERRUPT_LATENCY_S)
            return future.result()
        except asyncio.CancelledError:
            self.stop()
            raise


def _retrieve(future: "asyncio.Future[list[Any]]") -> None:
    """Look at the error of a run that ends when nobody awaits it any more, or asyncio complains."""
    if not future.cancelled():
        future.exception()
