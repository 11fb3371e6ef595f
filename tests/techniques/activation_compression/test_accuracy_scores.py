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

REPEATED = [f"activation-compression/table-{number}/measured" for number in (5, 15)]


def cell(method: str, score: float, *, task: str = "mrpc", seed: int = 0, sent: int = 100, **changes) -> dict:
    return {
        "task": task, "method": method, "seed": seed, "score": score, "scores": {"f1": score}, "chance": 0.5,
        "train_loss": 0.4, "tensor_bytes": 2 * sent, "compressed_site_bytes": sent,
        "encoder_gradient_bytes": 0, "seconds": 1.0, "layers": [3, 4, 5],
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


def test_the_mean_of_the_points_lost_is_judged_and_a_gain_is_no_loss():
    lost = Within("l", quantity="points_below", where={"method": "A1"}, expected=0.0, abs=3.0, because="b", source="s")
    plain = [cell("w/o", 0.5, seed=seed) for seed in range(3)]
    # 7, 4 and -5 points: 2 in the mean, not the (7 + 4 + 0)/3 = 3.67 of seeds that each gain nothing.
    rows = accuracy.score_rows([*plain, *(cell("A1", score, seed=seed) for seed, score in enumerate((0.43, 0.46, 0.55)))])
    assert values_of(rows, "points_lost") == pytest.approx({("A1", 0): 7.0, ("A1", 1): 4.0, ("A1", 2): -5.0})
    (below,) = [row for row in rows if row["quantity"] == "points_below"]
    assert "seed" not in below and (below["value"], below["low"], below["high"]) == pytest.approx((2.0, 0.0, 7.0))
    assert judge([lost], read_rows(rows, "values"), [])[0].verdict is Verdict.AGREES
    assert verdict(lost, [cell("w/o", 0.5), cell("A1", 0.46)]) is Verdict.DISAGREES
    gain = accuracy.score_rows([cell("w/o", 0.5), cell("A1", 0.6)])
    assert [row["value"] for row in gain if row["quantity"] == "points_below"] == [0.0]


def test_without_an_uncompressed_run_nothing_is_compared():
    quantities = {row["quantity"] for row in accuracy.score_rows([cell("A1", 0.6)])}
    in_bytes = {"tensor_bytes", "compressed_site_bytes", "encoder_gradient_bytes"}
    assert quantities == {"score", "f1", "chance", "train_loss", "cell_s"} | in_bytes


def test_a_task_is_at_chance_within_two_standard_errors():
    # sqrt(0.5·0.5/400) = 0.025: 0.55 is two errors above 0.5, and not more.
    assert "at chance" in accuracy.chance_reasons([cell("w/o", 0.55)])["mrpc"]
    assert accuracy.chance_reasons([cell("w/o", 0.551)]) == {}
    # A correlation of 100 rows has the error 0.1; seeds are averaged: (0.1 + 0.3)/2 = 0.2.
    few = {"task": "cola", "chance": 0.0, "num_validation": 100}
    assert "cola" in accuracy.chance_reasons([cell("w/o", 0.1, **few), cell("w/o", 0.3, seed=1, **few)])


def keeps(task="mrpc", method="A1", tolerance=0.04):
    where = {"task": task, "method": method}
    return Within(f"{task}: {method}", quantity="relative_score", where=where, abs=tolerance, because="b", source="s")


def table(value, task="mrpc", method="A1"):
    return pd.DataFrame([{"task": task, "method": method, "value": value}])


def test_claims_about_a_task_at_chance_cannot_be_decided():
    cells = [cell("w/o", 0.5), cell("w/o", 0.9, task="sst2")]
    order = Ordering("o", quantity="score", along="method", order=["T1", "A1"], where={"task": "mrpc"}, because="b")
    reasons = accuracy.not_comparable(cells, [keeps(), order, keeps("sst2"), keeps("cola")])
    assert list(reasons) == ["mrpc: A1", "o"]


def test_a_share_that_a_constant_answer_would_keep_cannot_be_decided():
    # A constant answer keeps 0.5 / 0.8 = 0.625 of the score; the score's standard error is 0.025 / 0.8 = 0.031 of it.
    cells = [cell("w/o", 0.8)]
    assert "0.62 of the score" in accuracy.not_comparable(cells, [keeps()], [table(0.664)])["mrpc: A1"]
    assert accuracy.not_comparable(cells, [keeps()], [table(0.666)]) == {}
    assert accuracy.not_comparable(cells, [keeps()], [table(0.58)]) == {}  # such an answer is a miss here


def test_a_tolerance_below_a_standard_error_cannot_be_decided():
    assert "standard error" in accuracy.not_comparable([cell("w/o", 0.8)], [keeps(tolerance=0.031)])["mrpc: A1"]
    assert accuracy.not_comparable([cell("w/o", 0.8)], [keeps(tolerance=0.032)]) == {}


def test_what_the_paper_prints_twice_and_far_apart_is_no_target():
    cells, own = [cell("w/o", 0.8)], table(1.0)
    assert accuracy.not_comparable(cells, [keeps()], [own, table(1.0), table(0.921)]) == {}
    assert "prints this twice" in accuracy.not_comparable(cells, [keeps()], [own, table(1.0), table(0.919)])["mrpc: A1"]
    assert accuracy.not_comparable(cells, [keeps()], [own, table(0.2, method="T1")]) == {}


def test_an_order_of_scores_at_chance_cannot_be_decided():
    order = Ordering("o", quantity="score", along="method", order=["T1", "A1"], where={"task": "mrpc"}, because="b")
    at_chance = [cell("w/o", 0.8), cell("T1", 0.5), cell("A1", 0.55)]
    assert "no order can be seen" in accuracy.not_comparable(at_chance, [order])["o"]
    assert accuracy.not_comparable([*at_chance[:2], cell("A1", 0.56)], [order]) == {}
    feedback = Ordering("f", quantity="score", along="error_feedback", order=[0, 1], where={"method": "T1", "task": "mrpc"},
                        because="b")  # fmt: skip
    told = [cell("w/o", 0.8, error_feedback=0), *(cell("T1", 0.5, error_feedback=number) for number in (0, 1))]
    assert "no order can be seen" in accuracy.not_comparable(told, [feedback])["f"]


def test_layers_are_told_by_their_number_or_by_the_first():
    cells = [cell("w/o", 0.8), cell("A2", 0.7, layers=[4, 5]), cell("A2", 0.6, layers=[0, 1])]
    by_first = [row for row in accuracy.layer_rows(cells, "first_layer") if row["quantity"] == "score"]
    assert [(row["first_layer"], row["value"]) for row in by_first] == [(None, 80.0), (4, 70.0), (0, pytest.approx(60))]
    by_number = [row["num_layers"] for row in accuracy.layer_rows(cells[:2], "num_layers") if row["quantity"] == "score"]
    assert by_number == [0, 2]
    assert not any(row["quantity"].endswith("_share") and "constant" not in row["quantity"] for row in accuracy.layer_rows(cells, "first_layer"))


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
    rows = accuracy.score_rows([cell("w/o", 0.8), cell("T1", 0.4, sent=10), cell("A1", 0.8, sent=5, encoder_gradient_bytes=15)])
    ax = accuracy.draw_per_byte(accuracy.mean_rows(rows, ["mrpc"]), ax=plt.figure().add_subplot())
    assert {text.get_text(): text.xy for text in ax.texts} == {"T1": (0.1, 0.5), "A1": (0.05, 1.0), "w/o": (1.0, 1.0)}
    rings = [line.get_xydata().tolist() for line in ax.lines if line.get_fillstyle() == "none"]
    assert rings == [[[0.2, 1.0]]]
    (constant,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert constant.get_ydata()[0] == pytest.approx(0.5 / 0.8)
    plt.close("all")


def test_a_table_of_points_lost_has_what_sends_least_at_the_top():
    rows = accuracy.score_rows(
        [
            *(cell("w/o", 0.8, task=task) for task in ("mrpc", "rte")), cell("Q1", 0.78, sent=13),
            cell("A1", 0.5, sent=5), cell("A1", 0.6, task="rte", sent=5),
        ]
    )  # fmt: skip
    ax = accuracy.draw_points_lost(rows, ax=plt.figure().add_subplot(), at_chance={"rte": "why"})
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A1  5%", "Q1  13%"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["mrpc", "rte\nat chance"]
    shown = {text.get_text(): text.get_position() for text in ax.texts}
    assert shown == {"2.0": (0, 1), "30.0": (0, 0), "20.0": (1, 0)}
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


@pytest.mark.parametrize("number", [5, 15, 16])
def test_constant_answers_agree_with_no_claim_of_what_is_kept(number):
    item = f"activation-compression/table-{number}/measured"
    claims = [claim for claim in find_item(load_catalogue(Project()), item).claims if claim.quantity == "relative_score"]
    methods = {claim.where["method"] for claim in claims}
    plain = {"sst2": (0.857, 0.509, 872), "mrpc": (0.863, 0.812, 408), "stsb": (0.85, 0.0, 1500), "cola": (0.25, 0.0, 1043)}
    cells = []
    for task, (score, chance, rows) in plain.items():
        more = {"task": task, "chance": chance, "num_validation": rows}
        cells += [cell("w/o", score, **more), *(cell(method, chance, **more) for method in methods)]
    printed = [published(name, "relative_score") for name in (item, *REPEATED)]
    reasons = accuracy.not_comparable(cells, claims, printed)
    rows = read_rows(accuracy.score_rows(cells), "values")
    theirs = read_rows(published(item, "relative_score").to_dict("records"), "published")
    found = judge(claims, rows, theirs, not_comparable=reasons, sources=[{"name": "glue", "source": "WORKBENCH_DATA"}])
    agreeing = [each.claim for each in found if each.verdict is Verdict.AGREES]
    # Where the paper's own Top-K collapsed to a constant answer, ours agrees by collapsing, too.
    assert all(" T" in name for name in agreeing), agreeing
