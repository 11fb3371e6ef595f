"""New processes that resume from slots end with the same bits as a run without failure; and what would break it."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workbench.launch import RankFailed, Ranks
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.techniques.gemini.runtime.replicas import Slot
from workbench.techniques.gemini.runtime.state import keep, resume_
from workbench.techniques.gemini.runtime.state import StateMismatch, TrainingState

pytestmark = pytest.mark.timeout(240)

CAPACITY = 2**20
"""Bytes: a tiny GPT-2 has 27,776 parameters, 12 bytes each with Adam, and the head."""


def seed(number: int) -> None:
    """Seed every global generator; a process that was forked has a state of its own in Python's."""
    torch.manual_seed(number), random.seed(number), np.random.seed(number)


class Batches:
    """An endless stream of batches with a position that can be stored."""

    def __init__(self, rank: int):
        self.generator = torch.Generator().manual_seed(100 + rank)

    def next(self) -> torch.Tensor:
        return torch.randint(0, 64, (2, 12), generator=self.generator)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class Training:
    """One rank's training."""

    def __init__(self, kind: str):
        rank = torch.distributed.get_rank()
        seed(1000 + rank)
        model = GPT2(GPT2Config.tiny(dropout=0.1))
        if kind == "ddp":
            model = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets, as a large model has
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        self.model, self.batches = model, Batches(rank)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)
        self.state = TrainingState(model, self.optimizer, scheduler=self.scheduler, extra={"data": self.batches})

    def loss(self) -> torch.Tensor:
        ids = self.batches.next()
        return self.model(ids, ids)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        self.scheduler.step()

    def image(self, iteration: int) -> bytes:
        self.state.capture(iteration)
        data = bytearray(self.state.num_bytes)
        self.state.read_into_(0, data)
        return bytes(data)


def slot_of(pid: int, fd: int) -> tuple[Slot, int]:
    """Open the memory that another process holds for this rank, as an agent's ranks do."""
    mine = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR)
    return Slot(mine, CAPACITY), mine


def train(kind: str, pid: int, fds: list[int], start: int, end: int, num_passes: int = 2) -> bytes:
    """Train from `start`, 0 or what the slot has, to `end`, storing every iteration; give the last state."""
    slot, mine = slot_of(pid, fds[torch.distributed.get_rank()])
    training = Training(kind)
    iteration = 0
    if start:
        seed(5)  # a new process has drawn other numbers
        iteration = resume_(training.state, slot.latest().data, training.loss, num_passes)
    assert iteration == start
    for done in range(start + 1, end + 1):
        training.step()
        keep(training.state, slot, done, chunk_bytes=50_000)
    os.close(mine)
    return training.image(end)


def memories(num_ranks: int) -> list[int]:
    fds = [os.memfd_create(f"rank-{rank}") for rank in range(num_ranks)]
    for fd in fds:
        os.ftruncate(fd, Slot.memory_bytes(CAPACITY))
    return fds


def kill(ranks: Ranks) -> None:
    """Kill the first rank, as a failure does."""
    before = ranks.pids
    with pytest.raises(RankFailed):
        ranks.run(lambda: torch.distributed.get_rank() or os.kill(os.getpid(), signal.SIGKILL))
    assert not set(before) & set(ranks.pids)


def without_and_with_a_failure(ranks: Ranks, kind: str, num_passes: int = 2) -> tuple[list[bytes], list[bytes]]:
    """Train 8 iterations at once, and 4 and then 4 in new processes: the last states of all ranks."""
    whole, parts = memories(ranks.num_ranks), memories(ranks.num_ranks)
    kill(ranks)
    expected = ranks.run(train, kind, os.getpid(), whole, 0, 8)
    kill(ranks)
    ranks.run(train, kind, os.getpid(), parts, 0, 4)
    kill(ranks)
    found = ranks.run(train, kind, os.getpid(), parts, 4, 8, num_passes)
    for fd in whole + parts:
        os.close(fd)
    return expected, found


@pytest.mark.parametrize(("kind", "num_ranks"), [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4)])
def test_resumed_ranks_end_with_every_bit_of_parameters_optimizer_schedule_and_random_numbers(pools, kind, num_ranks):
    # An image holds all of these, and the data position: it is compared byte for byte.
    expected, found = without_and_with_a_failure(pools(num_ranks), kind)
    assert [len(image) for image in found] == [len(image) for image in expected]
    assert found == expected
    assert len(set(found)) == num_ranks  # each rank has its own random numbers


def test_without_the_throw_away_passes_ddp_on_four_ranks_ends_with_other_bits(pools):
    expected, found = without_and_with_a_failure(pools(4), "ddp", num_passes=0)
    assert found != expected


def test_a_run_from_the_start_runs_no_pass_and_loads_nothing():
    model = nn.Linear(2, 2)
    state = TrainingState(model, torch.optim.SGD(model.parameters()), rank=0, world_size=1)
    before = model.weight.clone()

    def throw_away():
        raise AssertionError("a pass was run")

    assert resume_(state, None, throw_away) == 0
    assert torch.equal(model.weight, before)


def refuse_on_a_rank(pid: int, fds: list[int]) -> list[str]:
    """Store a state, then offer it to a model that it is not of, and to DDP without a batch."""
    rank = torch.distributed.get_rank()
    slot, mine = slot_of(pid, fds[rank])
    training = Training("ddp")
    training.step()
    keep(training.state, slot, 1)
    image = slot.latest().data.clone()
    messages, passes = [], []
    other = Training("fsdp2")
    for state, throw_away in ((other.state, lambda: passes.append(1)), (Training("ddp").state, None)):
        before = [tensor.clone() for tensor in state.tensors().values()]
        with pytest.raises(ValueError) as caught:
            resume_(state, image, throw_away)
        messages.append(f"{type(caught.value) is StateMismatch}: {caught.value}")
        assert all(torch.equal(a, b) for a, b in zip(before, state.tensors().values(), strict=True))
    assert not passes
    os.close(mine)
    return messages


def test_a_state_of_another_kind_of_parallelism_is_refused_before_anything_runs(pools):
    fds = memories(2)
    for sharded, without in pools(2).run(refuse_on_a_rank, os.getpid(), fds):
        assert sharded.startswith("True: checkpoint: 'model/word.weight' is float32 [64, 32]; this run's is float32")
        assert "[32, 32] of [64, 32] Shard(dim=0)" in sharded
        assert without.startswith("False: throw_away: DistributedDataParallel needs it")
    for fd in fds:
        os.close(fd)
