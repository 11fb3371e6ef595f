"""Rows of the accuracy study, worked by hand from made-up cells, and what chance and spreads do to verdicts."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from workbench.reproduction import Project, find_item, load_catalogue, published
from workbench.reproduction.claims import Bound, Ordering, Within
from workbench.reproduction.judge import judge
from workbench.reproduction.rows import read_rows
from workbench.reproduction.verdicts import Verdict
from workbench.techniques.activation_compression import accuracy

REPEATED = [f"activation-compression/table-{number}/measured" for number in (5, 15)]


AT_MOST_3 = Bound("l", quantity="points_below", where={"task": "mrpc", "method": "A1"}, at_most=3.0, because="b", source="s")


def cell(method: str, score: float, *, task: str = "mrpc", seed: int = 0, sent: int = 100, **changes) -> dict:
    return {
        "task": task, "method": method, "seed": seed, "score": score, "scores": {"accuracy": score}, "chance": 0.5,
        "metric": "accuracy",
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


def test_three_points_bound_all_seeds_and_a_gain_is_no_loss():
    plain = [cell("w/o", 0.5, seed=seed) for seed in range(3)]

    def lost(*scores):
        return [*plain, *(cell("A1", score, seed=seed) for seed, score in enumerate(scores))]

    # 7, 4 and -5 points: 2 in the mean, not the (7 + 4 + 0)/3 = 3.67 of seeds that each gain nothing.
    rows = accuracy.score_rows(lost(0.43, 0.46, 0.55))
    assert values_of(rows, "points_lost") == pytest.approx({("A1", 0): 7.0, ("A1", 1): 4.0, ("A1", 2): -5.0})
    (below,) = [row for row in rows if row["quantity"] == "points_below"]
    assert "seed" not in below and (below["value"], below["low"], below["high"]) == pytest.approx((2.0, 0.0, 7.0))
    assert verdict(AT_MOST_3, lost(0.43, 0.46, 0.55)) is Verdict.NOT_COMPARABLE
    assert verdict(AT_MOST_3, lost(0.48, 0.48, 0.55)) is Verdict.AGREES
    assert verdict(AT_MOST_3, lost(0.43, 0.44, 0.46)) is Verdict.DISAGREES
    gain = accuracy.score_rows([cell("w/o", 0.5), cell("A1", 0.6)])
    assert [row["value"] for row in gain if row["quantity"] == "points_below"] == [0.0]


def test_without_an_uncompressed_run_nothing_is_compared():
    quantities = {row["quantity"] for row in accuracy.score_rows([cell("A1", 0.6)])}
    in_bytes = {"tensor_bytes", "compressed_site_bytes", "encoder_gradient_bytes"}
    assert quantities == {"score", "accuracy", "chance", "train_loss", "cell_s"} | in_bytes


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


def reason(own, *printed, score, **changes):
    """Why a share of ours is not compared with the paper's, if it is not; without compression 0.8 of 400 rows."""
    return accuracy.not_comparable([cell("w/o", 0.8), cell("A1", score)], [keeps(**changes)], [table(own), *printed]).get("mrpc: A1")


def test_an_agreement_that_a_constant_answer_would_reach_is_none_and_a_disagreement_stands():
    # A constant answer keeps 0.5 / 0.8 = 0.625 of the score; the score's standard error is 0.025 / 0.8 = 0.031 of it.
    assert "a constant answer keeps 0.62" in reason(0.664, score=0.54)
    assert reason(0.664, score=0.70) is None  # keeps 0.875: disagrees, whatever a constant answer does
    assert reason(0.666, score=0.54) is None  # a constant answer misses it
    assert reason(0.58, score=0.48) is None


def test_a_difference_below_the_scores_error_cannot_be_seen_and_a_large_one_can():
    assert "standard error" in reason(1.0, score=0.8, tolerance=0.031)
    assert "standard error" in reason(1.0, score=0.8 * 0.907, tolerance=0.031)  # 0.031 + 2 * 0.03125 = 0.0935 off
    assert reason(1.0, score=0.8 * 0.906, tolerance=0.031) is None
    assert reason(1.0, score=0.8, tolerance=0.032) is None


