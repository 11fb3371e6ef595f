"""From singular values to the figure's curve, and from the curve to numbers.

What: singular values in falling order, the cumulative share of their sum against the share of the dimension, and two
numbers read off that curve: where it reaches a share, and how far it lies above the diagonal.
Source: "Does compressing activations help model parallel training?", figure 2 and section 2.2.
Simplified: nothing; the decomposition runs in float64.
Left out: shares of the squared values (the energy), which the paper does not draw.

Shapes: N = rows, such as tokens, H = columns, K = min(N, H).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = [
    "Spectrum",
    "area_above_diagonal",
    "cumulative_share",
    "dimension_share",
    "mean_curves",
    "singular_values",
    "summary_rows",
]

SHARES = (50, 90)  # percent of the sum of singular values; the dimension share that holds them is reported
ROUNDING = 1e-12  # relative; what a running sum of a few thousand float64 values may be off by


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """The singular values of one matrix.

    Attributes:
        matrix: what it is, such as "activation"; matrices of one kind are averaged in summaries.
        part: the linear it belongs to, empty where a layer has only one such matrix.
        depth: "middle", "last", or "layer 1", "layer 2", ...
        sentences: batch size it was measured with.
        seed: of the batch.
        values: [K], float64, falling.
    """

    matrix: str
    part: str
    depth: str
    sentences: int
    seed: int
    values: Tensor


def singular_values(matrix: Tensor) -> Tensor:
    """Compute the singular values of a matrix.

    Args:
        matrix: [N, H], any floating dtype.
    Returns:
        [K], float64, falling.
    """
    return torch.linalg.svdvals(matrix.detach().double())


def cumulative_share(values: Tensor) -> Tensor:
    """Return the share of their sum that the first 1, 2, ..., K singular values hold.

    Args:
        values: [K], falling.
    Returns:
        [K], rising to 1.
    Raises:
        ValueError: all values are zero.
    Source: figure 2, the vertical axis.
    """
    total = values.sum()
    if not total > 0:
        raise ValueError("values are all zero, must hold at least one positive singular value")
    return values.cumsum(0) / total


def dimension_share(values: Tensor, share: float) -> float:
    """Return the smallest share of the dimension whose singular values hold `share` of the sum.

    Args:
        values: [K], falling.
        share: of the sum, in (0, 1].
    Raises:
        ValueError: share is not in (0, 1].
    """
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}, must be in (0, 1]")
    too_few = int((cumulative_share(values) < share - ROUNDING).sum())
    return (too_few + 1) / len(values)


def area_above_diagonal(values: Tensor) -> float:
    """Return the area between the cumulative curve and the diagonal: 0 for equal values, 1/2 - 1/(2K) for rank one.

    Args:
        values: [K], falling.
    Returns:
        The trapezoid rule over the K + 1 points from (0, 0) to (1, 1), less the 1/2 below the diagonal.
    """
    curve = cumulative_share(values)
    return float((curve.sum() - curve[-1] / 2) / len(values)) - 0.5


def _summaries(values: Tensor) -> dict[str, float]:
    """Return the numbers that a record holds for one spectrum."""
    shares = {f"dimension_share_for_{percent}": dimension_share(values, percent / 100) for percent in SHARES}
    return {"area_above_diagonal": area_above_diagonal(values), **shares}


def _by_group(spectra: Iterable[Spectrum]) -> dict[tuple[str, str, int], dict[int, list[Tensor]]]:
    """Group values by (matrix, depth, sentences), then by seed."""
    groups: dict[tuple[str, str, int], dict[int, list[Tensor]]] = {}
    for each in spectra:
        by_seed = groups.setdefault((each.matrix, each.depth, each.sentences), {})
        by_seed.setdefault(each.seed, []).append(each.values)
    return groups


def summary_rows(spectra: Iterable[Spectrum]) -> list[dict[str, Any]]:
    """Sum up spectra as rows for a record: the mean over seeds (and parts), with the range over seeds.

    Args:
        spectra: any number, of several seeds.
    Returns:
        Rows of quantity, matrix, depth, sentences, value, low, high, unit.
    """
    rows = []
    for (matrix, depth, sentences), by_seed in _by_group(spectra).items():
        per_seed = [_mean_summaries(values) for values in by_seed.values()]
        for quantity in per_seed[0]:
            found = [summaries[quantity] for summaries in per_seed]
            keys = {"quantity": quantity, "matrix": matrix, "depth": depth, "sentences": sentences}
            rows.append({**keys, "value": fmean(found), "low": min(found), "high": max(found), "unit": "share"})
    return rows


def _mean_summaries(parts: Sequence[Tensor]) -> dict[str, float]:
    """Average the numbers of several matrices."""
    each = [_summaries(values) for values in parts]
    return {quantity: fmean(summaries[quantity] for summaries in each) for quantity in each[0]}


def mean_curves(spectra: Iterable[Spectrum], depth: str, sentences: int) -> Mapping[str, Tensor]:
    """Return the cumulative curves of one depth and batch size.

    Args:
        spectra: of several seeds.
        depth: such as "middle".
        sentences: the batch size.
    Returns:
        Kind of matrix to [seeds, K], each row the mean over that kind's parts; where a kind's matrices differ in K
        (fewer tokens than columns), the smallest K, by linear interpolation.
    """
    curves = {}
    for (matrix, at, count), by_seed in _by_group(spectra).items():
        if (at, count) == (depth, sentences):
            num_points = min(len(values) for parts in by_seed.values() for values in parts)
            curves[matrix] = torch.stack([_mean_curve(parts, num_points) for parts in by_seed.values()])
    return curves


def _mean_curve(parts: Sequence[Tensor], num_points: int) -> Tensor:
    """Average cumulative curves at the dimension shares 1/num_points, 2/num_points, ..., 1."""
    return torch.stack([_resampled(cumulative_share(values), num_points) for values in parts]).mean(0)


def _resampled(curve: Tensor, num_points: int) -> Tensor:
    """Read a curve at other dimension shares, joining its points and (0, 0) by straight lines."""
    if len(curve) == num_points:
        return curve
    share = np.linspace(0, 1, len(curve) + 1)
    wanted = np.linspace(0, 1, num_points + 1)[1:]
    return torch.from_numpy(np.interp(wanted, share, np.concatenate([[0.0], curve.numpy()])))
