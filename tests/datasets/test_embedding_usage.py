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


def test_an_iterations_seconds_leave_out_the_first_line_of_an_epoch():
    seconds = usage.lm1b_seconds_per_batch()
    assert [len(seconds[run]) for run in usage.LM1B_RUNS] == [3000, 1500, 3000]  # 10, 5 and 10 epochs
    assert [round(float(np.median(seconds[run])), 3) for run in usage.LM1B_RUNS] == [0.209, 0.147, 0.483]
    assert min(map(min, seconds.values())) > 0.1  # a first line has 0.00035 to 0.008


def test_fields_and_reuse_are_those_of_the_files():
    sizes = usage.criteo_field_sizes()
    assert (len(sizes), sizes.sum(), sizes[:13].tolist(), sizes[13]) == (39, 60_747_983, [1] * 13, 15_040_574)
    first, *others = usage.embedding_reuse()
    assert (first.num_samples, first.num_lookups, first.num_distinct_rows) == (65_536, 887_017_990, 128_435_723)
    assert [row.year for row in others].count(2022) == 16 and len(others) == 32
    assert usage.source("lm1b_batches.csv.gz").is_real
