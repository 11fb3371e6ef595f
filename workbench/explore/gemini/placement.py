"""The placement puzzle: machines, replicas, a placement and a failure; what is left, and how lucky that was."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType

import ipywidgets
from matplotlib.figure import Figure

from workbench.explore.explorer import Control, Explorer, choice, steps
from workbench.plots import beside, figure
from workbench.plots.style import BLUE, GREY, PALE, VERMILION
from workbench.techniques.gemini.method.placement import Placement, placement, recovery_probability, survivors
from workbench.techniques.gemini.plots import draw_placement

__all__ = ["Puzzle", "describe", "draw", "explore_placement", "solve"]

MOST_MACHINES = 16  # as in the paper's testbed, and as many columns as a page holds
MOST_FAILURES = 6  # drawn along the axis at least
_LIST_ROWS = 6  # of the list of machines that are seen at once


@dataclass(frozen=True, kw_only=True, slots=True)
class _Machines(Control):
    """A list from which several machines can be chosen."""

    value: tuple[int, ...]  # chosen at first

    def __post_init__(self) -> None:
        known = [value for _, value in self.options]
        if not set(self.value) <= set(known):
            raise ValueError(f"value of {self.label!r} is {self.value!r}; it must be some of {known!r}")

    def widget(self) -> ipywidgets.Widget:
        """Build the widget; several lines are chosen with control or shift, also from the keyboard."""
        return ipywidgets.SelectMultiple(rows=_LIST_ROWS, **self.common)


@dataclass(frozen=True, kw_only=True, slots=True)
class Puzzle:
    """A placement after a failure."""

    placed: Placement  # the holders of each shard
    failed: tuple[int, ...]  # whose memory is lost
    lost: tuple[int, ...]  # shards without a living replica
    recovers: bool  # whether training goes on from memory
    probability: Fraction  # exact, over all failures of as many machines
    curves: Mapping[str, tuple[Fraction, ...]]  # its kind and the ring: the probability at k = 0, 1, ...


def solve(*, num_machines: int, num_replicas: int, kind: str, failed: Collection[int]) -> Puzzle:
    """Place replicas, let machines fail, and see what is left."""
    placed = placement(num_machines, num_replicas, kind)
    lost = tuple(shard for shard, alive in enumerate(survivors(placed, failed)) if not alive)
    counts = range(min(num_machines, max(MOST_FAILURES, len(failed))) + 1)
    others = {name: placement(num_machines, num_replicas, name) for name in dict.fromkeys((placed.kind, "ring"))}
    curves = {name: tuple(recovery_probability(other, k) for k in counts) for name, other in others.items()}
    return Puzzle(
        placed=placed,
        failed=tuple(sorted(failed)),
        lost=lost,
        recovers=not lost,
        probability=recovery_probability(placed, len(failed)),
        curves=MappingProxyType(curves),
    )


def describe(puzzle: Puzzle) -> str:
    """Say in a sentence what is left."""
    if not puzzle.failed:
        return "no machine failed: nothing is lost."
    k = len(puzzle.failed)
    share = f"{float(100 * puzzle.probability):.1f} % ({puzzle.probability})"
    chance = f"of all failures of {_counted('machine', range(k))}, {share} are survived"
    failed = f"{_named('machine', puzzle.failed)} failed"
    if puzzle.recovers:
        return f"{failed}: training recovers from memory; {chance}."
    are = "is" if len(puzzle.lost) == 1 else "are"
    shards = f"{_named('shard', puzzle.lost)} {are} lost"
    return f"{failed}: {shards}, training starts from persistent storage; {chance}."


def draw(puzzle: Puzzle) -> Figure:
    """Draw what is left, and the probability by the number of failed machines."""
    height = 1.2 + 0.45 * puzzle.placed.num_replicas
    drawn, axes = figure(2, 1, figsize=(9.6, height + 3.0), height_ratios=[height, 2.4])
    verdict = "recovers from memory" if puzzle.recovers else "starts from persistent storage"
    title = f"{puzzle.placed.kind}, N = {puzzle.placed.num_machines}, m = {puzzle.placed.num_replicas}: {verdict}"
    draw_placement(puzzle.placed, ax=axes[0], failed=puzzle.failed, title=title)
    k = len(puzzle.failed)
    for (kind, values), color in zip(puzzle.curves.items(), (BLUE, VERMILION), strict=False):
        axes[1].plot(range(len(values)), [float(100 * value) for value in values], "o-", color=color, label=kind)
    axes[1].axvline(k, color=PALE, linewidth=6, zorder=0)
    axes[1].plot(k, float(100 * puzzle.probability), "D", color=GREY, markersize=11, zorder=1, label="this puzzle")
    axes[1].set(xlabel="machines lost at once", ylabel="recovered\nfrom memory (%)", ylim=(-5, 108))
    beside(axes[1])
    return drawn


def explore_placement() -> Explorer[Puzzle]:
    """Return the control: N, m, the placement, and which machines fail."""
    machines = range(2, MOST_MACHINES + 1)
    return Explorer(
        solve,
        draw,
        describe=describe,
        num_machines=steps("machines", machines, value=8, help="N: each holds one shard of the model states."),
        num_replicas=steps("replicas", range(1, 5), value=2, help="m: how many machines keep each shard, itself one."),
        kind=choice(
            "placement",
            {"mixed (algorithm 6.1)": "mixed", "groups only": "group", "ring": "ring"},
            value="mixed",
            help="Who keeps whose shard. Groups only need m to divide N.",
        ),
        failed=_Machines(
            label="failed",
            options=tuple((f"machine {number}", number) for number in range(MOST_MACHINES)),
            value=(0, 1),
            is_slider=False,
            help="Which machines are lost at once; several with control or shift held.",
        ),
    )


def _counted(what: str, numbers: Collection[int]) -> str:
    return f"{len(numbers)} {what}{'' if len(numbers) == 1 else 's'}"


def _named(what: str, numbers: Collection[int]) -> str:
    return f"{what}{'' if len(numbers) == 1 else 's'} {', '.join(map(str, numbers))}"
