"""Tests of refusals, values of rows, and verdicts on an item's rows, for every technique.

Ranks import this module with the tests that they run, so that the catalogue is imported where it is asked for.
"""

import functools

import pytest


def refusals(*cases, of=None):
    """Make a test that each call, or `of` with each set of fields, raises a ValueError whose message has the rule."""

    @pytest.mark.parametrize(("asked", "rule"), cases)
    def refused(asked, rule):
        with pytest.raises(ValueError, match=rule):
            of(**asked) if of else asked()

    return refused


def refusal(call, *args, **kwargs):
    """Return the text of the error that a call must raise; on a rank, so that the pool goes on."""
    with pytest.raises((ValueError, RuntimeError)) as refused:
        call(*args, **kwargs)
    return str(refused.value)


def values(rows, quantity, **where):
    """Return the values of a quantity in the rows that have these keys."""
    return [row["value"] for row in rows if row["quantity"] == quantity and where.items() <= row.items()]


def value(rows, quantity, **where):
    (only,) = values(rows, quantity, **where)
    return only


@functools.cache
def find_item(id):
    from workbench import reproduction

    return reproduction.find_item(reproduction.load_catalogue(reproduction.Project()), id)


def verdicts(id, rows, claims=None, **more):
    """Return the verdict of every claim of an item, or of those given, on these rows."""
    from workbench.reproduction import Project, judge, published_rows
    from workbench.rows import read_rows

    item = find_item(id)
    judged = judge(claims or item.claims, read_rows(rows, "values"), published_rows(Project(), item), **more)
    return {claim.claim: claim.verdict for claim in judged}


def tidy(fn, *args, **kwargs):
    """Run on a rank, and close the process groups it opened: an idle one of gloo wakes up a hundred times a second."""
    import torch.distributed as dist

    open_groups = dist.distributed_c10d._world.pg_map
    before = set(open_groups)
    try:
        value = fn(*args, **kwargs)
        if set(open_groups) - before:
            dist.barrier()  # a slower rank may still be connecting
        return value
    finally:
        for group in set(open_groups) - before:
            dist.destroy_process_group(group)
