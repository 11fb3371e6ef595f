"""Recording the actions of a real rank.

    recorder = Recorder(resource=f"rank {rank}") with recorder.during("all-reduce", Kind.COMMUNICATE):
        dist.all_reduce(x)
    return recorder.actions

All processes of a machine share the monotonic clock, so `Timeline.merged` needs no alignment. On CUDA give
`synchronize`, which waits at both ends of an action.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .actions import Action, Kind

__all__ = ["Recorder"]


class Recorder:
    """Collects the actions of one resource."""

    def __init__(
        self,
        *,
        resource: str,
        clock: Callable[[], float] = time.monotonic,
        synchronize: Callable[[], None] = lambda: None,
    ) -> None:
        """Start with no action.

        Args:
            resource: the row of the timeline, such as "rank 0".
            clock: seconds, the same for every rank that is to share a timeline.
            synchronize: waits until queued work is done, such as `torch.cuda.synchronize`.
        """
        self._resource = resource
        self._clock = clock
        self._synchronize = synchronize
        self._actions: list[Action] = []

    @property
    def actions(self) -> tuple[Action, ...]:
        """The recorded actions, in the order of their ends."""
        return tuple(self._actions)

    @contextmanager
    def during(self, label: str, kind: Kind = Kind.COMPUTE) -> Iterator[None]:
        """Record the body as one action, also when it raises."""
        self._synchronize()
        end = self.begun(label, kind)
        try:
            yield
        finally:
            self._synchronize()
            end()

    def begun(self, label: str, kind: Kind) -> Callable[[], None]:
        """Begin an action and return a function that ends it, for a callback such as that of a collective on a CPU."""
        start_s = self._clock()

        def end() -> None:
            end_s = self._clock()
            self._actions.append(Action(resource=self._resource, start_s=start_s, end_s=end_s, kind=kind, label=label))

        return end
