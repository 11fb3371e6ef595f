"""GLUE's measures, worked by hand, and what a constant answer scores."""

import math

import pytest

from workbench.datasets.glue import TASKS
from workbench.training.metrics import chance_score, glue_scores


def test_f1_and_accuracy_of_a_paraphrase_task():
    # One true positive, one false positive, one false negative, one true negative: precision = recall = 1/2.
    scores = glue_scores(TASKS["mrpc"], [1, 1, 0, 0], [1, 0, 1, 0])
    assert scores == {"f1": 0.5, "accuracy": 0.5} and list(scores) == ["f1", "accuracy"]


def test_matthews_correlation():
    # tp 2, tn 1, fp 1, fn 0: (2·1 − 1·0) / sqrt(3·2·2·1) = 2/sqrt(12).
    assert glue_scores(TASKS["cola"], [1, 1, 1, 0], [1, 1, 0, 0])["matthews"] == pytest.approx(2 / math.sqrt(12))


def test_spearman_looks_at_ranks_and_pearson_at_values():
    # Ranks agree but for the last two: rho = 1 − 6·(1 + 1)/(4·15) = 0.8.
    scores = glue_scores(TASKS["stsb"], [0.0, 1.0, 3.0, 2.0], [0.0, 1.0, 2.0, 10.0])
    assert scores["spearman"] == pytest.approx(0.8)
    # Deviations (−1.5, −.5, 1.5, .5) and (−3.25, −2.25, −1.25, 6.75): 7.5 / sqrt(5 · 62.75).
    assert scores["pearson"] == pytest.approx(7.5 / math.sqrt(5 * 62.75))


def test_a_constant_prediction_ranks_nothing():
    assert glue_scores(TASKS["stsb"], [2.0, 2.0, 2.0], [0.0, 1.0, 2.0]) == {"spearman": 0.0, "pearson": 0.0}
    assert glue_scores(TASKS["cola"], [1, 1, 1], [1, 0, 1]) == {"matthews": 0.0}


@pytest.mark.parametrize(
    ("task", "labels", "expected"),
    [
        ("sst2", [0, 1, 1, 1], 0.75),
        ("mrpc", [0, 1, 1, 1], 2 * 0.75 / 1.75),  # always yes: precision 3/4, recall 1
        ("mnli", [0, 1, 2, 2], 0.5),
        ("cola", [0, 1, 1, 1], 0.0),
        ("stsb", [0.0, 5.0], 0.0),
    ],
)
def test_chance_is_the_best_constant_answer(task, labels, expected):
    assert chance_score(TASKS[task], labels) == pytest.approx(expected)


def test_predictions_without_labels_are_refused():
    with pytest.raises(ValueError, match="predictions has 1 rows; it must have 2"):
        glue_scores(TASKS["rte"], [0], [0, 1])
