"""Times and costs of ranks, shares of plans, values of rows and verdicts on them."""

from workbench.reproduction import Project, load_catalogue, published_rows
from workbench.reproduction.judge import judge
from workbench.study.rows import read_rows
from workbench.techniques.flextp.method import Costs, PiecewiseLinear, RankTimes


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
        extract=PiecewiseLinear.straight(extract_s),
        communicate=PiecewiseLinear.straight(communicate_s, at_zero_s=whole_s),
        compute=PiecewiseLinear.straight(compute_s, at_zero_s=narrow_s),
    )


def values(rows, quantity, **where):
    """Return the values of a quantity in the rows that have these keys."""
    return [row["value"] for row in rows if row["quantity"] == quantity and where.items() <= row.items()]


def changed(rows, factor, **where):
    """Return the rows with the values of those that have these keys times a factor."""
    return [row | {"value": row["value"] * factor} if where.items() <= row.items() else row for row in rows]


def verdicts(id, rows, **more):
    """Return the verdict of every claim of an item on these rows."""
    (item,) = [item for item in load_catalogue(Project()) if item.id == id]
    judged = judge(item.claims, read_rows(rows, "values"), published_rows(Project(), item), **more)
    return {claim.claim: claim.verdict for claim in judged}
