"""Rows of the accuracy study, worked by hand from made-up cells, and what chance and spreads do to verdicts."""

import json
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import pytest
from matplotlib.colors import to_hex

from workbench.reproduction import Project, find_item, load_catalogue, published
from workbench.reproduction.claims import Bound, Ordering, Within
from workbench.reproduction.judge import judge
from workbench.reproduction.verdicts import Verdict
from workbench.study.rows import read_rows
from workbench.techniques.activation_compression import accuracy
from workbench.techniques.activation_compression import plots as pictures

REPEATED = {
    "512 tokens": "activation-compression/table-5/measured",
    "128 tokens": "activation-compression/table-15/measured",
}
DEPTHS = {"all-MiniLM-L6-v2": 6, "bert-large-uncased": 24}  # layers
LOST = {"quantity": "points_below", "where": {"task": "mrpc", "method": "A1"}, "because": "b", "source": "s"}
AT_MOST_3, AT_LEAST_3 = Bound("l", at_most=3.0, **LOST), Bound("m", at_least=3.0, **LOST)


def cell(method: str, score: float, *, task: str = "mrpc", seed: int = 0, sent: int = 100, **changes) -> dict:
    return {
        "task": task,
        "method": method,
        "seed": seed,
        "score": score,
        "scores": {"accuracy": score},
        "chance": 0.5,
        "metric": "accuracy",
        "train_loss": 0.4,
        "tensor_bytes": 2 * sent,
        "compressed_site_bytes": sent,
        "encoder_gradient_bytes": 0,
        "seconds": 1.0,
        "layers": [3, 4, 5],
        "num_validation": 400,
        "data": [{"name": "glue/mrpc/train", "source": "WORKBENCH_DATA", "detail": "", "sha256": "0"}],
        **changes,
    }


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


def reason(own, other=None, *, score, **changes):
    """Why a share of ours is not compared with the paper's, if it is not; without compression 0.8 of 400 rows."""
    settings = {"512 tokens": table(own)} | ({} if other is None else {"128 tokens": other})
    cells = [cell("w/o", 0.8), cell("A1", score)]
    return accuracy.not_comparable(cells, [keeps(**changes)], table(own), settings).get("mrpc: A1")


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


def test_near_one_of_two_values_that_the_paper_prints_far_apart_nothing_is_decided_and_between_them_it_is():
    assert reason(1.0, table(0.921), score=0.78) is None  # 0.08 apart: one value can be near both
    assert "prints 1.00 at 512 tokens and 0.92 at 128 tokens" in reason(1.0, table(0.919), score=0.78)
    for near in (0.661, 0.739, 0.961, 1.039):
        assert "0.70 at 128 tokens" in reason(1.0, table(0.7), score=0.8 * near)
    for outside in (0.659, 0.741, 0.85, 0.959, 1.041):
        assert reason(1.0, table(0.7), score=0.8 * outside) is None
    assert reason(1.0, table(0.2, method="T1"), score=0.78) is None


def test_few_points_lost_by_a_method_at_chance_are_no_agreement():
    cells = [cell("w/o", 0.57), cell("A1", 0.545)]  # 0.5 and two errors: 0.55
    assert "all there is to lose" in accuracy.not_comparable(cells, [AT_MOST_3])["l"]
    assert accuracy.not_comparable([cell("w/o", 0.57), cell("A1", 0.56)], [AT_MOST_3]) == {}
    assert accuracy.not_comparable([cell("w/o", 0.8), cell("A1", 0.5)], [AT_MOST_3]) == {}  # 30 points disagree


