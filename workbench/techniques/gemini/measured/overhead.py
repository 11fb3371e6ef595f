"""The cost of checkpoints in peers' memory: iterations with and without them on real ranks (figures 6.7, 6.8, 6.16)."""

import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter
from statistics import fmean, pstdev
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict

from workbench.checks import require_counts
from workbench.cluster import Link
from workbench.parallel.timeouts import timeout_of
from workbench.parallel.voting import Voting, is_installed
from workbench.rows import median_row, ratio_row, value_row
from workbench.study.timing import Timed, Trial, Turns, open_ranks, time_variants
from workbench.timeline import Recorder

from ..method import Scheme, idle_spans_s
from ..runtime import PRELOAD, CheckpointOptions, InMemoryCheckpoints
from .training import LEARNING_RATE, PoolContext, Size, Tokens, digest_of

__all__ = ["ASYNC_SAVE", "TORCHFT", "AsyncSave", "Facts", "Watched", "length_at"]
__all__ += ["length_rows", "measure_lengths", "measure_overhead", "overhead_rows", "predict"]

TIMEOUT_S = 1800.0
BASELINE = Scheme.BASELINE.value
ONE_PER_CENT = 0.01  # "negligible", as of the other items
ASYNC_SAVE = "async_save"  # torch.distributed.checkpoint's, beside the names of `Scheme`
TORCHFT = "torchft"  # its replicas vote at every step; only for models that are not sharded
SETTLING = 3  # iterations before the first turn beside the profiled ones, so that some have chunks in spans
HASHED_BYTES_PER_S = 11e9  # of one core, measured
COPIED_BYTES_PER_S = 5.8e9  # of one core, measured
SOCKET_BYTES_PER_S = 2e9  # of one core that sends or receives through the kernel and a shaped link; an estimate


def predict(
    *, shard_bytes: int, iteration_s: float, bandwidth_bytes_per_s: float, num_machines: int, num_cores: int
) -> dict[str, float]:
    """Predict the cost of one replica in a peer's memory on ranks that share cores, where idle time suffices."""
    # A rank copies its own shard and sends it, receives another, and takes the checksums of both.
    seconds_per_byte = 1 / COPIED_BYTES_PER_S + 2 / HASHED_BYTES_PER_S + 2 / SOCKET_BYTES_PER_S
    work_s = shard_bytes * seconds_per_byte * num_machines / min(num_cores, num_machines)
    network_s = shard_bytes / bandwidth_bytes_per_s
    return {
        "Gemini, over Baseline": 1 + work_s / iteration_s,
        "Blocking, over Baseline": 1 + (work_s + network_s) / iteration_s,
        "processors' work (ms)": 1000 * work_s,
        "on the link (ms)": 1000 * network_s,
    }


def measure_overhead(
    schemes: Sequence[str],
    *,
    size: Size,
    num_machines: int,
    bandwidth_bytes_per_s: float,
    turns: Turns,
    num_profiled: int = 6,
    reserved_bytes: int = 262_144,
) -> Timed:
    """Train with all schemes in turns."""
    chosen = [name if name in (ASYNC_SAVE, TORCHFT) else Scheme(name).value for name in schemes]
    if BASELINE not in chosen or len(set(chosen)) != len(chosen) or len(chosen) < 2:
        raise ValueError(f"schemes is {list(schemes)}; it must be different ones, Baseline among them")
    if TORCHFT in chosen and (size.sharded or not is_installed()):
        rule = "torchft needs a model that is not sharded, and the package torchft"
        raise ValueError(f"schemes is {list(schemes)}, size.sharded is {size.sharded}; {rule}")
    require_counts(1, num_profiled=num_profiled, reserved_bytes=reserved_bytes)
    turns.check_interval()
    link, preload = Link(bandwidth_bytes_per_s=bandwidth_bytes_per_s), (*PRELOAD, __name__)
    options = {"num_profiled": num_profiled, "reserved_bytes": reserved_bytes}
    ranks = open_ranks(num_machines, link=link, preload=preload, timeout_s=TIMEOUT_S)
    with tempfile.TemporaryDirectory() as folder, ranks:
        return time_variants(ranks, trials, chosen, size, options, folder, turns=turns)


def measure_lengths(batches: Sequence[int], *, size: Size, **setting: Any) -> dict[int, Timed]:
    """Train with and without Gemini with several batches, and so with iterations of several lengths."""
    require_counts(1, **{"len(batches)": len(batches)})
    schemes = [BASELINE, Scheme.GEMINI.value]
    return {batch: measure_overhead(schemes, size=replace(size, batch=batch), **setting) for batch in batches}


