"""Verdicts are computed: each kind of claim agrees, disagrees and refuses as its rule says."""

import math

import pytest

from workbench.reproduction import Bound, ClaimError, Crossover, Ordering, Trend, Verdict, Within
from workbench.reproduction.judge import judge
from workbench.study.rows import read_rows

WHY = {"because": "the rule under test"}


def values(*rows, unit="ms", quantity="time"):
    """Rows from (value, keys) or (value, keys, low, high)."""
    raw = []
    for value, keys, *spread in rows:
        raw.append(
            {"quantity": quantity, "value": value, "unit": unit, **keys}
            | dict(zip(("low", "high"), spread, strict=False))
        )
    return read_rows(raw, "values")


def verdict(claim, ours, published=(), **more):
    return judge([claim], ours, published, **more)[0]


def test_a_value_on_the_edge_of_its_tolerance_agrees_and_one_past_it_disagrees():
    published = values((8.0, {"tp": 2}))
    claim = Within("w", quantity="time", rel=0.25, **WHY)  # 8 +- 2
    assert verdict(claim, values((10.0, {"tp": 2})), published).verdict is Verdict.AGREES
    past = verdict(claim, values((10.001, {"tp": 2})), published)
    assert past.verdict is Verdict.DISAGREES and "+25.01 %" in past.reason
    assert (
        verdict(Within("w", quantity="time", abs=1.5, **WHY), values((6.5, {"tp": 2})), published).verdict
        is Verdict.AGREES
    )


@pytest.mark.parametrize(
    ("bound", "ours", "found"),
    [
        ({"at_most": 1.02}, (1.02, {}), Verdict.AGREES),
        ({"at_most": 1.02}, (1.0200001, {}), Verdict.DISAGREES),
        ({"at_most": 1.02}, (1.01, {}, 1.0, 1.02), Verdict.AGREES),
        ({"at_most": 1.02}, (1.01, {}, 1.0, 1.03), Verdict.NOT_COMPARABLE),
        ({"at_most": 1.02}, (1.03, {}, 1.02, 1.04), Verdict.NOT_COMPARABLE),
        ({"at_most": 1.02}, (1.03, {}, 1.021, 1.04), Verdict.DISAGREES),
        ({"at_least": 0.9}, (0.9, {}), Verdict.AGREES),
        ({"at_least": 0.9}, (0.94, {}, 0.89, 0.99), Verdict.NOT_COMPARABLE),
        ({"at_least": 0.9}, (0.8, {}, 0.7, 0.89), Verdict.DISAGREES),
        ({"at_least": 0.9}, (math.inf, {}), Verdict.DISAGREES),
    ],
)
def test_a_bound_holds_for_the_whole_interval(bound, ours, found):
    claim = Bound("b", quantity="time", source="ours", **bound, **WHY)
    told = verdict(claim, values(ours))
    assert told.verdict is found
    assert [row.published for row in told.rows] == list(bound.values()) and told.rows[0].by_definition


def test_a_bound_says_what_it_found_and_what_is_missing():
    claim = Bound("b", quantity="time", where={"tp": [2, 4]}, at_most=1.0, source="ours", **WHY)
    told = verdict(claim, values((2.0, {"tp": 2}, 1.5, 2.5)))
    assert [row.verdict for row in told.rows] == [Verdict.DISAGREES, Verdict.NOT_RUN]
    assert told.rows[0].reason == "ours is 2 (1.5 to 2.5), not at most 1"
    assert verdict(Bound("b", quantity="time", at_most=1.0, source="ours", **WHY), ()).verdict is Verdict.NOT_RUN


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({}, "give exactly one"),
        ({"at_most": 1.0, "at_least": 0.0}, "give exactly one"),
        ({"at_most": math.nan}, "must be a finite number"),
        ({"at_least": True}, "must be a finite number"),
        ({"at_most": 1.0, "source": " "}, "must say why"),
    ],
)
def test_a_bound_that_is_none_is_refused(more, message):
    with pytest.raises(ValueError, match=message):
        Bound("b", quantity="time", **{"source": "ours", **more}, **WHY)