def test_what_lies_within_most_of_all_there_is_to_lose_is_no_agreement():
    few = {"chance": 0.75, "num_validation": 10_000}  # 5 points above a constant answer, 0.0625 of the score
    cells = [cell("w/o", 0.8, **few), cell("A1", 0.79, **few)]
    assert (
        "5.0 points above a constant answer are all there is to lose"
        in accuracy.not_comparable(cells, [AT_MOST_3])["l"]
    )
    assert accuracy.not_comparable([cells[0], cell("A1", 0.76, **few)], [AT_MOST_3]) == {}  # 4 points disagree
    told = accuracy.not_comparable(cells, [keeps()], table(1.0), {})["mrpc: A1"]
    assert "the tolerance, 0.04, is most of what there is to lose" in told
    assert accuracy.not_comparable([cells[0], cell("A1", 0.76, **few)], [keeps()], table(1.0), {}) == {}  # off by 0.05


def test_three_points_lost_by_a_method_at_chance_are_a_finding_and_a_method_that_keeps_them_disagrees():
    plain = cell("w/o", 0.8)
    assert accuracy.not_comparable([plain, cell("A1", 0.5)], [AT_LEAST_3]) == {}
    assert verdict(AT_LEAST_3, [plain, cell("A1", 0.5)]) is Verdict.AGREES
    assert verdict(AT_LEAST_3, [plain, cell("A1", 0.78)]) is Verdict.DISAGREES
    spread = [plain, cell("w/o", 0.8, seed=1), cell("A1", 0.5), cell("A1", 0.78, seed=1)]
    assert verdict(AT_LEAST_3, spread) is Verdict.NOT_COMPARABLE
    few = {"num_validation": 10_000}  # two standard errors are 1 point, so that 0.52 is above chance
    kept = [cell("w/o", 0.52, **few), cell("A1", 0.51, **few)]
    assert "2.0 points are all there is to lose" in accuracy.not_comparable(kept, [AT_LEAST_3])["m"]
    assert accuracy.not_comparable([cell("w/o", 0.54, **few), cell("A1", 0.53, **few)], [AT_LEAST_3]) == {}


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
    feedback = Ordering(
        "f", quantity="score", along="error_feedback", order=[0, 1], where={"method": "T1", "task": "mrpc"}, because="b"
    )
    told = [cell("w/o", 0.8, error_feedback=0), *(cell("T1", 0.5, error_feedback=number) for number in (0, 1))]
    assert "no order can be seen" in accuracy.not_comparable(told, [feedback])["f"]


