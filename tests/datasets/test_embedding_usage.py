"""Real records of which rows of embedding tables are used, against the numbers of their README."""

import numpy as np

from workbench.datasets import embedding_usage as usage


def test_words_are_counted_with_the_most_frequent_first():
    counts = usage.lm1b_word_counts()
    assert (counts.shape, counts.sum(), counts.dtype) == ((793_471,), 829_250_940, np.int64)
    assert (np.diff(counts) <= 0).all() and (counts[0], counts[3], counts[-1]) == (35_936_573, 30_301_028, 3)


def test_batches_hold_distinct_words():
    batches = usage.lm1b_batches()
    sizes = [len(rows) for rows in batches]
    assert (len(batches), min(sizes), max(sizes), sum(sizes)) == (62, 1134, 1240, 73_835)
    assert all(len(np.unique(rows)) == len(rows) for rows in batches)
    assert batches[0][:4].tolist() == [0, 1, 3, 4]


def test_fields_are_those_of_the_file():
    sizes = usage.criteo_field_sizes()
    assert (len(sizes), sizes.sum(), sizes[:13].tolist(), sizes[13]) == (39, 60_747_983, [1] * 13, 15_040_574)
    assert usage.source("lm1b_batches.csv.gz").is_real
