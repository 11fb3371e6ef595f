"""The rows of what is measured: sparsity in real training, hashing on this machine, and the schemes on real ranks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations, pairwise
from math import ceil, log2
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts, require_positive
from workbench.cluster import GIGABIT_BYTES_PER_S, Link
from workbench.parallel.hooks import BUCKET_MB
from workbench.rows import median_row, ratio_row, spread_row, value_row
from workbench.rows.cells import named
from workbench.rows.progress import say_progress
from workbench.study.embedding_tasks import EmbeddingTask
from workbench.study.timing import Timed, Trial, Turns, device_named, open_ranks, time_calls, time_variants
from workbench.timeline import Recorder

from .advice import chances_of
from .cost import SCHEMES as IN_THEORY
from .cost import broadcast_over_balanced, seconds, sparsity_of, task_sets
from .method.hashing import hierarchical_hash, partition, partition_of
from .method.sparsity import (
    densification_ratio,
    imbalance_ratio,
    overlap_ratio,
    push_imbalance,
    range_counts,
    skewness_ratio,
    union_of,
)
from .runtime.hook import SparseSynchroniser, synchronise
from .runtime.schemes import SCHEMES, strawman
from .runtime.sparse import Sparse

__all__ = ["Setting", "balance_rows", "extraction_rows", "hashing_rows", "in_words", "learning_rows"]
__all__ += ["overlap_rows", "scheme_rows", "skewness_rows", "table_rows", "time_densities", "time_gradients"]
__all__ += ["predicted_s", "threshold_rows", "time_trainings", "train"]

DENSE, ZEN = "Dense", "Zen"
SEED = 0


def _trained(name: str, batch: int, steps: int) -> EmbeddingTask:
    """Train a task for some steps on one rank."""
    task = EmbeddingTask(name, batch=batch, seed=SEED)
    optimizer = task.optimizer(task.module.parameters(), task.learning_rate, 0.0)
    for step in range(steps):
        optimizer.zero_grad()
        task.loss(task.module, task.draw(0, step)).backward()
        optimizer.step()
    return task


def _gradient_rows(task: EmbeddingTask, rank: int, step: int) -> dict[str, np.ndarray]:
    """Return the rows of each table whose gradient is not zero, by a backward pass."""
    task.module.zero_grad()
    task.loss(task.module, task.draw(rank, step)).backward()
    weights = dict(task.module.named_parameters())
    return {name: Sparse.of(weights[name].grad.to_dense()).indices.numpy() for name in task.embeddings}


def table_rows(*, tasks: Sequence[str], batch: int, steps: int) -> list[dict[str, Any]]:
    """Return sizes and densities of the tasks' gradients after some steps of training.

    `unlike_looked_up` counts rows that are only in the batch or only in the gradient. It checks that batches can give
    the index sets of many ranks.
    """
    rows = []
    for name in tasks:
        task, row = _trained(name, batch, steps), partial(value_row, task=name)
        weights = dict(task.module.named_parameters())
        tables = sum(weights[table].numel() for table in task.embeddings)
        others = sum(weight.numel() for weight in weights.values()) - tables
        rows += [row("embedding_parameters", tables), row("other_parameters", others)]
        nonzero, looked_up = _gradient_rows(task, 0, steps), task.touched(0, steps)
        unlike = sum(len(np.setxor1d(nonzero[table], looked_up[table])) for table in nonzero)
        rows.append(row("unlike_looked_up", unlike))
        elements = sum(len(nonzero[table]) * weights[table][0].numel() for table in nonzero)
        rows.append(row("density", elements / tables))
    return rows


def overlap_rows(
    *, tasks: Sequence[str], batch: int, num_ranks: Sequence[int], pairs: int, steps: int
) -> list[dict[str, Any]]:
    """Return overlap ratios of pairs of ranks in the first table, as quantiles, and densification by ranks.

    `tails` is the range of nine tenths of the pairs over that of the middle half: 2.44 of a normal distribution.
    """
    rows = []
    for name in tasks:
        task = _trained(name, batch, steps)
        sets, _ = task_sets(task, max(num_ranks), steps)[0]
        few = sets[: int((2 * pairs) ** 0.5) + 1]
        overlaps = [overlap_ratio(first, second) for first, second in combinations(few, 2)]
        for percent in (0, 5, 25, 50, 75, 95, 100):
            quantile = float(np.percentile(overlaps, percent))
            rows.append(value_row("overlap", quantile, task=name, percentile=percent))
        least, low, high, most = np.percentile(overlaps, (5, 25, 75, 95))
        rows.append(value_row("tails", float((most - least) / (high - low)), task=name))
        for num in num_ranks:
            rows.append(value_row("densification", densification_ratio(sets[:num]), task=name, ranks=num))
    return rows


def skewness_rows(*, tasks: Sequence[str], batch: int, num_partitions: Sequence[int], steps: int) -> list[dict]:
    """Return how unevenly the rows of a task's first table are touched, and the share of each of eight ranges.

    `share_by_frequency` is of the first range if all rows stand in one order, by how many of 128 batches touch them.
    """
    rows = []
    for name in tasks:
        task = _trained(name, batch, steps)
        table, indices = next(iter(task.touched(0, steps).items()))
        num_rows = task.embeddings[table]
        for num in num_partitions:
            rows.append(value_row("skewness", skewness_ratio(indices, num_rows, num), task=name, partitions=num))
        for number, count in enumerate(range_counts(indices, num_rows, 8)):
            rows.append(value_row("share", count / len(indices), task=name, range=number))
        counts = np.bincount(np.concatenate(task_sets(task, 128, steps)[0][0]), minlength=num_rows)
        frequent = np.argsort(-counts, kind="stable")[: num_rows // 8]
        rows.append(value_row("share_by_frequency", float(np.isin(indices, frequent).mean()), task=name))
        rows.append(value_row("density", len(indices) / num_rows, task=name))
    return rows


def balance_rows(*, task: str, batch: int, num_ranks: Sequence[int], steps: int) -> list[dict[str, Any]]:
    """Return the imbalance of push and pull by equal ranges (Sparse PS) and by hashing values, as Zen does, or rows."""
    trained, rows = _trained(task, batch, steps), []
    width = dict(trained.module.named_parameters())[next(iter(trained.embeddings))].shape[1]
    for num in num_ranks:
        sets, num_rows = task_sets(trained, num, steps)[0]
        values = [(indices[:, None] * width + np.arange(width)).ravel() for indices in sets]
        everything = torch.arange(num_rows * width)
        homes = {
            "Sparse PS": np.arange(num_rows) * num // num_rows,
            "Zen, rows": partition_of(everything[:num_rows], num, SEED).numpy(),
            ZEN: partition_of(everything, num, SEED).numpy(),
        }
        for scheme, home in homes.items():
            chosen = values if scheme == ZEN else sets
            keys: dict[str, Any] = {"scheme": scheme, "ranks": num}
            rows.append(value_row("imbalance", push_imbalance(chosen, home, num), what="push", **keys))
            pull = imbalance_ratio(np.bincount(home[union_of(chosen)], minlength=num))
            rows.append(value_row("imbalance", pull, what="pull", **keys))
        rows.append(value_row("rows", float(np.mean([len(indices) for indices in sets])), ranks=num))
        rows.append(value_row("density_of_sum", len(union_of(sets)) / num_rows, ranks=num))
        rows.append(value_row("examples", batch * num, ranks=num))
    return rows


def extraction_rows(
    *, domain_size: int, memories: Sequence[float], densities: Sequence[float], runs: int, device: str
) -> list[dict[str, Any]]:
    """Return how long `nonzero` takes, by memory (slots over |G|) and density of the gradient.

    Zen's memory has two slots for each value; `over_zen` is the largest memory's time over its.
    """
    draw, place, rows = torch.Generator().manual_seed(SEED), device_named(device), []
    for share in densities:
        memory_of = {}
        for memory in (2 * share, *memories):
            slots = torch.zeros(round(memory * domain_size), dtype=torch.int32, device=place)
            slots[torch.randint(len(slots), (round(share * domain_size),), generator=draw).to(place)] = 1
            memory_of[memory] = slots.nonzero
        times_s = time_calls(memory_of, runs, place)
        rows += [median_row("extraction_s", taken, "s", memory=at, density=share) for at, taken in times_s.items()]
        rows.append(ratio_row("over_zen", times_s[max(memories)], times_s[2 * share], density=share))
    return rows


def hashing_rows(
    *,
    domain_size: int,
    share: float,
    num_partitions: int,
    slots_per_index: Sequence[float],
    num_hashes: Sequence[int],
    runs: int,
    device: str,
) -> list[dict[str, Any]]:
    """Return times of partitioning, by algorithm 3.2 with r1 and k, by counting and by sorting, and of `nonzero`.

    `over_counting` holds the ratios within each round.
    """
    place = device_named(device)
    gradient = torch.zeros(domain_size, device=place)
    chosen = torch.randperm(domain_size, generator=torch.Generator().manual_seed(SEED))[: round(share * domain_size)]
    gradient[chosen.to(place)] = 1.0
    indices = gradient.nonzero().squeeze(1)

    def hashed(slots: float, hashes: int) -> Callable[[], object]:
        r1 = round(slots * len(indices))
        sizes = {"parallel_slots": r1, "serial_slots": r1 // 10}
        return partial(hierarchical_hash, indices, num_partitions, num_hashes=hashes, seed=SEED, **sizes)

    calls: dict[str, Callable[[], object]] = {f"r1, {slots}": hashed(slots, 3) for slots in slots_per_index}
    calls |= {f"k, {hashes}": hashed(2.0, hashes) for hashes in num_hashes}
    calls["nonzero, "] = gradient.nonzero
    calls["counting, "] = partial(partition, indices, num_partitions, SEED)
    calls["sorting, "] = lambda: indices[partition_of(indices, num_partitions, SEED).sort(stable=True)[1]]
    times_s, rows = time_calls(calls, runs, place), []
    if {3, 4} <= set(num_hashes):
        rows.append(ratio_row("four_over_three", times_s["k, 4"], times_s["k, 3"]))
    for name, taken in times_s.items():
        way, _, number = name.partition(", ")
        keys = {"way": way, "number": float(number)} if number else {"way": way}
        rows.append(median_row("partition_s", taken, "s", **keys))
        rows.append(ratio_row("over_counting", taken, times_s["counting, "], **keys))
        rows.append(ratio_row("over_nonzero", taken, times_s["nonzero, "], **keys))
    return rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """Ranks on shaped hosts, one each."""

    num_ranks: int = 4
    gigabits_per_s: float = 1.0
    batch: int = 64  # examples of a rank
    seed: int = 0

    def __post_init__(self) -> None:
        require_counts(2, num_ranks=self.num_ranks)
        require_counts(1, batch=self.batch)
        require_positive(gigabits_per_s=self.gigabits_per_s)

    @property
    def link(self) -> Link:
        return Link(bandwidth_bytes_per_s=self.gigabits_per_s * GIGABIT_BYTES_PER_S, source="a chosen rate")


def _time(setting: Setting, turns: Turns, build: Callable, *args: Any) -> Timed:
    with open_ranks(setting.num_ranks, link=setting.link, preload=("workbench.techniques.zen.measured",)) as ranks:
        return time_variants(ranks, build, setting, *args, turns=turns)


def time_densities(setting: Setting, densities: Sequence[float], num_elements: int, turns: Turns) -> Timed:
    """Time every scheme on values that are zero but for some shares of them, stored densely.

    The chances of indices fall as 1/rank of their frequency, as words' do, so that ranks overlap and ranges are uneven.
    """
    return _time(setting, turns, _density_trials, tuple(densities), num_elements)


def zipf_values(num_elements: int, share: float, rank: int) -> Tensor:
    """Draw a rank's values, [num_elements], of which about a share is not zero: the first ones likeliest."""
    draw = np.random.default_rng([SEED, rank])
    is_there = draw.random(num_elements) < chances_of(share, num_elements)
    return torch.from_numpy(np.where(is_there, draw.standard_normal(num_elements), 0.0).astype(np.float32))


