"""Train a Vision Transformer while its stragglers are helped, and score it: the cells of figures 3 and 5 to 11.

Virtual and real ranks run the same loop on the same batches and make the same plans. Plans follow the modelled times of
the paper's machine (`cost`), so that the dropped columns are those that would be dropped there. The "% accuracy loss"
of section V may be points or a share of the Baseline's accuracy; the key `reading` tells which.
"""

import inspect
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import zip_longest
from math import fsum
from statistics import fmean
from typing import Any

from torch.nn import functional

from workbench.datasets import cifar10
from workbench.launch import Ranks
from workbench.models.vit import VIT_1B, VIT_3B, VIT_TINY, ViTForImageClassification
from workbench.parallel import ProcessTensorGroup, VirtualTensorGroup
from workbench.parallel.pipeline import VirtualPipeline
from workbench.rows import value_row
from workbench.rows.cells import named
from workbench.study import training
from workbench.study.images import Augmentation, ImageExamples, accuracy
from workbench.study.loop import Recipe, train
from workbench.study.training import PER_CENT, over_seeds, sources, standard_error
from workbench.techniques.flextp import cost as modelled
from workbench.techniques.flextp.measured.rows import BASELINE, Options, Rows, Variant, name_of
from workbench.techniques.flextp.method.plan import MOST_REMOVED, require
from workbench.techniques.flextp.method.resizing import micro_threshold
from workbench.techniques.flextp.runtime import ModelledTimes, balance, check_policy

__all__ = ["BASELINE", "CONTROL", "POINTS", "RELATIVE", "SIZES", "accuracy_rows", "blind_reason", "chance_reason"]
__all__ += ["compare_on_ranks", "compared_by_seed", "rows_as_timed", "sources", "train_vit", "train_vit_on_ranks"]
__all__ += ["training_cells", "variants_as_timed"]

Values = Mapping[str, Any]  # a variant and a seed, or the results of `train_vit`
Names = Sequence[str]  # of keys, or of trainings
SMALL = replace(VIT_TINY, hidden_size=192, mlp_size=768)  # as much wider than tiny as ViT-3B than ViT-1B
# Plans follow the times of ViT-3B for "small" and "3B", else of ViT-1B.
SIZES = {"tiny": VIT_TINY, "small": SMALL, "1B": VIT_1B, "3B": VIT_3B}
MEAN_LEARNING_RATE = 0.5  # of its peak, over a short warm-up and a linear decay to zero
VARIANT = tuple(field.name for field in fields(Variant))
POINTS, RELATIVE = "points", "relative"  # readings of "% accuracy loss"
TIMEOUT_S = 600.0  # of a training on real ranks
MOST_DROPPING = "ZERO-Pri"
CONTROL = "ZERO-Pri everywhere"  # every rank drops the share of Pri's straggler: shows whether a loss can be seen
SHOWN = {name: name for name in ("accuracy", "accuracy_loss", "loss_in_spreads", "num_updates")}
SHOWN |= {"dropped_share": "trained_dropped_share", "migrated_share": "trained_migrated_share"}  # beside the timed ones


@named("flextp/train_vit")
def train_vit(
    *,
    solution: str = "Baseline",
    selection: str = "Pri",
    pruning_ratio: float | None = None,
    everywhere: bool = False,
    dropped: Sequence[float] = (),
    imputation: str = "Zero",
    is_incremental: bool = True,
    num_senders: int | None = None,
    refine: bool = False,
    skewness: Sequence[float] = (),
    moves: bool = False,
    seed: int = 0,
    num_ranks: int = 4,
    size: str = "tiny",
    epochs: int = 10,
    batch: int = 64,
    learning_rate: float = 1e-3,
    limit: int | None = None,  # training images, drawn with the seed
    device: str = "cpu",
) -> dict[str, Any]:
    """Train on virtual ranks in this process, and score; arguments up to `moves` are of `Variant`."""
    return _run(_checked(locals()))


def train_vit_on_ranks(ranks: Ranks, **arguments: Any) -> dict[str, Any]:
    """Train on real ranks of this machine, without injected delays; the plans are those of `train_vit`."""
    given = _checked(arguments)
    require(given["num_ranks"] == ranks.num_ranks, "num_ranks", given["num_ranks"], f"the pool's {ranks.num_ranks}")
    results = ranks.run(_run, given, True)
    return {**results[0], "dropped_share": fsum(result["dropped_share"] for result in results) / len(results)}


