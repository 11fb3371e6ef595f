"""A training so small that a reader can kill it and see it go on: the loop is the reader's own, the rest is here.

What: a few linear layers, sharded over the ranks as the paper's models are (ZeRO-3), with Adam; a batch is drawn from
the number of its iteration, so a resumed training sees the batches that the interrupted one would have seen.
Source: ours; the setting: thesis, chapter 6 (Gemini), section 6.7.1.
Simplified: the data position is the iteration; a real loop gives its own as `extra` (see `InMemoryCheckpoints`).
Left out: learning-rate schedule, evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

from workbench.techniques.gemini.runtime.checkpoints import PRELOAD as OF_CHECKPOINTS
from workbench.techniques.gemini.runtime.checkpoints import Context
from workbench.techniques.gemini.study.gpt2_training import digest_of
from workbench.techniques.gemini.study.recovery import train_gpt2

__all__ = ["PRELOAD", "SmallTraining"]

PRELOAD = (*OF_CHECKPOINTS, train_gpt2.__module__, __name__)  # for machines that the lesson keeps warm
WIDTH, NUM_LAYERS, BATCH = 32, 3, 8  # of the model; examples of a rank
LEARNING_RATE = 1e-2  # chosen: weights move visibly in a few iterations
PAUSE_S = 0.1  # of an iteration, so that there is time to look on and to strike
MOST_RANKS = 10_000  # that draw different batches


class SmallTraining:
    """Model, optimizer and updates of one rank.

    Args:
        context: of the rank, as `run_training` gives it.
        pause_s: for which every update sleeps.
        seed: of weights and batches.

    Attributes:
        model: sharded; the same weights in every generation, until a checkpoint is loaded into it.
        optimizer: Adam.
    """

    def __init__(self, context: Context, *, pause_s: float = PAUSE_S, seed: int = 0):
        self._rank, self._pause_s, self._seed = context.rank, pause_s, seed
        draw = torch.Generator().manual_seed(seed)
        layers = [nn.Linear(WIDTH, WIDTH) for _ in range(NUM_LAYERS)]
        for layer in layers:
            nn.init.normal_(layer.weight, std=WIDTH**-0.5, generator=draw)
            nn.init.zeros_(layer.bias)
        self.model = nn.Sequential(*layers)
        for module in (*layers, self.model):
            fully_shard(module)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def updates(self, first: int, num_iterations: int) -> Iterator[int]:
        """Update the model once an iteration; each number comes when its update is done.

        Args:
            first: iterations that are in the state already.
            num_iterations: of the whole training.
        """
        for iteration in range(first, num_iterations):
            time.sleep(self._pause_s)
            draw = torch.Generator().manual_seed((self._seed + iteration) * MOST_RANKS + self._rank)
            x = torch.randn(BATCH, WIDTH, generator=draw)
            (self.model(x) - x.flip(1)).square().mean().backward()  # learn to turn rows round
            self.optimizer.step()
            self.optimizer.zero_grad()
            yield iteration

    def digest(self) -> str:
        """Return a digest of every bit of this rank's parameters and of Adam's moments."""
        return digest_of(self.model, self.optimizer)
