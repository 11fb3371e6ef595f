"""A learned code computed together with the row-parallel layer in front of it: x·(W·E) in place of (x·W)·E.

Source: the sum over ranks that section 3.2 of "Does compressing activations help model parallel training?" encodes is
linear, so that W·E [I/T, c] can be formed first: exactly the same code, and no full-size partial [N, h]. Forward, a
row-parallel product of 2·N·(I/T)·h FLOPs becomes one of 2·(I/T)·h·c (W·E) and one of 2·N·(I/T)·c (x·(W·E)).
Backward each has two products again: the gradients of x and of W·E, then those of W and of E.
Simplified: a product with c columns takes what encoding takes, in proportion to its FLOPs, and is nowhere faster than
the machine's other products.
Left out: boundaries between stages, whose full-size activation is needed by what follows.

Units: seconds, FLOPs. Legend: N = B·s rows, h hidden, I inputs of the row-parallel layer, T ranks, c code size.
"""

from __future__ import annotations

from ..method import Family
from .machine import FittedMachine
from .messages import ALL_REDUCES_PER_LAYER, Setting

__all__ = ["fused_encode_s", "spared_s"]

ROW_PARALLEL_INPUTS = (1, 4)  # of h: the output of attention, the second product of the MLP


def spared_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds of one layer's two full-size row-parallel products, forward, which a fused code never runs."""
    if not setting.is_fused:
        return 0.0
    rows, inputs = setting.micro_batch * setting.sequence, sum(ROW_PARALLEL_INPUTS) * setting.hidden / setting.tp
    return 2 * rows * inputs * setting.hidden / machine.flops_per_s


def fused_encode_s(setting: Setting, machine: FittedMachine) -> float:
    """Return the seconds of forming one fused code, the mean of a layer's two: W·E, and x·(W·E)."""
    rows, h = setting.micro_batch * setting.sequence, setting.hidden
    total_s = 0.0
    for widths in ROW_PARALLEL_INPUTS:
        inputs = widths * h / setting.tp
        total_s += _narrow_product_s(setting, machine, inputs) + inputs / h * _narrow_product_s(setting, machine, rows)
    return total_s / ALL_REDUCES_PER_LAYER


def _narrow_product_s(setting: Setting, machine: FittedMachine, rows: float) -> float:
    """Return the seconds of a product [rows, h] x [h, c]."""
    columns = setting.encoder_elements / setting.hidden
    fitted_s = machine.codec(Family.AUTOENCODER).encode_s(rows * setting.hidden, rows * columns)
    return max(fitted_s, 2 * rows * setting.hidden * columns / machine.flops_per_s)
