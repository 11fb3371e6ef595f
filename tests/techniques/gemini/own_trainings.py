"""Small trainings as users write them, each with one thing of its own, and resuming one from its middle."""

import random
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workbench.techniques.gemini.runtime import TrainingState

HALF, ALL = 3, 6  # iterations to the checkpoint, and of the whole training


class Training:
    """A small training; subclasses change one thing that users do."""

    def __init__(self, seed: int):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.net = self.model = self.build()
        self.wrap()
        self.optimizer, self.extra = torch.optim.AdamW(self.model.parameters(), lr=0.01), {}
        self.prepare()

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 8))

    def wrap(self) -> None:
        pass

    def prepare(self) -> None:
        pass

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()

    def step(self, iteration: int) -> None:
        self.loss(batch(iteration)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def values(self) -> dict[str, torch.Tensor]:
        """Return what must be equal to the last bit."""
        state = {f"model/{name}": value for name, value in self.net.state_dict().items() if torch.is_tensor(value)}
        for name, parameter in self.net.named_parameters():
            kept = self.optimizer.state.get(parameter, {})
            state |= {f"optimizer/{name}/{key}": value for key, value in kept.items() if torch.is_tensor(value)}
        return {key: getattr(value, "_local_tensor", value).detach().clone() for key, value in state.items()}


def batch(iteration: int, shape: tuple[int, ...] = (4, 8)) -> torch.Tensor:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * rank + iteration))


def drawn() -> dict[str, torch.Tensor]:
    """Return the next numbers of the global generators."""
    return {"drawn": torch.tensor([torch.rand(()), random.random(), np.random.rand()])}


def resumes(kind: type[Training], through=lambda image, state: image, half: int = HALF) -> list[str]:
    """Train to the end, and from a checkpoint in the middle; name what differs. Plain torch has no checkpoint."""
    plain = kind(0)
    for iteration in range(ALL):
        plain.step(iteration)
    expected = plain.values() | drawn()
    first = kind(0)
    state = TrainingState(first.model, first.optimizer, extra=first.extra)
    for iteration in range(half):
        first.step(iteration)
        image = state.image(iteration + 1)
    second = kind(7)
    state = TrainingState(second.model, second.optimizer, extra=second.extra)
    assert state.load_(through(image, state)) == half
    for iteration in range(half, ALL):
        second.step(iteration)
    resumed = second.values() | drawn()
    assert expected.keys() == resumed.keys()
    return [key for key, value in expected.items() if not torch.equal(value, resumed[key])]


class Ddp(Training):
    options: ClassVar[dict] = {}

    def wrap(self):
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.001, **self.options)


class Loader:
    def __init__(self):
        self.number, self.seen = 0, []

    def next(self):
        self.number += 1
        self.seen = [*self.seen, self.number]
        return batch(self.number)

    def state_dict(self):
        return {"number": self.number, "seen": self.seen}

    def load_state_dict(self, state):
        self.number, self.seen = state["number"], state["seen"]


class Sharded(Training):
    def wrap(self):
        for part in (self.net[0], self.net[3], self.net):
            fully_shard(part)

    def step(self, iteration):
        super().step(iteration)
        with torch.no_grad():
            self.model(batch(iteration))  # an evaluation leaves weights whole
