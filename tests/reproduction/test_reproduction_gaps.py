"""A claim never agrees where a row is missing, hidden by calibration, or cannot be judged as it is written."""

import pytest

from workbench.reproduction import ClaimError, Crossover, Evidence, Ordering, Reproduction, Trend, Verdict, Within
from workbench.reproduction.judge import judge
from workbench.reproduction.report import rule_text
from workbench.study.rows import read_row, read_rows

WHY = {"because": "the rule under test"}


def values(*rows):
    """Rows from (value, keys)."""
    return read_rows([{"quantity": "time", "value": value, "unit": "ms", **keys} for value, keys in rows], "values")


def verdict(claim, ours, published=(), **more):
    return judge([claim], ours, published, **more)[0]


def ordering(*order, **more):
    return Ordering("o", quantity="time", along="m", order=list(order), **WHY, **more)


def trend(**more):
    return Trend("t", quantity="time", along="x", direction="increasing", **WHY, **more)


# rows that are missing


def test_an_ordering_asked_for_in_two_groups_does_not_agree_while_one_of_them_is_missing():
    ours = values((1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}))
    told = verdict(ordering("a", "b", where={"tp": [1, 2]}), ours)
    assert (told.verdict, told.reason) == (Verdict.NOT_RUN, "no value of ours for tp=2")
    assert [dict(row.where) for row in told.rows if row.verdict is Verdict.NOT_RUN] == [{"tp": 2}]
    assert verdict(ordering("a", "b", where={"tp": [1]}), ours).verdict is Verdict.AGREES


def test_an_ordering_published_in_two_groups_does_not_agree_while_one_of_them_is_missing():
    group = [(1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1})]
    more = [(3, {"m": "a", "tp": 2}), (4, {"m": "b", "tp": 2}), (0, {"m": "not in the order", "tp": 2})]
    told = verdict(ordering("a", "b"), values(*group), values(*group, *more))
    assert told.verdict is Verdict.NOT_RUN
    lacking = [(dict(row.where), row.published) for row in told.rows if row.verdict is Verdict.NOT_RUN]
    assert lacking == [({"m": "a", "tp": 2}, 3), ({"m": "b", "tp": 2}, 4)]


def test_a_missing_member_of_an_ordering_is_told_once_although_it_is_published_and_asked_for():
    published = values((1, {"m": "a"}), (2, {"m": "b"}), (3, {"m": "c"}))
    told = verdict(ordering("a", "b", "c", where={"m": ["a", "b", "c"]}), published[:2], published)
    assert [dict(row.where) for row in told.rows if row.verdict is Verdict.NOT_RUN] == [{"m": "c"}]


def test_a_trend_does_not_agree_while_a_published_or_listed_place_is_missing():
    ours = values((1, {"x": 1}), (2, {"x": 2}))
    assert verdict(trend(), ours, ours).verdict is Verdict.AGREES
    told = verdict(trend(), ours, values((1, {"x": 1}), (2, {"x": 2}), (3, {"x": 4})))
    assert (told.verdict, told.reason) == (Verdict.NOT_RUN, "no value of ours for x=4")
    assert verdict(trend(where={"x": [1, 2, 4]}), ours).reason == "no value of ours for x=4"


def test_a_crossover_does_not_agree_while_a_listed_group_is_missing():
    lines = values(
        *((v, {"m": m, "x": x, "tp": 1}) for m, line in (("a", (1, 3)), ("b", (2, 2))) for x, v in enumerate(line))
    )
    options = {"quantity": "time", "between": ("a", "b"), "series": "m", "along": "x", "at": 0.5, "rel": 0.0, **WHY}
    assert verdict(Crossover("c", where={"tp": [1]}, **options), lines).verdict is Verdict.AGREES
    assert verdict(Crossover("c", where={"tp": [1, 2]}, **options), lines).reason == "no value of ours for tp=2"


def test_a_published_order_at_a_finer_key_than_ours_is_never_dropped_in_silence():
    ours = values((1, {"m": "a"}), (2, {"m": "b"}))
    finer = values((9, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}))  # itself falls from a to b
    assert verdict(ordering("a", "b"), ours, finer).verdict is Verdict.NOT_RUN
    both = values((1, {"m": "a"}), (9, {"m": "a", "tp": 1}), (2, {"m": "b"}))
    ours = values((1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}))
    with pytest.raises(ClaimError, match="'o': 2 published rows fit ours with m=a, tp=1; say in `where` which"):
        verdict(ordering("a", "b"), ours, both)