def test_between_two_values_that_the_paper_prints_nothing_is_decided_and_outside_it_is():
    assert reason(1.0, table(1.0), table(0.921), score=0.78) is None  # 0.08 apart: one value can be near both
    assert "prints this twice" in reason(1.0, table(1.0), table(0.919), score=0.78)
    assert "prints this twice" in reason(1.0, table(0.7), score=0.8 * 0.661)
    assert reason(1.0, table(0.7), score=0.8 * 0.659) is None
    assert reason(1.0, table(0.2, method="T1"), score=0.78) is None


def test_few_points_lost_by_a_method_at_chance_are_no_agreement():
    cells = [cell("w/o", 0.57), cell("A1", 0.545)]  # 0.5 and two errors: 0.55
    assert "all there is to lose" in accuracy.not_comparable(cells, [AT_MOST_3])["l"]
    assert accuracy.not_comparable([cell("w/o", 0.57), cell("A1", 0.56)], [AT_MOST_3]) == {}
    assert accuracy.not_comparable([cell("w/o", 0.8), cell("A1", 0.5)], [AT_MOST_3]) == {}  # 30 points disagree


def test_chance_is_judged_by_accuracy_where_f1_hides_it():
    # Always yes has F1 0.8122 and accuracy 0.6838 where 0.6838 are yes; its standard error over 408 rows is 0.023.
    def of(accurate, f1):
        scores = {"accuracy": accurate, "f1": f1}
        return cell("A1", f1, scores=scores, metric="f1", chance=0.8122, num_validation=408)

    assert accuracy.methods_at_chance([of(0.72, 0.835)]) == [("mrpc", "A1")]
    assert accuracy.methods_at_chance([of(0.76, 0.835)]) == []


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
    cells = accuracy.told_by_layers(
        [cell("w/o", 0.8), cell("A2", 0.7, layers=[4, 5]), cell("A2", 0.6, layers=[0, 1])]
    )
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
    ax = accuracy.draw_points_lost(rows, ax=plt.figure().add_subplot(), at_chance=["rte", ("mrpc", "A1")])
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A1  5%", "Q1  13%"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["mrpc\nof 30", "rte\nat chance"]
    assert [bool(patch.get_hatch()) for patch in ax.patches] == [True, False, False]
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
def test_constant_answers_agree_with_no_claim_of_what_is_kept_or_lost(number):
    item = f"activation-compression/table-{number}/measured"
    quantities = ("relative_score", "points_below")
    claims = [claim for claim in find_item(load_catalogue(Project()), item).claims if claim.quantity in quantities]
    methods = {claim.where["method"] for claim in claims}
    plain = {"sst2": (0.857, 0.509, 872), "mrpc": (0.863, 0.812, 408), "stsb": (0.85, 0.0, 1500), "cola": (0.25, 0.0, 1043)}
    cells = []
    for task, (score, chance, rows) in plain.items():
        more = {"task": task, "chance": chance, "num_validation": rows}
        yes = more | ({"metric": "f1", "scores": {"accuracy": 0.684, "f1": chance}} if task == "mrpc" else {})
        cells += [cell("w/o", score, **more), *(cell(method, chance, **yes) for method in methods)]
    printed = [published(name, "relative_score") for name in ([item, *REPEATED] if number != 16 else [item])]
    reasons = accuracy.not_comparable(cells, claims, printed)
    rows = read_rows(accuracy.score_rows(cells), "values")
    theirs = read_rows(published(item, "relative_score").to_dict("records"), "published")
    found = judge(claims, rows, theirs, not_comparable=reasons, sources=[{"name": "glue", "source": "WORKBENCH_DATA"}])
    assert [each.claim for each in found if each.verdict is Verdict.AGREES] == []
    assert [each.claim for each in found if each.verdict is Verdict.DISAGREES] != []
