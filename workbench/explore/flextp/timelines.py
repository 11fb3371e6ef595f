"""One iteration of every rank as the model of time sees it: products, other, transfer and waiting apart.

Source: `workbench.techniques.flextp.method.model`.
Simplified: the parts of an iteration follow one another, each in one piece, and ranks wait once, at the end; really
they alternate layer by layer, and ranks wait at every all-reduce.
Left out: nothing.
"""

from collections.abc import Sequence

from workbench.techniques.flextp.method.costs import Costs, RankParts, rank_parts
from workbench.techniques.flextp.method.plan import Plan, RankTimes
from workbench.timeline import Action, Kind, Timeline

__all__ = ["parts_timeline", "plan_timeline"]


def plan_timeline(times: Sequence[RankTimes], plan: Plan, costs: Costs) -> Timeline:
    """Return an iteration under a plan; arguments as for `rank_parts`."""
    return parts_timeline(rank_parts(times, plan, costs))


def parts_timeline(ranks: Sequence[RankParts], *, all_reduce_s: float = 0.0) -> Timeline:
    """Return an iteration of which the parts are known.

    Args:
        ranks: in rank order.
        all_reduce_s: how much of the other time passes in all-reduces; drawn as transfer.
    """
    end_s = max(parts.busy_s for parts in ranks)
    return Timeline.merged(_actions(f"rank {rank}", each, all_reduce_s, end_s) for rank, each in enumerate(ranks))


def _actions(resource: str, parts: RankParts, all_reduce_s: float, end_s: float) -> list[Action]:
    pieces = (
        ("other", parts.other_s - all_reduce_s + parts.removing_s, Kind.OTHER),
        ("products", parts.kept_s, Kind.COMPUTE),
        ("for others", parts.received_s, Kind.COMPUTE),
        ("transfer", all_reduce_s + parts.transfer_s, Kind.COMMUNICATE),
        ("wait", end_s - parts.busy_s, Kind.WAIT),
    )
    actions, now_s = [], 0.0
    for label, seconds, kind in pieces:
        if seconds > 0:
            actions.append(Action(resource=resource, start_s=now_s, end_s=now_s + seconds, kind=kind, label=label))
            now_s += seconds
    return actions
