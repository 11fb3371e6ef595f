"""Criteo's advertisements: read from the folder, generated without one, and laid out as rows of one table."""

import os

import numpy as np
import pyarrow as pa
import pytest
from cases import refusals
from pyarrow import parquet

from workbench.datasets import SourceKind, criteo
from workbench.datasets.manifest import FileStatus, entry_named, verify
from workbench.datasets.source import DataSource, Found

REAL = os.environ.get("WORKBENCH_DATA", "")


def test_counts_are_logarithms_and_what_is_missing_or_negative_is_0(tmp_path, monkeypatch):
    columns = {"label": [1, 0]} | {f"I{place}": [None, 2] for place in range(1, 14)}
    columns |= {f"C{place}": ["0000000a", None] for place in range(1, 27)}
    columns["I2"] = [-2, 0]
    parquet.write_table(pa.table(columns), tmp_path / "train.parquet")
    resolved = Found(paths=(tmp_path / "train.parquet",), kind=SourceKind.WORKBENCH_DATA, sha256="")
    monkeypatch.setenv("WORKBENCH_DATA", str(tmp_path))
    monkeypatch.setattr(criteo, "resolve", lambda name, split: resolved)
    dataset = criteo.load("train")
    assert dataset.numbers[0].tolist() == [0.0] * 13 and dataset.numbers[1, 1] == 0
    assert dataset.numbers[1, [0, 2, 12]] == pytest.approx(np.log([3, 3, 3]))
    assert dataset.categories.tolist() == [[10] * 26, [criteo.MISSING] * 26] and dataset.labels.tolist() == [1, 0]
    assert "2 of 45,840,617 rows: scores are not comparable" in dataset.source.detail


def test_values_have_rows_field_by_field_with_the_unseen_value_first_and_then_the_most_frequent():
    table = criteo.FieldRows.of(np.array([[9, 5], [7, 6], [7, 5], [8, 5]]))
    # Field 0: unseen 0, then 7 (twice), 8, 9. Field 1: unseen 4, then 5 (three times), 6.
    assert (table.first_rows.tolist(), table.num_rows) == ([0, 4, 7], 7)
    assert table.rows(np.array([[7, 5], [9, 6], [8, 1], [-1, 5]])).tolist() == [[1, 5], [3, 6], [2, 4], [0, 5]]


def test_without_a_folder_clicks_are_generated_by_a_rule_and_are_the_same_on_every_machine(empty_machine):
    train, test = criteo.load("train"), criteo.load("test")
    assert (len(train), len(test)) == (2000, 400) and not train.source.is_real
    assert train.source.sha256[:12] == "beac93f1e40b"
    labels = {}  # the first three fields alone decide
    for values, label in zip(train.categories[:, :3].tolist(), train.labels.tolist(), strict=True):
        assert labels.setdefault(tuple(values), label) == label
    assert 0.2 < train.labels.mean() < 0.8
    first = criteo.load("train", limit=3)
    assert np.array_equal(first.categories, train.categories[:3])
    assert first.source.detail.startswith("3 rows chosen from: 2,000 generated rows")


def uneven():
    source = DataSource(name="x", kind=SourceKind.STAND_IN, detail="", sha256="")
    numbers, categories = np.zeros((2, 13), np.float32), np.zeros((2, 25), np.int64)
    return criteo.ClickDataset(
        split="train", numbers=numbers, categories=categories, labels=np.zeros(2, np.int64), source=source
    )


REFUSED = refusals(
    (lambda: criteo.load("validation"), "split is 'validation'; it must be one of train, test"),
    (lambda: criteo.load("train", limit=0), "limit is 0, must be at least 1 or None"),
    (uneven, r"categories has the shape \(2, 25\), must be \(2, 26\)"),
)
test_unknown_splits_and_uneven_columns_are_refused = pytest.mark.usefixtures("empty_machine")(REFUSED)


@pytest.mark.skipif(not REAL, reason="WORKBENCH_DATA names no folder of real data")
def test_the_real_folder_holds_the_first_ten_thousand_rows():
    assert {check.status for check in verify("criteo")} == {FileStatus.OK}
    assert {file.split: file.rows for file in entry_named("criteo").files} == criteo.ROWS
    train, test = criteo.load("train"), criteo.load("test")
    assert (train.labels.mean(), test.labels.mean()) == (0.216, 0.227)
    assert train.categories[0, 0] == 0x68FD1E64 and train.numbers[0, 11] == 0
    table = criteo.FieldRows.of(train.categories)
    assert table.num_rows == 37_126
    unseen = table.rows(test.categories) == table.first_rows[:-1]
    assert unseen[test.categories != criteo.MISSING].mean() == pytest.approx(0.148, abs=5e-4)  # the README's share
