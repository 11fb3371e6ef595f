"""The learning rate of fine-tuning: up in a line, down in a line.

Source: Devlin et al., BERT, appendix A.2 (warm-up, then linear decay).
Simplified: nothing. Left out: other shapes.
"""

from __future__ import annotations

import torch
from torch.optim.lr_scheduler import LambdaLR

__all__ = ["linear_factor", "linear_warm_up_and_decay"]


def linear_factor(step: int, num_steps: int, warm_up: float) -> float:
    """Return the share of the peak learning rate at a step.

    Args:
        step: from 0.
        num_steps: length of the training.
        warm_up: share of the steps in which the rate rises, in [0, 1).
    """
    num_rising = round(warm_up * num_steps)
    if step < num_rising:
        return (step + 1) / num_rising
    return max(0.0, (num_steps - step) / (num_steps - num_rising))


def linear_warm_up_and_decay(optimizer: torch.optim.Optimizer, num_steps: int, *, warm_up: float) -> LambdaLR:
    """Let an optimizer's learning rate rise to its peak and fall to nothing.

    Args:
        optimizer: its learning rates are the peaks.
        num_steps: length of the training, at least 1.
        warm_up: share of the steps in which the rate rises, in [0, 1).

    Returns:
        The schedule; call its `step()` after each of the optimizer's.

    Raises:
        ValueError: for fewer than 1 step or a share outside [0, 1).
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}, must be at least 1")
    if not 0 <= warm_up < 1:
        raise ValueError(f"warm_up is {warm_up}, must lie in [0, 1)")
    return LambdaLR(optimizer, lambda step: linear_factor(step, num_steps, warm_up))
