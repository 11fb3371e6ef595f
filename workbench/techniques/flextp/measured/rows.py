"""The variants of a study, and rows of timed ones: parts of an iteration, ratios within rounds, a figure's axis, a map.

A Baseline without stragglers gives o, its other and transfer time over its product time, without waiting.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from math import fsum
from statistics import fmean, median
from typing import Any, Self

from workbench.rows import median_interval, median_row, ratio_row, ratios, value_row
from workbench.study.breakdown import Breakdown, break_down
from workbench.study.timing import Timed, dose_rows
from workbench.timeline import Dose
from workbench.timeline.stragglers import StragglerTrace

from ..cost import ENOUGH, winner_of
from ..method.plan import Costs, Plan, RankTimes, Scheme, Selection, Solution, ideal_s, iteration_s, require
from ..method.planners import Reference, speedup_bound
from ..runtime import PATIENCE, Policy, needs_costs, planner_of

BASELINE = "Baseline"
DIVISION, PLANNED = "SEMI(x)", "SEMI"
SYMBOLS = {"pruning_ratio": "γ", "skewness": "χ", "migrated": "share", "num_senders": "x"}  # in names of variants
COLUMNS = {"migrated": "migrated_share"}  # key columns that differ from the field's name, as in the published tables
LARGEST_SHARE = 1 - 1e-9  # of its columns that a rank gives away; rounded down to all but one
REDRAWN = "Rd, redrawn"  # a selection: random columns, drawn anew in every iteration (section III-A)
PLACE, PLAIN = "place", "no straggler"  # key column of a place on the map, and the place of the Baseline
Rows = list[dict[str, Any]]
Options = Mapping[str, Any]  # an entry of a catalogue: solution, fields of `Variant`, and perhaps further keys
Keys = Mapping[str, Mapping[str, Any]]  # key columns of each variant, by its name
Rounds = Mapping[str, Sequence[float]]  # seconds of each variant's iterations, round by round


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A solution and its stragglers, in plain values."""

    solution: str = BASELINE  # Baseline, ZERO, MIG or SEMI
    selection: str = "Pri"  # Rd, Pri, PriDiffM, PriDiffE, PriDiffR or `REDRAWN`
    pruning_ratio: float | None = None  # a constant γ for ZERO; None follows Eq. 1
    reference: str = Reference.CURRENT_MEAN.value  # of Eq. 1 in ZERO; "mean" for the one-shot form
    everywhere: bool = False  # every rank drops the constant share, straggler or not (figures 5 and 6)
    dropped: tuple[float, ...] = ()  # constant shares that the first ranks drop, whatever the times, for ZERO
    migrated: float | None = None  # a constant share that `num_senders` first ranks migrate (table I)
    imputation: str = "Zero"  # Zero, Average or Same
    is_incremental: bool = True  # dropped columns keep their statistics; otherwise the same ones are dropped for ever
    num_senders: int | None = None  # with SEMI, stragglers that migrate; None follows Eqs. 2 and 3
    refine: bool = False  # MIG and SEMI level all ranks (ours)
    patience: int = 1  # iterations whose times are judged together (see `Policy`)
    scheme: str = Scheme.BROADCAST_REDUCE  # for migrated columns
    skewness: tuple[float, ...] = ()  # of each straggler, at least 1; the first ranks are the stragglers
    moves: bool = False  # the one straggler moves to the next rank every epoch (figures 7 to 9)

    @classmethod
    def of(cls, options: Options) -> Self:
        """Take a variant's fields out of more options."""
        return cls(**{field.name: options[field.name] for field in fields(cls) if field.name in options})

    def __post_init__(self) -> None:
        for name in ("skewness", "dropped"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        is_zero, is_mig = self.solution == Solution.ZERO, self.solution == Solution.MIG
        for name, holds, rule in (
            ("pruning_ratio", not self.everywhere or self.pruning_ratio is not None, "in [0, 1) where all ranks drop"),
            ("everywhere", not self.everywhere or is_zero, "False except for ZERO"),
            ("dropped", not self.dropped or (is_zero and not self.everywhere), "() but for a ZERO without γ"),
            ("migrated", self.migrated is None or is_mig, f"None where solution is {self.solution}"),
            ("migrated", self.migrated is None or 0 <= self.migrated <= 1, "in [0, 1]"),
            ("skewness", not self.moves or len(self.skewness) == 1, "one value for a straggler that moves"),
        ):
            require(holds, name, getattr(self, name), rule)

    def trace(self, num_ranks: int, iterations_per_epoch: int) -> StragglerTrace:
        """Return the stragglers of a group of ranks, iteration by iteration."""
        require(len(self.skewness) <= num_ranks, "skewness", self.skewness, f"at most {num_ranks} values, one a rank")
        if self.moves:
            return StragglerTrace.round_robin(num_ranks, *self.skewness, iterations_per_epoch=iterations_per_epoch)
        return StragglerTrace.fixed(num_ranks, dict(enumerate(self.skewness)))

    def policy(self, num_ranks: int, **more: Any) -> Policy:
        """Return the policy for a group of ranks; `more` are further fields of it."""
        names = ("selection", "reference", "imputation", "is_incremental", "patience", "scheme", "refine")
        common = {**{name: getattr(self, name) for name in names}, **more}
        if self.selection == REDRAWN:
            common |= {"selection": Selection.RANDOM.value, "iterations_per_epoch": 1}
        dropped, migrated = list(self.dropped), []
        if self.everywhere and self.pruning_ratio is not None:
            dropped = [self.pruning_ratio] * num_ranks
        else:
            common["pruning_ratio"] = self.pruning_ratio
        if self.migrated is not None:  # a rank keeps one column at least, so that a share of 1 is all but that one
            migrated = [min(self.migrated, LARGEST_SHARE)] * (1 if self.num_senders is None else self.num_senders)
        if not dropped and not migrated:
            return Policy(solution=Solution(self.solution), num_senders=self.num_senders, **common)
        shares = ([*constant, *[0.0] * (num_ranks - len(constant))] for constant in (dropped, migrated))
        return Policy(solution=Solution.GIVEN, plan=Plan.of_shares(*shares), **common)


Variants = Mapping[str, Variant | None]  # by name; None is the model as it is, without balancing


def name_of(options: Options) -> str:
    """Return the paper's name of a variant, such as ZERO-Pri."""
    solution, selection = options.get("solution", BASELINE), options.get("selection", "Pri")
    if solution == "ZERO":
        if selection == Selection.DIFFERENTIATED_MEAN.value and options.get("pruning_ratio") is not None:
            return f"ZERO-{selection}, constant γ"
        return f"ZERO-{selection}" + (", one shot" if options.get("reference") == Reference.MEAN.value else "")
    if options.get("num_senders") is not None:
        return f"{solution}(x)"
    return f"{solution} refined" if options.get("refine") else solution


def variants_of(compared: Sequence[Options], keys: Sequence[str], **same: Any) -> tuple[dict[str, Variant], Keys]:
    """Return a figure's variants and the key columns of their rows, by name; `same` are further columns of all.

    `keys` are the fields that tell entries of one solution apart.
    """
    variants, columns = {}, {}
    for options in compared:
        given = {**options, "skewness": max(options.get("skewness") or [1.0])}  # of the slowest straggler
        key_values = {key: given[key] for key in keys if given.get(key) is not None}
        words = [f"{SYMBOLS[key]} {value:g}" if key in SYMBOLS else str(value) for key, value in key_values.items()]
        name = " ".join([name_of(options), *words])
        if name in variants:
            raise ValueError(f"keys is {list(keys)}; it must tell two entries named {name!r} apart")
        variants[name] = Variant.of(options)
        renamed = {COLUMNS.get(key, key): value for key, value in key_values.items()}
        columns[name] = {"solution": name_of(options)} | renamed | same
    return variants, columns


# --- rows of timed variants


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """The balancing of one turn on one rank."""

    dose: Dose  # injected delays
    dropped_share: float = 0.0  # of the rank's products, computed by nobody
    plan: Plan | None = None  # of all ranks; None for a model without balancing


def rows_of(variants: Variants, timed: Timed, *, keys: Keys, iterations_per_epoch: int) -> Rows:
    """Return the rows of a study; `timed` holds `Notes`, `keys` the key columns of each variant."""
    rows = []
    for name, variant in variants.items():
        rounds, columns = timed.rounds[name], keys[name]
        iterations_s, length = timed.iterations_s(name), rounds[0][0].length
        epochs_s = [iterations_per_epoch * seconds for seconds in iterations_s]
        quantities = [("iteration_s", iterations_s, "s"), ("epoch_s", epochs_s, "s"), ("cpu_s", timed.cpu_s(name), "s")]
        parts = _parts(timed, name)
        if any(fsum(part.product_s) for part in parts):  # no products are recorded beside a model without balancing
            for quantity in ("product_s", "waiting_s", "other_s"):
                quantities.append((quantity, [fmean(getattr(part, quantity)) / length for part in parts], "s"))
            quantities.append(("transfer_s", [part.transfer_s / length for part in parts], "s"))
            quantities.append(("product_share", [fmean(part.product_s) / part.iteration_s for part in parts], "1"))
        notes = [[turn.notes for turn in turns] for turns in rounds]
        plans = [by_rank[0].plan for by_rank in notes]
        quantities.append(("dropped_share", [fmean(note.dropped_share for note in by_rank) for by_rank in notes], "1"))
        quantities.append(("migrated_share", [plan.migrated / plan.num_ranks if plan else 0.0 for plan in plans], "1"))
        quantities += _comparisons(variants, timed, name)
        rows += [median_row(quantity, values, unit, **columns) for quantity, values, unit in quantities]
        for rank in range(len(notes[0])) if variant is not None else ():
            dropped = [by_rank[rank].dropped_share for by_rank in notes]
            migrated = [by_rank[rank].plan.ranks[rank].migrated for by_rank in notes]
            rows.append(median_row("rank_drops", dropped, **columns, rank=rank))
            rows.append(median_row("rank_migrates", migrated, **columns, rank=rank))
        rows += dose_rows([[note.dose for note in by_rank] for by_rank in notes], **columns)
    return rows


def _parts(timed: Timed, name: str) -> list[Breakdown]:
    return [break_down([turn.actions for turn in turns]) for turns in timed.rounds[name]]


def _comparisons(variants: Variants, timed: Timed, name: str) -> Iterator[tuple[str, list[float], str]]:
    """Yield quantity, value and unit of a variant beside others, round by round, as far as these were timed."""
    variant, own_s = variants[name], timed.iterations_s(name)
    unbalanced = next((other for other, variant in variants.items() if variant is None), None)
    if unbalanced is not None:
        yield "over_unbalanced", ratios(own_s, timed.iterations_s(unbalanced)), "1"
        yield "cpu_over_unbalanced", ratios(timed.cpu_s(name), timed.cpu_s(unbalanced)), "1"
    if variant is None:
        return
    is_zero, is_pri = variant.solution == Solution.ZERO, variant.selection == "Pri"
    follows_times = is_zero and variant.pruning_ratio is None
    has_own_ratios = variant.selection in (Selection.DIFFERENTIATED.value, Selection.DIFFERENTIATED_MEAN.value)
    is_broadcast = variant.migrated is not None and variant.scheme == Scheme.BROADCAST_REDUCE
    slow = Variant(skewness=variant.skewness, moves=variant.moves)
    for quantity, unit, is_asked, wanted, compare in (
        ("speedup", "1", True, slow, lambda time, twin: twin / time),
        ("epoch_saved", "%", True, slow, _saved),
        ("epoch_saved_over_pri", "%", follows_times and has_own_ratios, replace(variant, selection="Pri"), _saved),
        ("over_random", "1", is_zero and is_pri, replace(variant, selection="Rd"), lambda time, twin: time / twin),
        ("gap", "1", is_broadcast, replace(variant, scheme=Scheme.SCATTER_GATHER), lambda time, twin: twin / time - 1),
    ):
        if is_asked and (twin := _find(variants, wanted)):
            yield quantity, list(map(compare, own_s, timed.iterations_s(twin))), unit
    baseline, plain = _find(variants, slow), _find(variants, Variant())
    if baseline is None or plain is None or not variant.skewness:
        return
    # A balance without costs and, for ZERO, the largest speedup of Eq. 1.
    speedups, parts = ratios(timed.iterations_s(baseline), own_s), _parts(timed, plain)
    others = [(fmean(part.other_s) + part.transfer_s) / fmean(part.product_s) for part in parts]
    num_ranks = len(parts[0].product_s)
    chis = [*variant.skewness, *[1.0] * (num_ranks - len(variant.skewness))]
    times = [[RankTimes(own_s=other + chi, product_s=chi) for chi in chis] for other in others]
    ideals = [max(rank.own_s for rank in ranks) / ideal_s(ranks) for ranks in times]
    yield "ideal_speedup", ideals, "1"
    yield "share_of_ideal", ratios(speedups, ideals), "1"
    if follows_times and len(variant.skewness) == 1:
        (chi,) = variant.skewness
        is_once = variant.reference == Reference.MEAN.value  # else planned again and again, down to the other ranks
        bounds = [speedup_bound(chi, num_ranks, other=o) if is_once else (o + chi) / (o + 1) for o in others]
        yield "bound", bounds, "1"
        yield "share_of_bound", ratios(speedups, bounds), "1"


def _saved(own_s: float, other_s: float) -> float:
    return 100 * (1 - own_s / other_s)


def _find(variants: Variants, wanted: Variant) -> str | None:
    """Return the name of a variant; a straggler that is no slower than others is none."""

    def plain(variant: Variant) -> Variant:
        return variant if max(variant.skewness, default=1) > 1 else replace(variant, skewness=(), moves=False)

    names = (name for name, variant in variants.items() if variant is not None and plain(variant) == plain(wanted))
    return next(names, None)


def along_axis(rounds: Rounds, keys: Keys, rows: Sequence[Mapping], along: str) -> Rows:
    """Compare places of a figure's axis by round: growth along skewness, SEMI with divisions along num_senders."""
    if along == "num_senders":
        return _along_divisions(rounds, keys, rows)
    by_solution: dict[str, dict[float, Sequence[float]]] = {}
    for name, columns in keys.items() if along == "skewness" else ():
        by_solution.setdefault(columns["solution"], {})[columns["skewness"]] = rounds[name]
    compared = []
    for solution, places in by_solution.items():
        if len(places) < 3:
            continue
        (first, at_first), *between, (last, at_last) = sorted(places.items())
        compared.append(ratio_row("growth", at_last, at_first, solution=solution))
        off = []  # distances of each round from the line, at every place between
        for place, values in between:
            share = (place - first) / (last - first)
            line = [a + share * (b - a) for a, b in zip(at_first, at_last, strict=True)]
            off.append([ratio - 1 for ratio in ratios(values, line)])
        furthest = max(off, key=lambda distances: abs(median(distances)))
        compared.append(median_row("off_straight_line", furthest, solution=solution))
    return compared


def _along_divisions(rounds: Rounds, keys: Keys, rows: Sequence[Mapping]) -> Rows:
    planned = next(name for name, columns in keys.items() if columns["solution"] == PLANNED)
    divisions = [name for name, columns in keys.items() if columns["solution"] == DIVISION]
    fastest = min(divisions, key=lambda name: median(rounds[name]))
    compared = [ratio_row("over_fastest_division", rounds[planned], rounds[fastest], solution=PLANNED)]
    shares = (row for row in rows if row["quantity"] == "dropped_share")
    dropped = {(row["solution"], row.get("num_senders")): row["value"] for row in shares}
    gentler = [name for name in divisions if dropped[DIVISION, keys[name]["num_senders"]] < dropped[PLANNED, None]]
    over_planned = [ratios(rounds[name], rounds[planned]) for name in gentler]
    intervals = [median_interval(values) for values in over_planned]
    num_better = sum(median(values) < 1 for values in over_planned)
    least, most = sum(high < 1 for _, high in intervals), sum(low < 1 for low, _ in intervals)
    compared.append(value_row("better_divisions", num_better, low=least, high=most, solution=PLANNED))
    for solution in (DIVISION, BASELINE):
        epochs = (row for row in rows if (row["quantity"], row["solution"]) == ("epoch_s", solution))
        slowest = max(epochs, key=lambda row: row["value"])
        ends = {"low": slowest["low"], "high": slowest["high"]}
        compared.append(value_row("slowest_epoch_s", slowest["value"], "s", **ends, solution=solution))
    return compared


# --- the map of winners: the model's iteration beside the measured one


def map_points(points: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Return a Baseline without stragglers, and all solutions at every place (skewness, number of stragglers)."""
    compared: list[dict[str, Any]] = [{"solution": BASELINE, PLACE: PLAIN}]
    for skewness, number in points:
        slow = {"skewness": [skewness] * int(number), PLACE: f"{int(number)} of χ {skewness:g}"}
        patient = {"patience": PATIENCE}  # without, a rank that is disturbed once becomes one more straggler
        compared += [{"solution": solution, **slow} for solution in (BASELINE, "ZERO")]
        compared += [{"solution": solution, **patient, **slow} for solution in ("MIG", "SEMI")]
    return compared


def predict(
    variant: Variant, costs: Costs, num_ranks: int, *, own_s: float, product_s: float
) -> tuple[float, float, Sequence[RankTimes]]:
    """Return an iteration's seconds, the share of products that is dropped, and the ranks' times without a plan.

    `own_s` and `product_s` are of a Baseline without stragglers, `costs` of the pre-test.
    """
    chis = [*variant.skewness, *[1.0] * (num_ranks - len(variant.skewness))]
    # Other time is that of a rank without stragglers, messages and contention for cores included.
    times = [RankTimes(own_s=own_s - product_s + chi * product_s, product_s=chi * product_s) for chi in chis]
    proportional = tuple(map(costs.proportional, times))
    policy = variant.policy(num_ranks)
    planned_from = proportional if needs_costs(policy) else times  # ZERO and MIG know no fixed part
    plan = planner_of(policy, num_ranks, costs, is_settled=True)(planned_from)
    return iteration_s(proportional, plan, costs), plan.dropped / num_ranks, times


def predicted_rows(rows: Sequence[Mapping], costs: Costs, compared: Sequence[Options], num_ranks: int) -> Rows:
    """Compare every place with the model, which plans from the plain Baseline of `rows` and the pre-test's costs."""
    values = {(row["quantity"], row["solution"], row[PLACE]): row["value"] for row in rows if "rank" not in row}
    own_s, product_s = (values[quantity, BASELINE, PLAIN] for quantity in ("iteration_s", "product_s"))
    compared_rows: Rows = []
    for place in dict.fromkeys(options[PLACE] for options in compared[1:]):
        predicted, timed = {}, {}  # seconds and dropped share
        for options in (options for options in compared if options[PLACE] == place):
            variant, name = Variant.of(options), name_of(options)
            predicted_s, dropped, times = predict(variant, costs, num_ranks, own_s=own_s, product_s=product_s)
            time_s = values["iteration_s", name, place]
            predicted[Solution(variant.solution)] = predicted_s, dropped
            timed[Solution(variant.solution)] = time_s, values["dropped_share", name, place]
            keys = {"solution": name, PLACE: place}
            compared_rows.append(value_row("predicted_s", predicted_s, "s", **keys))
            compared_rows.append(value_row("prediction_error", predicted_s / time_s - 1, **keys))
        modelled, real = (winner_of(epochs, ideal_s(times) / ENOUGH) for epochs in (predicted, timed))
        winner = str(modelled) if modelled == real else f"{modelled} by the model, {real} measured"
        compared_rows.append(value_row("winner_agrees", float(modelled == real), place=place, winner=winner))
    return compared_rows
