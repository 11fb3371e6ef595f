"""Times and costs of ranks, and shares of plans."""

from workbench.techniques.flextp.method import Costs, Line, RankTimes


def ranks(*product_s, other_s=0.0):
    """Return the times of ranks whose products take these seconds."""
    return [RankTimes(own_s=other_s + seconds, product_s=seconds) for seconds in product_s]


def shares(plan, field):
    """Return the share of columns that each rank drops, migrates or removes."""
    return [getattr(rank, field) for rank in plan.ranks]


def straight_costs(*, whole_s=0.0, alloc_s=0.0, extract_s=0.0, communicate_s=0.0, compute_s=1.0, narrow_s=0.0):
    """Return costs in proportion to columns, and the seconds that every sender costs, however few its columns are."""
    return Costs(
        alloc_s=alloc_s,
        extract=Line(per_share_s=extract_s),
        communicate=Line(at_zero_s=whole_s, per_share_s=communicate_s),
        compute=Line(at_zero_s=narrow_s, per_share_s=compute_s),
    )