@pytest.mark.parametrize(
    ("tolerance", "ours", "said"),
    [
        ({"rel": 0.1}, 7.1992, "off by -10.01 %, more than 10 %"),  # -0.8008 of 8
        ({"rel": 0.1}, 7.199968, "off by -10.0004 %, more than 10 %"),  # -0.800032 of 8
        ({"rel": 0.1}, 1110.4, "ours is 139 times the published value, off by more than 10 %"),  # 138.8
        ({"abs": 0}, 9.0, "ours is 9, not 8"),
        ({"abs": 0.5}, 9.0, "off by +1, more than 0.5"),
    ],
)
def test_a_reason_has_the_digits_that_tell_ours_from_the_tolerance(tolerance, ours, said):
    claim = Within("w", quantity="time", **tolerance, **WHY)
    assert verdict(claim, values((ours, {})), values((8.0, {}))).reason == said


def test_a_value_outside_of_its_tolerance_says_that_its_interval_reaches_it():
    claim = Within("w", quantity="time", rel=0.1, **WHY)  # 0.9 to 1.1
    published = values((1.0, {}))
    told = verdict(claim, values((1.12, {}, 0.859, 1.206)), published)
    assert told.verdict is Verdict.DISAGREES
    assert told.reason == "off by +12 %, more than 10 %; our interval 0.859 to 1.206 reaches the tolerance"
    assert verdict(claim, values((1.2, {}, 1.11, 1.3)), published).reason == "off by +20 %, more than 10 %"


def test_values_that_differ_late_are_told_with_the_digits_that_tell_them_apart():
    claim = Ordering("o", quantity="time", along="m", order=["T1", "w/o"], **WHY)
    assert (
        verdict(claim, values((1.08717, {"m": "T1"}), (1.0, {"m": "w/o"}))).reason
        == "expected T1 below w/o; found 1.087 and 1"
    )
    near = values((1.000002, {"m": "T1"}), (1.000001, {"m": "w/o"}))
    assert verdict(claim, near).reason == "expected T1 below w/o; found 1.000002 and 1.000001"
    falling = Trend("t", quantity="time", along="x", direction="decreasing", **WHY)
    assert (
        verdict(falling, values((1.0, {"x": 256}), (2.0, {"x": 512}))).reason
        == "expected less at 512 than at 256; found 2 and 1"
    )


def test_changing_one_published_number_turns_a_verdict_red():
    claim = Within("w", quantity="time", rel=0.05, **WHY)
    ours = values((100.0, {"method": "A1"}), (50.0, {"method": "A2"}))
    right = values((101.0, {"method": "A1"}), (51.0, {"method": "A2"}))
    wrong = values((101.0, {"method": "A1"}), (61.0, {"method": "A2"}))
    assert verdict(claim, ours, right).verdict is Verdict.AGREES
    assert verdict(claim, ours, wrong).verdict is Verdict.DISAGREES


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_agrees_with_nothing(bad):
    claims = [
        Within("w", quantity="time", rel=1e9, **WHY),
        Ordering("o", quantity="time", along="m", order=["a", "b"], where={}, **WHY),
        Trend("t", quantity="time", along="x", direction="increasing", **WHY),
    ]
    pairs = values((1.0, {"m": "a"}), (bad, {"m": "b"}))
    assert verdict(claims[0], pairs, values((1.0, {"m": "a"}), (2.0, {"m": "b"}))).verdict is Verdict.DISAGREES
    assert verdict(claims[0], values((1.0, {})), values((bad, {}))).verdict is Verdict.DISAGREES
    assert verdict(claims[1], pairs).verdict is Verdict.DISAGREES
    assert verdict(claims[2], values((1.0, {"x": 1}), (bad, {"x": 2}))).verdict is Verdict.DISAGREES
    lines = [(1.0, {"m": "a", "x": 1}), (bad, {"m": "a", "x": 2}), (2.0, {"m": "b", "x": 1}), (1.0, {"m": "b", "x": 2})]
    crossing = Crossover("c", quantity="time", between=("a", "b"), series="m", along="x", at=1.5, rel=9.0, **WHY)
    assert verdict(crossing, values(*lines)).verdict is Verdict.DISAGREES


