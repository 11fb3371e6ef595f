"""Rows, sentences, pictures and claims of the accuracy study, worked by hand from made-up cells; pictures of times."""

import numpy as np
import pandas as pd
import pytest
from cases import find_item, verdicts

from workbench import plots
from workbench.reproduction import Bound, Ordering, Project, Verdict, published
from workbench.reproduction.audit import OFF, audit_of
from workbench.reproduction.findings import best_runs
from workbench.rows import read_rows
from workbench.techniques.activation_compression import measured
from workbench.techniques.activation_compression import plots as pictures

DEPTHS = {"all-MiniLM-L6-v2": 6, "bert-large-uncased": 24}  # layers


def runs(method: str, *scores: float, sent: int = 100, **changes) -> list[dict]:
    """Make a method's cells, one for each seed."""
    fixed = {"task": "mrpc", "method": method, "chance": 0.5, "metric": "accuracy", "num_validation": 400}
    fixed |= {"layers": [3, 4, 5], "train_loss": 0.4, "num_steps": 94, "seconds": 1.0}
    fixed |= {"compressed_site_bytes": sent, "encoder_gradient_bytes": 0, **changes}
    return [{"seed": seed, "score": score, "scores": {"accuracy": score}} | fixed for seed, score in enumerate(scores)]


def values_of(rows, quantity: str) -> dict:
    return {(row.get("method"), row.get("seed")): row["value"] for row in rows if row["quantity"] == quantity}


def item_of(name: str):
    return find_item(f"activation-compression/{name}/measured")


def judged(item, claims, rows: list[dict]) -> dict[str, Verdict]:
    return verdicts(item.id, rows, claims, sources=[{"name": "glue", "source": "WORKBENCH_DATA"}])


def assert_rising(claim: Ordering, values: list[float]) -> None:
    assert all(before < after for before, after in zip(values, values[1:], strict=False)), claim.name


def test_a_method_is_compared_with_the_plain_run_of_its_own_seed():
    rows = measured.score_rows(runs("w/o", 0.8, 0.5) + runs("A1", 0.6, 0.5, sent=5))
    assert values_of(rows, "score")["A1", 0] == pytest.approx(60)
    assert values_of(rows, "relative_score") == pytest.approx({("A1", 0): 0.75, ("A1", 1): 1.0})
    assert values_of(rows, "points_lost") == pytest.approx({("A1", 0): 20.0, ("A1", 1): 0.0})
    assert values_of(rows, "points_below") == {("A1", None): pytest.approx(10.0)}  # the mean over seeds
    assert values_of(rows, "message_share") == pytest.approx({("A1", 0): 0.05, ("A1", 1): 0.05})
    alone = {row["quantity"] for row in measured.score_rows(runs("A1", 0.6))}
    assert not alone & {"relative_score", "points_lost", "points_below", "message_share", "sent_share"}
    with_feedback = measured.feedback_rows(runs("w/o", 0.8) + runs("T1", 0.4), runs("T1", 0.6))
    shares = [(row["error_feedback"], row["value"]) for row in with_feedback if row["quantity"] == "relative_score"]
    assert shares == [(0, pytest.approx(0.5)), (1, pytest.approx(0.75))]


