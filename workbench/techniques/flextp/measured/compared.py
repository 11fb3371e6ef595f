"""Two checks of a timing study: the model's iteration beside the measured one, and trainings that drop as much.

In a control every rank drops the share of Pri's straggler: it shows whether such a training can show a loss at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from workbench.study.rows import value_row
from workbench.techniques.flextp.measured.scores import BASELINE, accuracy_rows, name_of

from ..cost import ENOUGH, PlannedEpoch, winner_of
from ..method.costs import Costs, ideal_s, rank_s
from ..method.plan import MOST_REMOVED, Plan, RankPlan, RankTimes, Solution
from ..method.planners import Reference, settled_resizing
from ..runtime import PATIENCE, needs_costs, planner_of
from .timing import Measured
from .variant import Variant

__all__ = ["CONTROL", "blind_reason", "map_points", "predicted_rows", "rows_as_timed", "variants_as_timed"]

PLACE = "place"  # key column of a place on the map
SOLUTIONS = ("Baseline", "ZERO", "MIG", "SEMI")
PATIENT = ("MIG", "SEMI")  # without patience a rank that is disturbed once becomes one more straggler
PLAIN = "no straggler"
MOST_DROPPING, CONTROL = "ZERO-Pri", "ZERO-Pri everywhere"  # on every rank
SHOWN = {name: name for name in ("accuracy", "accuracy_loss", "loss_in_spreads")} | {
    share: f"trained_{share}" for share in ("dropped_share", "migrated_share")
}  # the shares stand beside those that were timed
Options = Mapping[str, Any]  # a variant in plain values


def map_points(points: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Return a Baseline without stragglers, and all solutions at every place (skewness, number of stragglers)."""
    compared: list[dict[str, Any]] = [{"solution": BASELINE, PLACE: PLAIN}]
    for skewness, number in points:
        slow = {"skewness": [skewness] * int(number), PLACE: f"{int(number)} of χ {skewness:g}"}
        for solution in SOLUTIONS:
            patience = {"patience": PATIENCE} if solution in PATIENT else {}
            compared.append({"solution": solution, **patience, **slow})
    return compared


def predicted_rows(measured: Measured, compared: Sequence[Options], num_ranks: int) -> list[dict[str, Any]]:
    """Return the model's iterations beside the measured ones, and for every place whether both name one winner.

    The model plans from the Baseline without stragglers and the costs of the pre-test.
    """
    own = [row for row in measured.rows if "rank" not in row]
    values = {(row["quantity"], row["solution"], row[PLACE]): row["value"] for row in own}
    own_s, product_s = (values[quantity, BASELINE, PLAIN] for quantity in ("iteration_s", "product_s"))
    rows: list[dict[str, Any]] = []
    for place in dict.fromkeys(options[PLACE] for options in compared[1:]):
        here = [options for options in compared if options[PLACE] == place]
        skewness = here[0]["skewness"]
        chis = [*skewness, *[1.0] * (num_ranks - len(skewness))]
        # Other time is that of a rank without stragglers, messages and contention for cores included.
        times = [RankTimes(own_s=own_s - product_s + chi * product_s, product_s=chi * product_s) for chi in chis]
        predicted = {Solution(options["solution"]): _predicted(options, times, measured.costs) for options in here}
        timed = {Solution(options["solution"]): _timed(options, num_ranks, values) for options in here}
        for options, model, real in zip(here, predicted.values(), timed.values(), strict=True):
            keys = {"solution": name_of(options), PLACE: place}
            rows.append(value_row("predicted_s", model.time_s, "s", **keys))
            rows.append(value_row("prediction_error", model.time_s / real.time_s - 1, **keys))
        rows.append(_agreement(place, predicted, timed, ideal_s(times) / ENOUGH))
    return rows