def test_a_claim_that_fits_no_row_is_not_run_and_says_its_name():
    claim = Within("halves", quantity="bytes", rel=0.1, **WHY)
    told = verdict(claim, values((1.0, {})), values((1.0, {})))
    assert told.verdict is Verdict.NOT_RUN and "'halves' matches no rows of 'bytes'" in told.reason


def test_one_published_row_without_ours_keeps_the_claim_from_agreeing():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    told = verdict(claim, values((1.0, {"tp": 1})), values((1.0, {"tp": 1}), (2.0, {"tp": 2})))
    assert told.verdict is Verdict.NOT_RUN and told.reason == "no value of ours for tp=2"
    assert [row.verdict for row in told.rows] == [Verdict.AGREES, Verdict.NOT_RUN]


def test_a_column_that_only_ours_would_have_is_no_typo_where_ours_did_not_run():
    claim = Within("w", quantity="time", where={"reading": "points"}, rel=0.1, **WHY)
    assert verdict(claim, (), values((1.0, {"tp": 1}))).verdict is Verdict.NOT_RUN


def test_a_missing_value_without_keys_is_told_without_them():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    assert verdict(claim, values((1.0, {}), quantity="bytes"), values((1.0, {}))).reason == "no value of ours"


def test_units_that_differ_unknown_columns_and_ambiguous_rows_are_refused_by_the_claims_name():
    claim = Within("speed", quantity="time", rel=0.1, **WHY)
    with pytest.raises(ClaimError, match="'speed'.*published in 's' and ours is in 'ms'"):
        verdict(claim, values((1.0, {})), values((1.0, {}), unit="s"))
    with pytest.raises(ClaimError, match="'typo'.*where names.*metod"):
        verdict(
            Within("typo", quantity="time", where={"metod": "A1"}, rel=0.1, **WHY),
            values((1.0, {"method": "A1"})),
            values((1.0, {"method": "A1"})),
        )
    with pytest.raises(ClaimError, match="2 of our rows.*batch"):
        verdict(claim, values((1.0, {"batch": 1}), (1.0, {"batch": 2})), values((1.0, {})))


def test_keys_match_as_numbers_where_both_read_as_numbers_and_a_list_in_where_means_any():
    common = {"quantity": "time", "value": "3", "unit": "ms", "tp": "4"}
    published = read_rows([common | {"m": name} for name in ("w/o", "A1", "B")], "published")
    told = verdict(
        Within("w", quantity="time", where={"m": ["A1", "w/o"]}, abs=0, **WHY),
        values((3, {"tp": 4.0, "m": "w/o"}), (3, {"tp": 4.0, "m": "A1"})),
        published,
    )
    assert told.verdict is Verdict.AGREES


def test_an_ordering_holds_in_every_group_or_disagrees():
    claim = Ordering("o", quantity="time", along="m", order=["a", "b", "c"], **WHY)
    good = [(1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}), (3, {"m": "c", "tp": 1})]
    other = [(5, {"m": "c", "tp": 2}), (1, {"m": "a", "tp": 2}), (6, {"m": "b", "tp": 2})]  # b above c
    assert verdict(claim, values(*good)).verdict is Verdict.AGREES
    told = verdict(claim, values(*good, *other))
    assert told.verdict is Verdict.DISAGREES and told.reason == "expected b below c; found 6 and 5"
    assert verdict(claim, values(*good[:2])).verdict is Verdict.NOT_RUN
    equal = values((1, {"m": "a"}), (1, {"m": "b"}), (2, {"m": "c"}))
    assert verdict(claim, equal).verdict is Verdict.DISAGREES