def compressed(layer_sets, depth: int, task: str = "mrpc") -> list[dict]:
    """Make cells of an encoder of so many layers; uncompressed cells name the last half, as `fine_tune` does."""
    last_half = list(range(depth // 2, depth))
    sets = [("A2" if layers else "w/o", layers or last_half) for layers in layer_sets]
    return [cell for method, layers in sets for cell in runs(method, 0.8, task=task, layers=layers)]


@pytest.mark.parametrize("depth", [6, 24])
def test_a_third_of_the_layers_and_the_last_window_are_called_alike_in_encoders_of_any_depth(depth):
    third = depth // 3
    first, middle, last = (list(range(start, start + third)) for start in (0, third, 2 * third))
    cells = measured.with_layers(compressed([[], first, middle, last, list(range(depth))], depth))
    assert [cell["layer_share"] for cell in cells] == [0, 0.333, 0.333, 0.333, 1]
    assert [cell["place"] for cell in cells] == [None, 0, 0.5, 1, None]


def test_rows_of_layers_are_told_apart_by_one_column():
    cells = runs("w/o", 0.8) + runs("A2", 0.7, layers=[4, 5]) + runs("A2", 0.6, layers=[0, 1])
    cells = measured.with_layers(cells)
    by_place = measured.layer_rows(cells, "place")
    scores = [(row["place"], row["value"]) for row in by_place if row["quantity"] == "score"]
    assert scores == [(None, 80.0), (1, 70.0), (0, pytest.approx(60))]
    shares = [row["layer_share"] for row in measured.layer_rows(cells[:2], "layer_share") if row["quantity"] == "score"]
    assert shares == [0, 0.333]
    assert not {row["quantity"] for row in by_place} & {"message_share", "sent_share"}


@pytest.mark.parametrize("profile", ["full", "paper"])
@pytest.mark.parametrize("figure", ["fig-4a", "fig-4b"])
def test_every_key_that_a_claim_of_figure_4_names_occurs_in_every_profile(figure, profile):
    item = item_of(figure)
    asked = item.parameters[profile]
    depth, along, tasks = DEPTHS[asked["encoder"]], asked["along"], asked["tasks"]
    cells = [cell for task in tasks for cell in measured.with_layers(compressed(asked["layer_sets"], depth, task))]
    rows = read_rows(measured.layer_rows(cells, along), "values")
    assert {*tasks} - {"stsb"} <= {claim.where["task"] for claim in item.claims}  # STS-B is shown and not judged
    for claim in item.claims:
        of_claim = [row for row in rows if row.quantity == claim.quantity and row.keys["task"] == claim.where["task"]]
        named = [*getattr(claim, "order", ()), *(key for name, key in claim.where.items() if name == along)]
        keys = {row.keys.get(along) for row in of_claim}
        assert set(named) <= keys if claim.where["task"] in tasks else not of_claim, claim.name


FIRST_HARMS = "takeaway 7, compressing the first layers harms more than compressing the last"
FIRST_LOSES = "takeaway 7, compressing the first layers loses at least 3 points"
LAST_KEEPS = "compressing the last third of the layers loses at most 3 points"
FALLS = "takeaway 6, the score falls from none of the layers compressed to half and to all of them"
ALL_BELOW = "takeaway 6, all layers compressed score below none"


@pytest.mark.parametrize(
    ("figure", "scores", "agrees"),  # scores by (number of layers, first layer), of 24; else 0.6
    [
        ("fig-4b", {(8, 0): 0.3}, {FIRST_HARMS: True, FIRST_LOSES: True}),
        # The first window is compared with the last, not with the second.
        ("fig-4b", {(8, 0): 0.5, (8, 4): 0.3, (8, 16): 0.55}, {FIRST_HARMS: True, FIRST_LOSES: True}),
        ("fig-4b", {(8, 0): 0.58, (8, 16): 0.5}, {FIRST_HARMS: False, FIRST_LOSES: False}),
        ("fig-4a", {(8, 16): 0.58}, {LAST_KEEPS: True}),
        ("fig-4a", {(8, 16): 0.56}, {LAST_KEEPS: False}),
        ("fig-4a", {(12, 12): 0.55, (24, 0): 0.5}, {FALLS: True, ALL_BELOW: True}),
        ("fig-4a", {(12, 12): 0.4, (24, 0): 0.5}, {FALLS: False}),
        ("fig-4a", {(24, 0): 0.7}, {ALL_BELOW: False}),
    ],
)
def test_figure_4_is_judged_by_the_first_and_the_last_layers_of_the_papers_24(figure, scores, agrees):
    item = item_of(figure)
    cells = compressed(item.parameters["paper"]["layer_sets"], 24, "cola")
    for cell in cells:
        key = None if cell["method"] == "w/o" else (len(cell["layers"]), cell["layers"][0])
        cell |= {"chance": 0.0, "num_validation": 1043, "score": scores.get(key, 0.6)}
    rows = measured.layer_rows(measured.with_layers(cells), item.parameters["paper"]["along"])
    verdicts = judged(item, [claim for claim in item.claims if claim.where["task"] == "cola"], rows)
    for name, agreed in agrees.items():
        assert verdicts[f"cola: {name}"] is (Verdict.AGREES if agreed else Verdict.DISAGREES), name


def test_means_leave_out_tasks_that_do_not_count():
    cells = runs("w/o", 0.8) + runs("T1", 0.4, sent=10)
    cells += runs("w/o", 0.8, task="sst2") + runs("T1", 0.8, task="sst2", sent=30)
    cells += runs("w/o", 0.1, task="rte") + runs("T1", 0.1, task="rte")
    means = measured.mean_rows(measured.score_rows(cells), ["mrpc", "sst2"])
    assert values_of(means, "mean_relative_score") == {("T1", 0): pytest.approx(0.75), ("w/o", 0): 1.0}
    assert values_of(means, "mean_message_share") == {("T1", 0): pytest.approx(0.2), ("w/o", 0): 1.0}


def test_precision_is_compared_by_task_and_seed_and_a_control_without_its_cell_is_named():
    (row,) = measured.precision_rows(runs("w/o", 0.80) + runs("A1", 0.1), runs("w/o", 0.81))
    assert row["quantity"] == "precision_points" and row["value"] == pytest.approx(1.0)
    with pytest.raises(ValueError, match="a control in fp32 on stsb has no uncompressed cell with seed 0"):
        measured.precision_rows(runs("w/o", 0.8), runs("w/o", 0.8, task="stsb"))


def test_a_table_of_scores_shows_mean_and_spread_and_the_papers_scores_stand_beside_ours_by_method():
    rows = measured.score_rows(runs("w/o", 0.80, 0.84) + runs("A1", 0.8))
    table = pictures.score_table(rows)
    assert table.loc["mrpc"].to_dict() == {"w/o": "82 (80 to 84)", "A1": "80", "chance": "50"}
    rows = measured.score_rows(runs("w/o", 0.8) + runs("T1", 0.4) + runs("Q3", 0.8))
    papers = [{"task": "mrpc", "method": "T1", "value": 0.8}, {"task": "sst2", "method": "Q3", "value": 0.1}]
    beside = pictures.scores_beside_published(rows, pd.DataFrame(papers), "mrpc").set_index("method")
    assert beside.published["T1"] == 0.8 and pd.isna(beside.published["Q3"]) and beside.ours["Q3"] == 1.0


def test_points_of_a_scatter_lie_at_bytes_and_score():
    cells = runs("w/o", 0.8) + runs("T1", 0.4, sent=10) + runs("A1", 0.8, sent=5, encoder_gradient_bytes=15)
    ax = pictures.draw_per_byte(measured.mean_rows(measured.score_rows(cells), ["mrpc"]), ax=plots.figure()[1])
    assert {text.get_text(): text.xy for text in ax.texts} == {"T1": (0.1, 0.5), "A1": (0.05, 1.0), "w/o": (1.0, 1.0)}
    rings = [line.get_xydata().tolist() for line in ax.lines if line.get_fillstyle() == "none"]
    assert rings == [[[0.2, 1.0]]]
    (constant,) = [line for line in ax.lines if line.get_linestyle() == "--"]
    assert constant.get_ydata()[0] == pytest.approx(0.5 / 0.8)


@pytest.mark.parametrize("table", ["table-5", "table-8", "table-15", "table-16"])
def test_no_order_is_claimed_that_the_papers_own_table_contradicts(table):
    item = item_of(table)
    scores = published(item.id, "score").set_index(["task", "method"]).value
    orders = [claim for claim in item.claims if isinstance(claim, Ordering) and claim.quantity == "score"]
    assert orders
    for claim in orders:
        assert_rising(claim, [scores[claim.where["task"], method] for method in claim.order])


@pytest.mark.parametrize("number", [5, 15])
def test_no_mean_over_tasks_is_ordered_as_one_of_the_papers_tables_contradicts(number):
    share = published(f"activation-compression/table-{number}/measured", "relative_score")
    mean = share[share.task.isin(["sst2", "mrpc", "stsb", "cola"])].groupby("method").value.mean()
    for claim in (claim for claim in item_of("accuracy-per-byte").claims if "Restored" not in claim.changed):
        assert_rising(claim, [mean.get(method, 1.0) for method in claim.order])  # w/o is not in the table of shares


def test_a_method_at_chance_is_judged_by_accuracy_where_f1_hides_it():
    # Always yes has F1 0.8122 and accuracy 0.6838 where 0.6838 are yes; its standard error over 408 rows is 0.023.
    f1 = {"metric": "f1", "chance": 0.8122, "num_validation": 408}
    assert measured.at_chance(runs("A1", 0.835, scores={"accuracy": 0.72}, **f1)) == [("mrpc", "A1")]
    assert measured.at_chance(runs("A1", 0.835, scores={"accuracy": 0.76}, **f1)) == []
    assert measured.at_chance(runs("w/o", 0.55)) == [("mrpc", "w/o")]  # 0.5 and twice sqrt(0.25 / 400)


PLAIN = {  # task: score, chance, rows
    "sst2": (0.857, 0.509, 872),
    "mrpc": (0.863, 0.812, 408),
    "stsb": (0.85, 0.0, 1500),
    "cola": (0.25, 0.0, 1043),
}


@pytest.mark.parametrize("number", [5, 15, 16])
def test_constant_answers_agree_with_no_claim_of_what_is_kept_or_lost(number):
    item = item_of(f"table-{number}")
    asked = [claim for claim in item.claims if claim.quantity in ("relative_score", "points_below")]
    claims = [claim for claim in asked if getattr(claim, "at_least", None) is None]
    cells = []
    for task, (score, chance, rows) in PLAIN.items():
        common = {"task": task, "chance": chance, "num_validation": rows}
        cells += runs("w/o", score, **common)
        yes = common | ({"metric": "f1", "scores": {"accuracy": 0.684, "f1": chance}} if task == "mrpc" else {})
        for method in {claim.where["method"] for claim in claims}:
            cells += runs(method, chance, **yes)
    verdicts = {*judged(item, claims, measured.score_rows(cells)).values()}
    assert Verdict.DISAGREES in verdicts and Verdict.AGREES not in verdicts


def test_whatever_keeps_the_whole_score_disagrees_with_every_claim_that_it_loses_some():
    item = item_of("table-5")
    claims = [claim for claim in item.claims if getattr(claim, "at_least", None) is not None]
    methods, tasks = ({claim.where[name] for claim in claims} for name in ("method", "task"))
    cells = [cell for task in tasks for method in ["w/o", *methods] for cell in runs(method, 0.8, task=task)]
    verdicts = judged(item, claims, measured.score_rows(cells))
    # T1 to T4 on three tasks but for T4 on SST-2; two codes, two quantisers and Q1f on both excepted tasks.
    assert [*verdicts.values()] == [Verdict.DISAGREES] * (4 * 3 - 1 + 5 * 2)


SETTING = {"link": "slow", "nvlink": 0, "tp": 4, "pp": 1, "micro_batch": 4, "sequence": 128}
TIMES = {"iteration_ms": 100, "forward_ms": 50, "backward_ms": 40, "optimizer_ms": 3, "waiting_and_pipeline_ms": 7}
TIMES |= {"encode_ms": 2, "decode_ms": 1, "tensor_ms": 20, "tensor_waiting_ms": 4}
PUBLISHED = pd.DataFrame(
    [("A1", 4, 0, 1.178), ("A2", 4, 0, 1.157), ("A1", 2, 0, 1.101), ("A1", 4, 1, 0.968)],
    columns=["method", "tp", "nvlink", "value"],
).assign(pp=lambda table: 4 // table.tp)


def speedup(method, value, **keys):
    common = {"quantity": "speedup", "method": method, **SETTING, "unit": "1"}
    return {**common, **keys, "value": value, "low": value - 0.01, "high": value + 0.01}


def test_the_parts_of_an_iteration_are_taken_out_of_forward_and_add_up_and_other_links_stay_out():
    rows = [
        {"quantity": name, "method": "A1", **SETTING, "link": link, "value": factor * ms, "unit": "ms"}
        for link, factor in (("slow", 1), ("carried over", 2))
        for name, ms in TIMES.items()
    ]
    parts = pictures.stacked_parts(rows, SETTING).set_index("part").time
    assert parts["forward computation"] == 50 - 2 - 1 - 20 - 4
    assert (parts["waiting and pipeline"], parts["tensor communication"], parts.sum()) == (4 + 7, 20, 100)
    axes = pictures.draw_settings([*rows, speedup("A1", 1.15)], [SETTING], PUBLISHED).axes
    assert sum(bar.get_height() for bar in axes[0].patches) == 100
    assert [bar.get_height() for bar in axes[1].patches] == [1.178, 1.15]
    assert axes[0].texts[0].get_text().startswith("TP 4, PP 1\nslow links\nbatch ")


def test_speedups_and_the_papers_largest_one_stand_beside_ours_of_the_same_setting_link_and_execution():
    rows = [speedup("A1", 1.15), speedup("A1 fused", 1.2)]
    table = pictures.speedups_beside_published(rows, SETTING, PUBLISHED).set_index("method")
    assert table.published["A1"] == 1.178 and pd.isna(table.published["A1 fused"])
    assert (table.ours["A1"], table.low["A1"]) == (1.15, pytest.approx(1.14))
    rows = [speedup("A1", 1.15), speedup("A2", 1.3), speedup("A1 fused", 1.19), speedup("A1", 1.4, tp=2, pp=2)]
    rows += [speedup("A1", 1.18, link="carried over"), speedup("A1", 0.9, link="fast", nvlink=1)]
    largest = measured.largest_speedup_rows(rows, PUBLISHED)
    ours = {("slow", "as in the paper"): 1.15, ("slow", "fused"): 1.19, ("carried over", "as in the paper"): 1.18}
    expected = {(*key, "published"): 1.178 for key in ours} | {(*key, "measured"): value for key, value in ours.items()}
    assert {(row["link"], row["execution"], row["of"]): row["value"] for row in largest} == expected
    assert all(row["low"] < row["value"] < row["high"] for row in largest if row["of"] == "measured")
    assert measured.largest_speedup_rows([speedup("A1", 1.1, tp=2, pp=2)], PUBLISHED) == []
    assert measured.largest_speedup_rows([speedup("A1", 1.1)], PUBLISHED.drop(columns="nvlink")) == []


def test_a_spectrum_starts_at_the_origin_and_is_the_mean_over_seeds_with_their_range():
    _, ax = plots.figure()
    pictures.draw_spectrum({"one": [[0.5, 1.0]], "two": [[0.6, 1.0], [0.8, 1.0]]}, ax=ax)
    line = next(line for line in ax.lines if line.get_label() == "two")
    np.testing.assert_allclose(line.get_xydata(), [[0, 0], [0.5, 0.7], [1, 1]])
    band = ax.collections[-1].get_paths()[0].vertices
    middle = band[np.isclose(band[:, 0], 0.5), 1]
    assert (middle.min(), middle.max()) == pytest.approx((0.6, 0.8))
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["one", "two", "all values equal"]
    with pytest.raises(ValueError, match=r"curves\['one'\] has shape \(2,\); it must be \[seeds, K\]"):
        pictures.draw_spectrum({"one": [0.5, 1.0]}, ax=plots.figure()[1])


def test_a_small_loss_is_no_finding_of_a_codec_that_sends_every_byte():
    project = Project()
    (run,) = best_runs(project, [item_of("table-5")]).values()
    small = [
        audited
        for audited in audit_of(project, run)
        if isinstance(audited.claim, Bound)
        and audited.claim.at_most is not None
        and audited.claim.where["task"] in ("sst2", "stsb")
    ]
    assert {audited.claim.where["method"] for audited in small} == {"A1", "A2", "Q1", "Q1f", "Q2"}
    assert all(audited.noticed[OFF] for audited in small)
