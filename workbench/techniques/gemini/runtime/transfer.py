"""A checkpoint on its way to peers, beside training, in chunks of which a few are under way (sections 6.5.2, 6.5.3)."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch.distributed as dist
import xxhash
from torch import Tensor

from workbench.checks import require_counts
from workbench.techniques.gemini.method.partition import Chunk

__all__ = ["Arriving", "Leaving", "ReplicaDamaged", "Route", "Transfer", "routes_of"]

WaitForSpan = Callable[[int], object]  # returns once an idle span has come


class ReplicaDamaged(RuntimeError):
    """A replica arrived changed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The peers of one rank for the remote replicas with one number."""

    target: int  # rank that keeps this rank's replica
    source: int  # rank whose replica this rank keeps


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Leaving:
    """This rank's shard."""

    data: Tensor  # uint8; it must stay the same until all is sent
    chunks: Sequence[Chunk]  # of all its remote replicas, in the order of travelling


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Arriving:
    """The place of another rank's shard."""

    data: Tensor  # uint8, to be written
    chunks: Sequence[Chunk]  # of all its remote replicas
    digest: bytes  # checksum that the sender told before


def routes_of(rank: int, holders: Sequence[Sequence[int]]) -> tuple[Route, ...]:
    """Return the peers to which a rank sends its replicas and from which it receives others', replica by replica."""
    routes = []
    for replica in range(1, len(holders[rank])):
        sources = [other for other, kept in enumerate(holders) if kept[replica] == rank]
        if len(sources) != 1:
            rule = "it must come from one rank"
            raise ValueError(f"holders: replica {replica} comes to rank {rank} from ranks {sources}; {rule}")
        routes.append(Route(target=holders[rank][replica], source=sources[0]))
    return tuple(routes)


class Transfer:
    """Moves replicas between the ranks of one group, in threads of its own; every rank of the group makes one."""

    def __init__(
        self,
        routes: Sequence[Route],  # of this rank, in the order of replicas
        *,
        group: dist.ProcessGroup,  # for checkpoints alone
        num_buffers: int,  # p, chunks under way; one means that nothing arrives while a chunk is being kept
    ) -> None:
        require_counts(1, num_buffers=num_buffers)
        self._routes, self._group, self._num_buffers = tuple(routes), group, num_buffers
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="checkpoint")

    def start(
        self,
        prepare: Callable[[], tuple[Leaving, Mapping[int, Arriving]]],  # before anything travels; by rank
        *,
        wait: WaitForSpan,  # before a chunk; after a timeout the chunk is sent late rather than never
        sent: Callable[[], object] = lambda: None,  # once all is sent
        received: Callable[[], object] = lambda: None,  # once all has arrived unchanged
    ) -> tuple[Future[None], Future[None]]:
        """Start one checkpoint after the one before is done; return the ends, or errors, of sender and receiver."""
        prepared = self._threads.submit(prepare)
        sending = self._threads.submit(self._send, prepared, wait, sent)
        return sending, self._threads.submit(self._receive, prepared, received)

    def close(self) -> None:
        """Let go of the threads; a transfer under way ends with the process group."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, prepared: Future, wait: WaitForSpan, sent: Callable[[], object]) -> None:
        leaving: Leaving = prepared.result()[0]
        under_way: deque[dist.Work] = deque()
        for chunk in leaving.chunks:
            if len(under_way) == self._num_buffers:
                under_way.popleft().wait()
            wait(chunk.span)
            part = leaving.data[chunk.offset_bytes : chunk.offset_bytes + chunk.size_bytes]
            under_way.append(dist.isend(part, group_dst=self._routes[chunk.replica].target, group=self._group))
        for work in under_way:
            work.wait()
        sent()

    def _receive(self, prepared: Future, received: Callable[[], object]) -> None:
        arriving: Mapping[int, Arriving] = prepared.result()[1]
        sums = {source: xxhash.xxh3_128() for source in arriving}
        under_way: deque[tuple[dist.Work, int, Tensor]] = deque()

        def take_oldest() -> None:
            work, source, part = under_way.popleft()
            work.wait()
            sums[source].update(part.numpy())  # the chunks of a shard come in the order of their offsets

        # Messages match by their order in a plan that both sides have.
        for source, chunk in self._in_order(arriving):
            if len(under_way) == self._num_buffers:
                take_oldest()
            part = arriving[source].data[chunk.offset_bytes : chunk.offset_bytes + chunk.size_bytes]
            under_way.append((dist.irecv(part, group_src=source, group=self._group), source, part))
        while under_way:
            take_oldest()
        for source, found in sums.items():
            if found.digest() != arriving[source].digest:
                raise ReplicaDamaged(f"the shard of rank {source} arrived at rank {dist.get_rank()} changed")
        received()

    def _in_order(self, arriving: Mapping[int, Arriving]) -> Iterator[tuple[int, Chunk]]:
        for number, route in enumerate(self._routes):
            for chunk in arriving[route.source].chunks:
                if chunk.replica == number:
                    yield route.source, chunk
