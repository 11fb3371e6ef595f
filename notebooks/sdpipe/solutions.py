"""Solutions of the exercises in which a function is written."""


def is_valid(groups, candidate, num_workers):
    """Return whether the last groups and the candidate together connect all workers."""
    reached = {0}
    for _ in range(num_workers):
        reached |= {worker for group in (*groups, candidate) if group & reached for worker in group}
    return len(reached) == num_workers


def average(model, rank, members, add_up_):
    """Return this rank's model after the members have averaged theirs."""
    if rank not in members:
        return model
    add_up_(model)
    return model / len(members)
