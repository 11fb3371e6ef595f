"""The training loop on a pipeline of two virtual stages: order, precision, frozen weights, refusals."""

import pytest
import torch
from torch.nn import functional

from workbench.models.bert import BertConfig, BertForMaskedLM, BertForSequenceClassification
from workbench.parallel import Stage, VirtualTensorGroup
from workbench.parallel.virtual_pipeline import VirtualPipeline
from workbench.training.batches import Examples
from workbench.training.loop import Recipe, predict, train

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
    train(pipeline, examples(), Recipe(epochs=1, batch=4, learning_rate=1e-2, precision="bf16"))
    assert {weight.dtype for weight in pipeline.module.parameters()} == {torch.float32}
    # Matrix products of 8 bits of mantissa: near what fp32 gives, and not the same.
    narrow = predict(pipeline, examples(), Recipe(epochs=1, batch=4, learning_rate=1e-2, precision="bf16"))
    exact = predict(pipeline, examples(), RECIPE)
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


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"batch": 0}, "batch is 0; it must be at least 1"),
        ({"precision": "fp8"}, "precision is 'fp8'; it must be one of fp32, bf16"),
        ({"learning_rate": -1.0}, "learning_rate is -1.0; it must be above 0"),
    ],
)
def test_a_recipe_says_what_is_wrong_with_it(wrong, told):
    with pytest.raises(ValueError, match=told):
        Recipe(**{"epochs": 1, "batch": 4, "learning_rate": 1e-3, **wrong})


def test_examples_that_fill_no_batch_are_refused():
    with pytest.raises(ValueError, match="batch is 4; it must be at most the number of examples, 2"):
        train(classifier(), examples(2), Recipe(epochs=1, batch=4, learning_rate=1e-3, drop_last=True))
