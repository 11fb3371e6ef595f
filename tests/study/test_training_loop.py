"""The training loop on a pipeline of two virtual stages, its batches, its learning rate, and GLUE's measures."""

import math

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.cases import refusals
from workbench.datasets.glue import TASKS
from workbench.models.bert import BertConfig, BertForMaskedLM, BertForSequenceClassification
from workbench.parallel import Stage, VirtualTensorGroup
from workbench.parallel.pipeline import VirtualPipeline
from workbench.study.batches import Examples, shuffled_batches, sorted_batches
from workbench.study.loop import Recipe, linear_factor, linear_warm_up_and_decay, predict, train
from workbench.study.metrics import chance_score, glue_scores

RECIPE = Recipe(epochs=2, batch=4, learning_rate=1e-2)


def examples(count: int = 10) -> Examples:
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, 64, (3 + row % 5,), generator=generator) for row in range(count)]
    return Examples(ids=ids, types=[torch.zeros_like(row) for row in ids], labels=torch.arange(count) % 2)


def classifier() -> VirtualPipeline:
    group, stages = VirtualTensorGroup(2), [Stage(index=index, num_stages=2) for index in range(2)]
    parts = [BertForSequenceClassification(BertConfig.tiny(), group, 2, stage) for stage in stages]
    return VirtualPipeline(parts, loss=functional.cross_entropy)


def test_training_sees_every_example_in_every_epoch_and_lowers_the_loss():
    seen = []
    run = train(classifier(), examples(), RECIPE, on_step=lambda batch: seen.append(len(batch.labels)))
    assert run.num_steps == len(seen) == 6 and sum(seen) == run.num_examples == 20
    assert run.losses[-1] < run.losses[0]


def test_predictions_come_in_the_order_of_the_examples():
    pipeline, rows = classifier(), examples()
    together = predict(pipeline, rows, RECIPE, batch=3)
    for row in range(len(rows)):
        batch = rows.batch([row])
        torch.testing.assert_close(together[row : row + 1], pipeline.evaluate(batch.ids_BS, **batch.context))


def test_bfloat16_keeps_the_weights_in_fp32():
    pipeline = classifier()
    before = predict(pipeline, examples(), RECIPE)
    in_bfloat16 = Recipe(epochs=1, batch=4, learning_rate=1e-2, precision="bf16")
    train(pipeline, examples(), in_bfloat16)
    assert {weight.dtype for weight in pipeline.module.parameters()} == {torch.float32}
    # Matrix products of 8 bits of mantissa: near what fp32 gives, and not the same.
    narrow, exact = predict(pipeline, examples(), in_bfloat16), predict(pipeline, examples(), RECIPE)
    assert narrow.dtype == torch.float32 and not torch.equal(narrow, exact) and not torch.equal(before, exact)
    torch.testing.assert_close(narrow, exact, rtol=0.1, atol=0.05)


def test_frozen_words_that_two_stages_share_stay_as_they_were():
    group, stages = VirtualTensorGroup(1), [Stage(index=index, num_stages=2) for index in range(2)]
    parts = [BertForMaskedLM(BertConfig.tiny(), group, stage) for stage in stages]
    for part in parts:
        part.tied_weight.requires_grad_(False)
    pipeline = VirtualPipeline(parts, loss=lambda output, words: functional.cross_entropy(output[:, 0], words))
    before = [part.tied_weight.clone() for part in parts]
    run = train(pipeline, examples(), RECIPE)
    assert run.losses[-1] < run.losses[0]
    assert all(torch.equal(part.tied_weight, weight) for part, weight in zip(parts, before, strict=True))


def of_lengths(*lengths: int, **options) -> Examples:
    ids = [torch.arange(1, length + 1) for length in lengths]
    types = [torch.ones(length, dtype=torch.int64) for length in lengths]
    return Examples(ids=ids, types=types, labels=torch.arange(len(lengths)), **options)


def test_a_batch_is_padded_to_its_longest_sequence_or_to_a_fixed_width():
    batch = of_lengths(5, 1, 3).batch([1, 2])
    assert batch.ids_BS.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert batch.mask_BS.tolist() == batch.types_BS.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.labels.tolist() == [1, 2]
    assert of_lengths(2, 1, padded_to=4).batch([1]).ids_BS.tolist() == [[1, 0, 0, 0]]