def test_the_published_values_must_rise_across_a_value_that_is_ours_alone():
    ours = values((1, {"m": "a"}), (2, {"m": "b"}), (3, {"m": "c"}))
    told = verdict(ordering("a", "b", "c"), ours, values((7, {"m": "a"}), (5, {"m": "c"})))
    assert told.verdict is Verdict.DISAGREES
    assert told.reason == "expected a below c, but the published values are 7 and 5"


def test_a_within_that_lists_a_value_nobody_published_is_refused_and_one_we_lack_is_not_run():
    claim = Within("w", quantity="time", where={"m": ["a", "z"]}, rel=0.1, **WHY)
    with pytest.raises(ClaimError, match="'w': where lists m='z', and no published row of 'time' has it"):
        verdict(claim, values((1, {"m": "a"})), values((1, {"m": "a"})))
    told = verdict(claim, values((1, {"m": "a"})), values((1, {"m": "a"}), (2, {"m": "z"})))
    assert (told.verdict, told.reason) == (Verdict.NOT_RUN, "no value of ours for m=z")


def test_a_value_listed_of_a_column_that_only_ours_has_must_be_among_ours():
    claim = Within("w", quantity="time", where={"depth": ["middle", "last"]}, rel=0.1, **WHY)
    told = verdict(claim, values((1, {"m": "a", "depth": "middle"})), values((1, {"m": "a"})))
    assert (told.verdict, told.reason) == (Verdict.NOT_RUN, "no value of ours for depth=last")


# rows a cost model was calibrated on


def test_a_calibrated_row_in_the_middle_does_not_hide_that_its_neighbours_fall():
    middle = {"m": "b", "x": 2}
    along_m = values((5, {"m": "a"}), (9, {"m": "b"}), (3, {"m": "c"}))
    along_x = values((5, {"x": 1}), (9, {"x": 2}), (3, {"x": 3}))
    for claim, rows, column in ((ordering("a", "b", "c"), along_m, "m"), (trend(), along_x, "x")):
        told = verdict(claim, rows, calibrated_on=[{column: middle[column]}])
        assert told.verdict is Verdict.DISAGREES and told.reason.endswith("; found 5 and 3")
        assert [row.verdict for row in told.rows] == [Verdict.AGREES, Verdict.NOT_COMPARABLE, Verdict.DISAGREES]


def test_a_step_to_or_from_a_calibrated_row_does_not_count():
    fallen = values((5, {"x": 1}), (2, {"x": 2}), (6, {"x": 3}))  # 5 to 2 falls, 5 to 6 rises
    assert verdict(trend(), fallen).verdict is Verdict.DISAGREES
    assert verdict(trend(), fallen, calibrated_on=[{"x": 2}]).verdict is Verdict.AGREES


def test_one_value_beside_calibrated_ones_alone_is_no_finding():
    told = verdict(trend(), values((1, {"x": 1}), (2, {"x": 2})), calibrated_on=[{"x": 2}])
    assert told.verdict is Verdict.NOT_COMPARABLE and "calibrated" in told.reason
    two = values((1, {"x": 1, "g": 1}), (2, {"x": 2, "g": 1}), (1, {"x": 1, "g": 2}), (2, {"x": 2, "g": 2}))
    assert verdict(trend(), two, calibrated_on=[{"x": 2, "g": 2}]).verdict is Verdict.AGREES  # by the group g=1


def test_a_crossing_is_sought_among_the_places_that_a_cost_model_was_not_calibrated_on():
    claim = Crossover("c", quantity="time", between=("a", "b"), series="m", along="x", at=2.0, abs=0.0, because="rule")
    lines = [
        (line[x - 1], {"m": name, "x": x})
        for name, line in (("a", (0, 9, 3, 5)), ("b", (2, 2, 1, 2)))
        for x in (1, 2, 3, 4)
    ]
    rows = values(*lines)  # a - b: -2, 7, 2, 3: without the place 2 it is 0 half way from 1 to 3
    assert verdict(claim, rows).verdict is Verdict.DISAGREES
    assert verdict(claim, rows, calibrated_on=[{"x": 2}]).rows[0].ours == 2.0
    assert (
        verdict(claim, rows, calibrated_on=[{"x": 2, "m": "a"}]).verdict is Verdict.AGREES
    )  # one of the two is enough
    told = verdict(claim, rows, calibrated_on=[{"x": place} for place in (1, 2, 3)])
    assert told.verdict is Verdict.NOT_COMPARABLE and "calibrated on all places of this sweep but one" in told.reason


