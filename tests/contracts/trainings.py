"""What users do in a training of their own, written once: each technique's tests put a guest into this loop."""

import io
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

STEPS = 4


def state_of(model: nn.Module) -> list[torch.Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


@dataclass
class Guest:
    """A model in a training, with a technique or without."""

    model: nn.Module  # as the user calls it
    loss: Callable[[int], torch.Tensor]  # of the batch with a number
    optimizer: torch.optim.Optimizer | None = None  # None is SGD with momentum
    state: Callable[[nn.Module], Any] = state_of  # what must be equal of a model
    seen: list = field(default_factory=list)  # what must be equal beside it: norms, scales, averaged weights

    def __post_init__(self):
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = self.optimizer or torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 2 * STEPS)


def train(guest, *, steps=STEPS, parts=1, most=0.0, narrow=False, scales=False, averages=False):
    """Train, and yield after each step, where replicas that are averaged may take turns.

    `parts` accumulates gradients, `most` clips them, `narrow` is autocast, `scales` scales the loss, `averages` keeps
    an average of the weights.
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2, enabled=scales)
    mean = AveragedModel(guest.model, multi_avg_fn=get_ema_multi_avg_fn(0.5)) if averages else None
    for step in range(steps):
        guest.optimizer.zero_grad()
        for part in range(parts):
            waits = part < parts - 1 and hasattr(guest.model, "no_sync")
            with guest.model.no_sync() if waits else nullcontext():
                with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                    loss = guest.loss(10 * step + part)
                scaler.scale(loss / parts).backward()
        if most:
            scaler.unscale_(guest.optimizer)
            guest.seen.append(nn.utils.clip_grad_norm_(guest.model.parameters(), most))
            assert not guest.seen[-1] <= most
        scaler.step(guest.optimizer)
        scaler.update()
        yield step
        guest.seen += [scaler.get_scale()] if scales else []
        guest.schedule.step()
        if mean is not None:
            mean.update_parameters(guest.model)
    if mean is not None:
        guest.seen.append(guest.state(mean.module))


def all_of(guest, **how):
    """Train to the end; return all that must be equal."""
    for _ in train(guest, **how):
        pass
    return [guest.state(guest.model), guest.seen]


def equal(state, other):
    """Tell whether two states, of any nesting, have the same bits."""
    if isinstance(state, dict):
        return state.keys() == other.keys() and all(equal(state[key], other[key]) for key in state)
    if isinstance(state, list | tuple):
        return len(state) == len(other) and all(map(equal, state, other))
    return torch.equal(state, other) if isinstance(state, torch.Tensor) else state == other


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def resumed(build):
    """Train for six steps, and for three steps, a file, new parts and three more; return the last states of both.

    `build` returns the loss of a step, and the parts with a state: model, optimizer, and what the technique adds.
    """
    ends = []
    for stops in ((6,), (3, 6)):
        begun, states = 0, []
        for stop in stops:
            loss, *parts = build()
            for part, state in zip(parts, states, strict=False):
                part.load_state_dict(state)
            for step in range(begun, stop):
                torch.manual_seed(step)
                parts[1].zero_grad()
                loss(step).backward()
                parts[1].step()
            begun, states = stop, through_a_file([part.state_dict() for part in parts])
        ends.append(states)
    return ends
