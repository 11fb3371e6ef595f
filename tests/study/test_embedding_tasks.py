"""Trainings with sparse gradients: the rows they touch, the draws of ranks, and what is learnt."""

import math
import os

import numpy as np
import pytest
import torch

from tests.cases import refusals
from workbench.study.embedding_tasks import EMBEDDING_TASKS, EmbeddingTask

needs_data = pytest.mark.skipif(
    not os.environ.get("WORKBENCH_DATA"), reason="WORKBENCH_DATA names no folder of real data"
)
every_task = pytest.mark.parametrize("name", EMBEDDING_TASKS)
SCORES = {"lstm": ["perplexity"], "deepfm": ["auc", "accuracy"], "nmt": ["perplexity", "accuracy"]}
SCORES |= {"bert": ["accuracy"]}


@pytest.fixture
def offline(tmp_path, monkeypatch):
    for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "WORKBENCH_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def gradients(task: EmbeddingTask, rank: int, step: int) -> dict[str, torch.Tensor]:
    task.module.zero_grad()
    task.loss(task.module, task.draw(rank, step)).backward()
    weights = dict(task.module.named_parameters())
    return {table: weights[table].grad for table in task.embeddings}


def assert_touched_rows_are_those_of_the_gradient(task: EmbeddingTask) -> None:
    for rank, step in ((0, 0), (3, 1)):
        touched = task.touched(rank, step)
        assert list(touched) == list(task.embeddings)
        for table, gradient in gradients(task, rank, step).items():
            assert gradient.shape[0] == task.embeddings[table]
            assert np.array_equal(touched[table], gradient.abs().sum(dim=1).nonzero()[:, 0])


@every_task
def test_the_touched_rows_are_the_rows_of_the_gradient_that_are_not_zero(offline, name):
    task = EmbeddingTask(name, batch=2, seed=1, size="tiny")
    assert_touched_rows_are_those_of_the_gradient(task)
    assert all(0 < len(rows) < task.embeddings[table] for table, rows in task.touched(0, 0).items())


@every_task
def test_sparse_gradients_equal_dense_ones_before_and_after_an_update(offline, name):
    tasks = [EmbeddingTask(name, batch=4, seed=1, size="tiny", sparse=sparse) for sparse in (False, True)]
    for step in range(3):
        dense, sparse = (gradients(task, 0, step) for task in tasks)
        for table in dense:
            assert not dense[table].is_sparse and sparse[table].is_sparse
            torch.testing.assert_close(sparse[table].to_dense(), dense[table], atol=1e-6, rtol=1e-4)
        for task in tasks:
            task.optimizer(task.module.parameters(), 0.01, 0.0).step()


@every_task
def test_the_loss_falls_and_the_test_is_scored(offline, name):
    task = EmbeddingTask(name, batch=32, seed=0, size="tiny", sparse=True)
    optimizer, losses = task.optimizer(task.module.parameters(), 0.1 if name != "bert" else 0.01, 0.0), []
    for step in range(30):
        optimizer.zero_grad()
        loss = task.loss(task.module, task.draw(0, step))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.95 * np.mean(losses[:5])
    scores = task.scores(task.module)
    assert list(scores) == SCORES[name] and all(math.isfinite(score) for score in scores.values())
    assert all(score <= 100 for measure, score in scores.items() if measure != "perplexity")
    assert not any(source["source"] == "WORKBENCH_DATA" for source in task.sources)


def test_ranks_share_no_example_in_a_step_until_all_are_taken(offline):
    task = EmbeddingTask("deepfm", batch=500, seed=0, size="tiny")
    ranks = [{tuple(row) for row in task.draw(rank, 3).inputs[0].tolist()} for rank in range(5)]
    assert len(set().union(*ranks[:4])) == sum(map(len, ranks[:4])) == 2000  # all generated rows
    assert ranks[4] < set().union(*ranks[:4]) and ranks[4] not in ranks[:4]


def test_a_draw_is_the_same_for_equal_seeds_and_another_in_another_step_or_for_another_seed(offline):
    task, same, other = (EmbeddingTask("lstm", batch=4, seed=seed, size="tiny") for seed in (1, 1, 2))
    for place in ((0, 0), (7, 5)):
        for first, second in zip(task.draw(*place).inputs, same.draw(*place).inputs, strict=True):
            assert np.array_equal(first, second)
    ids = task.draw(0, 0).inputs[0]
    assert not torch.equal(ids, task.draw(0, 1).inputs[0]) and not torch.equal(ids, other.draw(0, 0).inputs[0])
    assert all(map(torch.equal, task.module.parameters(), same.module.parameters()))


test_unknown_tasks_and_sizes_and_a_momentum_are_refused = refusals(
    (lambda: EmbeddingTask("gpt", batch=1, seed=0), "name is 'gpt'; it must be one of lstm, deepfm, nmt, bert"),
    (lambda: EmbeddingTask("nmt", batch=1, seed=0, size="huge"), "size is 'huge'; it must be one of tiny, small"),
    (lambda: EmbeddingTask("nmt", batch=0, seed=0), "batch is 0; it must be a whole number of at least 1"),
    (lambda: EmbeddingTask.optimizer([], 0.1, 0.9), "momentum is 0.9; it must be 0"),
)


@needs_data
@pytest.mark.parametrize(  # embeddings' share of all parameters, at least; the encoder is published as it is
    ("name", "rows", "share"),
    [
        ("lstm", [33_278] * 2, 0.9),
        ("deepfm", [37_126] * 2, 0.9),
        ("nmt", [17_915, 5_898], 0.8),
        ("bert", [30_522], 0.6),
    ],
)
def test_on_real_data_most_parameters_are_embeddings_and_few_rows_are_touched(name, rows, share):
    task = EmbeddingTask(name, batch=16, seed=0)
    assert list(task.embeddings.values()) == rows
    sizes = {name: weight.numel() for name, weight in task.module.named_parameters()}
    assert sum(sizes[table] for table in task.embeddings) > share * sum(sizes.values())
    assert_touched_rows_are_those_of_the_gradient(task)
    for table, touched in task.touched(0, 0).items():
        assert len(touched) < 0.03 * task.embeddings[table]
