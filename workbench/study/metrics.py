"""The measures of the GLUE tasks (Wang et al., GLUE, section 3), and the score of a constant answer.

Constant predictions have no rank correlation; they score 0, as in the papers.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import numpy as np
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

from workbench.datasets.glue import Task

__all__ = ["METRICS", "chance_score", "glue_scores"]


def _correlation(of: Callable) -> Callable[[Sequence[float], Sequence[float]], float]:
    def correlation(labels: Sequence[float], predictions: Sequence[float]) -> float:
        if min(np.ptp(labels), np.ptp(predictions)) == 0:
            return 0.0
        return of(labels, predictions).statistic

    return correlation


METRICS: Mapping[str, Callable] = MappingProxyType(
    {
        "accuracy": accuracy_score,
        "f1": partial(f1_score, zero_division=0.0),
        "matthews": matthews_corrcoef,
        "spearman": _correlation(spearmanr),
        "pearson": _correlation(pearsonr),
    }
)
"""Name in `glue.TASKS` -> (labels, predictions) -> score, 1 at best."""


def glue_scores(task: Task, predictions: Sequence[float], labels: Sequence[float]) -> dict[str, float]:
    """Score predictions, a class or for a regression a number each, by the task's measures, the leading one first."""
    if len(predictions) != len(labels) or not len(labels):
        raise ValueError(
            f"predictions has {len(predictions)} rows; it must have {len(labels)}, as labels, and at least 1"
        )
    return {name: float(METRICS[name](labels, predictions)) for name in task.metrics}


def chance_score(task: Task, labels: Sequence[float]) -> float:
    """Return the best leading score of a constant answer: for accuracy the share of the most frequent class."""
    answers = range(task.num_outputs)
    return max(glue_scores(task, [answer] * len(labels), labels)[task.metrics[0]] for answer in answers)
