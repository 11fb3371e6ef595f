"""The changing part of a balancer, the same on every rank, and its record, which `torch.save` keeps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from workbench.parallel.moves import Arrival

from ..method.costs import Costs, PiecewiseLinear
from ..method.plan import Plan, RankTimes

__all__ = ["State", "Step", "costs_from_record", "costs_record"]

STEPS_KEPT = 10_000  # of a long training with restless ranks


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One plan, and the times that it was made from."""

    iteration: int  # the first one under the plan
    times: tuple[RankTimes, ...]  # of all ranks, of the iterations before; corrected by `Costs.proportional`
    plan: Plan


@dataclass(frozen=True, slots=True)
class _Arrived:
    """Times that had arrived when a state was saved."""

    content: Tensor

    def wait(self) -> Tensor:
        return self.content


@dataclass(slots=True)
class State:
    """What changes from iteration to iteration."""

    plan: Plan
    iteration: int = 0
    planned_from: tuple[RankTimes, ...] | None = None
    pending: Arrival[Tensor] | None = None
    unsent: list[list[tuple[float, float, float]]] = field(default_factory=list)  # iteration -> local rank -> its times
    recent: list[Sequence[RankTimes]] = field(default_factory=list)  # of the last iterations under the plan
    is_chosen: bool = False  # whether the divisions follow the plan and the statistics as they are now
    steps: deque[Step] = field(default_factory=lambda: deque(maxlen=STEPS_KEPT))

    def as_record(self) -> dict[str, Any]:
        """Return lists, numbers and at most one tensor; times that are on their way are waited for."""
        return {
            "plan": self.plan.as_record(),
            "iteration": self.iteration,
            "planned_from": None if self.planned_from is None else _numbers(self.planned_from),
            "pending": None if self.pending is None else self.pending.wait(),
            "unsent": [list(map(list, ranks)) for ranks in self.unsent],
            "recent": list(map(_numbers, self.recent)),
            "is_chosen": self.is_chosen,
            "steps": [
                {"iteration": step.iteration, "times": _numbers(step.times), "plan": step.plan.as_record()}
                for step in self.steps
            ],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> State:
        """Read a record of `as_record`."""
        state = cls(plan=Plan.from_record(record["plan"]), iteration=record["iteration"], is_chosen=record["is_chosen"])
        state.planned_from = None if record["planned_from"] is None else _times(record["planned_from"])
        state.pending = None if record["pending"] is None else _Arrived(record["pending"])
        state.unsent = [[tuple(times) for times in ranks] for ranks in record["unsent"]]
        state.recent = list(map(_times, record["recent"]))
        state.steps.extend(
            Step(iteration=step["iteration"], times=_times(step["times"]), plan=Plan.from_record(step["plan"]))
            for step in record["steps"]
        )
        return state


def costs_record(costs: Costs | None) -> dict[str, Any] | None:
    """Return costs as numbers."""
    return None if costs is None else asdict(costs)


def costs_from_record(record: Mapping[str, Any] | None) -> Costs | None:
    """Read a record of `costs_record`."""
    if record is None:
        return None
    lines = {name: PiecewiseLinear(**value) for name, value in record.items() if isinstance(value, Mapping)}
    return Costs(**{**record, **lines})


def _numbers(times: Sequence[RankTimes]) -> list[list[float]]:
    return [[rank.own_s, rank.product_s, rank.work] for rank in times]


def _times(numbers: Sequence[Sequence[float]]) -> tuple[RankTimes, ...]:
    return tuple(RankTimes(own_s=own, product_s=product, work=work) for own, product, work in numbers)
