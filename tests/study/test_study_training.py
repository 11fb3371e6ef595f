"""Losses against a baseline, chance, and virtual ranks beside real ones, worked by hand."""

import pytest

from workbench.study.training import (
    by_seed,
    chance_of_accuracy,
    chance_reason,
    compare_on_ranks,
    is_at_chance,
    loss_rows,
    points_below_rows,
    sources,
    standard_error,
)


def test_a_baseline_stands_before_its_variants_in_every_seed():
    trainings = by_seed([{"method": "A"}], [3, 4], {"method": "none"})
    order = [(training["seed"], training["method"]) for training in trainings]
    assert order == [(3, "none"), (3, "A"), (4, "none"), (4, "A")]


def test_a_score_is_at_chance_within_two_standard_errors():
    # sqrt(0.5 * 0.5 / 400) = 0.025; a correlation of 100 rows has the error 1/10.
    assert (standard_error(0.5, 400), standard_error(0.0, 100)) == (0.025, 0.1)
    assert is_at_chance(0.55, 0.5, 400) and not is_at_chance(0.551, 0.5, 400)
    assert "55.0% (score), a constant answer 50.0% (standard error 2.5%)" in chance_reason(0.55, 0.5, 400)
    assert chance_reason(0.551, 0.5, 400) == ""


def test_the_f1_of_always_yes_tells_the_share_of_yes():
    # Of 3 yes in 4 precision is 3/4 and recall 1: F1 = 6/7. Of 1 in 4 it is 2/5, and always no is right in 3 of 4.
    assert chance_of_accuracy(6 / 7) == chance_of_accuracy(2 / 5) == pytest.approx(3 / 4)


def test_points_lost_are_averaged_over_seeds_for_each_key():
    rows = loss_rows(0.6, 0.8, method="A", seed=0) + loss_rows(0.55, 0.5, method="A", seed=1)
    assert [(row["quantity"], row["seed"], row["value"]) for row in rows] == [
        ("points_lost", 0, pytest.approx(20)),
        ("relative_score", 0, pytest.approx(0.75)),
        ("points_lost", 1, pytest.approx(-5)),
        ("relative_score", 1, pytest.approx(1.1)),
    ]
    (below,) = points_below_rows(rows)
    assert below["method"] == "A"
    assert (below["value"], below["low"], below["high"]) == pytest.approx((7.5, 0.0, 20.0))
    assert [row["quantity"] for row in loss_rows(0.1, 0.0)] == ["points_lost"]  # a share of nothing is none


def test_real_ranks_are_compared_with_virtual_ones():
    def trained(score, loss):
        return lambda seed: {"score": score, "train_loss": loss, "sent": 10 * seed}

    rows, results = compare_on_ranks(
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
    assert sources([{"data": [first]}, {"data": [first, second]}]) == [first, second]
