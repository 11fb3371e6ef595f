"""The model of an iteration beside what was measured, at a few places of the map of winners.

What: from one Baseline without stragglers (product time, other time) and the costs of the pre-test the method's own
planners make a plan for every solution and `method.model` its seconds; beside them what the same solutions took here.
Source: beyond the paper; `cost.winners` draws the map and has the rule of who wins.
ZERO and MIG plan, and the ideal is counted, without knowing what products take however narrow; the model's seconds know.
Simplified: SEMI selects by Pri here, since the model has one ratio for all layers; other time as a rank without
stragglers has it, messages and contention for cores included.
Left out: refining the costs from what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ...cost import ENOUGH, PlannedEpoch, winner_of
from ...method.costs import Costs, ideal_s, rank_s
from ...method.plan import Plan, RankPlan, RankTimes, Solution
from ...method.planners import Reference, settled_resizing
from ...runtime.balancer import PATIENCE
from ...runtime.policy import Policy, needs_costs, planner_of
from ..scores import name_of
from ..variant import Variant
from .study import Measured

__all__ = ["KEYS", "map_points", "predicted_rows"]

KEYS = ("place",)
SOLUTIONS = ("Baseline", "ZERO", "MIG", "SEMI")
PATIENT = dict.fromkeys(
    ("MIG", "SEMI"), {"patience": PATIENCE}
)  # else who is disturbed once becomes one more straggler
PLAIN = "no straggler"


def map_points(points: Sequence[Sequence[float]]) -> list[dict[str, Any]]:
    """Say what is compared: a Baseline without stragglers, and all solutions at every place.

    Args:
        points: pairs (skewness, number of stragglers).
    """
    compared: list[dict[str, Any]] = [{"solution": "Baseline", "place": PLAIN}]
    for skewness, number in points:
        slow = {"skewness": [skewness] * int(number), "place": f"{int(number)} of χ {skewness:g}"}
        compared += [{"solution": solution, **PATIENT.get(solution, {}), **slow} for solution in SOLUTIONS]
    return compared


def predicted_rows(measured: Measured, compared: Sequence[Mapping[str, Any]], num_ranks: int) -> list[dict[str, Any]]:
    """Return what the model says beside what was measured.

    Args:
        measured: of `compared`, with the key column place.
        compared: of `map_points`.
        num_ranks: N.

    Returns:
        Rows `predicted_s` of an iteration, `prediction_error` (predicted over measured less 1), and for every place
        `winner_agrees`, 1 where model and measurement name one winner; the key `winner` names both.
    """
    own = [row for row in measured.rows if "rank" not in row]
    took = {(row["quantity"], row["solution"], row["place"]): row["value"] for row in own}
    own_s, product_s = (took[quantity, "Baseline", PLAIN] for quantity in ("iteration_s", "product_s"))
    plain = RankTimes(own_s=own_s, product_s=product_s)
    rows = []
    for place in dict.fromkeys(told["place"] for told in compared[1:]):
        here = [told for told in compared if told["place"] == place]
        times = _times(here[0]["skewness"], num_ranks, plain)
        pairs = {Solution(told["solution"]): _pair(told, times, measured.costs, took) for told in here}
        rows += [row for told in here for row in _rows(told, *pairs[Solution(told["solution"])])]
        rows.append(_agreement(place, pairs, ideal_s(times)))
    return rows


def _pair(told: Mapping[str, Any], times: Sequence[RankTimes], costs: Costs, took: Mapping) -> tuple:
    """Return an iteration of a solution as the model has it, and as it was."""
    policy, proportional = Variant.of(dict(told)).policy(len(times)), tuple(map(costs.proportional, times))
    plan = _plan(policy, proportional if needs_costs(policy) else times, costs)
    own_s = rank_s(proportional, plan, costs)
    predicted = PlannedEpoch(plan=plan, time_s=max(own_s), own_s=own_s)
    iteration, dropped = (took[quantity, name_of(told), told["place"]] for quantity in ("iteration_s", "dropped_share"))
    # Who dropped how much does not matter to who wins, only how much was dropped in all.
    alike = Plan(ranks=(RankPlan(dropped=dropped),) * len(times))
    return predicted, PlannedEpoch(plan=alike, time_s=iteration, own_s=(iteration,) * len(times))


def _rows(told: Mapping[str, Any], predicted: PlannedEpoch, found: PlannedEpoch) -> list[dict[str, Any]]:
    keys = {"solution": name_of(told), "place": told["place"]}
    error = predicted.time_s / found.time_s - 1
    return [
        {"quantity": "predicted_s", **keys, "value": predicted.time_s, "unit": "s"},
        {"quantity": "prediction_error", **keys, "value": error, "unit": "1"},
    ]


def _agreement(place: str, pairs: Mapping[Solution, tuple], best_s: float) -> dict[str, Any]:
    model, found = (
        winner_of({solution: pair[which] for solution, pair in pairs.items()}, best_s / ENOUGH) for which in (0, 1)
    )
    winner = str(model) if model == found else f"{model} by the model, {found} measured"
    return {"quantity": "winner_agrees", "place": place, "winner": winner, "value": float(model == found), "unit": "1"}


def _times(skewness: Sequence[float], num_ranks: int, plain: RankTimes) -> list[RankTimes]:
    chis = [*skewness, *[1.0] * (num_ranks - len(skewness))]
    return [RankTimes(own_s=plain.other_s + chi * plain.product_s, product_s=chi * plain.product_s) for chi in chis]


def _plan(policy: Policy, times: Sequence[RankTimes], costs: Costs) -> Plan:
    if policy.solution is Solution.ZERO and policy.reference is Reference.CURRENT_MEAN:
        return settled_resizing(times, policy.threshold)
    return planner_of(policy, len(times), costs)(times)
