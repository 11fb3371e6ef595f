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

from ..cost import ENOUGH, PlannedEpoch, winner_of
from ..method.plan import Costs, Plan, RankTimes, Scheme, Selection, Solution, ideal_s, rank_s, require
from ..method.planners import Reference, plan_for, speedup_bound
from ..runtime import PATIENCE, Policy, needs_costs

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
        is_constant, is_given = self.everywhere or bool(self.dropped), self.migrated is not None
        is_differentiated = is_constant and Selection(self.selection).is_differentiated
        is_zero, has_ratio = self.solution == Solution.ZERO, self.pruning_ratio is not None
        for name, is_wrong, rule in (
            ("pruning_ratio", self.everywhere and not has_ratio, "in [0, 1) where every rank drops"),
            ("everywhere", self.everywhere and (not is_zero or is_given), "False except for ZERO without migration"),
            ("dropped", self.dropped and (not is_zero or has_ratio), "() but for a ZERO without γ"),
            ("selection", is_differentiated, "Rd or Pri where constant shares are dropped"),
            ("refine", is_given and self.refine, "False where migrated is given, which is the whole plan"),
            ("pruning_ratio", is_given and has_ratio, "None where migrated is given"),
            ("migrated", is_given and self.solution != Solution.MIG, f"None where solution is {self.solution}"),
            ("migrated", self.migrated is not None and not 0 <= self.migrated <= 1, "in [0, 1]"),
            ("skewness", self.moves and len(self.skewness) != 1, "one value for a straggler that moves"),
        ):
            if is_wrong:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be {rule}")

    def trace(self, num_ranks: int, iterations_per_epoch: int) -> StragglerTrace:
        """Return the stragglers of a group of ranks, iteration by iteration."""
        require(len(self.skewness) <= num_ranks, "skewness", self.skewness, f"at most {num_ranks} values, one a rank")
        if self.moves:
            return StragglerTrace.round_robin(num_ranks, *self.skewness, iterations_per_epoch=iterations_per_epoch)
        return StragglerTrace.fixed(num_ranks, dict(enumerate(self.skewness)))

    def policy(self, num_ranks: int, **more: Any) -> Policy:
        """Return the policy for a group of ranks; `more` are further fields of it."""
        names = ("selection", "reference", "imputation", "is_incremental", "patience", "scheme")
        common = {**{name: getattr(self, name) for name in names}, **more}
        if self.selection == REDRAWN:
            common |= {"selection": Selection.RANDOM.value, "iterations_per_epoch": 1}
        if self.everywhere or self.dropped:
            require(len(self.dropped) <= num_ranks, "dropped", self.dropped, f"at most {num_ranks} values, one a rank")
            dropped = self.dropped if self.pruning_ratio is None else (self.pruning_ratio,) * num_ranks
            plan = Plan.of_shares([*dropped, *[0.0] * (num_ranks - len(dropped))])
            return Policy(solution=Solution.GIVEN, plan=plan, **common)
        if self.migrated is not None:
            senders = 1 if self.num_senders is None else self.num_senders
            rule = f"in 1..{num_ranks - 1} of {num_ranks} ranks"
            require(1 <= senders < num_ranks, "num_senders", senders, rule)
            # A rank keeps one column at least, so that a share of 1 is all but that one.
            shares = [min(self.migrated, LARGEST_SHARE)] * senders + [0.0] * (num_ranks - senders)
            return Policy(solution=Solution.GIVEN, plan=Plan.of_shares(migrated=shares), **common)
        common |= {"num_senders": self.num_senders, "refine": self.refine, "pruning_ratio": self.pruning_ratio}
        return Policy(solution=Solution(self.solution), **common)


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


def variants_of(compared: Sequence[Options], keys: Sequence[str]) -> dict[str, Variant]:
    """Return the variants of a figure, by name; `keys` are the fields that tell entries of one solution apart."""
    names = [_name(options, keys) for options in compared]
    if len(set(names)) < len(names):
        raise ValueError(f"keys is {list(keys)}; it must tell {names} apart")
    return {name: Variant.of(options) for name, options in zip(names, compared, strict=True)}