def test_an_epoch_has_every_row_once_lengths_of_a_batch_lie_together_and_sorted_batches_fall():
    assert [batch.tolist() for batch in sorted_batches(np.array([3, 9, 5, 9, 1]), 2)] == [[1, 3], [2, 0], [4]]
    lengths = np.random.default_rng(1).integers(1, 100, size=70)
    batches = list(shuffled_batches(lengths, 8, np.random.default_rng(2)))
    assert sorted(row for batch in batches for row in batch) == list(range(70))
    assert [len(batch) for batch in batches].count(8) == 8 and len(batches) == 9
    # All rows fit one pool, so sorted batches do not overlap in length.
    spans = sorted((lengths[batch].min(), lengths[batch].max()) for batch in batches)
    assert all(left[1] <= right[0] for left, right in zip(spans, spans[1:], strict=False))
    assert [list(a) for a in batches] != [list(a) for a in shuffled_batches(lengths, 8, np.random.default_rng(3))]
    full = shuffled_batches(np.arange(10), 4, np.random.default_rng(0), drop_last=True)
    assert [len(batch) for batch in full] == [4, 4]


def test_the_learning_rate_rises_and_falls_in_lines():
    # 10 steps, 20 % warm-up: 1/2, 1, then 8 steps from 8/8 down to 1/8, and 0 after the end.
    factors = [linear_factor(step, 10, 0.2) for step in range(11)]
    assert factors == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def test_scores_of_tasks_are_those_worked_by_hand():
    # One true positive, one false positive, one false negative, one true negative: precision = recall = 1/2.
    scores = glue_scores(TASKS["mrpc"], [1, 1, 0, 0], [1, 0, 1, 0])
    assert scores == {"f1": 0.5, "accuracy": 0.5} and list(scores) == ["f1", "accuracy"]
    # tp 2, tn 1, fp 1, fn 0: (2·1 − 1·0) / sqrt(3·2·2·1) = 2/sqrt(12).
    assert glue_scores(TASKS["cola"], [1, 1, 1, 0], [1, 1, 0, 0])["matthews"] == pytest.approx(2 / math.sqrt(12))
    # Spearman: ranks agree but for the last two: rho = 1 − 6·(1 + 1)/(4·15) = 0.8.
    # Pearson: deviations (−1.5, −.5, 1.5, .5) and (−3.25, −2.25, −1.25, 6.75): 7.5 / sqrt(5 · 62.75).
    scores = glue_scores(TASKS["stsb"], [0.0, 1.0, 3.0, 2.0], [0.0, 1.0, 2.0, 10.0])
    assert (scores["spearman"], scores["pearson"]) == pytest.approx((0.8, 7.5 / math.sqrt(5 * 62.75)))
    # A constant prediction ranks nothing.
    assert glue_scores(TASKS["stsb"], [2.0, 2.0, 2.0], [0.0, 1.0, 2.0]) == {"spearman": 0.0, "pearson": 0.0}
    assert glue_scores(TASKS["cola"], [1, 1, 1], [1, 0, 1]) == {"matthews": 0.0}


def test_chance_is_the_best_constant_answer():
    assert chance_score(TASKS["sst2"], [0, 1, 1, 1]) == 0.75
    assert chance_score(TASKS["mrpc"], [0, 1, 1, 1]) == pytest.approx(2 * 0.75 / 1.75)  # always yes: precision 3/4
    assert (chance_score(TASKS["mnli"], [0, 1, 2, 2]), chance_score(TASKS["stsb"], [0.0, 5.0])) == (0.5, 0.0)


def recipe(**changes) -> Recipe:
    return Recipe(**{"epochs": 1, "batch": 4, "learning_rate": 1e-3, **changes})


test_recipes_examples_and_predictions_that_do_not_fit_are_refused = refusals(
    (lambda: recipe(batch=0), "batch is 0; it must be at least 1"),
    (lambda: recipe(precision="fp8"), "precision is 'fp8'; it must be one of fp32, bf16"),
    (lambda: recipe(learning_rate=-1.0), "learning_rate is -1.0; it must be above 0"),
    (lambda: train(classifier(), examples(2), recipe(drop_last=True)), "batch is 4; it must be at most"),
    (lambda: of_lengths(5, padded_to=4), "padded_to is 4; it must be at least the longest sequence, 5"),
    (lambda: linear_warm_up_and_decay(torch.optim.SGD([torch.zeros(1)]), 0, warm_up=0.1), "num_steps is 0"),
    (lambda: glue_scores(TASKS["rte"], [0], [0, 1]), "predictions has 1 rows; it must have 2"),
)