def test_an_ordering_inside_the_spread_is_not_a_finding():
    claim = Ordering("o", quantity="time", along="m", order=["a", "b"], **WHY)
    apart = values((1.0, {"m": "a"}, 0.9, 1.1), (2.0, {"m": "b"}, 1.2, 2.8))
    overlapping = values((1.0, {"m": "a"}, 0.9, 1.3), (2.0, {"m": "b"}, 1.2, 2.8))
    reversed_apart = values((3.0, {"m": "a"}, 2.9, 3.1), (2.0, {"m": "b"}, 1.2, 2.8))
    assert verdict(claim, apart).verdict is Verdict.AGREES
    told = verdict(claim, overlapping)
    assert told.verdict is Verdict.NOT_COMPARABLE
    assert (
        told.reason
        == "expected a below b; found 1 (0.9 to 1.3) and 2 (1.2 to 2.8): the intervals overlap, so neither order is shown"
    )
    assert verdict(claim, reversed_apart).verdict is Verdict.DISAGREES


def test_seeds_are_merged_into_their_mean_with_smallest_and_largest_as_the_spread():
    raw = [
        {"quantity": "accuracy", "value": v, "unit": "1", "m": m, "seed": s}
        for m, vs in {"a": (0.70, 0.80), "b": (0.78, 0.90)}.items()
        for s, v in enumerate(vs)
    ]
    claim = Ordering("o", quantity="accuracy", along="m", order=["a", "b"], **WHY)
    told = verdict(claim, read_rows(raw, "values"))
    assert told.verdict is Verdict.NOT_COMPARABLE  # 0.70..0.80 and 0.78..0.90 overlap
    assert (told.rows[0].ours, told.rows[0].low, told.rows[0].high) == (0.75, 0.70, 0.80)


def test_an_ordering_that_the_published_values_themselves_break_disagrees():
    claim = Ordering("o", quantity="time", along="m", order=["a", "b"], **WHY)
    told = verdict(claim, values((1, {"m": "a"}), (2, {"m": "b"})), values((7, {"m": "a"}), (5, {"m": "b"})))
    assert told.verdict is Verdict.DISAGREES and "but the published values are 7 and 5" in told.reason


def test_a_trend_looks_along_the_column_whatever_the_order_of_the_rows():
    rows = values((30, {"batch": 4}), (10, {"batch": 16}), (20, {"batch": 8}))
    assert (
        verdict(Trend("t", quantity="time", along="batch", direction="decreasing", **WHY), rows).verdict
        is Verdict.AGREES
    )
    assert (
        verdict(Trend("t", quantity="time", along="batch", direction="increasing", **WHY), rows).verdict
        is Verdict.DISAGREES
    )
    one = values((30, {"batch": 4}))
    assert (
        verdict(Trend("t", quantity="time", along="batch", direction="increasing", **WHY), one).verdict
        is Verdict.NOT_RUN
    )


def crossing_rows(a, b):
    return values(
        *((v, {"m": name, "x": x}) for name, line in (("a", a), ("b", b)) for x, v in zip((1, 2, 4), line, strict=True))
    )


