"""The lineage: entries, the table, and the way back from kept to dropped columns."""

import pytest
import torch

from workbench.techniques.flextp.method.resizing import Lineage, LineageEntry

pytestmark = pytest.mark.timeout(60)


def test_it_prints_as_a_table_with_runs_of_neighbours_written_short():
    lineage = Lineage()
    lineage.record_("blocks.0.mlp.input", "weight", [5, 0, 1, 2])
    lineage.record_("head", "input", torch.tensor([], dtype=torch.int64))
    lineage.record_("head", "weight", [3])
    assert str(lineage).splitlines() == [
        "layer               matrix  dropped columns",
        "blocks.0.mlp.input  weight  0-2 5",
        "head                input   none",
        "head                weight  3",
    ]


def test_an_entry_replaces_the_one_before_it_and_comes_back_in_ascending_order():
    lineage = Lineage()
    lineage.record_("head", "weight", [7])
    lineage.record_("head", "weight", torch.tensor([4, 1]))
    assert lineage["head", "weight"].tolist() == [1, 4]
    assert lineage.entries() == [("head", "weight", (1, 4))] == [LineageEntry("head", "weight", (1, 4))]
    assert len(lineage) == 1


def test_the_kept_columns_are_all_others():
    lineage = Lineage()
    lineage.record_("head", "weight", [4, 1])
    assert lineage.kept("head", "weight", 6).tolist() == [0, 2, 3, 5]


def test_a_matrix_without_an_entry_or_without_the_dropped_columns_is_refused():
    lineage = Lineage()
    lineage.record_("head", "weight", [4])
    with pytest.raises(KeyError):
        lineage.kept("head", "input", 6)
    with pytest.raises(ValueError, match="column 4"):
        lineage.kept("head", "weight", 4)
