"""Solutions of the exercises in which a function is written."""


def holders(num_machines, num_replicas):
    """Return for each machine the machines that keep its shard: itself, then the others in the order of sending."""
    divides = num_machines % num_replicas == 0
    num_groups = num_machines // num_replicas - (0 if divides else 1)
    circles = [range(group * num_replicas, (group + 1) * num_replicas) for group in range(num_groups)]
    if not divides:
        circles.append(range(num_groups * num_replicas, num_machines))
    return [
        [circle[(place + step) % len(circle)] for step in range(num_replicas)]
        for circle in circles
        for place in range(len(circle))
    ]


def sources(holders, lost):
    """Return for each machine's rank the machine whose memory serves it, or -1 for persistent storage."""
    alive = [[holder for holder in row if holder not in lost] for row in holders]
    if not all(alive):
        return [-1] * len(holders)
    return [row[0] for row in alive]