def compare_on_ranks(compared: Sequence[Options], *, num_ranks: int, **recipe: Any) -> tuple[Rows, Rows]:
    """Train every variant on real and on virtual ranks; return rows of the differences, and all results."""
    variants = [(name_of(variant), {**recipe, **variant, "num_ranks": num_ranks}) for variant in compared]
    for _, arguments in variants:
        _checked(arguments)

    def differences(real: Values, virtual: Values) -> Iterator[tuple[str, float, str]]:
        yield "dropped_difference", PER_CENT * (real["dropped_share"] - virtual["dropped_share"]), "%"
        pairs = zip_longest(real["plans"], virtual["plans"])
        yield "plans_difference", float(sum(plan != other for plan, other in pairs)), "1"

    with Ranks(num_ranks, timeout_s=TIMEOUT_S, preload=(__name__,)) as ranks:
        on_real, columns = partial(train_vit_on_ranks, ranks), {"key": "solution", "score": "accuracy"}
        return training.compare_on_ranks(variants, on_real=on_real, on_virtual=train_vit, more=differences, **columns)


def compared_by_seed(compared: Sequence[Options], seeds: Sequence[int]) -> list[dict[str, Any]]:
    """List fields of `Variant` that are compared, with the Baseline before them, seed by seed."""
    return training.by_seed(compared, seeds, {"solution": BASELINE})


def training_cells(wanted: Sequence[Options], **recipe: Any) -> list[dict[str, Any]]:
    """Return every argument of `train_vit` for each training of `compared_by_seed`; some may be equal."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(train_vit).parameters.items()}
    cells = []
    for variant in wanted:
        if unknown := sorted({*recipe, *variant} - set(defaults)):
            raise ValueError(f"{unknown[0]} is given; it must be among {', '.join(defaults)}")
        cell = {**defaults, **recipe, **variant}
        is_constant = cell["everywhere"] or any(cell["dropped"])
        nobody_straggles = all(skewness == 1 for skewness in cell["skewness"])
        # Without stragglers nobody drops or migrates: the training is the Baseline, as under stragglers.
        if cell["solution"] == BASELINE or (nobody_straggles and not is_constant):
            cell |= {name: defaults[name] for name in VARIANT if name in defaults}
        elif cell["everywhere"] or cell["dropped"]:
            cell |= {"skewness": (), "moves": False}  # a constant plan follows nobody's times
        cells.append({**cell, "skewness": list(cell["skewness"]), "dropped": list(cell["dropped"])})
    return cells


def _checked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return every argument of `train_vit`; ValueError for an argument that cannot be."""
    bound = inspect.signature(train_vit).bind(**arguments)
    bound.apply_defaults()
    given = bound.arguments
    size, num_ranks, limit, variant = given["size"], given["num_ranks"], given["limit"], Variant.of(given)
    require(size in SIZES, "size", size, f"one of {', '.join(SIZES)}")
    heads = SIZES[size].num_heads
    rule = f"at least 2 and divide the model's {heads} attention heads"
    require(num_ranks >= 2 and heads % num_ranks == 0, "num_ranks", num_ranks, rule)
    require(limit is None or limit >= 1, "limit", limit, "at least 1, or None for all images")
    variant.trace(num_ranks, 1)
    check_policy(variant.policy(num_ranks), num_ranks)
    return given