def _density_trials(
    recorder: Recorder, setting: Setting, densities: Sequence[float], num_elements: int
) -> dict[str, Trial]:
    trials = {}
    for share in densities:
        gradient = zipf_values(num_elements, share, dist.get_rank())
        copy = gradient.clone()
        for scheme in SCHEMES:
            trials[f"{share}: {scheme}"] = _summing(scheme, [gradient], [copy])
    return trials


def _summing(scheme: str, gradients: Sequence[Tensor], copies: Sequence[Tensor] = ()) -> Trial:
    """Sum gradients together, in place as torch's all-reduce does; copies keep what dense ones hold before a turn."""
    sums = SparseSynchroniser(scheme=scheme)

    def step() -> None:
        sums.all_reduce_(gradients)

    def restore() -> None:
        for gradient, copy in zip(gradients, copies, strict=False):
            gradient.copy_(copy)

    def close() -> dict[str, Any]:
        before = sums.wire.sent_bytes, sums.wire.received_bytes
        step()
        restore()
        sent, received = sums.wire.sent_bytes - before[0], sums.wire.received_bytes - before[1]
        return {"sent_bytes": sent, "received_bytes": received}

    return Trial(step=step, settling=1, end=restore, close=close)


def time_gradients(setting: Setting, tasks: Sequence[str], turns: Turns) -> Timed:
    """Time every scheme on the gradients of a task's embeddings, sparse as torch stores them."""
    return _time(setting, turns, _gradient_trials, tuple(tasks))