def compressed(layer_sets, depth: int, task: str = "mrpc") -> list[dict]:
    """Make cells of an encoder of so many layers, uncompressed ones with the last half, as `fine_tune` tells it."""
    last_half = list(range(depth // 2, depth))
    sets = [(layers or last_half, "A2" if layers else "w/o") for layers in layer_sets]
    return [cell(method, 0.8, task=task, layers=layers) for layers, method in sets]


@pytest.mark.parametrize("depth", [6, 24])
def test_a_third_of_the_layers_and_the_last_window_are_called_alike_in_encoders_of_any_depth(depth):
    third = depth // 3
    first, middle, last = (list(range(start, start + third)) for start in (0, third, 2 * third))
    told = accuracy.told_by_layers(compressed([[], first, middle, last, list(range(depth))], depth))
    assert [each["layer_share"] for each in told] == [0, 0.333, 0.333, 0.333, 1]
    assert [each["place"] for each in told] == [None, 0, 0.5, 1, None]


def test_rows_of_layers_are_told_apart_by_one_column():
    cells = accuracy.told_by_layers([cell("w/o", 0.8), cell("A2", 0.7, layers=[4, 5]), cell("A2", 0.6, layers=[0, 1])])
    by_place = [row for row in accuracy.layer_rows(cells, "place") if row["quantity"] == "score"]
    assert [(row["place"], row["value"]) for row in by_place] == [(None, 80.0), (1, 70.0), (0, pytest.approx(60))]
    shares = [row["layer_share"] for row in accuracy.layer_rows(cells[:2], "layer_share") if row["quantity"] == "score"]
    assert shares == [0, 0.333]
    told = {row["quantity"] for row in accuracy.layer_rows(cells, "place")}
    assert not told & {"message_share", "sent_share"}


@pytest.mark.parametrize("profile", ["laptop", "full", "paper"])
@pytest.mark.parametrize("figure", ["fig-4a", "fig-4b"])
def test_every_key_that_a_claim_of_figure_4_names_occurs_in_every_profile(figure, profile):
    item = find_item(load_catalogue(Project()), f"activation-compression/{figure}/measured")
    asked = item.parameters[profile]
    depth, along, tasks = DEPTHS[asked["encoder"]], asked["along"], asked["tasks"]
    cells = [each for task in tasks for each in accuracy.told_by_layers(compressed(asked["layer_sets"], depth, task))]
    rows = read_rows(accuracy.layer_rows(cells, along), "values")
    assert {*tasks} - {"stsb"} <= {claim.where["task"] for claim in item.claims}  # STS-B is shown and not judged
    for claim in item.claims:
        found = [row for row in rows if row.quantity == claim.quantity and row.keys["task"] == claim.where["task"]]
        named = [*getattr(claim, "order", ()), *(key for name, key in claim.where.items() if name == along)]
        keys = {row.keys.get(along) for row in found}
        assert set(named) <= keys if claim.where["task"] in tasks else not found, claim.name


def layer_verdicts(figure: str, scores: dict) -> dict:
    """Judge figure 4 in profile paper, CoLA alone, by scores of (how many layers, the first of them), else 0.6."""
    item = find_item(load_catalogue(Project()), f"activation-compression/{figure}/measured")
    few = {"chance": 0.0, "num_validation": 1043}
    cells = []
    for each in compressed(item.parameters["paper"]["layer_sets"], 24, "cola"):
        key = None if each["method"] == "w/o" else (len(each["layers"]), each["layers"][0])
        cells.append(each | few | {"score": scores.get(key, 0.6)})
    rows = read_rows(accuracy.layer_rows(accuracy.told_by_layers(cells), item.parameters["paper"]["along"]), "values")
    claims = [claim for claim in item.claims if claim.where["task"] == "cola"]
    found = judge(claims, rows, [], sources=[{"name": "glue", "source": "WORKBENCH_DATA"}])
    return {each.claim.removeprefix("cola: "): each.verdict for each in found}


def test_figure_4b_compares_the_first_window_of_24_layers_with_the_last_and_not_with_the_second():
    order, bound = (
        "takeaway 7, compressing the first layers harms more than compressing the last",
        "takeaway 7, compressing the first layers loses at least 3 points",
    )
    assert layer_verdicts("fig-4b", {(8, 0): 0.3}) == {order: Verdict.AGREES, bound: Verdict.AGREES}
    worse_second = layer_verdicts("fig-4b", {(8, 0): 0.5, (8, 4): 0.3, (8, 16): 0.55})
    assert worse_second == {order: Verdict.AGREES, bound: Verdict.AGREES}
    worse_last = layer_verdicts("fig-4b", {(8, 0): 0.58, (8, 16): 0.5})
    assert worse_last == {order: Verdict.DISAGREES, bound: Verdict.DISAGREES}


def test_figure_4a_asks_three_points_of_the_last_8_of_24_layers():
    bound = "compressing the last third of the layers loses at most 3 points"
    assert layer_verdicts("fig-4a", {(8, 16): 0.58})[bound] is Verdict.AGREES
    assert layer_verdicts("fig-4a", {(8, 16): 0.56})[bound] is Verdict.DISAGREES
    falls = "takeaway 6, the score falls from none of the layers compressed to half and to all of them"
    assert layer_verdicts("fig-4a", {(12, 12): 0.55, (24, 0): 0.5})[falls] is Verdict.AGREES
    assert layer_verdicts("fig-4a", {(12, 12): 0.4, (24, 0): 0.5})[falls] is Verdict.DISAGREES
    end = "takeaway 6, all layers compressed score below none"
    assert layer_verdicts("fig-4a", {(24, 0): 0.5})[end] is Verdict.AGREES
    assert layer_verdicts("fig-4a", {(24, 0): 0.7})[end] is Verdict.DISAGREES


def test_error_feedback_is_compared_with_the_same_uncompressed_run():
    off, on = [cell("w/o", 0.8), cell("T1", 0.4)], [cell("T1", 0.6)]
    rows = [row for row in accuracy.feedback_rows(off, on) if row["quantity"] == "relative_score"]
    assert [(row["method"], row["error_feedback"], row["value"]) for row in rows] == [
        ("T1", 0, pytest.approx(0.5)),
        ("T1", 1, pytest.approx(0.75)),
    ]


def test_means_leave_out_tasks_that_do_not_count():
    rows = accuracy.score_rows(
        [
            cell("w/o", 0.8),
            cell("T1", 0.4, sent=10),
            cell("w/o", 0.8, task="sst2"),
            cell("T1", 0.8, task="sst2", sent=30),
            cell("w/o", 0.1, task="rte"),
            cell("T1", 0.1, task="rte"),
        ]
    )
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
    lost = Within(
        "l",
        quantity="points_lost",
        where={"method": "A1"},
        expected=0.0,
        abs=3.0,
        because="b",
        source="s",
        needs_real_data=True,
    )
    cells = [cell("w/o", 0.80), cell("A1", 0.79)]
    assert verdict(lost, cells) is Verdict.AGREES
    assert verdict(lost, [cell("w/o", 0.80), cell("A1", 0.76)]) is Verdict.DISAGREES
    assert verdict(lost, cells, [{"name": "glue", "source": "stand-in"}]) is Verdict.NOT_COMPARABLE


def test_sources_are_told_once():
    assert len(accuracy.sources([cell("w/o", 0.8), cell("A1", 0.8)])) == 1


def test_the_table_shows_mean_and_spread():
    rows = accuracy.score_rows([cell("w/o", 0.80), cell("w/o", 0.84, seed=1), cell("A1", 0.8)])
    table = pictures.score_table(rows)
    assert table.loc["mrpc"].to_dict() == {"w/o": "82.0 (80.0 to 84.0)", "A1": "80.0", "chance": "50.0"}


def test_points_of_a_scatter_lie_at_bytes_and_score():
    rows = accuracy.score_rows(
        [cell("w/o", 0.8), cell("T1", 0.4, sent=10), cell("A1", 0.8, sent=5, encoder_gradient_bytes=15)]
    )
    ax = pictures.draw_per_byte(accuracy.mean_rows(rows, ["mrpc"]), ax=plt.figure().add_subplot())
    assert {text.get_text(): text.xy for text in ax.texts} == {"T1": (0.1, 0.5), "A1": (0.05, 1.0), "w/o": (1.0, 1.0)}
    rings = [line.get_xydata().tolist() for line in ax.lines if line.get_fillstyle() == "none"]
    assert rings == [[[0.2, 1.0]]]
    (constant,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert constant.get_ydata()[0] == pytest.approx(0.5 / 0.8)
    plt.close("all")


def test_a_table_of_points_lost_has_what_sends_least_at_the_top():
    code = {"sent": 5, "encoder_gradient_bytes": 4}
    rows = accuracy.score_rows(
        [
            *(cell("w/o", 0.8, task=task) for task in ("mrpc", "rte")),
            cell("Q1", 0.78, sent=13),
            cell("A1", 0.5, **code),
            cell("A1", 0.6, task="rte", **{**code, "sent": 9}),  # not told: at chance
        ]
    )
    ax = pictures.draw_points_lost(rows, ax=plt.figure().add_subplot(), at_chance=["rte", ("mrpc", "A1")])
    assert [label.get_text() for label in ax.get_yticklabels()] == [
        "A1  5\u00a0% (9\u00a0% with gradients)",
        "Q1  13\u00a0%",
    ]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["mrpc\nof 30", "rte\nat chance"]
    hatched = {patch.get_xy(): bool(patch.get_hatch()) for patch in ax.patches}
    assert hatched == {(-0.5, -0.5): True, (-0.5, 0.5): False, (0.5, -0.5): False}
    shown = {text.get_text(): text.get_position() for text in ax.texts}
    assert shown == {"2.0": (0, 1), "30.0": (0, 0), "20.0": (1, 0)}
    plt.close("all")


def test_green_needs_every_seed_within_three_points_and_red_every_seed_beyond():
    plain = [cell("w/o", 0.5, seed=seed) for seed in range(2)]
    scores = {"A1": (0.48, 0.53), "Q1": (0.53, 0.46), "T1": (0.46, 0.44), "T3": (0.3, 0.28)}  # lost: -3 to 2, and so on
    tried = [
        cell(method, score, seed=seed, sent=sent)
        for sent, (method, both) in enumerate(scores.items())
        for seed, score in enumerate(both)
    ]
    ax = pictures.draw_points_lost(accuracy.score_rows([*plain, *tried]), ax=plt.figure().add_subplot())
    green, blue, red, dark = (to_hex(patch.get_facecolor()) for patch in ax.patches)
    assert (green, blue) == (pictures.KEPT_COLOR, pictures.OPEN_COLOR)
    assert [red, dark] == [pictures.LOST_COLORS[0], pictures.LOST_COLORS[2]]
    spread = {text.get_text(): text.get_position()[1] for text in ax.texts}
    assert list(spread) == ["-0.5", "-3.0 to 2.0", "0.5", "-3.0 to 4.0", "5.0", "4.0 to 6.0", "21.0", "20.0 to 22.0"]
    assert spread["-0.5"] < 0 < spread["-3.0 to 2.0"] < 0.5  # above each other, in the line of A1
    plt.close("all")


def test_the_papers_scores_stand_beside_ours_by_method():
    rows = accuracy.score_rows([cell("w/o", 0.8), cell("T1", 0.4), cell("Q3", 0.8)])
    published = pd.DataFrame(
        [{"task": "mrpc", "method": "T1", "value": 0.8}, {"task": "sst2", "method": "Q3", "value": 0.1}]
    )
    beside = pictures.scores_beside_published(rows, published, "mrpc").set_index("method")
    assert beside.published["T1"] == 0.8 and pd.isna(beside.published["Q3"]) and beside.ours["Q3"] == 1.0


@pytest.mark.parametrize("table", ["table-5", "table-8", "table-15", "table-16"])
def test_no_order_is_claimed_that_the_papers_own_table_contradicts(table):
    item = f"activation-compression/{table}/measured"
    scores = published(item, "score").set_index(["task", "method"]).value
    claims = find_item(load_catalogue(Project()), item).claims
    orders = [claim for claim in claims if isinstance(claim, Ordering) and claim.quantity == "score"]
    assert orders
    for claim in orders:
        values = [scores[claim.where["task"], method] for method in claim.order]
        assert all(before < after for before, after in zip(values, values[1:], strict=False)), claim.name


@pytest.mark.parametrize("number", [5, 15])
def test_no_mean_over_tasks_is_ordered_as_one_of_the_papers_tables_contradicts(number):
    share = published(f"activation-compression/table-{number}/measured", "relative_score")
    mean = share[share.task.isin(["sst2", "mrpc", "stsb", "cola"])].groupby("method").value.mean()
    claims = find_item(load_catalogue(Project()), "activation-compression/accuracy-per-byte/measured").claims
    for claim in claims:
        values = [mean.get(method, 1.0) for method in claim.order]  # w/o is not in the table of shares
        assert all(before < after for before, after in zip(values, values[1:], strict=False)), claim.name


def told_of(*tried: tuple, tasks=("sst2",), plain=(0.8, 0.8)) -> str:
    """Return the answer for (method, bytes of 100, scores by task and seed, changes)."""
    cells = [cell("w/o", score, task=task, seed=seed) for task in tasks for seed, score in enumerate(plain)]
    for method, sent, by_task, changes in tried:
        cells += [
            cell(method, score, task=task, seed=seed, sent=sent, **changes)
            for task, scores in zip(tasks, by_task, strict=True)
            for seed, score in enumerate(scores)
        ]
    return accuracy.told_per_byte(accuracy.score_rows(cells), tasks, 32).replace("\u00a0", " ")


def test_the_answer_names_who_preserves_the_score_with_every_seed_and_what_all_keep():
    codes = {"encoder_gradient_bytes": 4}
    tried = ("Q1", 13, [(0.79, 0.78)], {}), ("A1", 5, [(0.8, 0.78)], codes), ("T1", 7, [(0.8, 0.4)], {})
    assert told_of(*tried) == (
        "On sst2 (2 seeds, batches of 32) no run loses more than 3 points with A1 at 5 % (9 % with gradients) and Q1 at 13 % "
        "of the bytes where they compress; some run does with T1. Kept of the score, on average over sst2: A1 (5 %) 99 %, T1 (7 %) 75 %, "
        "Q1 (13 %) 98 %. (A: learned codes, T: Top-K, Q: quantised.)"
    )
    assert told_of() == ""


def test_three_points_are_asked_where_the_paper_asks_them_and_they_are_not_most_of_what_can_be_lost():
    two = told_of(
        ("A1", 5, [(0.8,), (0.7,)], {}), ("T1", 7, [(0.7,), (0.7,)], {}), tasks=("cola", "sst2"), plain=(0.8,)
    )
    assert two.startswith(
        "On sst2 (1 seed, batches of 32) every method loses more than 3 points in some run. Not asked of cola (excepted by "
        "the paper). Kept of the score, on average over cola and sst2"
    )
    alone = told_of(("A1", 5, [(0.55, 0.55)], {}), plain=(0.55, 0.55))  # 5 points above a constant answer
    assert alone.startswith("Kept of the score, on average over sst2: A1 (5 %) 100 %.")
    few = {"chance": 0.76}  # of mrpc 4 points are all there is to lose
    cells = [
        cell(method, 0.8, task=task, **(few if task == "mrpc" else {}))
        for task in ("mrpc", "sst2")
        for method in ("w/o", "A1")
    ]
    told = accuracy.told_per_byte(accuracy.score_rows(cells), ["mrpc", "sst2"], 8)
    assert "Not asked of mrpc (3 points are most of what there is to lose)." in told


def test_who_loses_on_one_task_alone_is_told_with_it_and_a_missing_run_preserves_nothing():
    tasks = ("mrpc", "sst2")
    told = told_of(("A1", 5, [(0.8, 0.8), (0.8, 0.8)], {}), ("A2", 9, [(0.8, 0.8), (0.7, 0.8)], {}), tasks=tasks)
    assert "with A1 at 5 % of the bytes where they compress; some run does with A2 (sst2)." in told
    cells = (
        [cell("w/o", 0.8, seed=seed) for seed in (0, 1)]
        + [cell("A1", 0.8, seed=seed) for seed in (0, 1)]
        + [cell("A2", 0.8)]
    )
    assert "some run does with A2." in accuracy.told_per_byte(accuracy.score_rows(cells), ["mrpc"], 32)


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_a_recorded_answer_is_that_of_its_own_values(profile):
    path = (
        Path(__file__).parents[3]
        / f"reproductions/activation_compression/recorded/{profile}/accuracy-per-byte/measured.json"
    )
    held = json.loads(path.read_text())
    if held["parameters"] != find_item(load_catalogue(Project()), held["id"]).parameters[profile]:
        pytest.skip("recorded with other parameters than the catalogue has")
    assert held["finding"] == accuracy.told_per_byte(
        held["values"], held["configuration"]["tasks"], held["parameters"]["batch"]
    )


def test_after_too_few_steps_nothing_is_said_of_what_is_lost_and_after_enough_it_is():
    def reasons(steps: int, encoder: str = "all-MiniLM-L6-v2"):
        source = [{"name": encoder, "source": "package", "detail": "", "sha256": "0"}]
        cells = [
            cell(method, score, task="stsb", num_steps=steps, data=source)
            for method, score in (("w/o", 0.8), ("A1", 0.6))
        ]
        return accuracy.not_comparable(cells, [replace(AT_LEAST_3, where={"task": "stsb", "method": "A1"})])

    assert list(reasons(999).values()) == [
        "999 steps are too few for stsb: before 1,000 what a method loses is mostly what it has not learned yet (table 5 has "
        "scores after both)"
    ]
    assert reasons(1_000) == {} and reasons(999, "bert-large-uncased") == {}


def test_of_a_method_at_chance_after_few_steps_nothing_is_said_and_of_the_others_it_is():
    of_t1 = replace(AT_LEAST_3, where={"task": "sst2", "method": "T1"})
    order = Ordering("o", quantity="score", along="method", order=["T1", "A1"], where={"task": "sst2"}, because="b")
    mean = replace(order, name="mean", quantity="mean_relative_score", where={})
    others = replace(mean, name="others", order=["A1", "Q1"])

    def reasons(steps: int, score: float, encoder: str = "all-MiniLM-L6-v2"):
        more = {"task": "sst2", "num_steps": steps, "data": [{"name": encoder, "source": "package", "sha256": "0"}]}
        scores = {"w/o": 0.8, "A1": 0.7, "Q1": 0.75, "T1": score}
        return accuracy.not_comparable([cell(*each, **more) for each in scores.items()], [of_t1, order, mean, others])

    told = "T1 answers sst2 by chance after 199 steps: it may only have learned nothing yet"
    assert reasons(199, 0.5) == dict.fromkeys(("m", "o", "mean"), told)
    assert reasons(200, 0.5) == reasons(199, 0.6) == reasons(199, 0.5, "bert-large-uncased") == {}


def test_few_points_lost_mean_nothing_where_the_method_that_is_to_lose_more_loses_as_few():
    def reasons(lost: float):
        cells = [cell("w/o", 0.8), cell("A1", 0.79), cell("T2", 0.8 - lost)]
        return accuracy.not_comparable(cells, [AT_MOST_3, AT_LEAST_3], contrast="T2")

    assert reasons(0.02) == {"l": "T2, which is to lose more, loses 2.0 points: none of the two harms enough to tell"}
    assert reasons(0.04) == {}


def test_a_mean_of_shares_is_as_uncertain_as_the_seed_with_the_least_score():
    # 0.025 of 0.1 is a quarter of it: 0.1 and two of them are 0.6. Of the mean, 0.45, it would be 0.056: 0.21.
    more = {"chance": 0.0, "num_validation": 1600, "task": "cola"}
    cells = [
        cell(method, score, seed=seed, **more)
        for method, scores in (("w/o", (0.1, 0.8)), ("A1", (0.15, 0.8)))
        for seed, score in enumerate(scores)
    ]
    claim = keeps("cola", tolerance=0.1)
    assert "0.25 of it" in accuracy.not_comparable(cells, [claim], table(0.9, "cola"), {})["cola: A1"]
    assert accuracy.not_comparable(cells, [claim], table(0.6, "cola"), {}) == {}  # 0.65 off


def test_where_the_lowest_of_an_order_loses_nothing_there_is_no_harm_to_order():
    order = Ordering("o", quantity="score", along="method", order=["T2", "A2"], where={"task": "mrpc"}, because="b")
    scores = {"w/o": 0.8, "T2": 0.8, "A2": 0.9}
    assert list(accuracy.not_comparable([cell(*each) for each in scores.items()], [order]).values()) == [
        "T2 scores 80.0%, no less than 80.0% without compression: there is no harm to order"
    ]
    assert accuracy.not_comparable([cell(*each) for each in (scores | {"T2": 0.79}).items()], [order]) == {}


def test_a_control_in_fp32_without_its_cell_is_named():
    with pytest.raises(ValueError, match="a control in fp32 on stsb has no uncompressed cell with seed 0"):
        accuracy.precision_rows([cell("w/o", 0.8)], [cell("w/o", 0.8, task="stsb")])


@pytest.mark.parametrize("number", [5, 15, 16])
def test_constant_answers_agree_with_no_claim_of_what_is_kept_or_lost(number):
    item = f"activation-compression/table-{number}/measured"
    quantities = ("relative_score", "points_below")
    asked = [claim for claim in find_item(load_catalogue(Project()), item).claims if claim.quantity in quantities]
    claims = [claim for claim in asked if getattr(claim, "at_least", None) is None]
    methods = {claim.where["method"] for claim in claims}
    plain = {
        "sst2": (0.857, 0.509, 872),
        "mrpc": (0.863, 0.812, 408),
        "stsb": (0.85, 0.0, 1500),
        "cola": (0.25, 0.0, 1043),
    }
    cells = []
    for task, (score, chance, rows) in plain.items():
        more = {"task": task, "chance": chance, "num_validation": rows}
        yes = more | ({"metric": "f1", "scores": {"accuracy": 0.684, "f1": chance}} if task == "mrpc" else {})
        cells += [cell("w/o", score, **more), *(cell(method, chance, **yes) for method in methods)]
    repeated = REPEATED if number != 16 else {}
    settings = {name: published(each, "relative_score") for name, each in repeated.items()}
    reasons = accuracy.not_comparable(cells, claims, published(item, "relative_score"), settings)
    rows = read_rows(accuracy.score_rows(cells), "values")
    theirs = read_rows(published(item, "relative_score").to_dict("records"), "published")
    found = judge(claims, rows, theirs, not_comparable=reasons, sources=[{"name": "glue", "source": "WORKBENCH_DATA"}])
    assert [each.claim for each in found if each.verdict is Verdict.AGREES] == []
    assert [each.claim for each in found if each.verdict is Verdict.DISAGREES] != []


def test_whatever_keeps_the_whole_score_disagrees_with_every_claim_that_it_loses_some():
    item = find_item(load_catalogue(Project()), "activation-compression/table-5/measured")
    claims = [claim for claim in item.claims if getattr(claim, "at_least", None) is not None]
    methods, tasks = ({claim.where[name] for claim in claims} for name in ("method", "task"))
    cells = [cell(method, 0.8, task=task) for task in tasks for method in ["w/o", *methods]]
    rows = read_rows(accuracy.score_rows(cells), "values")
    found = judge(claims, rows, [], sources=[{"name": "glue", "source": "WORKBENCH_DATA"}])
    # T1 to T4 on three tasks but for T4 on SST-2; two codes, two quantisers and Q1f on each task that the paper excepts.
    assert [each.verdict for each in found] == [Verdict.DISAGREES] * (4 * 3 - 1 + 5 * 2)
    assert accuracy.not_comparable(cells, claims) == {}


def test_the_papers_row_is_asked_of_its_quantiser_and_of_our_variant():
    item = find_item(load_catalogue(Project()), "activation-compression/table-5/measured")
    asked = {(claim.quantity, claim.where["task"]) for claim in item.claims if claim.where.get("method") == "Q1f"}
    assert asked == {
        *(("points_below", task) for task in ("sst2", "mrpc", "stsb", "cola", "rte")),
        *(("relative_score", task) for task in ("sst2", "mrpc", "stsb", "cola", "rte")),
    }
    assert "Q1f" in item.parameters["full"]["methods"] and "Q1f" in item.parameters["paper"]["methods"]
    for table in (5, 15, 16):
        shares = published(f"activation-compression/table-{table}/measured", "relative_score")
        by_method = {name: dict(zip(rows.task, rows.value, strict=True)) for name, rows in shares.groupby("method")}
        assert by_method["Q1f"] == by_method["Q1"]
