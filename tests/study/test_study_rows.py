"""Rows, published cells and their errors, losses against a baseline, chance, and virtual ranks beside real ones."""

import pytest

from tests.cases import refusals, value
from workbench.rows import median_row, ratio_row, read_row, read_rows, spread_row, value_row
from workbench.study import training
from workbench.study.published import Cell, error_rows, published_value, summary_rows


def test_a_row_is_a_value_or_a_median_with_its_interval_or_a_few_values_with_their_spread():
    keys = {"method": "T1", "tp": 2}
    assert value_row("bytes", 12, "byte", **keys) == {"quantity": "bytes", **keys, "value": 12, "unit": "byte"}
    row = median_row("iteration_s", [5.0, 1.0, 4.0, 2.0, 3.0, 6.0], "s", method="T1")
    assert (row["value"], row["low"], row["high"], row["unit"]) == (3.5, 1.0, 6.0, "s")
    assert spread_row("total_s", [3.0, 1.0, 2.0], "s") == value_row("total_s", 2.0, "s", low=1.0, high=3.0)


def test_a_ratio_is_taken_pair_by_pair_before_its_median():
    row = ratio_row("speedup", [2.0, 4.0, 6.0, 8.0, 10.0, 12.0], [1.0, 1.0, 2.0, 2.0, 2.0, 4.0])
    assert (row["value"], row["low"], row["high"]) == (3.5, 2.0, 5.0)  # 2, 4, 3, 4, 5, 3


test_a_spread_without_its_value_and_a_seed_that_is_no_whole_number_are_refused = refusals(
    ({"low": 2.0, "high": 3.0}, "value is 1.0, outside its spread, low 2.0 to high 3.0"),
    ({"low": 0.0, "high": float("inf")}, "high is inf; it must be finite"),
    ({"seed": 0.5}, "seed is 0.5; it must be a whole number"),
    ({"seed": True}, "seed is True"),
    of=lambda **more: read_row({"quantity": "time", "value": 1.0, "unit": "ms", **more}),
)


def test_two_rows_of_the_same_thing_are_refused():
    rows = [value_row("time", 1.0, "ms", tp=tp) for tp in (1, 1.0)]
    with pytest.raises(ValueError, match="values, row 2: says the same as row 1"):
        read_rows(rows, "values")


def test_a_cell_has_the_number_that_the_table_prints():
    # Table 7, row A2, column Tensor Dec.; table I of FlexTP; figure 6.11 of Gemini.
    cell = Cell.of("table-7", "decode_ms", method="A2", tp=4, pp=4)
    assert cell.value("activation_compression") == 20.52
    assert cell.keys() == {"quantity": "decode_ms", "method": "A2", "tp": 4, "pp": 4}
    assert published_value("flextp", "table-1", "epoch_s", scheme="scatter-gather", migrated_share=0.0) == 373
    assert published_value("gemini", "fig-6-11", "reduction", network_gbit_per_s=100, num_machines=16) == 65


@pytest.mark.parametrize(("method", "count"), [("w/o", 0), (["A1", "A2"], 2)])
def test_keys_of_no_row_or_of_several_are_named(method, count):
    with pytest.raises(ValueError, match=f"table-7 has {count} rows of decode_ms with .*; it must have one"):
        published_value("activation_compression", "table-7", "decode_ms", method=method, tp=4, pp=4)


def test_cells_that_calibrate_have_no_error_and_the_others_are_summed_up():
    ours = [value_row("a_ms", value, "ms", method=name) for name, value in (("x", 11), ("y", 24), ("z", 30))]
    published = [value_row("a_ms", 10.0 * n, "ms", method=name, source="s") for n, name in enumerate("xyz", start=1)]
    rows = error_rows(ours, published, [{"quantity": "a_ms", "method": "z"}])
    errors = {row["method"]: row["value"] for row in rows if row["quantity"] == "relative_error"}
    assert errors == pytest.approx({"x": 0.1, "y": 0.2})
    summary = [value(rows, quantity) for quantity in ("median_error", "largest_error", "held_out_cells")]
    assert summary == pytest.approx([0.15, 0.2, 2])
    assert value(summary_rows(n / 10 for n in range(11)), "p90_error") == pytest.approx(0.9)
    # An empty column of a published table is no key.
    with_boundary = [{**published[0], "boundary": float("nan")}]
    assert value(error_rows(ours[:1], with_boundary, []), "median_error") == pytest.approx(0.1)
    with pytest.raises(ValueError, match="published has no cell in ms"):
        error_rows([], published[:1], [])


def test_a_baseline_stands_before_its_variants_in_every_seed():
    trainings = training.by_seed([{"method": "A"}], [3, 4], {"method": "none"})
    order = [(run["seed"], run["method"]) for run in trainings]
    assert order == [(3, "none"), (3, "A"), (4, "none"), (4, "A")]


def test_a_score_is_at_chance_within_two_standard_errors():
    # sqrt(0.5 * 0.5 / 400) = 0.025; a correlation of 100 rows has the error 1/10.
    assert (training.standard_error(0.5, 400), training.standard_error(0.0, 100)) == (0.025, 0.1)
    assert training.is_at_chance(0.55, 0.5, 400) and not training.is_at_chance(0.551, 0.5, 400)
    assert "55.0% (score), a constant answer 50.0% (standard error 2.5%)" in training.chance_reason(0.55, 0.5, 400)
    assert training.chance_reason(0.551, 0.5, 400) == ""


def test_the_f1_of_always_yes_tells_the_share_of_yes():
    # Of 3 yes in 4 precision is 3/4 and recall 1: F1 = 6/7. Of 1 in 4 it is 2/5, and always no is right in 3 of 4.
    assert training.chance_of_accuracy(6 / 7) == training.chance_of_accuracy(2 / 5) == pytest.approx(3 / 4)


def test_points_lost_are_averaged_over_seeds_for_each_key():
    rows = training.loss_rows(0.6, 0.8, method="A", seed=0) + training.loss_rows(0.55, 0.5, method="A", seed=1)
    assert [(row["quantity"], row["seed"], row["value"]) for row in rows] == [
        ("points_lost", 0, pytest.approx(20)),
        ("relative_score", 0, pytest.approx(0.75)),
        ("points_lost", 1, pytest.approx(-5)),
        ("relative_score", 1, pytest.approx(1.1)),
    ]
    (below,) = training.points_below_rows(rows)
    assert below["method"] == "A"
    assert (below["value"], below["low"], below["high"]) == pytest.approx((7.5, 0.0, 20.0))
    assert [row["quantity"] for row in training.loss_rows(0.1, 0.0)] == ["points_lost"]  # a share of nothing is none


def test_real_ranks_are_compared_with_virtual_ones():
    def trained(score, loss):
        return lambda seed: {"score": score, "train_loss": loss, "sent": 10 * seed}

    rows, results = training.compare_on_ranks(
        [("A", {"seed": 2})],
        on_real=trained(0.5, 1.1),
        on_virtual=trained(0.4, 1.0),
        more=lambda real, virtual: [("sent_difference", real["sent"] - virtual["sent"], "B")],
        key="method",
    )
    assert {row["quantity"]: row["value"] for row in rows} == pytest.approx(
        {"score_difference": 10.0, "loss_difference": 0.1, "sent_difference": 0.0}
    )
    assert [(result["method"], result["ranks"]) for result in results] == [("A", "real"), ("A", "virtual")]


def test_equal_data_sources_are_listed_once():
    first, second = {"name": "a", "source": "hub"}, {"name": "b", "source": "hub"}
    assert training.sources([{"data": [first]}, {"data": [first, second]}]) == [first, second]