def _gradient_trials(recorder: Recorder, setting: Setting, tasks: Sequence[str]) -> dict[str, Trial]:
    trials = {}
    for name in tasks:
        task = EmbeddingTask(name, batch=setting.batch, seed=setting.seed, sparse=True)
        task.loss(task.module, task.draw(dist.get_rank(), 0)).backward()
        weights = dict(task.module.named_parameters())
        gradients = [weights[table].grad.coalesce() for table in task.embeddings]
        for scheme in SCHEMES:
            trials[f"{name}: {scheme}"] = _summing(scheme, gradients)
    return trials


def time_trainings(setting: Setting, tasks: Sequence[str], turns: Turns) -> Timed:
    """Time a step of training: DDP as it is, and with every scheme for its embeddings."""
    return _time(setting, turns, _training_trials, tuple(tasks))


def _training_trials(recorder: Recorder, setting: Setting, tasks: Sequence[str]) -> dict[str, Trial]:
    trials = {}
    for name in tasks:
        for scheme in ("DDP", *SCHEMES):
            task = EmbeddingTask(name, batch=setting.batch, seed=setting.seed, sparse=scheme not in ("DDP", DENSE))
            trials[f"{name}: {scheme}"] = _training(task, scheme)
    return trials


def _training(task: EmbeddingTask, scheme: str) -> Trial:
    if scheme == "DDP":
        model = DistributedDataParallel(task.module)
    else:
        model = DistributedDataParallel(task.module, bucket_cap_mb=BUCKET_MB)
        synchronise(model, scheme=scheme)
    optimizer, batch = task.optimizer(model.parameters(), task.learning_rate, 0.0), task.draw(dist.get_rank(), 0)

    def step() -> None:
        optimizer.zero_grad()
        task.loss(model, batch).backward()
        optimizer.step()

    return Trial(step=step, settling=2)


