"""The measures of the GLUE tasks, and what a model that has learnt nothing scores.

Source: Wang et al., GLUE, section 3; computed by scikit-learn and scipy.
Simplified: predictions that are all the same have no rank correlation; they score 0, as the paper's tables print it.
Left out: GLUE's average over tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from workbench.datasets.glue import Task

__all__ = ["METRICS", "chance_score", "glue_scores"]


def _f1(labels: Sequence[int], predictions: Sequence[int]) -> float:
    return f1_score(labels, predictions, zero_division=0.0)


def _correlation(of: Callable) -> Callable[[Sequence[float], Sequence[float]], float]:
    """Make a correlation that is 0 where one side is constant and it is not defined."""

    def correlation(labels: Sequence[float], predictions: Sequence[float]) -> float:
        if min(np.ptp(labels), np.ptp(predictions)) == 0:
            return 0.0
        return of(labels, predictions).statistic

    return correlation


METRICS: Mapping[str, Callable] = MappingProxyType(
    {
        "accuracy": accuracy_score,
        "f1": _f1,
        "matthews": matthews_corrcoef,
        "spearman": _correlation(spearmanr),
        "pearson": _correlation(pearsonr),
    }
)
"""Name in `glue.TASKS` -> (labels, predictions) -> score, 1 at best."""


def glue_scores(task: Task, predictions: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    """Score predictions by the task's own measures, the leading one first.

    Args:
        task: from `glue.TASKS`.
        predictions: a class, or for a regression a number, for each row.
        labels: the same for each row, as the data set has them.

    Raises:
        ValueError: if the numbers of both differ or are zero.
    """
    if len(predictions) != len(labels) or not len(labels):
        raise ValueError(f"predictions: {len(predictions)} given for {len(labels)} labels, must be as many, at least 1")
    return {name: float(METRICS[name](labels, predictions)) for name in task.metrics}


def chance_score(task: Task, labels: Sequence[float]) -> float:
    """Return the best leading score of a model that says the same for every row.

    Args:
        task: from `glue.TASKS`.
        labels: of the rows that scores are reported on.

    Returns:
        The share of the most frequent class for accuracy, 0 for correlations; for F1 that of always answering yes.
    """
    answers = range(task.num_outputs)
    return max(glue_scores(task, [answer] * len(labels), labels)[task.metrics[0]] for answer in answers)