def test_a_crossover_is_found_by_interpolation_and_must_be_the_only_one():
    options = {"quantity": "time", "between": ("a", "b"), "series": "m", "along": "x", **WHY}
    rows = crossing_rows((0, 1, 5), (1, 3, 3))  # a - b: -1, -2, 2: crosses half way from 2 to 4
    found = verdict(Crossover("c", at=3.0, rel=0.0, **options), rows)
    assert found.verdict is Verdict.AGREES and found.rows[0].ours == 3.0
    log = verdict(Crossover("c", at=2 * math.sqrt(2), rel=1e-12, scale="log", **options), rows)
    assert log.verdict is Verdict.AGREES
    assert verdict(Crossover("c", at=2.0, rel=0.1, **options), rows).verdict is Verdict.DISAGREES
    assert verdict(Crossover("c", at=3.0, rel=0.1, smaller_before="b", **options), rows).verdict is Verdict.DISAGREES
    assert (
        verdict(Crossover("c", at=3.0, rel=9.0, **options), crossing_rows((0, 1, 2), (1, 2, 3))).verdict
        is Verdict.DISAGREES
    )
    twice = crossing_rows((0, 3, 0), (1, 1, 1))
    assert "cross 2 times" in verdict(Crossover("c", at=1.5, rel=9.0, **options), twice).reason
    touching = crossing_rows((0, 1, 2), (1, 1, 1))  # equal at 2
    assert verdict(Crossover("c", at=2.0, rel=0.0, **options), touching).verdict is Verdict.AGREES


def test_a_stand_in_or_no_source_at_all_can_never_support_a_claim_about_real_data():
    claim = Within("accuracy", quantity="time", rel=0.1, needs_real_data=True, **WHY)
    same = values((1.0, {}))
    real, stand_in = {"name": "sst2", "source": "hub"}, {"name": "mnli", "source": "stand-in"}
    assert verdict(claim, same, same, sources=[real]).verdict is Verdict.AGREES
    told = verdict(claim, same, same, sources=[real, stand_in])
    assert told.verdict is Verdict.NOT_COMPARABLE and told.reason == "a stand-in took the place of mnli"
    assert {(row.verdict, row.reason) for row in told.rows} == {(told.verdict, told.reason)}
    assert verdict(claim, same, same, sources=[]).verdict is Verdict.NOT_COMPARABLE


def test_cells_used_for_calibration_never_count_as_reproduced():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    published = values((1.0, {"tp": 1}), (2.0, {"tp": 2}))
    alone = verdict(claim, values((1.0, {"tp": 1})), published[:1], calibrated_on=[{"quantity": "time", "tp": 1}])
    assert alone.verdict is Verdict.NOT_COMPARABLE
    ours = values((1.0, {"tp": 1}), (9.0, {"tp": 2}))
    assert verdict(claim, ours, published, calibrated_on=[{"tp": 1}]).verdict is Verdict.DISAGREES
    assert verdict(claim, ours, published, calibrated_on=[{"tp": 2}]).verdict is Verdict.AGREES


def test_a_reason_for_not_comparing_must_name_a_claim_and_never_hides_that_nothing_ran():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    same = values((1.0, {}))
    told = verdict(claim, same, same, not_comparable={"w": "the model is at chance level"})
    assert (told.verdict, told.reason) == (Verdict.NOT_COMPARABLE, "the model is at chance level")
    assert verdict(claim, (), same, not_comparable={"w": "chance"}).verdict is Verdict.NOT_RUN
    with pytest.raises(ValueError, match="'v', which is no claim"):
        verdict(claim, same, same, not_comparable={"v": "chance"})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Within("w", quantity="t", because="b"), "give exactly one"),
        (lambda: Within("w", quantity="t", because="b", rel=0.1, abs=1.0), "give exactly one"),
        (lambda: Within("w", quantity="t", because="b", rel=-0.1), "zero or more"),
        (lambda: Within("w", quantity="t", because=" ", rel=0.1), "because"),
        (lambda: Ordering("o", quantity="t", because="b", along="m", order=["a"]), "order"),
        (lambda: Trend("t", quantity="t", because="b", along="m", direction="up"), "direction"),
        (
            lambda: Crossover(
                "c", quantity="t", because="b", between=("a", "a"), series="m", along="x", at=1.0, rel=0.1
            ),
            "between",
        ),
    ],
)
def test_a_claim_without_its_reason_or_its_rule_is_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()


def test_two_rows_of_the_same_thing_are_refused():
    with pytest.raises(ValueError, match="row 2: says the same as row 1"):
        values((1.0, {"tp": 1}), (2.0, {"tp": 1.0}))