def keys_of(compared: Sequence[Options], keys: Sequence[str], **same: Any) -> dict[str, dict[str, Any]]:
    """Return the key columns of each variant's rows, by its name; `same` are further columns of all."""
    return {_name(entry, keys): {"solution": name_of(entry), **_columns(entry, keys), **same} for entry in compared}


def _name(options: Options, keys: Sequence[str]) -> str:
    columns, parts = _columns(options, keys), [name_of(options)]
    for name in keys:
        value = columns.get(COLUMNS.get(name, name))
        if value is not None:
            parts.append(f"{SYMBOLS[name]} {value:g}" if name in SYMBOLS else str(value))
    return " ".join(parts)


def _columns(options: Options, keys: Sequence[str]) -> dict[str, Any]:
    given = {**options, "skewness": max(options.get("skewness") or [1.0])}  # of the slowest straggler
    return {COLUMNS.get(name, name): given[name] for name in keys if given.get(name) is not None}


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
        rows.append(median_row("iteration_s", iterations_s, "s", **columns))
        rows.append(median_row("epoch_s", [iterations_per_epoch * seconds for seconds in iterations_s], "s", **columns))
        rows.append(median_row("cpu_s", timed.cpu_s(name), "s", **columns))
        parts = _parts(timed, name)
        if any(fsum(part.product_s) for part in parts):  # no products are recorded beside a model without balancing
            for quantity in ("product_s", "waiting_s", "other_s"):
                means_s = [fmean(getattr(part, quantity)) / length for part in parts]
                rows.append(median_row(quantity, means_s, "s", **columns))
            rows.append(median_row("transfer_s", [part.transfer_s / length for part in parts], "s", **columns))
            product_shares = [fmean(part.product_s) / part.iteration_s for part in parts]
            rows.append(median_row("product_share", product_shares, **columns))
        notes = [[turn.notes for turn in turns] for turns in rounds]
        plans = [by_rank[0].plan for by_rank in notes]
        dropped = [fmean(note.dropped_share for note in by_rank) for by_rank in notes]
        migrated = [0.0 if plan is None else plan.migrated / plan.num_ranks for plan in plans]
        rows += [median_row("dropped_share", dropped, **columns), median_row("migrated_share", migrated, **columns)]
        for quantity, values, unit in _comparisons(variants, timed, name):
            rows.append(median_row(quantity, values, unit, **columns))
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

    def seconds_of(wanted: Variant, is_asked: bool = True) -> list[float]:
        """Return the seconds of another variant, none if it was not timed."""
        twin = _find(variants, wanted) if is_asked else None
        return [] if twin is None else timed.iterations_s(twin)

    follows_times = variant.solution == Solution.ZERO and variant.pruning_ratio is None
    has_own_ratios = variant.selection in (Selection.DIFFERENTIATED.value, Selection.DIFFERENTIATED_MEAN.value)
    is_pri = variant.solution == Solution.ZERO and variant.selection == "Pri"
    is_broadcast = variant.migrated is not None and variant.scheme == Scheme.BROADCAST_REDUCE
    baseline_s = seconds_of(Variant(skewness=variant.skewness, moves=variant.moves))
    if baseline_s:
        yield "speedup", ratios(baseline_s, own_s), "1"
        yield "epoch_saved", [100 * (1 - ratio) for ratio in ratios(own_s, baseline_s)], "%"
    if pri_s := seconds_of(replace(variant, selection="Pri"), follows_times and has_own_ratios):
        yield "epoch_saved_over_pri", [100 * (1 - ratio) for ratio in ratios(own_s, pri_s)], "%"
    if random_s := seconds_of(replace(variant, selection="Rd"), is_pri):
        yield "over_random", ratios(own_s, random_s), "1"
    if scattered_s := seconds_of(replace(variant, scheme=Scheme.SCATTER_GATHER), is_broadcast):
        yield "gap", [ratio - 1 for ratio in ratios(scattered_s, own_s)], "1"
    plain = _find(variants, Variant())
    if not baseline_s or plain is None or not variant.skewness:
        return
    # A balance without costs and, for ZERO, the largest speedup of Eq. 1.
    speedups, parts = ratios(baseline_s, own_s), _parts(timed, plain)
    others = [(fmean(part.other_s) + part.transfer_s) / fmean(part.product_s) for part in parts]
    num_ranks = len(parts[0].product_s)
    chis = [*variant.skewness, *[1.0] * (num_ranks - len(variant.skewness))]
    times = [[RankTimes(own_s=other + chi, product_s=chi) for chi in chis] for other in others]
    ideals = [max(rank.own_s for rank in ranks) / ideal_s(ranks) for ranks in times]
    yield "ideal_speedup", ideals, "1"
    yield "share_of_ideal", ratios(speedups, ideals), "1"
    if follows_times and len(variant.skewness) == 1:
        (chi,) = variant.skewness
        # Down to the first mean or, planned again and again, to the other ranks.
        is_once = variant.policy(num_ranks).reference is Reference.MEAN
        bounds = [speedup_bound(chi, num_ranks, other=o) if is_once else (o + chi) / (o + 1) for o in others]
        yield "bound", bounds, "1"
        yield "share_of_bound", ratios(speedups, bounds), "1"


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
    compared, planned = [], next((name for name, columns in keys.items() if columns["solution"] == PLANNED), None)
    if planned is not None:
        divisions = [name for name, columns in keys.items() if columns["solution"] == DIVISION]
        fastest = min(divisions, key=lambda name: median(rounds[name]))
        compared.append(ratio_row("over_fastest_division", rounds[planned], rounds[fastest], solution=PLANNED))
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


