"""Small trainings as users write them, each with one thing of its own."""

import random
from typing import ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.contracts.language_models import language_model
from tests.techniques.gemini.own_trainings import ALL, HALF, Ddp, Loader, Training, batch


class Scaled(Training):
    """The scale grows, and falls where a loss overflows."""

    def prepare(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.extra = {"scaler": self.scaler}

    def step(self, iteration):
        loss = self.loss(batch(iteration)) * (float("inf") if iteration == 4 else 1.0)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def values(self):
        return super().values() | {"scale": torch.tensor(self.scaler.get_scale())}


class Branched(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x, number):
        return self.parts[number](x)


class Unused(Ddp):
    options: ClassVar[dict] = {"find_unused_parameters": True}

    def build(self):
        return Branched()

    def loss(self, x):
        return self.model(x, dist.get_rank()).square().mean()


class Unfrozen(Training):
    """The first layer is trained from the iteration before the checkpoint on; another never."""

    def prepare(self):
        self.net[0].requires_grad_(False)
        self.net[3].bias.requires_grad_(False)

    def step(self, iteration):
        if iteration == HALF - 1:
            self.net[0].requires_grad_(True)
        super().step(iteration)


class Tied(Training):
    def build(self):
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        net[2].weight = net[0].weight
        return net


class Remembering(nn.Module):
    """Buffers that come late, change shape or are in no state_dict; and what a module keeps outside of it."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.register_buffer("late", None)
        self.register_buffer("unsaved", torch.zeros(8), persistent=False)
        self.register_buffer("queue", torch.zeros(1, 8))
        self.passes, self.weights = 0, {"sum": 0.0}
        self.draws = [np.random.default_rng(3), random.Random(3), torch.Generator().manual_seed(3)]
        self.draws.append(np.random.RandomState(3))
        self.hidden = torch.zeros(8)

    def forward(self, x):
        self.passes += 1
        drawn = self.draws[0].random() + self.draws[1].random() + torch.rand((), generator=self.draws[2])
        mean = x.detach().mean(0)
        self.late = mean if self.late is None else 0.9 * self.late + mean
        self.unsaved += mean
        self.queue = torch.cat([self.queue, mean[None]])
        self.hidden = 0.5 * self.hidden + mean
        self.weights["sum"] += drawn.item() + self.draws[3].rand()
        if not hasattr(self, "registered"):
            self.register_buffer("registered", torch.ones(8))
        self.registered = self.registered * 1.1
        state = self.late + self.unsaved + self.queue.sum(0) + self.hidden + self.registered
        return self.linear(self.norm(x)) + state + drawn * self.passes + self.weights["sum"]


class Buffers(Training):
    def build(self):
        return Remembering()


class DdpBuffers(Ddp, Buffers):
    pass


class Whole(Ddp):
    """A schedule, a loader, and torch's PowerSGD, whose state pickles and has no state_dict."""

    def prepare(self):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, ALL)
        self.power = powerSGD_hook.PowerSGDState(
            self.model.process_group, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        self.model.register_comm_hook(self.power, powerSGD_hook.powerSGD_hook)
        self.extra = {"loader": Loader(), "schedule": schedule, "power": self.power}

    def step(self, iteration):
        self.loss(self.extra["loader"].next()).backward()
        self.optimizer.step()
        self.extra["schedule"].step()
        self.optimizer.zero_grad()

    def values(self):
        errors = {f"error/{index}": error for index, error in self.power.error_dict.items()}
        assert errors, "PowerSGD began"
        return super().values() | errors


class Saved(Training):
    """The whole model is saved by torch and loaded, in the middle."""

    def step(self, iteration):
        super().step(iteration)
        kept = {key: value.clone() for key, value in self.net.state_dict().items()}
        self.net.load_state_dict(kept)


class Checkpointed(Training):
    reentrant = False

    def build(self):
        return nn.ModuleList([super(Checkpointed, self).build() for _ in range(2)])

    def loss(self, x):
        x = x.requires_grad_()
        for block in self.model:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


class Reentrant(Checkpointed):
    reentrant = True


class Compiled(Training):
    def wrap(self):
        self.model = torch.compile(self.net, backend="eager")


class CompiledDdp(Training):
    def wrap(self):
        self.model = torch.compile(DistributedDataParallel(self.net), backend="eager")


class Accumulating(Ddp):
    """An update every second iteration: the checkpoint is taken between the two."""

    def step(self, iteration):
        if iteration % 2 == 0:
            with self.model.no_sync():
                self.loss(batch(iteration)).backward()
            return
        super().step(iteration)


class ZeroedAtTheBeginning(Ddp):
    options: ClassVar[dict] = {"gradient_as_bucket_view": True}

    def step(self, iteration):
        self.optimizer.zero_grad()
        self.loss(batch(iteration)).backward()
        self.optimizer.step()


class Clipped(Ddp):
    def step(self, iteration):
        self.loss(batch(iteration)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.optimizer.step()
        self.optimizer.zero_grad()


class Bf16(Training):
    """Weights in bfloat16, and moments in float32, which torch's own loading would round."""

    def build(self):
        return super().build().bfloat16()

    def loss(self, x):
        return super().loss(x.bfloat16())

    def prepare(self):
        self.momentum = torch.optim.Optimizer(self.net.parameters(), {"lr": 0.05})
        self.optimizer = self.momentum
        self.optimizer.step = self.update

    @torch.no_grad()
    def update(self):
        for parameter in self.net.parameters():
            state = self.optimizer.state[parameter]
            moment = state.setdefault("moment", torch.zeros(parameter.shape, dtype=torch.float32))
            moment.mul_(0.9).add_(parameter.grad)
            parameter.sub_((0.05 * moment).bfloat16())


class Autocast(Training):
    def loss(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(x)


class Averaged(Training):
    """An average of weights and buffers, one of which is None at first."""

    def build(self):
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
        net.register_buffer("late", None)
        return net

    def prepare(self):
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        self.extra = {"average": self.average}

    def step(self, iteration):
        super().step(iteration)
        for net in (self.net, self.average.module):
            net.late = torch.full((2,), float(iteration)) if net.late is None else net.late
        self.net.late = self.net.late + 1
        self.average.update_parameters(self.net)

    def values(self):
        return super().values() | {f"average/{name}": value for name, value in self.average.state_dict().items()}


class Adapted(Training):
    def build(self):
        from peft import LoraConfig, get_peft_model

        return get_peft_model(super().build(), LoraConfig(r=2, target_modules=["0", "3"], lora_dropout=0.1))


class LanguageModel(Training):
    name = ""

    def build(self):
        return language_model(self.name).train()

    def step(self, iteration):
        ids = (batch(iteration).abs() * 8).long() % 32
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
