"""Times of ranks, and shares of plans."""

from workbench.techniques.flextp.method import RankTimes


def ranks(*product_s, other_s=0.0):
    """Return the times of ranks whose products take these seconds."""
    return [RankTimes(own_s=other_s + seconds, product_s=seconds) for seconds in product_s]


def shares(plan, field):
    """Return the share of columns that each rank drops, migrates or removes."""
    return [getattr(rank, field) for rank in plan.ranks]