def predicted_rows(rows: Sequence[Mapping], costs: Costs, compared: Sequence[Options], num_ranks: int) -> Rows:
    """Compare every place with the model, which plans from the plain Baseline of `rows` and the pre-test's costs."""
    values = {(row["quantity"], row["solution"], row[PLACE]): row["value"] for row in rows if "rank" not in row}
    own_s, product_s = (values[quantity, BASELINE, PLAIN] for quantity in ("iteration_s", "product_s"))
    compared_rows: Rows = []
    for place in dict.fromkeys(options[PLACE] for options in compared[1:]):
        here = [options for options in compared if options[PLACE] == place]
        chis = [*here[0]["skewness"], *[1.0] * (num_ranks - len(here[0]["skewness"]))]
        # Other time is that of a rank without stragglers, messages and contention for cores included.
        times = [RankTimes(own_s=own_s - product_s + chi * product_s, product_s=chi * product_s) for chi in chis]
        proportional = tuple(map(costs.proportional, times))
        predicted, timed = {}, {}
        for options in here:
            policy, solution = Variant.of(options).policy(num_ranks), Solution(options["solution"])
            more = {name: getattr(policy, name) for name in ("reference", "pruning_ratio", "num_senders", "refine")}
            planned_from = proportional if needs_costs(policy) else times  # ZERO and MIG know no fixed part
            plan = plan_for(solution, planned_from, costs, is_settled=True, **more)
            ranks_s = rank_s(proportional, plan, costs)
            predicted[solution] = PlannedEpoch(plan=plan, time_s=max(ranks_s), own_s=ranks_s)
            keys = {"solution": name_of(options), PLACE: place}
            time_s = values["iteration_s", keys["solution"], place]
            plan = Plan.of_shares([values["dropped_share", keys["solution"], place]] * num_ranks)
            timed[solution] = PlannedEpoch(plan=plan, time_s=time_s, own_s=(time_s,) * num_ranks)
            compared_rows.append(value_row("predicted_s", max(ranks_s), "s", **keys))
            compared_rows.append(value_row("prediction_error", max(ranks_s) / time_s - 1, **keys))
        modelled, real = (winner_of(epochs, ideal_s(times) / ENOUGH) for epochs in (predicted, timed))
        winner = str(modelled) if modelled == real else f"{modelled} by the model, {real} measured"
        compared_rows.append(value_row("winner_agrees", float(modelled == real), place=place, winner=winner))
    return compared_rows
