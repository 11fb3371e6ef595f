"""Batches by length, their padding, and the learning rate over the steps."""

import numpy as np
import pytest
import torch

from workbench.training.batches import Examples, shuffled_batches, sorted_batches
from workbench.training.loop import linear_factor, linear_warm_up_and_decay


def examples(*lengths: int, **options) -> Examples:
    ids = [torch.arange(1, length + 1) for length in lengths]
    types = [torch.ones(length, dtype=torch.int64) for length in lengths]
    return Examples(ids=ids, types=types, labels=torch.arange(len(lengths)), **options)


def test_a_batch_is_padded_to_its_longest_sequence():
    batch = examples(5, 1, 3).batch([1, 2])
    assert batch.ids_BS.tolist() == [[1, 0, 0], [1, 2, 3]]
    assert batch.mask_BS.tolist() == batch.types_BS.tolist() == [[1, 0, 0], [1, 1, 1]]
    assert batch.labels.tolist() == [1, 2]


def test_a_fixed_width_pads_every_batch_alike():
    assert examples(2, 1, padded_to=4).batch([1]).ids_BS.tolist() == [[1, 0, 0, 0]]
    with pytest.raises(ValueError, match="padded_to is 4; it must be at least the longest sequence, 5"):
        examples(5, padded_to=4)


def test_sorted_batches_run_from_the_longest_to_the_shortest():
    assert [batch.tolist() for batch in sorted_batches(np.array([3, 9, 5, 9, 1]), 2)] == [[1, 3], [2, 0], [4]]


def test_an_epoch_has_every_row_once_and_lengths_of_a_batch_lie_together():
    lengths = np.random.default_rng(1).integers(1, 100, size=70)
    batches = list(shuffled_batches(lengths, 8, np.random.default_rng(2)))
    assert sorted(row for batch in batches for row in batch) == list(range(70))
    assert [len(batch) for batch in batches].count(8) == 8 and len(batches) == 9
    # All rows fit one pool, so sorted batches do not overlap in length.
    spans = sorted((lengths[batch].min(), lengths[batch].max()) for batch in batches)
    assert all(left[1] <= right[0] for left, right in zip(spans, spans[1:], strict=False))
    assert [list(a) for a in batches] != [list(a) for a in shuffled_batches(lengths, 8, np.random.default_rng(3))]


def test_rows_that_fill_no_batch_can_be_left_out():
    batches = list(shuffled_batches(np.arange(10), 4, np.random.default_rng(0), drop_last=True))
    assert [len(batch) for batch in batches] == [4, 4]


def test_the_learning_rate_rises_and_falls_in_lines():
    # 10 steps, 20 % warm-up: 1/2, 1, then 8 steps from 8/8 down to 1/8, and 0 after the end.
    factors = [linear_factor(step, 10, 0.2) for step in range(11)]
    assert factors == [0.5, 1.0, 1.0, 0.875, 0.75, 0.625, 0.5, 0.375, 0.25, 0.125, 0.0]


def test_a_schedule_without_steps_is_refused():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    with pytest.raises(ValueError, match="num_steps is 0; it must be at least 1"):
        linear_warm_up_and_decay(optimizer, 0, warm_up=0.1)
