"""Rows of the accuracy study, worked by hand from made-up cells, and what chance and spreads do to verdicts."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from workbench.reproduction import Project, find_item, load_catalogue, published
from workbench.reproduction.claims import Ordering, Within
from workbench.reproduction.judge import judge
from workbench.reproduction.rows import read_rows
from workbench.reproduction.verdicts import Verdict
from workbench.techniques.activation_compression import accuracy


def cell(method: str, score: float, *, task: str = "mrpc", seed: int = 0, sent: int = 100, **changes) -> dict:
    return {
        "task": task, "method": method, "seed": seed, "score": score, "scores": {"f1": score}, "chance": 0.5,
        "train_loss": 0.4, "tensor_bytes": 2 * sent, "compressed_site_bytes": sent, "seconds": 1.0, "layers": [3, 4, 5],
        "num_validation": 400, "data": [{"name": "glue/mrpc/train", "source": "WORKBENCH_DATA", "detail": "", "sha256": "0"}],
        **changes,
    }  # fmt: skip


def values_of(rows, quantity: str) -> dict:
    return {(row.get("method"), row.get("seed")): row["value"] for row in rows if row["quantity"] == quantity}


def test_a_method_is_compared_with_the_uncompressed_run_of_its_own_seed():
    rows = accuracy.score_rows(
        [cell("w/o", 0.8), cell("w/o", 0.5, seed=1), cell("A1", 0.6, sent=5), cell("A1", 0.5, seed=1, sent=5)]
    )
    assert values_of(rows, "score")["A1", 0] == pytest.approx(60)
    assert values_of(rows, "relative_score") == pytest.approx({("A1", 0): 0.75, ("A1", 1): 1.0})
    assert values_of(rows, "points_lost") == pytest.approx({("A1", 0): 20.0, ("A1", 1): 0.0})
    assert values_of(rows, "message_share") == pytest.approx({("A1", 0): 0.05, ("A1", 1): 0.05})


def test_a_gain_is_no_loss_of_points():
    lost = Within("l", quantity="points_below", where={"method": "A1"}, expected=0.0, abs=3.0, because="b", source="s")
    rows = accuracy.score_rows([cell("w/o", 0.5), cell("w/o", 0.5, seed=1), cell("A1", 0.6), cell("A1", 0.48, seed=1)])
    assert values_of(rows, "points_lost") == pytest.approx({("A1", 0): -10.0, ("A1", 1): 2.0})
    assert values_of(rows, "points_below") == pytest.approx({("A1", 0): 0.0, ("A1", 1): 2.0})
    assert judge([lost], read_rows(rows, "values"), [])[0].verdict is Verdict.AGREES
    assert verdict(lost, [cell("w/o", 0.5), cell("A1", 0.46)]) is Verdict.DISAGREES


def test_without_an_uncompressed_run_nothing_is_compared():
    quantities = {row["quantity"] for row in accuracy.score_rows([cell("A1", 0.6)])}
    assert quantities == {"score", "f1", "chance", "train_loss", "tensor_bytes", "compressed_site_bytes", "cell_s"}


def test_a_task_is_at_chance_within_two_standard_errors():
    # sqrt(0.5·0.5/400) = 0.025: 0.55 is two errors above 0.5, and not more.
    assert "at chance" in accuracy.chance_reasons([cell("w/o", 0.55)])["mrpc"]
    assert accuracy.chance_reasons([cell("w/o", 0.551)]) == {}
    # A correlation of 100 rows has the error 0.1; seeds are averaged: (0.1 + 0.3)/2 = 0.2.
    few = {"task": "cola", "chance": 0.0, "num_validation": 100}
    assert "cola" in accuracy.chance_reasons([cell("w/o", 0.1, **few), cell("w/o", 0.3, seed=1, **few)])


def test_claims_about_a_task_at_chance_are_not_comparable_by_their_name():
    cells = [cell("w/o", 0.5), cell("w/o", 0.9, task="sst2")]
    reasons = accuracy.not_comparable(cells, ["mrpc: one", "sst2: two", "mrpcs are three", "All: four"])
    assert list(reasons) == ["mrpc: one"]


def test_layers_are_told_by_their_number_or_by_the_first():
    cells = [cell("w/o", 0.8), cell("A2", 0.7, layers=[4, 5]), cell("A2", 0.6, layers=[0, 1])]
    by_first = [row for row in accuracy.layer_rows(cells, "first_layer") if row["quantity"] == "score"]
    assert [(row["first_layer"], row["value"]) for row in by_first] == [(None, 80.0), (4, 70.0), (0, pytest.approx(60))]
    by_number = [row["num_layers"] for row in accuracy.layer_rows(cells[:2], "num_layers") if row["quantity"] == "score"]
    assert by_number == [0, 2]
    assert not any(row["quantity"] == "message_share" for row in accuracy.layer_rows(cells, "first_layer"))


def test_error_feedback_is_compared_with_the_same_uncompressed_run():
    off, on = [cell("w/o", 0.8), cell("T1", 0.4)], [cell("T1", 0.6)]
    rows = [row for row in accuracy.feedback_rows(off, on) if row["quantity"] == "relative_score"]
    assert [(row["method"], row["error_feedback"], row["value"]) for row in rows] == [
        ("T1", 0, pytest.approx(0.5)), ("T1", 1, pytest.approx(0.75)),
    ]  # fmt: skip


def test_means_leave_out_tasks_that_do_not_count():
    rows = accuracy.score_rows(
        [
            cell("w/o", 0.8), cell("T1", 0.4, sent=10),
            cell("w/o", 0.8, task="sst2"), cell("T1", 0.8, task="sst2", sent=30), cell("w/o", 0.1, task="rte"),
            cell("T1", 0.1, task="rte"),
        ]
    )  # fmt: skip
    means = accuracy.mean_rows(rows, ["mrpc", "sst2"])
    assert values_of(means, "mean_relative_score") == {("T1", 0): pytest.approx(0.75), ("w/o", 0): 1.0}
    assert values_of(means, "mean_message_share") == {("T1", 0): pytest.approx(0.2), ("w/o", 0): 1.0}


def test_precision_is_compared_by_task_and_seed():
    (row,) = accuracy.precision_rows([cell("w/o", 0.80), cell("A1", 0.1)], [cell("w/o", 0.81)])
    assert row["quantity"] == "precision_points" and row["value"] == pytest.approx(1.0)


def verdict(claim, cells, sources=({"name": "glue", "source": "WORKBENCH_DATA"},)) -> Verdict:
    return judge([claim], read_rows(accuracy.score_rows(cells), "values"), [], sources=sources)[0].verdict


def test_an_order_inside_the_spread_of_seeds_is_no_finding():
    order = Ordering("o", quantity="score", along="method", order=["T1", "A1"], because="b", needs_real_data=True)
    apart = [cell("T1", 0.5), cell("T1", 0.6, seed=1), cell("A1", 0.7), cell("A1", 0.8, seed=1)]
    overlapping = [*apart[:1], cell("T1", 0.75, seed=1), *apart[2:]]
    assert verdict(order, apart) is Verdict.AGREES
    assert verdict(order, overlapping) is Verdict.NOT_COMPARABLE
    assert verdict(order, [cell("T1", 0.9), cell("T1", 0.9, seed=1), *apart[2:]]) is Verdict.DISAGREES


def test_generated_text_supports_no_verdict():
    lost = Within("l", quantity="points_lost", where={"method": "A1"}, expected=0.0, abs=3.0, because="b", source="s",
                  needs_real_data=True)  # fmt: skip
    cells = [cell("w/o", 0.80), cell("A1", 0.79)]
    assert verdict(lost, cells) is Verdict.AGREES
    assert verdict(lost, [cell("w/o", 0.80), cell("A1", 0.76)]) is Verdict.DISAGREES
    assert verdict(lost, cells, [{"name": "glue", "source": "stand-in"}]) is Verdict.NOT_COMPARABLE


def test_sources_are_told_once():
    assert len(accuracy.sources([cell("w/o", 0.8), cell("A1", 0.8)])) == 1


def test_the_table_shows_mean_and_spread():
    rows = accuracy.score_rows([cell("w/o", 0.80), cell("w/o", 0.84, seed=1), cell("A1", 0.8)])
    table = accuracy.score_table(rows)
    assert table.loc["mrpc"].to_dict() == {"w/o": "82.0 (80.0 to 84.0)", "A1": "80.0", "chance": "50.0"}


def test_points_of_a_scatter_lie_at_bytes_and_score():
    rows = accuracy.score_rows([cell("w/o", 0.8), cell("T1", 0.4, sent=10)])
    ax = accuracy.draw_per_byte(accuracy.mean_rows(rows, ["mrpc"]), ax=plt.figure().add_subplot())
    assert {text.get_text(): text.xy for text in ax.texts} == {"T1": (0.1, 0.5), "w/o": (1.0, 1.0)}
    plt.close("all")


def test_the_papers_scores_stand_beside_ours_by_method():
    rows = accuracy.score_rows([cell("w/o", 0.8), cell("T1", 0.4), cell("Q3", 0.8)])
    published = pd.DataFrame([{"task": "mrpc", "method": "T1", "value": 0.8}, {"task": "sst2", "method": "Q3", "value": 0.1}])
    beside = accuracy.beside_published(rows, published, "mrpc").set_index("method")
    assert beside.published["T1"] == 0.8 and pd.isna(beside.published["Q3"]) and beside.ours["Q3"] == 1.0


@pytest.mark.parametrize("table", ["table-5", "table-8", "table-15", "table-16"])
def test_no_order_is_claimed_that_the_papers_own_table_contradicts(table):
    item = f"activation-compression/{table}/measured"
    scores = published(item, "score").set_index(["task", "method"]).value
    orders = [claim for claim in find_item(load_catalogue(Project()), item).claims if isinstance(claim, Ordering)]
    assert orders
    for claim in orders:
        values = [scores[claim.where["task"], method] for method in claim.order]
        assert all(before < after for before, after in zip(values, values[1:], strict=False)), claim.name


def test_a_constant_answer_does_not_keep_what_the_paper_keeps():
    item = "activation-compression/table-5/measured"
    theirs = published(item, "relative_score").set_index(["task", "method"]).value
    keeps = [claim for claim in find_item(load_catalogue(Project()), item).claims if claim.quantity == "relative_score"]
    mrpc = next(claim for claim in keeps if claim.where["task"] == "mrpc" and "Q2" in claim.where["method"])
    assert theirs["mrpc", "Q2"] - mrpc.abs > 0.8122 / 0.8846  # always yes on 279 of 408 rows, over table 5's F1
