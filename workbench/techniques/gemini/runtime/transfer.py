"""A checkpoint on its way to peers, beside training, in chunks through a few sub-buffers (sections 6.5.2 and 6.5.3)."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from workbench.techniques.gemini.method.checks import require_counts
from workbench.techniques.gemini.method.partition import Chunk

__all__ = ["Route", "Transfer", "routes_of"]

Read = Callable[[Chunk, Tensor], object]  # fills a buffer with the bytes of a chunk of this rank's shard
Keep = Callable[[int, int, Tensor], object]  # takes bytes of a rank's shard: rank, offset, bytes
WaitForSpan = Callable[[int], object]  # returns once an idle span has come
Done = Callable[[], object]  # called at the beginning or end


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """The peers of one rank for the remote replicas with one number."""

    target: int  # rank that keeps this rank's replica
    source: int  # rank whose replica this rank keeps


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
        chunk_bytes: int,  # size of a sub-buffer, R / p; no chunk is larger
        num_buffers: int,  # p; one means that nothing arrives while a chunk is being kept
        device: torch.device | str = "cpu",  # of the buffers
    ) -> None:
        require_counts(1, chunk_bytes=chunk_bytes, num_buffers=num_buffers)
        self._routes, self._group = tuple(routes), group
        self._arriving, self._leaving = (
            [torch.empty(chunk_bytes, dtype=torch.uint8, device=device) for _ in range(num_buffers)] for _ in range(2)
        )
        self._threads = ThreadPoolExecutor(max_workers=3, thread_name_prefix="checkpoint")

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the sub-buffers, those of both directions."""
        return sum(buffer.numel() for buffer in (*self._arriving, *self._leaving))

    def start(
        self,
        own: Sequence[Chunk],  # of this rank, replica by replica
        peers: Mapping[int, Sequence[Chunk]],  # rank -> its chunks, of all ranks whose replicas are kept here
        *,
        read: Read,  # the bytes must stay the same until the sender is done
        keep: Keep,  # in the receiving thread; the buffer is reused afterwards
        wait: WaitForSpan,  # before a chunk; after a timeout the chunk is sent late rather than never
        prepare: Done = lambda: None,  # before anything is sent or received
        sent: Done = lambda: None,  # once all is sent
        received: Done = lambda: None,  # once all has been kept
    ) -> tuple[Future[None], Future[None]]:
        """Start one checkpoint after the one before is done; return the ends, or errors, of sender and receiver."""
        prepared = self._threads.submit(prepare)
        sending = self._threads.submit(self._send, prepared, own, read, wait, sent)
        return sending, self._threads.submit(self._receive, prepared, peers, keep, received)

    def close(self) -> None:
        """Let go of the threads; a transfer under way ends with the process group."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _send(self, prepared: Future, own: Sequence[Chunk], read: Read, wait: WaitForSpan, sent: Done) -> None:
        prepared.result()
        under_way: deque[dist.Work] = deque()
        for number, chunk in enumerate(own):
            if len(under_way) == len(self._leaving):
                under_way.popleft().wait()
            wait(chunk.span)
            buffer = self._leaving[number % len(self._leaving)][: chunk.size_bytes]
            read(chunk, buffer)
            target = self._routes[chunk.replica].target
            under_way.append(dist.isend(buffer, group_dst=target, group=self._group))
        for work in under_way:
            work.wait()
        sent()

    def _receive(self, prepared: Future, peers: Mapping[int, Sequence[Chunk]], keep: Keep, received: Done) -> None:
        prepared.result()
        under_way: deque[tuple[dist.Work, int, int, Tensor]] = deque()

        def take_oldest() -> None:
            work, source, offset, buffer = under_way.popleft()
            work.wait()
            keep(source, offset, buffer)

        # Messages match by their order in a plan that both sides have.
        for number, (source, chunk) in enumerate(self._in_order(peers)):
            if len(under_way) == len(self._arriving):
                take_oldest()
            buffer = self._arriving[number % len(self._arriving)][: chunk.size_bytes]
            work = dist.irecv(buffer, group_src=source, group=self._group)
            under_way.append((work, source, chunk.offset_bytes, buffer))
        while under_way:
            take_oldest()
        received()

    def _in_order(self, peers: Mapping[int, Sequence[Chunk]]) -> list[tuple[int, Chunk]]:
        sources = [route.source for route in self._routes]
        return [
            (source, chunk)
            for number, source in enumerate(sources)
            for chunk in peers[source]
            if chunk.replica == number
        ]