def in_words(values: Sequence[Mapping[str, Any]], setting: Setting, density: float) -> str:
    """Say how long each scheme takes at one density, in a sentence."""
    rows = [row for row in values if row["quantity"] == "seconds" and row["density"] == density]
    times = {row["scheme"]: f"{1000 * row['value']:.0f} ms" for row in rows}
    others = ", ".join(f"{name} {took}" for name, took in times.items() if not name.startswith(ZEN))
    ranks = f"{setting.num_ranks} ranks at {setting.gigabits_per_s:g} Gbit/s"
    return f"{ranks} sum gradients of {density:.0%} density by Zen in {times[ZEN]}; {others}."


def scheme_rows(timed: Timed, key: str, predicted_s: Mapping[tuple[str, str], float] | None = None) -> list[dict]:
    """Return times of all schemes, Zen's gain over each scheme within a round, and the bytes of the busiest rank.

    `cpu_s` is the processor time of all ranks together.

    Args:
        timed: trials named "value of the key: scheme".
        key: "task" or "density".
        predicted_s: predicted times by value of the key and scheme.
    """
    rows, taken = [], {name: timed.iterations_s(name) for name in timed.rounds}
    for name, times_s in taken.items():
        value, _, scheme = name.partition(": ")
        at: dict[str, Any] = {key: float(value) if key == "density" else value}
        rows.append(median_row("seconds", times_s, "s", scheme=scheme, **at))
        rows.append(median_row("cpu_s", timed.cpu_s(name), "s", scheme=scheme, **at))
        rows.append(ratio_row("gain", times_s, taken[f"{value}: {ZEN}"], over=scheme, **at))
        counted = [facts for facts in timed.facts[name] if facts]
        if counted:
            most = max(max(facts["sent_bytes"], facts["received_bytes"]) for facts in counted)
            rows.append(value_row("busiest_bytes", most, "B", scheme=scheme, **at))
        if predicted_s and (value, scheme) in predicted_s:
            expected_s = predicted_s[value, scheme]
            rows.append(value_row("predicted_s", expected_s, "s", scheme=scheme, **at))
            rows.append(value_row("measured_over_predicted", median(times_s) / expected_s, scheme=scheme, **at))
    return rows + (_crossover_rows(rows) if key == "density" else [])


