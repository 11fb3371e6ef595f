"""What the other ranks of a training hear when one raises, exits or freezes: each ending in processes of its own.

A pool of `workbench.launch` would stop the others at once.
"""

import functools
import multiprocessing
import os
import signal
from collections.abc import Callable
from datetime import timedelta

import torch.distributed as dist

TIMEOUT = timedelta(seconds=10)  # of the group that the training uses
PATIENCE_S = 120.0  # a busy machine starts processes slowly
LOST = 1  # the rank that fails, in the third step: in the second one DDP itself exchanges its buckets
ENDINGS = {
    "raises": lambda: 1 / 0,
    "exits": lambda: os._exit(3),
    "freezes": lambda: os.kill(os.getpid(), signal.SIGSTOP),
}
PRELOAD = ["torch.distributed", "tests.lost_ranks", "workbench.techniques.zen", "workbench.techniques.flextp.runtime"]
PRELOAD += ["workbench.techniques.espresso", "workbench.techniques.cupcake"]


@functools.cache
def errors_of_the_rest(step: Callable[[dist.ProcessGroup, dict], None], num_ranks: int = 2) -> dict[str, dict]:
    """Return, by ending, what each rank that is left heard in the third `step(group, kept)`; `kept` is a dict."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    worlds = {}
    for ending in ENDINGS:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        pipes = [context.Pipe(duplex=False) for _ in range(num_ranks)]
        ranks = [
            context.Process(target=_rank, args=(rank, num_ranks, store.port, step, ending, pipe), daemon=True)
            for rank, (_, pipe) in enumerate(pipes)
        ]
        for rank in ranks:
            rank.start()
        worlds[ending] = store, ranks, pipes
    heard = {}
    for ending, (_, ranks, pipes) in worlds.items():
        left = {rank: listening for rank, (listening, _) in enumerate(pipes) if rank != LOST}
        heard[ending] = {rank: listening.recv() for rank, listening in left.items() if listening.poll(PATIENCE_S)}
        for rank in ranks:
            rank.kill()
            rank.join()
    return heard


def _rank(rank: int, num_ranks: int, port: int, step: Callable, ending: str, pipe) -> None:
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=num_ranks)
    dist.barrier()
    group, kept = dist.new_group(timeout=TIMEOUT), {}
    for _ in range(2):
        step(group, kept)
    dist.barrier()
    if rank == LOST:
        ENDINGS[ending]()
    try:
        step(group, kept)
        pipe.send("no error")
    except Exception as error:
        pipe.send(f"{type(error).__name__}: {error}")