# a row and its spread


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"low": 2.0, "high": 3.0}, "value is 1.0, outside its spread, low 2.0 to high 3.0"),
        ({"low": 0.0, "high": 0.5}, "value is 1.0, outside its spread"),
        ({"low": float("nan"), "high": 2.0}, "low is nan; it must be finite"),
        ({"low": float("nan"), "high": float("nan")}, "low is nan; it must be finite"),
        ({"low": 0.0, "high": float("inf")}, "high is inf; it must be finite"),
        ({"seed": 0.5}, "seed is 0.5; it must be a whole number"),
        ({"seed": float("nan")}, "seed is nan; it must be a whole number"),
        ({"seed": True}, "seed is True"),
    ],
)
def test_a_spread_that_does_not_hold_its_value_and_a_seed_that_is_no_whole_number_are_refused(more, said):
    with pytest.raises(ValueError, match=said):
        read_row({"quantity": "time", "value": 1.0, "unit": "ms", **more})


def test_a_mean_that_rounding_puts_a_hair_outside_its_extremes_is_no_error():
    tenth = [{"quantity": "time", "value": 0.1, "unit": "ms", "seed": seed} for seed in range(3)]
    assert sum([0.1] * 3) / 3 > 0.1
    told = verdict(Within("w", quantity="time", abs=0.001, **WHY), read_rows(tenth, "values"), values((0.1, {})))
    assert told.verdict is Verdict.AGREES
    read_row({"quantity": "time", "value": sum([0.1] * 3) / 3, "low": 0.1, "high": 0.1, "unit": "ms"})


# what the paper's definition implies


def by_definition(expected=1.0, **more):
    return Within(
        "w", quantity="time", expected=expected, source="section 2: a share of itself", **WHY, **({"rel": 0.1} | more)
    )


def test_every_row_of_ours_is_compared_with_what_is_expected_by_definition_and_no_published_row_is():
    ours = values((1.05, {"m": "a"}), (0.95, {"m": "b"}), (7, {"m": "c"}))
    claim = by_definition(where={"m": ["a", "b"]})
    told = verdict(claim, ours, values((3, {"m": "a"})))
    assert told.verdict is Verdict.AGREES
    assert [(dict(row.where), row.published, row.ours, row.by_definition) for row in told.rows] == [
        ({"m": "a"}, 1.0, 1.05, True),
        ({"m": "b"}, 1.0, 0.95, True),
    ]
    wrong = verdict(by_definition(), ours)
    assert wrong.verdict is Verdict.DISAGREES and "off by +600 %" in wrong.reason
    assert wrong.rows[2].to_json()["by_definition"] is True and wrong.rows[2].source == "section 2: a share of itself"
    assert verdict(by_definition(2.0, rel=None, abs=0.0), values((2.0, {"m": "a"}))).verdict is Verdict.AGREES


def test_what_is_expected_by_definition_is_not_run_where_ours_is_missing():
    told = verdict(by_definition(where={"m": ["a", "b"]}), values((1, {"m": "a"})))
    assert (told.verdict, told.reason) == (Verdict.NOT_RUN, "no value of ours for m=b")
    nothing = verdict(by_definition(where={"m": "a"}), ())
    assert nothing.verdict is Verdict.NOT_RUN and [row.published for row in nothing.rows] == [1.0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"expected": 0.0}, "expected of claim 'w' is 0, of which rel is no tolerance; give abs"),
        ({"expected": float("nan")}, "expected of claim 'w' is nan; it must be a finite number"),
        ({"expected": True}, "expected of claim 'w' is True; it must be a finite number"),
        ({"expected": "1"}, "expected of claim 'w' is '1'; it must be a finite number"),
        ({"source": " "}, "source of claim 'w' is ' '; it must say why this is expected"),
    ],
)
def test_an_expectation_must_be_finite_have_its_reason_and_a_tolerance_that_means_something(more, said):
    arguments = {"quantity": "time", "rel": 0.1, "expected": 1.0, "source": "section 2", **WHY}
    with pytest.raises(ValueError, match=said):
        Within("w", **(arguments | more))
    assert Within("w", quantity="time", expected=0, abs=0.1, source="section 2", **WHY).expected == 0


def test_an_item_without_published_numbers_may_hold_claims_by_definition_alone():
    item = {
        "technique": "toy",
        "item": "fig-1",
        "evidence": Evidence.COUNTED,
        "title": "t",
        "notebook": "n.ipynb",
        "parameters": {"smoke": {}},
    }
    assert Reproduction(claims=(by_definition(),), **item).published is None
    with pytest.raises(ValueError, match="published is None, and claim 'v' compares with published values"):
        Reproduction(claims=(by_definition(), Within("v", quantity="time", rel=0.1, **WHY)), **item)


def test_the_rule_says_that_a_value_is_expected_by_definition():
    assert rule_text(by_definition()).startswith("Time within 10 % of 1, expected by definition. Reason:")
    assert rule_text(by_definition(rel=0.0)).startswith("Time equal to 1, expected by definition. Reason:")