def _crossover_rows(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the density with equal times of Dense and Zen, between two measured densities, if there is one."""
    gains = sorted((row["density"], row["value"]) for row in rows if row["quantity"] == "gain" and row["over"] == DENSE)
    for (low, before), (high, after) in pairwise(gains):
        if before >= 1 > after:
            share = np.log(before) / (np.log(before) - np.log(after))
            return [value_row("dense_takes_over", float(low * (high / low) ** share))]
    return []


def predicted_s(setting: Setting, densities: Sequence[float], num_elements: int) -> dict[tuple[str, str], float]:
    """Return the predicted times of schemes on the setting's link, for `time_densities`."""
    times_s: dict[tuple[str, str], float] = {}
    for share in densities:
        ranks = range(setting.num_ranks)
        sets = [np.flatnonzero(zipf_values(num_elements, share, rank).numpy()) for rank in ranks]
        of = sparsity_of(sets, num_elements, 1)
        times_s |= {(str(share), scheme): seconds(scheme, of, setting.link) for scheme in IN_THEORY}
    return times_s


@named("zen/train")
def train(
    *,
    task: str,
    variant: str,
    slots_per_value: float = 0.0,
    steps: int,
    batch: int,
    num_ranks: int,
    seed: int,
    points: int,
) -> dict[str, Any]:
    """Train a task on real ranks by "AllReduce", "Zen", or a strawman with `slots_per_value` slots.

    Returns the setting, test scores at `points` steps of the curve, and the data.
    """
    setting = {"task": task, "variant": variant, "slots_per_value": slots_per_value, "steps": steps, "batch": batch}
    setting |= {"num_ranks": num_ranks, "seed": seed, "points": points}
    with open_ranks(num_ranks, preload=("workbench.techniques.zen.measured",)) as ranks:
        return {"setting": setting, **ranks.run(_train_on_a_rank, setting)[0]}


def _train_on_a_rank(setting: Mapping[str, Any]) -> dict[str, Any]:
    task = EmbeddingTask(setting["task"], batch=setting["batch"], seed=setting["seed"])
    model = DistributedDataParallel(task.module, bucket_cap_mb=BUCKET_MB)
    if slots := setting["slots_per_value"]:
        synchronise(model, scheme=partial(strawman, slots_per_value=slots))
    elif setting["variant"] == ZEN:
        synchronise(model)
    optimizer, scores = task.optimizer(model.parameters(), task.learning_rate, 0.0), []
    edges = set(np.linspace(0, setting["steps"], setting["points"] + 1).round().astype(int)[1:].tolist())
    for step in range(setting["steps"]):
        optimizer.zero_grad()
        task.loss(model, task.draw(dist.get_rank(), step)).backward()
        optimizer.step()
        if step + 1 in edges:
            scores.append({"step": step + 1, **(task.scores(task.module) if dist.get_rank() == 0 else {})})
            task.module.train()
        say_progress(step + 1, setting["steps"], "steps")
    return {"scores": scores, "data": task.sources}


def learning_rows(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return scores of every variant, medians over seeds with the extremes, and points below AllReduce's.

    `lost` is the share of a rank's values that the strawman loses, by the formula of balls in bins.
    """
    by_name: dict[str, dict[int, list[dict[str, float]]]] = {}
    for result in results:
        setting = result["setting"]
        by_name.setdefault(setting["variant"], {})[setting["seed"]] = result["scores"]
    rows, plain = [], by_name["AllReduce"]
    metrics = [key for key in next(iter(plain.values()))[0] if key != "step"]
    for name, by_seed in by_name.items():
        for metric in metrics:
            for place, point in enumerate(next(iter(by_seed.values()))):
                at_point = [scores[place][metric] for scores in by_seed.values()]
                rows.append(spread_row("score", at_point, "%", variant=name, step=point["step"], metric=metric))
            below = [plain[seed][-1][metric] - scores[-1][metric] for seed, scores in by_seed.items()]
            rows.append(spread_row("points_below", below, "%", variant=name, metric=metric))
    slots = {result["setting"]["variant"]: result["setting"]["slots_per_value"] for result in results}
    lost = {name: 1 + per * np.expm1(-1 / per) if per else 0.0 for name, per in slots.items()}
    return [*rows, *(value_row("lost", float(share), variant=name) for name, share in lost.items())]


def threshold_rows(*, task: str, batch: int, num_ranks: int, steps: int) -> list[dict[str, Any]]:
    """Return the imbalance of the push in later steps, where thresholds cut the first step's rows into even parts.

    This is the strawman that looks at the data (section 3.3.2); Sparse PS with a broadcast (lemma 3.4) is beside it.

    The text sorts the index set I, which is that of all ranks; one rank's own is beside it. Parts are of the first
    table, the density is of all.
    """
    trained = EmbeddingTask(task, batch=batch, seed=0)
    tables = task_sets(trained, num_ranks)
    sets, num_rows = tables[0]
    later = [task_sets(trained, num_ranks, step)[0][0] for step in range(1, steps + 1)]
    touched = sum(len(indices) for of_table, _ in tables for indices in of_table) / num_ranks
    rows = [value_row("density", touched / sum(num for _, num in tables))]
    for of, known in (("all ranks", union_of(sets)), ("one rank", sets[0])):
        home = threshold_homes(known, num_rows, num_ranks)
        imbalances = [push_imbalance(indices, home, num_ranks) for indices in later]
        rows += [value_row("imbalance", pick(imbalances), of=of, step=pick.__name__) for pick in (min, max)]
        rows.append(value_row("fluctuation", max(imbalances) / min(imbalances), of=of))
    skewness = float(np.mean([skewness_ratio(indices, num_rows, num_ranks) for indices in sets]))
    for algorithm, rounds in (
        ("binomial tree", ceil(log2(num_ranks))),
        ("scatter and all-gather", 2 * (num_ranks - 1) / num_ranks),
    ):
        ratio = broadcast_over_balanced(skewness, densification_ratio(sets), rounds, num_ranks)
        rows.append(value_row("broadcast_over_balanced", ratio, algorithm=algorithm))
    return rows


def threshold_homes(known: np.ndarray, num_rows: int, num_parts: int) -> np.ndarray:
    """Return the part of every row, int64 [rows], by thresholds that cut known rows, ascending, into even parts."""
    bounds = known[np.arange(1, num_parts) * len(known) // num_parts]
    return np.searchsorted(bounds, np.arange(num_rows), side="right")
