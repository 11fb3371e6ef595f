"""Solutions of the functions that the lesson asks for."""

import torch
import torch.distributed as dist


def terms(h, d1, d2, b1, b2):
    """Cut the messages of axis 2 over axis 1, and those of axis 1 over axis 2."""
    axis2 = 7 * h / (d1 * b2) if d2 > 1 else 0
    axis1 = 2 * h / (d2 * b1) if d1 > 1 else 0
    return axis2, axis1


def crossing(h, d1, d2):
    """Solve 2 / B1 = 7 / (d1 B2) + 2 / (d2 B1) for B2 / B1; h stands in all terms and goes."""
    return 7 * d2 / (2 * d1 * (d2 - 1))


def feed_forward(x, a, b, axis1, axis2):
    """Add the parts of X A over axis 2, then those of ReLU(X A) B over axis 1."""
    inner = x @ a
    dist.all_reduce(inner, group=axis2)
    y = torch.relu(inner) @ b
    dist.all_reduce(y, group=axis1)
    return y
