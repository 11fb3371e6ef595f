"""Timing studies on real ranks: variants in turn, rows with intervals.

Source: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control", section V: runtime per epoch.
A small Vision Transformer on the cores of this machine. Times are those of this machine; what compares with the paper
are ratios within rounds: `speedup` = Baseline's iteration with the same stragglers / iteration.
Simplified: a median over rounds with the interval of order statistics (95 % or more); an epoch is an iteration times
the iterations of an epoch of CIFAR-10.
Left out: more than one machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.timeline import Timeline, chrome_trace

from ...method.costs import Costs
from ...runtime.policy import check_policy
from ..variant import Variant
from .breakdown import break_down, told_apart
from .rank import Recording, Turns, record_rounds
from .rows import Turn, rows_of
from .size import Size

__all__ = ["Measured", "measure_variants"]

PRELOAD = ("workbench.techniques.flextp.study.timing.rank",)
FEWEST_ROUNDS = 6  # an interval of 95 % needs as many
TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a study found.

    Attributes:
        rows: medians over rounds with intervals, by variant.
        rounds: seconds of each variant's iterations, round by round.
        timelines: one iteration of each variant, that of median length, waiting and transfer apart.
        costs: of the pre-test; None if no variant needed one.
        hosts: description of the shaped hosts; None for this machine's loopback.
    """

    rows: list[dict]
    rounds: dict[str, list[float]]
    timelines: dict[str, Timeline]
    costs: Costs | None
    hosts: dict | None

    @property
    def trace(self) -> dict:
        """The timelines one under the other, as a Chrome trace."""
        return chrome_trace(Timeline.merged([timeline.actions for timeline in self.timelines.values()]), name="flextp")


def measure_variants(
    variants: Mapping[str, Variant | None],
    *,
    size: Size,
    num_ranks: int = 4,
    rounds: int,
    warmup: int = 4,
    turn: int = 1,
    slowness: float = 4.0,
    seed: int = 0,
    chooses: bool = True,
    keys: Mapping[str, Mapping] | None = None,
    link: Link | None = None,
    num_hosts: int = 1,
    device: str = "cpu",
) -> Measured:
    """Train all variants in turn on real ranks of this machine.

    Args:
        variants: by name; None is the model as it is, without balancing.
        size: of the model and its batch.
        num_ranks: tensor-parallel ranks.
        rounds, warmup, turn, seed, chooses: see `Turns`; with a straggler that moves, so many after each move.
        slowness: of all ranks' products, by sleeping (see `Meter`); 1 is this machine as it is.
        keys: key columns of each variant's rows, by its name; by default {"variant": name}.
        link: between hosts; None leaves the ranks on this machine's loopback.
        num_hosts: hosts that the ranks are spread over, where there is a link.
        device: "cpu", or "cuda" for one GPU a rank, which holds the models of all variants.

    Raises:
        ValueError: before any rank starts, for too few rounds, a model without balancing that is to be slowed, and
            what a variant cannot be.
    """
    turns = Turns(rounds=rounds, warmup=warmup, length=turn, seed=seed, chooses=chooses)
    _check(variants, turns, num_ranks, slowness)
    if size.heads % num_ranks:
        raise ValueError(f"num_ranks is {num_ranks}, must divide the model's {size.heads} attention heads")
    hosts = None if link is None else ShapedHosts(num_hosts, link)
    with Ranks(num_ranks, hosts=hosts, device=device, preload=PRELOAD, timeout_s=TIMEOUT_S) as ranks:
        by_rank = ranks.run(record_rounds, dict(variants), size, turns, slowness, device)
    found = _turns([recordings for recordings, _ in by_rank])
    keys = {name: {"variant": name} for name in variants} if keys is None else keys
    rows = rows_of(variants, found, keys=keys, iterations_per_epoch=size.num_iterations, turn=turn)
    timelines = {name: _of_median_length(name, mine) for name, mine in found.items()}
    rounds_s = {name: [each.parts.iteration_s / turn for each in mine] for name, mine in found.items()}
    return Measured(rows=rows, rounds=rounds_s, timelines=timelines, costs=by_rank[0][1], hosts=ranks.hosts)


def _check(variants: Mapping[str, Variant | None], turns: Turns, num_ranks: int, slowness: float) -> None:
    moves = any(variant is not None and variant.moves for variant in variants.values())
    if turns.rounds * (num_ranks if moves else 1) < FEWEST_ROUNDS:
        raise ValueError(f"rounds is {turns.rounds}, must make at least {FEWEST_ROUNDS} turns of each for an interval")
    if not variants:
        raise ValueError("variants is empty, must name at least one")
    if not slowness >= 1:
        raise ValueError(f"slowness is {slowness}, must be at least 1")
    for name, variant in variants.items():
        if variant is None and slowness > 1:
            raise ValueError(f"slowness is {slowness}, must be 1 where {name!r} is a model that nothing can slow")
        if variant is not None:
            variant.trace(num_ranks, turns.iterations_per_epoch)
            check_policy(variant.policy(num_ranks), num_ranks)


def _turns(by_rank: Sequence[Sequence[Recording]]) -> dict[str, list[Turn]]:
    """Put the recordings of all ranks together, turn by turn, and break them down."""
    found: dict[str, list[Turn]] = {}
    for recordings in zip(*by_rank, strict=True):
        (name,) = {recording.name for recording in recordings}
        parts = break_down([recording.actions for recording in recordings])
        found.setdefault(name, []).append(Turn(recordings=recordings, parts=parts))
    return found


def _of_median_length(name: str, turns: Sequence[Turn]) -> Timeline:
    middle = sorted(turns, key=lambda turn: turn.parts.iteration_s)[len(turns) // 2]
    return told_apart([recording.actions for recording in middle.recordings], name)