def length_rows(measured: Mapping[int, Timed]) -> list[dict[str, Any]]:
    """Return the quantities by batch, and the seconds of an iteration from which on a checkpoint costs under 1 %."""
    rows = [row | {"batch": batch} for batch, timed in measured.items() for row in overhead_rows(timed)]
    values = {(row["quantity"], row["scheme"], row["batch"]): row["value"] for row in rows}
    cost = [values["over_baseline", Scheme.GEMINI.value, batch] - 1 for batch in measured]
    lengths_s = [values["iteration_s", BASELINE, batch] for batch in measured]
    crossing_s = length_at(list(zip(lengths_s, cost, strict=True)), ONE_PER_CENT)
    return rows if crossing_s is None else [*rows, value_row("one_per_cent_s", crossing_s, "s")]


def length_at(curve: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return the seconds of an iteration from which on a cost stays under a share of it; None if it never does.

    Between measured lengths the cost is taken to be inverse to the length, as that of constant work is.
    """
    points = sorted(curve, reverse=True)
    if not points or points[0][1] >= share:
        return None
    for (longer_s, low), (shorter_s, high) in pairwise(points):
        if high >= share:
            part = (share - low) / (high - low)
            return 1 / (1 / longer_s + part * (1 / shorter_s - 1 / longer_s))
    return points[-1][0]


def overhead_rows(timed: Timed) -> list[dict[str, Any]]:
    """Return quantities by scheme: medians over rounds of the ranks' means, with intervals."""

    def means(scheme: str, name: str) -> list[float]:
        return [fmean(map(attrgetter(name), turns)) for turns in timed.rounds[scheme]]

    rows, baseline_s = [], means(BASELINE, "iteration_s")
    for scheme in timed.rounds:
        iteration_s, facts = means(scheme, "iteration_s"), timed.facts[scheme]
        rows.append(median_row("iteration_s", iteration_s, "s", scheme=scheme))
        rows.append(median_row("cpu_s", means(scheme, "cpu_s"), "s", scheme=scheme))
        if scheme == BASELINE:
            continue
        rows.append(ratio_row("over_baseline", iteration_s, baseline_s, scheme=scheme))
        if scheme == TORCHFT:
            continue  # it adds up gradients in another order
        different = sum(a.digest != b.digest for a, b in zip(facts, timed.facts[BASELINE], strict=True))
        rows.append(value_row("different_ranks", different, scheme=scheme))
        if scheme == ASYNC_SAVE:
            continue
        rows.append(median_row("checkpoint_s", means(scheme, "notes.checkpoint_s"), "s", scheme=scheme))
        for name, unit in (("shard_bytes", "byte"), ("buffer_bytes", "byte"), ("num_chunks", "1")):
            rows.append(value_row(name, max(getattr(fact, name) for fact in facts), unit, scheme=scheme))
    # Idle time before and after, of schemes whose link was measured.
    idle_rows, before_s = [], []
    for scheme, facts in timed.facts.items():
        if scheme == BASELINE or any(fact.network_s is None for fact in facts):
            continue
        network_s, idle_before_s = max(fact.network_s for fact in facts), means(scheme, "notes.idle_before_s")
        before_s += idle_before_s
        left_s = [idle - network_s for idle in means(scheme, "notes.idle_s")]
        idle_rows.append(median_row("idle_s", left_s, "s", scheme=scheme))
        idle_rows.append(median_row("idle_used", [network_s / idle for idle in idle_before_s], scheme=scheme))
        idle_rows.append(value_row("network_s", network_s, "s", scheme=scheme))
    if before_s:
        deviation = pstdev(before_s) / fmean(before_s)  # normalised standard deviation, section 6.5.4
        rows.append(median_row("idle_s", before_s, "s", scheme=BASELINE))
        rows.append(value_row("idle_deviation", deviation, scheme=BASELINE))
    return rows + idle_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Watched:
    """Idle and checkpoint times of a turn on one rank; means over timed iterations but for the first field."""

    idle_before_s: float  # without messages of training, in the iteration that no checkpoint travels in
    idle_s: float  # the same with checkpoints
    checkpoint_s: float  # from the beginning of a checkpoint until all was sent and received


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Facts about a scheme after its last turn, on one rank."""

    digest: str  # of weights and optimizer
    shard_bytes: int = 0  # of one checkpoint
    buffer_bytes: int = 0  # of the sub-buffers of both directions
    num_chunks: int = 0  # of one checkpoint
    network_s: float | None = None  # of its chunks at the measured speed of the link; None where that was not measured


def trials(
    recorder: Recorder, schemes: Sequence[str], size: Size, options: Mapping[str, Any], folder: str
) -> dict[str, Trial]:
    """Build the training of every scheme on this rank; all start from the same weights and see the same tokens."""
    settling = options["num_profiled"] + SETTLING
    built = {scheme: _Training(scheme, size, options, folder) for scheme in schemes}
    return {
        scheme: Trial(settling=settling, step=run.step, begin=run.begin, end=run.end, close=run.close)
        for scheme, run in built.items()
    }


class _Training:
    """A scheme under way on one rank."""

    def __init__(self, scheme: str, size: Size, options: Mapping[str, Any], folder: str):
        self._context = PoolContext(dist.get_rank(), dist.get_world_size())
        model, self._tokens = size.model(scheme != TORCHFT), Tokens(size, dist.get_rank())
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        self._model, self._optimizer = model, optimizer
        self._checkpoints: InMemoryCheckpoints | AsyncSave | None = None
        self._voting: Voting | None = None
        self._idle_before_s, self._logged = 0.0, 0
        self._idle_s: list[float] = []
        if scheme == ASYNC_SAVE:
            self._checkpoints = AsyncSave(model, optimizer, folder)
        elif scheme == TORCHFT:
            import torchft

            def load(state: dict) -> None:
                model.load_state_dict(state["model"])
                optimizer.load_state_dict(state["optimizer"])

            self._voting = Voting(load, lambda: {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
            self._model = torchft.DistributedDataParallel(self._voting.manager, model)
            self._optimizer = torchft.Optimizer(self._voting.manager, optimizer)
            self._optimizer.zero_grad()  # which asks for the first quorum
        elif scheme != BASELINE:
            chosen = CheckpointOptions(scheme=scheme, **options)
            self._checkpoints = InMemoryCheckpoints(self._context, model, optimizer, options=chosen)

    def begin(self) -> None:
        """Run one iteration before the clock starts: its checkpoint travels in the first timed one."""
        self._idle_before_s = self._iterate()
        self._idle_s, self._logged = [], len(self._context.events)

    def step(self) -> None:
        self._idle_s.append(self._iterate())

    def end(self) -> Watched | None:
        """Finish the checkpoint that travels; return the times of the checkpoints that ended in timed iterations."""
        ended = [details for name, details in self._context.events[self._logged :] if name == "checkpoint"]
        if self._checkpoints is not None:
            self._checkpoints.wait()
        dist.barrier()
        if not isinstance(self._checkpoints, InMemoryCheckpoints) or not ended:
            return None
        seconds = [max(details["sent_s"], details["received_s"]) for details in ended]
        return Watched(idle_before_s=self._idle_before_s, idle_s=fmean(self._idle_s), checkpoint_s=fmean(seconds))

    def close(self) -> Facts:
        """Release everything and return the facts of the scheme."""
        digest = digest_of(self._model, self._optimizer)
        if self._voting is not None:
            self._voting.close()
        checkpoints = self._checkpoints
        if not isinstance(checkpoints, InMemoryCheckpoints):
            return Facts(digest=digest)
        link, chunks = checkpoints.interleaving.link, checkpoints.interleaving.chunks(checkpoints.shard_bytes)
        sizes = {"shard_bytes": checkpoints.shard_bytes, "buffer_bytes": checkpoints.buffer_bytes}
        seconds = [link.time_s(chunk.size_bytes) for chunk in chunks] if link else None
        checkpoints.close()
        self._context.close()
        network_s = None if seconds is None else sum(seconds)
        return Facts(digest=digest, **sizes, num_chunks=len(chunks), network_s=network_s)

    def _iterate(self) -> float:
        """Run an iteration and return its idle seconds, 0 where nobody watches for them."""
        began_s = time.monotonic()
        self._tokens.loss(self._model).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()
        checkpoints, idle = self._checkpoints, 0.0
        if isinstance(checkpoints, InMemoryCheckpoints):
            idle = sum(idle_spans_s(checkpoints.watch.operations, began_s, time.monotonic()))
        if checkpoints is not None:
            checkpoints.step()
        return idle


class AsyncSave:
    """Saves every iteration by torch's async_save; one save at a time, so that training waits for the one before."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, folder: str):
        self._model, self._optimizer, self._folder = model, optimizer, folder
        warnings.filterwarnings("ignore", module="torch.distributed.checkpoint")  # of its own planner, at every save
        self._group = dist.new_group(timeout=timeout_of())  # its collectives run in a thread beside training's
        self._saving: Future | None = None

    def step(self) -> None:
        """Begin to save the iteration just done; the state is copied before this returns."""
        self.wait()
        self._model.zero_grad()  # or torch takes the gradients for the sign of a state
        state = dict(zip(("model", "optimizer"), get_state_dict(self._model, self._optimizer), strict=True))
        saving = checkpoint.async_save(state, checkpoint_id=self._folder, process_group=self._group)
        assert isinstance(saving, Future)  # without a stager of one's own
        self._saving = saving

    def wait(self) -> None:
        """Wait until what is being saved lies in files."""
        if self._saving is not None:
            self._saving.result()
            self._saving = None

    close = wait
