"""A few training steps on real ranks, watched: who works, who waits, and under which plan."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workbench.parallel.groups import RecordedTensorGroup
from workbench.study.breakdown import ITERATION, timeline_of
from workbench.techniques.flextp.method import Plan
from workbench.techniques.flextp.runtime import Balancer
from workbench.timeline import Action, Kind, Recorder, Timeline

__all__ = ["PRELOAD", "WatchedIteration", "WatchedRank", "iteration_timeline", "watch_training"]

# What the ranks import sooner or later, the last two in the pre-test: seconds, once instead of on every rank.
PRELOAD = ("workbench.explore.flextp", "scipy.optimize", "torch.fx.experimental.symbolic_shapes")
LEARNING_RATE = 0.05  # any: only what ranks do is looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class WatchedIteration:
    """One iteration of one rank."""

    plan: Plan  # in force
    start_s: float  # of the common clock
    end_s: float  # of the common clock
    actions: tuple[Action, ...]  # its collectives, in their order
    loss: float  # of the batch

    @property
    def duration_s(self) -> float:
        """Seconds from start to end."""
        return self.end_s - self.start_s


class WatchedRank:
    """This rank: a group whose collectives are recorded."""

    def __init__(self):
        self._recorder = Recorder(resource=f"rank {dist.get_rank()}")
        self.group = RecordedTensorGroup(recorder=self._recorder)

    def iterate(self, balancer: Balancer, step: Callable[[], Tensor]) -> WatchedIteration:
        """Do one step of training, which returns its loss, inside `balancer.iteration()`."""
        before = len(self._recorder.actions)
        with self._recorder.during(ITERATION), balancer.iteration():
            loss = step()
        *actions, whole = self._recorder.actions[before:]
        return WatchedIteration(
            plan=balancer.plan, start_s=whole.start_s, end_s=whole.end_s, actions=tuple(actions), loss=loss.item()
        )


def watch_training(
    rank: WatchedRank, model: nn.Module, balancer: Balancer, x: Tensor, num_iterations: int
) -> list[WatchedIteration]:
    """Train a model on the batch x, whose target is x rolled by one feature; call it on every rank."""
    weights = list(model.parameters())

    def step() -> Tensor:
        loss = (model(x) - x.roll(1, -1)).square().mean()
        gradients = torch.autograd.grad(loss, weights)
        with torch.no_grad():  # by hand: torch.optim takes seconds to import, on every rank
            for weight, gradient in zip(weights, gradients, strict=True):
                weight -= LEARNING_RATE * gradient
        return loss

    return [rank.iterate(balancer, step) for _ in range(num_iterations)]


def iteration_timeline(ranks: Sequence[WatchedIteration]) -> Timeline:
    """Put the same iteration of all ranks, in rank order, on a timeline: own work, waiting, transfer."""
    whole = [Action(resource="rank", start_s=each.start_s, end_s=each.end_s, label=ITERATION) for each in ranks]
    apart = timeline_of([(*each.actions, one) for each, one in zip(ranks, whole, strict=True)])
    actions = (replace(one, kind=Kind.COMPUTE) if one.kind is Kind.OTHER else one for one in apart.actions)
    return Timeline.merged([list(actions)])