def _predicted(options: Options, times: Sequence[RankTimes], costs: Costs) -> PlannedEpoch:
    """Return an iteration of a solution by the model; ZERO and MIG plan without the costs of narrow products."""
    policy, proportional = Variant.of(options).policy(len(times)), tuple(map(costs.proportional, times))
    times = proportional if needs_costs(policy) else times
    if policy.solution is Solution.ZERO and policy.reference is Reference.CURRENT_MEAN:
        plan = settled_resizing(times, policy.threshold)
    else:
        plan = planner_of(policy, len(times), costs)(times)
    own_s = rank_s(proportional, plan, costs)
    return PlannedEpoch(plan=plan, time_s=max(own_s), own_s=own_s)


def _timed(options: Options, num_ranks: int, values: Mapping) -> PlannedEpoch:
    """Return an iteration as it was measured, with the share that was dropped in all on every rank."""
    time_s, dropped = (values[name, name_of(options), options[PLACE]] for name in ("iteration_s", "dropped_share"))
    plan = Plan(ranks=(RankPlan(dropped=dropped),) * num_ranks)
    return PlannedEpoch(plan=plan, time_s=time_s, own_s=(time_s,) * num_ranks)


def _agreement(place: str, predicted: Mapping, timed: Mapping, allowed_s: float) -> dict[str, Any]:
    model, real = (winner_of(epochs, allowed_s) for epochs in (predicted, timed))
    winner = str(model) if model == real else f"{model} by the model, {real} measured"
    return value_row("winner_agrees", float(model == real), place=place, winner=winner)


def variants_as_timed(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a variant for every solution that was timed with stragglers, and the control.

    The median share that each rank dropped is rounded to two decimals and constant. A solution that dropped nothing is
    trained as MIG, by modelled times.
    """
    shares: dict[str, list[float]] = {}
    skewness = 1.0
    for row in rows:
        if row["quantity"] == "rank_drops" and row["solution"] != BASELINE and row["skewness"] > 1:
            shares.setdefault(row["solution"], []).append(min(round(row["value"], 2), MOST_REMOVED))
            skewness = max(skewness, row["skewness"])
    dropping, migrating = {"solution": "ZERO", "selection": "Pri"}, {"solution": "MIG", "skewness": [skewness]}
    variants = {
        name: {**dropping, "dropped": by_rank} if any(by_rank) else migrating for name, by_rank in shares.items()
    }
    most = max(shares.get(MOST_DROPPING, [0.0]))
    return variants | ({CONTROL: {**dropping, "pruning_ratio": most, "everywhere": True}} if most else {})


def blind_reason(trained: Iterable[Mapping[str, Any]]) -> str:
    """Return why losses show nothing where the control loses less than the Baseline varies over seeds; else nothing."""
    spreads = {row["solution"]: row["value"] for row in trained if row["quantity"] == "loss_in_spreads"}
    if not spreads or spreads.get(CONTROL, 0.0) >= 1:
        return ""  # one seed alone has no spread, and no claim to judge
    return (
        f"this training does not show what dropping costs: {CONTROL}, where every rank drops what the straggler did, "
        f"lost {spreads.get(CONTROL, 0.0):.2f} of the Baseline's spread over seeds"
    )


def rows_as_timed(
    variants: Mapping[str, Options], seeds: Sequence[int], results: Sequence[Mapping[str, Any]], **same: Any
) -> list[dict[str, Any]]:
    """Return rows of the trainings of `variants_as_timed`; results are in the order of `compared_by_seed`."""
    places = [(seed, name) for seed in seeds for name in (BASELINE, *variants)]
    trainings, rows = dict(zip(places, results, strict=True)), []
    for name, options in variants.items():
        pair = {BASELINE: {"solution": BASELINE}, name: options}
        wanted = [{**entry, "seed": seed} for seed in seeds for entry in pair.values()]
        for row in accuracy_rows(wanted, [trainings[seed, which] for seed in seeds for which in pair], **same):
            if row["quantity"] in SHOWN and row["solution"] != BASELINE:
                rows.append({**row, "quantity": SHOWN[row["quantity"]], "solution": name})
    return rows
