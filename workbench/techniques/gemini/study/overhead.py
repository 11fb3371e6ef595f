"""What checkpoints in peers' memory cost training: iterations with and without them, on real ranks in turn.

What: `measure_overhead` trains a small GPT-2 with each scheme in one run of ranks on shaped hosts and gives rows with
intervals; ratios are taken within rounds. `predict` says beforehand what to expect from bytes and rates.
Source: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", sections 6.7.2 and 6.7.4,
figures 6.7, 6.8 and 6.16.
Simplified: where the paper's GPUs compute and leave processors free, ranks sleep (`Size.device_s`); without that the
processor that trains also copies, checks and sends, and a checkpoint costs at least its processor seconds. What is left
of idle time is what training's messages leave, less the checkpoint's bytes at the measured speed of the link.
Left out: when each chunk was on the wire.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Any

from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.training.measuring import FEWEST_ROUNDS, median_interval

from ..method.interleaving import Scheme
from ..runtime.checkpoints import PRELOAD
from .gpt2_training import Size
from .turns import ASYNC_SAVE, TORCHFT, Facts, Turn, Turns, checked_way, record_turns
from .voting_replicas import is_installed

__all__ = ["Overhead", "Predicted", "measure_overhead", "overhead_rows", "predict"]

TIMEOUT_S = 1800.0
BASELINE = Scheme.BASELINE.value
CHECKED_BYTES_PER_S = 2.9e9  # of one core that copies and checksums; measured on a laptop: 2.4 to 3.4 GB/s
COPIED_BYTES_PER_S = 6e9  # of one core that copies into a sub-buffer; an estimate
SOCKET_BYTES_PER_S = 2e9  # of one core that sends or receives through the kernel and a shaped link; an estimate


@dataclass(frozen=True, kw_only=True, slots=True)
class Predicted:
    """What a checkpoint an iteration should cost, if idle time suffices.

    Attributes:
        work_s: seconds that all cores together are busy with it.
        network_s: that a shard travels.
        over_baseline: iteration with Gemini's scheme over that without.
        blocking_over_baseline: the same if training waits for every checkpoint.
    """

    work_s: float
    network_s: float
    over_baseline: float
    blocking_over_baseline: float


def predict(
    *, shard_bytes: int, iteration_s: float, bandwidth_bytes_per_s: float, num_machines: int, num_cores: int
) -> Predicted:
    """Say what to expect of one replica a shard in a peer's memory, on ranks that share cores.

    A rank copies and checks its own shard and a peer's, copies its own into sub-buffers, sends it and receives the
    other. With training busy on all cores that lengthens the iteration by its share of them; with free ones by less.

    Args:
        shard_bytes: of one rank.
        iteration_s: without checkpoints.
        bandwidth_bytes_per_s: of a machine's link, in each direction.
        num_machines: one rank each.
        num_cores: that all ranks share.
    """
    seconds_per_byte = 2 / CHECKED_BYTES_PER_S + 1 / COPIED_BYTES_PER_S + 2 / SOCKET_BYTES_PER_S
    work_s = shard_bytes * seconds_per_byte * num_machines / min(num_cores, num_machines)
    network_s = shard_bytes / bandwidth_bytes_per_s
    return Predicted(
        work_s=work_s,
        network_s=network_s,
        over_baseline=1 + work_s / iteration_s,
        blocking_over_baseline=1 + (work_s + network_s) / iteration_s,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Overhead:
    """What was found.

    Attributes:
        rows: medians over rounds with intervals, by scheme.
        rounds: iteration seconds of each scheme, round by round.
        hosts: description of the shaped hosts.
    """

    rows: list[dict[str, Any]]
    rounds: dict[str, list[float]]
    hosts: dict | None


def measure_overhead(
    schemes: Sequence[str], *, size: Size, num_machines: int, bandwidth_bytes_per_s: float, turns: Turns
) -> Overhead:
    """Train with all schemes in turn.

    Args:
        schemes: names of `Scheme`, with "Baseline", which all are compared with; "async_save", to local files; and
            "torchft", for a model that is not sharded.
        size: of model and batch.
        num_machines: one rank each, on a shaped host of its own.
        bandwidth_bytes_per_s: of each host's link.
        turns: how many, how long.

    Raises:
        ValueError: before any rank starts, if there is no Baseline, nothing beside it, or too few rounds.
    """
    chosen = [checked_way(name) for name in schemes]
    if BASELINE not in chosen or len(set(chosen)) != len(chosen) or len(chosen) < 2:
        raise ValueError(f"schemes is {list(schemes)}, must be different ones, Baseline among them")
    if TORCHFT in chosen and (size.sharded or not is_installed()):
        rule = "torchft needs a model that is not sharded, and the package torchft"
        raise ValueError(f"schemes is {list(schemes)}, size.sharded is {size.sharded}: {rule}")
    if turns.rounds < FEWEST_ROUNDS:
        raise ValueError(f"turns.rounds is {turns.rounds}, must be at least {FEWEST_ROUNDS} for an interval")
    hosts = ShapedHosts(num_machines, Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s))
    with (
        tempfile.TemporaryDirectory() as folder,
        Ranks(num_machines, hosts=hosts, preload=(*PRELOAD, record_turns.__module__), timeout_s=TIMEOUT_S) as ranks,
    ):
        by_rank = ranks.run(record_turns, chosen, size, replace(turns, folder=folder))
    found, facts = [turns for turns, _ in by_rank], [facts for _, facts in by_rank]
    rounds = {scheme: _by_round(found, scheme, lambda turn: turn.iteration_s) for scheme in chosen}
    return Overhead(rows=overhead_rows(chosen, found, facts), rounds=rounds, hosts=ranks.hosts)


def overhead_rows(
    schemes: Sequence[str], found: Sequence[Sequence[Turn]], facts: Sequence[Mapping[str, Facts]]
) -> list[dict[str, Any]]:
    """Return quantities by scheme: medians over rounds of the ranks' means, with intervals.

    Args:
        schemes: Baseline among them.
        found: turns of each rank, in the same order on all.
        facts: of each rank.

    Returns:
        `iteration_s`, `cpu_s`, `over_baseline` (ratio within rounds), `idle_s` (Baseline's from iterations in which no
        checkpoint travelled), `idle_used` (share of idle time without checkpoints that a checkpoint's bytes take on
        the link), `checkpoint_s`, `network_s`, `shard_bytes`, `buffer_bytes`, `num_chunks`, and `different_ranks`
        (that ended with other bits than in Baseline).
    """
    plain = _by_round(found, BASELINE, lambda turn: turn.iteration_s)
    rows = []
    for scheme in schemes:
        iterations = _by_round(found, scheme, lambda turn: turn.iteration_s)
        rows.append(_row("iteration_s", iterations, "s", scheme))
        rows.append(_row("cpu_s", _by_round(found, scheme, lambda turn: turn.cpu_s), "s", scheme))
        if scheme != BASELINE:
            rows.append(_row("over_baseline", [a / b for a, b in zip(iterations, plain, strict=True)], "1", scheme))
            rows += _checkpoint_rows(scheme, found, facts)
    return rows + _idle_rows(schemes, found, facts)


def _checkpoint_rows(scheme: str, found: Sequence[Sequence[Turn]], facts: Sequence[Mapping]) -> list[dict]:
    if scheme == TORCHFT:
        return []  # it adds up gradients in another order
    different = sum(each[scheme].digest != each[BASELINE].digest for each in facts)
    rows = [_fact("different_ranks", different, "1", scheme)]
    if scheme == ASYNC_SAVE:
        return rows
    rows.append(_row("checkpoint_s", _by_round(found, scheme, lambda turn: turn.checkpoint_s), "s", scheme))
    for name, unit in (("shard_bytes", "byte"), ("buffer_bytes", "byte"), ("num_chunks", "1")):
        rows.append(_fact(name, max(getattr(each[scheme], name) for each in facts), unit, scheme))
    return rows


def _idle_rows(schemes: Sequence[str], found: Sequence[Sequence[Turn]], facts: Sequence[Mapping]) -> list[dict]:
    """Return idle time before and after, of schemes whose link was measured."""
    rows, before = [], []
    for scheme in schemes:
        if scheme == BASELINE or any(each[scheme].network_s is None for each in facts):
            continue
        network_s = max(each[scheme].network_s for each in facts)
        mine = _by_round(found, scheme, lambda turn: turn.idle_before_s)
        left = [each - network_s for each in _by_round(found, scheme, lambda turn: turn.idle_s)]
        before += mine
        rows.append(_row("idle_s", left, "s", scheme))
        rows.append(_row("idle_used", [network_s / each for each in mine], "1", scheme))
        rows.append(_fact("network_s", network_s, "s", scheme))
    return ([_row("idle_s", before, "s", BASELINE)] if before else []) + rows


def _by_round(found: Sequence[Sequence[Turn]], scheme: str, of: Callable[[Turn], float]) -> list[float]:
    """Return the ranks' mean of each round of a scheme."""
    mine = [[of(turn) for turn in turns if turn.scheme == scheme] for turns in found]
    return [fmean(values) for values in zip(*mine, strict=True)]


def _row(quantity: str, values: Sequence[float], unit: str, scheme: str) -> dict[str, Any]:
    low, high = median_interval(values)
    return _fact(quantity, median(values), unit, scheme) | {"low": low, "high": high}


def _fact(quantity: str, value: float, unit: str, scheme: str) -> dict[str, Any]:
    return {"quantity": quantity, "scheme": scheme, "value": value, "unit": unit}
