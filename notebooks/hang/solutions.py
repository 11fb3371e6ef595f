"""The solution of the exercise on hangs."""

import torch
import torch.distributed as dist


def mean_loss(losses):
    """Add sums and numbers of batches in one all-reduce, to which every rank comes exactly once."""
    total = torch.tensor([sum(losses), len(losses)], dtype=torch.float64)
    dist.all_reduce(total)
    return (total[0] / total[1]).item()
