"""Solutions of the exercises in which a function is written: of the lesson, and of its second part."""

import torch


def encoded_sum(part, E, D, group):
    """Return the sum over all ranks of `part`, of which a code of fewer columns travels."""
    return group.sum([part @ E]) @ D


def quantised(row, bits):
    """Return what arrives of a row that travels in so many bits a value."""
    low, high = row.min(), row.max()
    step = (high - low) / (2**bits - 1)
    return low + step * torch.round((row - low) / step)
