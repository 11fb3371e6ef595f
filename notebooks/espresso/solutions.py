"""Solutions of the functions that the lesson asks for."""


def sent_bytes(num_gpus, tensor_bytes, ratio):
    """Send a part to every other GPU, which adds up; then send the own sum to every other GPU."""
    part = ratio * tensor_bytes / num_gpus
    return 2 * (num_gpus - 1) * part


def spans(ready, option, free):
    """Begin each operation when the one before it has ended and its resource is free."""
    scheduled, ended = [], ready
    for resource, slots in option:
        start = max(ended, free[resource])
        ended = start + slots
        scheduled.append((start, ended))
    return scheduled