def _run(given: Mapping[str, Any], is_real: bool = False) -> dict[str, Any]:
    start = time.perf_counter()
    variant, size, num_ranks = Variant.of(given), given["size"], given["num_ranks"]
    recipe = Recipe(**{name: given[name] for name in ("epochs", "batch", "learning_rate", "seed", "device")})
    group = ProcessTensorGroup() if is_real else VirtualTensorGroup(num_ranks)
    learning = cifar10.load("train", limit=given["limit"], seed=recipe.seed)
    scored = cifar10.load("test")
    iterations = -(-len(learning) // recipe.batch)
    model = ViTForImageClassification(replace(SIZES[size], seed=recipe.seed), group).to(recipe.device)
    # Times and costs are those of the paper's machine with as many ranks.
    workload = modelled.VIT_3B if size in ("small", "3B") else modelled.VIT_1B
    machine = replace(modelled.paper_machine(), devices_per_host=num_ranks)
    parts = modelled.iteration_parts(workload, machine)
    times = ModelledTimes(variant.trace(num_ranks, iterations), product_s=parts.product_s, other_s=parts.other_s)
    costs = modelled.model_costs(workload, machine, modelled.model_times({}, workload, machine))
    drift = micro_threshold(MEAN_LEARNING_RATE * recipe.learning_rate, iterations)
    policy = variant.policy(num_ranks, iterations_per_epoch=iterations, micro_threshold=drift, seed=recipe.seed)
    balancer = balance(model, group, policy=policy, modelled=times, costs=costs)
    pipeline = VirtualPipeline([model], loss=functional.cross_entropy)
    pipeline.step = balancer.iteration()(pipeline.step)  # type: ignore[method-assign]
    dropped, migrated = [], []  # shares, step by step: of the local ranks' products, and of all ranks' by the plans

    def note_shares(_) -> None:
        dropped.append(balancer.dropped_share)
        migrated.append(balancer.plan.migrated / num_ranks)

    augment: Any = Augmentation(seed=recipe.seed, shift_pixels=0)  # of images, the only batches that there are
    run = train(pipeline, ImageExamples.of(learning), recipe, augment=augment, on_step=note_shares)
    return {
        "accuracy": accuracy(pipeline, ImageExamples.of(scored), recipe),
        "chance": Counter(map(int, scored.labels)).most_common(1)[0][1] / len(scored),
        "num_test": len(scored),
        "train_loss": fsum(run.losses_at_end) / len(run.losses_at_end),
        "dropped_share": fsum(dropped) / run.num_steps,
        "migrated_share": fsum(migrated) / run.num_steps,
        "plans": [{"iteration": step.iteration, **step.plan.as_record()} for step in balancer.steps],
        "num_steps": run.num_steps,
        "seconds": time.perf_counter() - start,
        "num_train": len(learning),
        "data": [learning.source.as_record(), scored.source.as_record()],
    }


# --- rows of finished trainings


def accuracy_rows(
    wanted: Sequence[Values], results: Sequence[Values], keys: Names = (), names: Names = (), **same: Any
) -> Rows:
    """Return rows of trainings, by `names` or the paper's, of losses against their seed's Baseline, and over seeds."""
    pairs = list(zip(wanted, results, strict=True))
    baselines = {variant["seed"]: result["accuracy"] for variant, result in pairs if variant["solution"] == BASELINE}
    rows: Rows = []
    for name, (variant, result) in zip(names or map(name_of, wanted), pairs, strict=True):
        given = {key: variant[key] for key in keys if variant.get(key) is not None}
        if "skewness" in given:  # of the single straggler
            (given["skewness"],) = given["skewness"]
        numbers = {key: int(value) if isinstance(value, bool) else value for key, value in given.items()}
        columns = {"solution": name, **numbers, **same, "seed": variant["seed"]}
        error = PER_CENT * standard_error(result["accuracy"], result["num_test"])

        def with_error(quantity, value, over=1.0, error=error, columns=columns, **reading):
            ends = {"low": value - error / over, "high": value + error / over}
            return value_row(quantity, value, "%", **ends, **reading, **columns)

        rows += [
            with_error("accuracy", PER_CENT * result["accuracy"]),
            value_row("dropped_share", PER_CENT * result["dropped_share"], "%", **columns),
            value_row("migrated_share", PER_CENT * result["migrated_share"], "%", **columns),
            value_row("train_loss", result["train_loss"], **columns),
            value_row("cell_s", result["seconds"], "s", **columns),
            value_row("num_updates", result["num_steps"], **columns),
        ]
        if variant["solution"] == BASELINE:
            rows.append(value_row("chance", PER_CENT * result["chance"], "%", **columns))
            continue
        baseline = baselines[variant["seed"]]
        points = PER_CENT * (baseline - result["accuracy"])
        rows.append(with_error("accuracy_loss", points, reading=POINTS))
        if baseline > 0:
            rows.append(with_error("accuracy_loss", points / baseline, baseline, reading=RELATIVE))
    return rows + _over_seeds([row for row in rows if row.get("reading") == POINTS], list(baselines.values()))


def _over_seeds(rows: Rows, baselines: Sequence[float]) -> Rows:
    """Return comparisons of the points that are lost.

    The mean loss in spreads of the Baseline, largest less smallest over its seeds; the points that PriDiffM loses
    beyond Pri, if any; and how much less Pri loses than Rd, where that is most on average ("by up to").
    """
    spread = PER_CENT * (max(baselines) - min(baselines)) if baselines else 0.0
    lost: dict[tuple[str, tuple], dict[int, float]] = {}  # by solution and all other keys, points by seed
    for keys, points in over_seeds(rows, "accuracy_loss"):
        others = tuple((name, key) for name, key in keys.items() if name not in ("solution", "reading"))
        lost[keys["solution"], others] = points
    compared: Rows = []
    narrowed: dict[str, list[tuple[dict[str, Any], dict[int, float]]]] = {}
    for (solution, others), points in lost.items():
        keys, pri = dict(others), lost.get(("ZERO-Pri", others), {})
        if spread:
            in_spreads = max(0.0, fmean(points.values())) / spread
            compared.append(value_row("loss_in_spreads", in_spreads, solution=solution, **keys))
        beyond = {seed: value - pri[seed] for seed, value in points.items() if pri}
        for seed, more in beyond.items() if solution == "ZERO-PriDiffM" else ():
            compared.append(value_row("points_behind", max(0.0, more), "%", seed=seed, **keys))
        if solution == "ZERO-Rd" and beyond:
            narrowed.setdefault(POINTS, []).append((keys, beyond))
            if min(points.values()) > 0:
                shares = {seed: PER_CENT * more / points[seed] for seed, more in beyond.items()}
                narrowed.setdefault(RELATIVE, []).append((keys, shares))
    for reading, places in narrowed.items():
        keys, most = max(places, key=lambda place: fmean(place[1].values()))
        keys = {name: key for name, key in keys.items() if name != "pruning_ratio"} | {"reading": reading}
        compared += [value_row("loss_narrowed", value, "%", seed=seed, **keys) for seed, value in most.items()]
    return compared


def chance_reason(wanted: Sequence[Values], results: Sequence[Values]) -> str:
    """Say why accuracies mean nothing where the Baseline is at chance; empty where it is not."""
    pairs = zip(wanted, results, strict=True)
    baselines = [result for variant, result in pairs if variant["solution"] == BASELINE]
    score = fmean(result["accuracy"] for result in baselines)
    return training.chance_reason(score, baselines[0]["chance"], baselines[0]["num_test"], "accuracy")


# --- trainings that drop as much as was dropped while timed


def variants_as_timed(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return variants that drop the median shares of the timed solutions with stragglers, and the control."""
    shares: dict[str, list[float]] = {}
    skewness = 1.0
    for row in rows:
        if row["quantity"] == "rank_drops" and row["solution"] != BASELINE and row["skewness"] > 1:
            shares.setdefault(row["solution"], []).append(min(round(row["value"], 2), MOST_REMOVED))
            skewness = max(skewness, row["skewness"])
    dropping = {"solution": "ZERO", "selection": "Pri"}
    variants: dict[str, dict[str, Any]] = {
        name: {**dropping, "dropped": by_rank} if any(by_rank) else {"solution": "MIG", "skewness": [skewness]}
        for name, by_rank in shares.items()
    }
    if most := max(shares.get(MOST_DROPPING, [0.0])):
        variants[CONTROL] = {**dropping, "pruning_ratio": most, "everywhere": True}
    return variants


def blind_reason(trained: Iterable[Mapping[str, Any]]) -> str:
    """Return why losses show nothing where the control loses less than the Baseline varies over seeds; else nothing."""
    spreads = {row["solution"]: row["value"] for row in trained if row["quantity"] == "loss_in_spreads"}
    lost = spreads.get(CONTROL, 0.0)
    if not spreads or lost >= 1:
        return ""  # one seed alone has no spread, and no claim to judge
    control = f"{CONTROL}, where every rank drops what the straggler did"
    much = f"{lost:.2f} of the Baseline's spread over seeds"
    return f"this training does not show what dropping costs: {control}, lost {much}"


def rows_as_timed(
    variants: Mapping[str, Options], seeds: Sequence[int], results: Sequence[Values], **same: Any
) -> Rows:
    """Return rows of the trainings of `variants_as_timed`; results are in the order of `compared_by_seed`."""
    wanted = compared_by_seed(list(variants.values()), seeds)
    rows = accuracy_rows(wanted, results, names=[BASELINE, *variants] * len(seeds), **same)
    shown = (row for row in rows if row["quantity"] in SHOWN and row["solution"] != BASELINE)
    return [{**row, "quantity": SHOWN[row["quantity"]]} for row in shown]
