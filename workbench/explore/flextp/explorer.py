"""The lesson: the explorer of epochs on eight V100s, timelines of an iteration, the worked example, watched ranks.

In a timeline the parts of an iteration follow one another, each in one piece, and ranks wait once, at the end.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from workbench.explore.explorer import Explorer, choice, steps
from workbench.parallel.groups import RecordedTensorGroup
from workbench.plots import beside, figure, gantt, lines, matrix
from workbench.plots.style import GREY
from workbench.rows.progress import say_progress
from workbench.study.breakdown import ITERATION, timeline_of
from workbench.techniques.flextp import cost, method
from workbench.techniques.flextp.method import Plan, RankParts, RankTimes, Solution
from workbench.techniques.flextp.runtime import Balancer
from workbench.timeline import Action, Kind, Recorder, Timeline

__all__ = ["CHOICES", "PRELOAD", "Choice", "Comparison", "Epoch", "WatchedIteration", "WatchedRank", "compare"]
__all__ += ["draw_worked_example", "explore_flextp", "iteration_timeline", "parts_timeline", "plan_timeline"]
__all__ += ["watch_training"]

SKEWNESSES = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0)  # χ, the paper's axis and some between
AS_EQUATION_1 = 0.0  # ZERO's pruning ratio is not a constant
PRUNING_RATIOS = MappingProxyType({"as Eq. 1 says": AS_EQUATION_1, "1/4": 0.25, "1/2": 0.5, "3/4": 0.75})
BANDWIDTHS = MappingProxyType(
    {
        1.25e9: "10 Gbit Ethernet",
        3.15e9: "a fifth of PCIe 3",
        10.8e9: "PCIe 3",
        15.75e9: "PCIe 3 peak",
        50e9: "NVLink 1",
        150e9: "NVLink 2",
    }
)
LINKS: Mapping[object, str] = {rate: f"{rate / 1e9:g} GB/s ({name})" for rate, name in BANDWIDTHS.items()}
PAPER_BANDWIDTH = 10.8e9  # bytes/s of the paper's link, one way, as fitted to its table I
_SIGNS = ("×", "=", "")  # between two matrices
_LARGEST = 4  # rows or columns: every cell is drawn as large as the others

# What the ranks import sooner or later, the last two in the pre-test: seconds, once instead of on every rank.
PRELOAD = ("workbench.explore.flextp", "scipy.optimize", "torch.fx.experimental.symbolic_shapes")
LEARNING_RATE = 0.05  # any: only what ranks do is looked at


@dataclass(frozen=True, kw_only=True, slots=True)
class Choice:
    """A solution, as the paper has it or refined."""

    solution: Solution  # how stragglers are helped
    refine: bool = False  # all ranks are brought to one level

    @property
    def name(self) -> str:
        """As figures write it."""
        return f"{self.solution}, refined" if self.refine else str(self.solution)


CHOICES = MappingProxyType(
    {
        "Baseline: nothing is done": Choice(solution=Solution.BASELINE),
        "ZERO: drop columns": Choice(solution=Solution.ZERO),
        "MIG: migrate columns": Choice(solution=Solution.MIG),
        "SEMI: both, as the paper divides them": Choice(solution=Solution.SEMI),
        "SEMI, refined: both, all ranks at one level": Choice(solution=Solution.SEMI, refine=True),
    }
)
BASELINE, *_, REFINED = CHOICES.values()


@dataclass(frozen=True, kw_only=True, slots=True)
class Epoch:
    """An epoch with one solution."""

    choice: Choice  # how stragglers are helped
    planned: cost.PlannedEpoch  # plan, seconds, seconds by rank
    parts: tuple[RankParts, ...]  # where each rank's seconds of an iteration go
    all_reduce_s: float  # of the other time of an iteration, in all-reduces

    @property
    def timeline(self) -> Timeline:
        """One iteration; a row a rank."""
        return parts_timeline(self.parts, all_reduce_s=self.all_reduce_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Comparison:
    """A solution beside none, and all of them over the skewness."""

    skewness: float  # χ of every straggler
    num_stragglers: int  # how many ranks are slow, from rank 0 on
    bandwidth_bytes_per_s: float  # of the link between any two ranks
    plain: Epoch  # nothing is done
    chosen: Epoch  # with the solution
    curves: tuple[Mapping[str, object], ...]  # rows: skewness, epoch seconds, solution and its price

    @property
    def speedup(self) -> float:
        """How many times shorter the epoch is."""
        return self.plain.planned.time_s / self.chosen.planned.time_s


def compare(
    *, choice: Choice, skewness: float, num_stragglers: int, pruning_ratio: float, bandwidth_bytes_per_s: float
) -> Comparison:
    """Compute an epoch with a solution and without; only ZERO takes notice of the pruning ratio."""
    machine, model = cost.paper_machine().with_bandwidth(bandwidth_bytes_per_s), cost.VIT_1B
    times = cost.model_times(dict.fromkeys(range(num_stragglers), skewness), model, machine)
    all_reduce_s = cost.iteration_parts(model, machine).all_reduce_s

    def planned(choice: Choice, skewness: float) -> cost.PlannedEpoch:
        slow = dict.fromkeys(range(num_stragglers), skewness)
        ratio = (pruning_ratio or None) if choice.solution is Solution.ZERO else None
        return cost.planned_epoch(choice.solution, slow, machine=machine, pruning_ratio=ratio, refine=choice.refine)

    def epoch(choice: Choice) -> Epoch:
        planned_epoch = planned(choice, skewness)
        costs = cost.model_costs(model, machine, times, num_senders=max(1, len(planned_epoch.plan.senders)))
        parts = method.rank_parts(times, planned_epoch.plan, costs)
        return Epoch(choice=choice, planned=planned_epoch, parts=parts, all_reduce_s=all_reduce_s)

    curves: list[Mapping[str, object]] = []
    for option in CHOICES.values():
        name = f"{option.name} ({planned(option, skewness).dropped_share:.1%} dropped)"
        curves += [{"skewness": chi, "epoch (s)": planned(option, chi).time_s, "solution": name} for chi in SKEWNESSES]
    return Comparison(
        skewness=skewness,
        num_stragglers=num_stragglers,
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        plain=epoch(BASELINE),
        chosen=epoch(choice),
        curves=tuple(curves),
    )


def describe(comparison: Comparison) -> str:
    """Say in a sentence what the figure shows."""
    planned, plain_s = comparison.chosen.planned, comparison.plain.planned.time_s
    waits = sum(planned.waiting_s) / len(planned.waiting_s) / planned.time_s
    if comparison.chosen.choice == BASELINE:
        return f"Nothing is done: an epoch takes {plain_s:.0f} s, of which a rank waits {waits:.0%} on average."
    pace = comparison.speedup
    words = f"{pace:.2f} times faster" if pace >= 1 else f"{1 / pace:.2f} times slower"
    return (
        f"{comparison.chosen.choice.name}: an epoch of {planned.time_s:.0f} s, {words} than without help "
        f"({plain_s:.0f} s). {planned.dropped_share:.1%} of all products are computed by nobody, and a rank waits "
        f"{waits:.0%} of the time on average."
    )


def draw(comparison: Comparison) -> Figure:
    """Draw an epoch against the skewness, and below it one iteration of every rank, without and with the solution."""
    drawn, (above, middle, below) = figure(3, 1, figsize=(10, 8), height_ratios=(3, 2.2, 2.2))
    rows = [dict(row) for row in comparison.curves]
    lines(rows, ax=above, x="skewness", y="epoch (s)", by="solution", x_label="skewness χ", y_label="epoch (s)")
    above.axvline(comparison.skewness, color=GREY, linestyle="--", linewidth=1)
    above.set_ylim(bottom=0)
    number, link = comparison.num_stragglers, comparison.bandwidth_bytes_per_s / 1e9
    above.set_title(f"predicted epoch of ViT-1B on eight V100s, {number} slow, {link:g} GB/s")
    beside(above)
    plain, chosen = comparison.plain, comparison.chosen
    end_s = max(plain.timeline.end_s, chosen.timeline.end_s)
    gantt(plain.timeline, ax=middle, end_s=end_s, legend=False)
    gantt(chosen.timeline, ax=below, end_s=end_s)
    middle.label_outer()
    middle.set_title(f"Baseline: an iteration of an epoch of {plain.planned.time_s:.0f} s")
    below.set_title(f"{chosen.choice.name}: an iteration of an epoch of {chosen.planned.time_s:.0f} s")
    return drawn


DROPPED = "Share of its columns that a straggler drops. Only ZERO takes a constant; the others plan."
CONTROLS: dict[str, Any] = {
    "choice": choice("solution", CHOICES, value=REFINED, help="Dropping costs accuracy, migrating costs messages."),
    "skewness": steps(
        "χ", SKEWNESSES, value=8.0, text="{:g}".format, help="How many times longer a straggler takes. 1: none is slow."
    ),
    "num_stragglers": steps(
        "stragglers", range(8), value=1, text="{} of 8 ranks".format, help="How many ranks are slow, from rank 0 on."
    ),
    "pruning_ratio": choice("γ", PRUNING_RATIOS, value=AS_EQUATION_1, help=DROPPED),
    "bandwidth_bytes_per_s": steps(
        "link", BANDWIDTHS, value=PAPER_BANDWIDTH, text=LINKS.__getitem__, help="All-reduces need it in any case."
    ),
}


def explore_flextp() -> Explorer[Comparison]:
    """Return the explorer: five controls, the predicted epoch, the timeline of an iteration."""
    return Explorer(compare, draw, describe=describe, **CONTROLS)


def plan_timeline(times: Sequence[RankTimes], plan: Plan, costs: method.Costs) -> Timeline:
    """Return an iteration under a plan; arguments as for `rank_parts`."""
    return parts_timeline(method.rank_parts(times, plan, costs))


def parts_timeline(ranks: Sequence[RankParts], *, all_reduce_s: float = 0.0) -> Timeline:
    """Return an iteration by the parts of its ranks; of the other time, `all_reduce_s` is drawn as transfer."""
    end_s = max(parts.busy_s for parts in ranks)
    return Timeline.merged(_actions(f"rank {rank}", parts, all_reduce_s, end_s) for rank, parts in enumerate(ranks))


def draw_worked_example(example: method.WorkedExample) -> Figure:
    """Draw a row a product: its operands, its result, and the plain layer's; faded columns are not computed."""
    drawn, axes = figure(3, 4, figsize=(8.4, 6.6))
    dropped = example.lineage["linear", "input"]
    for row, product in zip(axes, example.products, strict=True):
        _draw_product(row, example, product, dropped)
    return drawn


