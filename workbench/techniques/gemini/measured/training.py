"""The training that is measured: a small GPT-2 with sharded state (ZeRO-3), Adam, and checkpoints in memory."""

import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts, require_not_negative
from workbench.launch.machine import MachineMemory
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.parallel.timeouts import init_mesh
from workbench.rows.progress import say_progress

from ..control.service import Logged, RankContext
from ..runtime import CheckpointOptions, InMemoryCheckpoints

__all__ = ["Habits", "PoolContext", "Size", "Tokens", "shard", "train_gpt2"]

LEARNING_RATE, WARM_UP = 1e-3, 5  # of Adam; iterations in which it rises


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Of model and training."""

    hidden: int = 64  # H
    layers: int = 2  # blocks
    heads: int = 4  # A
    vocab: int = 256  # V
    sequence: int = 32  # tokens of an example
    batch: int = 4  # examples of a rank in an iteration
    iterations: int = 12  # of the whole training
    sharded: bool = True  # `fully_shard` (ZeRO-3), or else plain data parallelism (DDP)
    dropout: float = 0.1  # probability
    seed: int = 0  # of weights and tokens
    device_s: float = 0.0  # that an accelerator would compute in an iteration: the processor sleeps for what is left

    def __post_init__(self) -> None:
        require_not_negative(device_s=self.device_s)
        counts = ("hidden", "layers", "heads", "vocab", "sequence", "batch", "iterations")
        require_counts(1, **{name: getattr(self, name) for name in counts})

    def model(self, is_parallel: bool = True) -> nn.Module:
        """Build the model; every rank of the default group calls it."""
        sizes = {"hidden_size": self.hidden, "num_layers": self.layers, "num_heads": self.heads}
        sizes |= {"vocab_size": self.vocab, "max_positions": self.sequence}
        model = GPT2(GPT2Config(**sizes, dropout=self.dropout, seed=self.seed))
        for block in model.blocks if self.device_s else ():
            _pad(block, self.device_s / 3 / self.layers)
        if not is_parallel:
            return model
        return shard(*model.blocks, model) if self.sharded else DistributedDataParallel(model)


def shard(*modules: nn.Module) -> nn.Module:
    """Shard modules over all ranks' processors, also where there is a GPU; inner ones first, the last is returned."""
    ranks = init_mesh("cpu", (dist.get_world_size(),))
    for module in modules:
        fully_shard(module, mesh=ranks)
    return modules[-1]


def _pad(block: nn.Module, forward_s: float) -> None:
    """Pad a block's forward pass to `forward_s`, and its backward pass to twice that."""
    began_s = [0.0]

    def begin(*_: Any) -> None:
        began_s[0] = time.monotonic()

    def end(seconds: float, *_: Any) -> None:
        time.sleep(max(0.0, began_s[0] + seconds - time.monotonic()))

    block.register_forward_pre_hook(begin)
    block.register_forward_hook(partial(end, forward_s))
    block.register_full_backward_pre_hook(begin)
    block.register_full_backward_hook(partial(end, 2 * forward_s))


class Tokens:
    """Drawn token ids, with a position that can be kept: the generator's state."""

    def __init__(self, size: Size, rank: int):
        self._size, self._draw = size, torch.Generator().manual_seed(size.seed * 10_000 + rank)

    def loss(self, model: nn.Module) -> Tensor:
        """Return the loss of a model on the next batch of drawn token ids."""
        shape = self._size.batch, self._size.sequence
        ids_BS = torch.randint(self._size.vocab, shape, generator=self._draw)
        return model(ids_BS, ids_BS)

    def state_dict(self) -> dict[str, Tensor]:
        return {"drawn": self._draw.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self._draw.set_state(state["drawn"])


class Habits:
    """What a loop does beside training, at the moments that `train_gpt2` calls; this one does nothing."""

    def attach(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
        """Prepare; return further objects with a state."""
        return {}

    def begin(self, context: RankContext, checkpoints: InMemoryCheckpoints) -> None: ...

    def before_update(self, iteration: int) -> None: ...

    def end(self, loss: float) -> None: ...

    def state(self) -> bytes:
        """Return what belongs to the bits of the training."""
        return b""


def train_gpt2(context: RankContext, size: Size, options: Mapping[str, Any], habits: Habits | None = None) -> str:
    """Train, checkpointing every iteration, from wherever the newest checkpoint ends; return a digest of the end."""
    habits = habits or Habits()
    torch.manual_seed(size.seed * 10_000 + context.rank)
    model, tokens = size.model(), Tokens(size, context.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, total_iters=WARM_UP)
    options, extra = dict(options), {"tokens": tokens, **habits.attach(model, optimizer)}
    parts = {"scheduler": schedule, "extra": extra, "storage": options.pop("storage", None)}
    checkpoints = InMemoryCheckpoints(context, model, optimizer, **parts, options=CheckpointOptions(**options))
    for iteration in checkpoints.iterations(size.iterations):
        habits.begin(context, checkpoints)
        loss = tokens.loss(model)
        loss.backward()
        habits.before_update(iteration)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        habits.end(loss.item())
        say_progress(iteration + 1, size.iterations, "iterations", loss=loss.detach())
    return digest_of(model, optimizer, habits.state())


def digest_of(model: nn.Module, optimizer: torch.optim.Optimizer, more: bytes = b"") -> str:
    """Return a digest of every bit of this rank's parameters, of its optimizer's state of them, and of more."""
    digest = hashlib.sha256(more)
    for weight in model.parameters():
        kept = optimizer.state.get(weight, {})
        for tensor in (weight, *(kept[name] for name in sorted(kept))):
            local = getattr(tensor, "_local_tensor", tensor).detach().contiguous()
            digest.update(local.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


class PoolContext(RankContext):
    """The context of checkpoints for a rank of a pool, which is its own machine and keeps its own memory and events."""

    def __init__(self, rank: int, world_size: int):
        if not 0 <= rank < world_size:
            raise ValueError(f"rank is {rank}; it must be in 0..{world_size - 1}")
        super().__init__(MachineMemory(), rank, [f"rank {number}" for number in range(world_size)])
        self.events: list[tuple[str, dict[str, Any]]] = []

    def memory(self, name: str, num_bytes: int) -> int:
        """Return a descriptor of the caller's own; the same name gives the same memory."""
        return os.dup(self._link.allocate(name, num_bytes))

    def _tell(self, message: Any) -> None:  # nobody waits for the progress of turns
        if isinstance(message, Logged):
            self.events.append((message.name, message.details))

    def close(self) -> None:
        """Close the memory; what others have mapped stays until they close it, too."""
        self._link.close()