def _actions(resource: str, parts: RankParts, all_reduce_s: float, end_s: float) -> list[Action]:
    pieces = (
        ("other", parts.other_s - all_reduce_s + parts.removing_s, Kind.OTHER),
        ("products", parts.kept_s, Kind.COMPUTE),
        ("for others", parts.received_s, Kind.COMPUTE),
        ("transfer", all_reduce_s + parts.transfer_s, Kind.COMMUNICATE),
        ("wait", end_s - parts.busy_s, Kind.WAIT),
    )
    actions, now_s = [], 0.0
    for label, seconds, kind in pieces:
        if seconds > 0:
            actions.append(Action(resource=resource, start_s=now_s, end_s=now_s + seconds, kind=kind, label=label))
            now_s += seconds
    return actions


def _draw_product(
    row: Sequence[Axes], example: method.WorkedExample, product: method.ResizedProduct, dropped: tuple[int, ...]
) -> None:
    x, weight, grad = example.input_NK, example.weight_OK, example.grad_output_NO
    left, right = {
        "output": (("input", x), ("weightᵀ", weight.T)),
        "grad_weight": (("grad_outputᵀ", grad.T), ("input", x)),
        "grad_input": (("grad_output", grad), ("weight", weight)),
    }[product.name]
    drawn = (left, right, (product.name, product.result), ("without resizing", product.plain))
    is_gradient = product.name != "output"
    faded = [
        {} if is_gradient else {"faded_columns": dropped},
        {"faded_columns": dropped} if is_gradient else {"faded_rows": dropped},
        {"faded_columns": dropped} if is_gradient else {},
        {},
    ]
    for place, (ax, (name, values), options) in enumerate(zip(row, drawn, faded, strict=True)):
        matrix(values, ax=ax, **options)
        num_rows, num_columns = values.shape
        ax.set(xlim=_around(num_columns), ylim=_around(num_rows)[::-1])
        ax.text(num_columns / 2, -0.15, name, ha="center", va="bottom")
        if place:
            ax.annotate(_SIGNS[place - 1], (-0.06, 0.5), xycoords="axes fraction", ha="center", va="center")
    spared = f"{product.multiplications} of {product.plain_multiplications} multiplications"
    row[2].text(product.result.shape[1] / 2, product.result.shape[0] + 0.15, spared, ha="center", va="top", fontsize=8)


def _around(size: int) -> tuple[float, float]:
    """Return limits of an axis that put a matrix in the middle."""
    return (size - _LARGEST) / 2, (size + _LARGEST) / 2


# --- a few training steps on real ranks, watched


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
                weight.sub_(LEARNING_RATE * gradient)
        return loss

    watched = []
    for number in range(1, num_iterations + 1):
        watched.append(rank.iterate(balancer, step))
        say_progress(number, num_iterations, "iterations", loss=watched[-1].loss)
    return watched


def iteration_timeline(ranks: Sequence[WatchedIteration]) -> Timeline:
    """Put the same iteration of all ranks, in rank order, on a timeline: own work, waiting, transfer."""
    whole = [Action(resource="rank", start_s=rank.start_s, end_s=rank.end_s, label=ITERATION) for rank in ranks]
    apart = timeline_of([(*rank.actions, span) for rank, span in zip(ranks, whole, strict=True)])
    actions = (replace(action, kind=Kind.COMPUTE) if action.kind is Kind.OTHER else action for action in apart.actions)
    return Timeline.merged([list(actions)])
