"""Verdicts are computed: each kind of claim agrees, disagrees and refuses as its rule says, never by a missing row."""

import math

import pytest

from workbench.reproduction import (
    Bound,
    ClaimError,
    Crossover,
    Evidence,
    Ordering,
    Reproduction,
    Trend,
    Verdict,
    Within,
)
from workbench.reproduction.judge import judge
from workbench.reproduction.report import rule_text
from workbench.study.rows import read_rows

AGREES, DISAGREES, NOT_COMPARABLE, NOT_RUN = Verdict
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


def outcome(claim, ours, published=(), **more):
    return verdict(claim, ours, published, **more).verdict


def test_a_value_on_the_edge_of_its_tolerance_agrees_and_one_past_it_disagrees():
    published = values((8.0, {"tp": 2}))
    claim = Within("w", quantity="time", rel=0.25, **WHY)  # 8 +- 2
    assert outcome(claim, values((10.0, {"tp": 2})), published) is AGREES
    past = verdict(claim, values((10.001, {"tp": 2})), published)
    assert past.verdict is DISAGREES and "+25.01 %" in past.reason
    assert outcome(Within("w", quantity="time", abs=1.5, **WHY), values((6.5, {"tp": 2})), published) is AGREES


@pytest.mark.parametrize(
    ("bound", "ours", "found"),
    [
        ({"at_most": 1.02}, (1.02, {}), AGREES),
        ({"at_most": 1.02}, (1.0200001, {}), DISAGREES),
        ({"at_most": 1.02}, (1.01, {}, 1.0, 1.02), AGREES),
        ({"at_most": 1.02}, (1.01, {}, 1.0, 1.03), NOT_COMPARABLE),
        ({"at_most": 1.02}, (1.03, {}, 1.02, 1.04), NOT_COMPARABLE),
        ({"at_most": 1.02}, (1.03, {}, 1.021, 1.04), DISAGREES),
        ({"at_least": 0.9}, (0.9, {}), AGREES),
        ({"at_least": 0.9}, (0.94, {}, 0.89, 0.99), NOT_COMPARABLE),
        ({"at_least": 0.9}, (0.8, {}, 0.7, 0.89), DISAGREES),
        ({"at_least": 0.9}, (math.inf, {}), DISAGREES),
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
    assert [row.verdict for row in told.rows] == [DISAGREES, NOT_RUN]
    assert told.rows[0].reason == "ours is 2 (1.5 to 2.5), not at most 1"
    assert outcome(Bound("b", quantity="time", at_most=1.0, source="ours", **WHY), ()) is NOT_RUN


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
    assert told.verdict is DISAGREES
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
    assert outcome(claim, ours, right) is AGREES
    assert outcome(claim, ours, wrong) is DISAGREES


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_agrees_with_nothing(bad):
    claims = [
        Within("w", quantity="time", rel=1e9, **WHY),
        Ordering("o", quantity="time", along="m", order=["a", "b"], where={}, **WHY),
        Trend("t", quantity="time", along="x", direction="increasing", **WHY),
    ]
    pairs = values((1.0, {"m": "a"}), (bad, {"m": "b"}))
    assert outcome(claims[0], pairs, values((1.0, {"m": "a"}), (2.0, {"m": "b"}))) is DISAGREES
    assert outcome(claims[0], values((1.0, {})), values((bad, {}))) is DISAGREES
    assert outcome(claims[1], pairs) is DISAGREES
    assert outcome(claims[2], values((1.0, {"x": 1}), (bad, {"x": 2}))) is DISAGREES
    lines = [(1.0, {"m": "a", "x": 1}), (bad, {"m": "a", "x": 2}), (2.0, {"m": "b", "x": 1}), (1.0, {"m": "b", "x": 2})]
    crossing = Crossover("c", quantity="time", between=("a", "b"), series="m", along="x", at=1.5, rel=9.0, **WHY)
    assert outcome(crossing, values(*lines)) is DISAGREES


def test_a_claim_that_fits_no_row_is_not_run_and_says_its_name():
    claim = Within("halves", quantity="bytes", rel=0.1, **WHY)
    told = verdict(claim, values((1.0, {})), values((1.0, {})))
    assert told.verdict is NOT_RUN and "'halves' matches no rows of 'bytes'" in told.reason


def test_one_published_row_without_ours_keeps_the_claim_from_agreeing():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    told = verdict(claim, values((1.0, {"tp": 1})), values((1.0, {"tp": 1}), (2.0, {"tp": 2})))
    assert told.verdict is NOT_RUN and told.reason == "no value of ours for tp=2"
    assert [row.verdict for row in told.rows] == [AGREES, NOT_RUN]


def test_a_column_that_only_ours_would_have_is_no_typo_where_ours_did_not_run():
    claim = Within("w", quantity="time", where={"reading": "points"}, rel=0.1, **WHY)
    assert outcome(claim, (), values((1.0, {"tp": 1}))) is NOT_RUN


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
    assert told.verdict is AGREES


def test_an_ordering_holds_in_every_group_or_disagrees():
    claim = Ordering("o", quantity="time", along="m", order=["a", "b", "c"], **WHY)
    good = [(1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}), (3, {"m": "c", "tp": 1})]
    other = [(5, {"m": "c", "tp": 2}), (1, {"m": "a", "tp": 2}), (6, {"m": "b", "tp": 2})]  # b above c
    assert outcome(claim, values(*good)) is AGREES
    told = verdict(claim, values(*good, *other))
    assert told.verdict is DISAGREES and told.reason == "expected b below c; found 6 and 5"
    assert outcome(claim, values(*good[:2])) is NOT_RUN
    equal = values((1, {"m": "a"}), (1, {"m": "b"}), (2, {"m": "c"}))
    assert outcome(claim, equal) is DISAGREES


def test_an_ordering_inside_the_spread_is_not_a_finding():
    claim = Ordering("o", quantity="time", along="m", order=["a", "b"], **WHY)
    apart = values((1.0, {"m": "a"}, 0.9, 1.1), (2.0, {"m": "b"}, 1.2, 2.8))
    overlapping = values((1.0, {"m": "a"}, 0.9, 1.3), (2.0, {"m": "b"}, 1.2, 2.8))
    reversed_apart = values((3.0, {"m": "a"}, 2.9, 3.1), (2.0, {"m": "b"}, 1.2, 2.8))
    assert outcome(claim, apart) is AGREES
    told = verdict(claim, overlapping)
    assert told.verdict is NOT_COMPARABLE
    assert told.reason == (
        "expected a below b; found 1 (0.9 to 1.3) and 2 (1.2 to 2.8): the intervals overlap, so neither order is shown"
    )
    assert outcome(claim, reversed_apart) is DISAGREES


def test_seeds_are_merged_into_their_mean_with_smallest_and_largest_as_the_spread():
    raw = [
        {"quantity": "accuracy", "value": v, "unit": "1", "m": m, "seed": s}
        for m, vs in {"a": (0.70, 0.80), "b": (0.78, 0.90)}.items()
        for s, v in enumerate(vs)
    ]
    claim = Ordering("o", quantity="accuracy", along="m", order=["a", "b"], **WHY)
    told = verdict(claim, read_rows(raw, "values"))
    assert told.verdict is NOT_COMPARABLE  # 0.70..0.80 and 0.78..0.90 overlap
    assert (told.rows[0].ours, told.rows[0].low, told.rows[0].high) == (0.75, 0.70, 0.80)


def test_an_ordering_that_the_published_values_themselves_break_disagrees():
    claim = Ordering("o", quantity="time", along="m", order=["a", "b"], **WHY)
    told = verdict(claim, values((1, {"m": "a"}), (2, {"m": "b"})), values((7, {"m": "a"}), (5, {"m": "b"})))
    assert told.verdict is DISAGREES and "but the published values are 7 and 5" in told.reason


def test_a_trend_looks_along_the_column_whatever_the_order_of_the_rows():
    rows = values((30, {"batch": 4}), (10, {"batch": 16}), (20, {"batch": 8}))
    assert outcome(Trend("t", quantity="time", along="batch", direction="decreasing", **WHY), rows) is AGREES
    assert outcome(Trend("t", quantity="time", along="batch", direction="increasing", **WHY), rows) is DISAGREES
    one = values((30, {"batch": 4}))
    assert outcome(Trend("t", quantity="time", along="batch", direction="increasing", **WHY), one) is NOT_RUN


def crossing_rows(a, b):
    return values(
        *((v, {"m": name, "x": x}) for name, line in (("a", a), ("b", b)) for x, v in zip((1, 2, 4), line, strict=True))
    )


def test_a_crossover_is_found_by_interpolation_and_must_be_the_only_one():
    options = {"quantity": "time", "between": ("a", "b"), "series": "m", "along": "x", **WHY}
    rows = crossing_rows((0, 1, 5), (1, 3, 3))  # a - b: -1, -2, 2: crosses half way from 2 to 4
    found = verdict(Crossover("c", at=3.0, rel=0.0, **options), rows)
    assert found.verdict is AGREES and found.rows[0].ours == 3.0
    log = verdict(Crossover("c", at=2 * math.sqrt(2), rel=1e-12, scale="log", **options), rows)
    assert log.verdict is AGREES
    assert outcome(Crossover("c", at=2.0, rel=0.1, **options), rows) is DISAGREES
    assert outcome(Crossover("c", at=3.0, rel=0.1, smaller_before="b", **options), rows) is DISAGREES
    assert outcome(Crossover("c", at=3.0, rel=9.0, **options), crossing_rows((0, 1, 2), (1, 2, 3))) is DISAGREES
    twice = crossing_rows((0, 3, 0), (1, 1, 1))
    assert "cross 2 times" in verdict(Crossover("c", at=1.5, rel=9.0, **options), twice).reason
    touching = crossing_rows((0, 1, 2), (1, 1, 1))  # equal at 2
    assert outcome(Crossover("c", at=2.0, rel=0.0, **options), touching) is AGREES


def test_a_stand_in_or_no_source_at_all_can_never_support_a_claim_about_real_data():
    claim = Within("accuracy", quantity="time", rel=0.1, needs_real_data=True, **WHY)
    same = values((1.0, {}))
    real, stand_in = {"name": "sst2", "source": "hub"}, {"name": "mnli", "source": "stand-in"}
    assert outcome(claim, same, same, sources=[real]) is AGREES
    told = verdict(claim, same, same, sources=[real, stand_in])
    assert told.verdict is NOT_COMPARABLE and told.reason == "a stand-in took the place of mnli"
    assert {(row.verdict, row.reason) for row in told.rows} == {(told.verdict, told.reason)}
    assert outcome(claim, same, same, sources=[]) is NOT_COMPARABLE


def test_cells_used_for_calibration_never_count_as_reproduced():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    published = values((1.0, {"tp": 1}), (2.0, {"tp": 2}))
    alone = verdict(claim, values((1.0, {"tp": 1})), published[:1], calibrated_on=[{"quantity": "time", "tp": 1}])
    assert alone.verdict is NOT_COMPARABLE
    ours = values((1.0, {"tp": 1}), (9.0, {"tp": 2}))
    assert outcome(claim, ours, published, calibrated_on=[{"tp": 1}]) is DISAGREES
    assert outcome(claim, ours, published, calibrated_on=[{"tp": 2}]) is AGREES


def test_a_reason_for_not_comparing_must_name_a_claim_and_never_hides_that_nothing_ran():
    claim = Within("w", quantity="time", rel=0.1, **WHY)
    same = values((1.0, {}))
    told = verdict(claim, same, same, not_comparable={"w": "the model is at chance level"})
    assert (told.verdict, told.reason) == (NOT_COMPARABLE, "the model is at chance level")
    assert outcome(claim, (), same, not_comparable={"w": "chance"}) is NOT_RUN
    with pytest.raises(ValueError, match="'v', which is no claim"):
        verdict(claim, same, same, not_comparable={"v": "chance"})


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Within("w", quantity="t", because="b"), "give exactly one"),
        (lambda: Within("w", quantity="t", because="b", rel=0.1, abs=1.0), "give exactly one"),
        (lambda: Within("w", quantity="t", because="b", rel=-0.1), "zero or more"),
        (lambda: Within("w", quantity="t", because=" ", rel=0.1), "because"),
        (lambda: Bound("b", quantity="t", because="b", source="ours"), "give exactly one"),
        (lambda: Bound("b", quantity="t", because="b", source="ours", at_most=1.0, at_least=0.0), "give exactly one"),
        (lambda: Bound("b", quantity="t", because="b", source="ours", at_most=math.nan), "must be a finite number"),
        (lambda: Bound("b", quantity="t", because="b", source="ours", at_least=True), "must be a finite number"),
        (lambda: Bound("b", quantity="t", because="b", source=" ", at_most=1.0), "must say why"),
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


def ordering(*order, **more):
    return Ordering("o", quantity="time", along="m", order=list(order), **WHY, **more)


def trend(**more):
    return Trend("t", quantity="time", along="x", direction="increasing", **WHY, **more)


# rows that are missing


def test_an_ordering_asked_for_in_two_groups_does_not_agree_while_one_of_them_is_missing():
    ours = values((1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}))
    told = verdict(ordering("a", "b", where={"tp": [1, 2]}), ours)
    assert (told.verdict, told.reason) == (NOT_RUN, "no value of ours for tp=2")
    assert [dict(row.where) for row in told.rows if row.verdict is NOT_RUN] == [{"tp": 2}]
    assert outcome(ordering("a", "b", where={"tp": [1]}), ours) is AGREES


def test_an_ordering_published_in_two_groups_does_not_agree_while_one_of_them_is_missing():
    group = [(1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1})]
    more = [(3, {"m": "a", "tp": 2}), (4, {"m": "b", "tp": 2}), (0, {"m": "not in the order", "tp": 2})]
    told = verdict(ordering("a", "b"), values(*group), values(*group, *more))
    assert told.verdict is NOT_RUN
    lacking = [(dict(row.where), row.published) for row in told.rows if row.verdict is NOT_RUN]
    assert lacking == [({"m": "a", "tp": 2}, 3), ({"m": "b", "tp": 2}, 4)]


def test_a_missing_member_of_an_ordering_is_told_once_although_it_is_published_and_asked_for():
    published = values((1, {"m": "a"}), (2, {"m": "b"}), (3, {"m": "c"}))
    told = verdict(ordering("a", "b", "c", where={"m": ["a", "b", "c"]}), published[:2], published)
    assert [dict(row.where) for row in told.rows if row.verdict is NOT_RUN] == [{"m": "c"}]


def test_a_trend_does_not_agree_while_a_published_or_listed_place_is_missing():
    ours = values((1, {"x": 1}), (2, {"x": 2}))
    assert outcome(trend(), ours, ours) is AGREES
    told = verdict(trend(), ours, values((1, {"x": 1}), (2, {"x": 2}), (3, {"x": 4})))
    assert (told.verdict, told.reason) == (NOT_RUN, "no value of ours for x=4")
    assert verdict(trend(where={"x": [1, 2, 4]}), ours).reason == "no value of ours for x=4"


def test_a_crossover_does_not_agree_while_a_listed_group_is_missing():
    lines = values(
        *((v, {"m": m, "x": x, "tp": 1}) for m, line in (("a", (1, 3)), ("b", (2, 2))) for x, v in enumerate(line))
    )
    options = {"quantity": "time", "between": ("a", "b"), "series": "m", "along": "x", "at": 0.5, "rel": 0.0, **WHY}
    assert outcome(Crossover("c", where={"tp": [1]}, **options), lines) is AGREES
    assert verdict(Crossover("c", where={"tp": [1, 2]}, **options), lines).reason == "no value of ours for tp=2"


def test_a_published_order_at_a_finer_key_than_ours_is_never_dropped_in_silence():
    ours = values((1, {"m": "a"}), (2, {"m": "b"}))
    finer = values((9, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}))  # itself falls from a to b
    assert outcome(ordering("a", "b"), ours, finer) is NOT_RUN
    both = values((1, {"m": "a"}), (9, {"m": "a", "tp": 1}), (2, {"m": "b"}))
    ours = values((1, {"m": "a", "tp": 1}), (2, {"m": "b", "tp": 1}))
    with pytest.raises(ClaimError, match="'o': 2 published rows fit ours with m=a, tp=1; say in `where` which"):
        verdict(ordering("a", "b"), ours, both)


def test_the_published_values_must_rise_across_a_value_that_is_ours_alone():
    ours = values((1, {"m": "a"}), (2, {"m": "b"}), (3, {"m": "c"}))
    told = verdict(ordering("a", "b", "c"), ours, values((7, {"m": "a"}), (5, {"m": "c"})))
    assert told.verdict is DISAGREES
    assert told.reason == "expected a below c, but the published values are 7 and 5"


def test_a_within_that_lists_a_value_nobody_published_is_refused_and_one_we_lack_is_not_run():
    claim = Within("w", quantity="time", where={"m": ["a", "z"]}, rel=0.1, **WHY)
    with pytest.raises(ClaimError, match="'w': where lists m='z', and no published row of 'time' has it"):
        verdict(claim, values((1, {"m": "a"})), values((1, {"m": "a"})))
    told = verdict(claim, values((1, {"m": "a"})), values((1, {"m": "a"}), (2, {"m": "z"})))
    assert (told.verdict, told.reason) == (NOT_RUN, "no value of ours for m=z")


def test_a_value_listed_of_a_column_that_only_ours_has_must_be_among_ours():
    claim = Within("w", quantity="time", where={"depth": ["middle", "last"]}, rel=0.1, **WHY)
    told = verdict(claim, values((1, {"m": "a", "depth": "middle"})), values((1, {"m": "a"})))
    assert (told.verdict, told.reason) == (NOT_RUN, "no value of ours for depth=last")


# rows a cost model was calibrated on


def test_a_calibrated_row_in_the_middle_does_not_hide_that_its_neighbours_fall():
    middle = {"m": "b", "x": 2}
    along_m = values((5, {"m": "a"}), (9, {"m": "b"}), (3, {"m": "c"}))
    along_x = values((5, {"x": 1}), (9, {"x": 2}), (3, {"x": 3}))
    for claim, rows, column in ((ordering("a", "b", "c"), along_m, "m"), (trend(), along_x, "x")):
        told = verdict(claim, rows, calibrated_on=[{column: middle[column]}])
        assert told.verdict is DISAGREES and told.reason.endswith("; found 5 and 3")
        assert [row.verdict for row in told.rows] == [AGREES, NOT_COMPARABLE, DISAGREES]


def test_a_step_to_or_from_a_calibrated_row_does_not_count():
    fallen = values((5, {"x": 1}), (2, {"x": 2}), (6, {"x": 3}))  # 5 to 2 falls, 5 to 6 rises
    assert outcome(trend(), fallen) is DISAGREES
    assert outcome(trend(), fallen, calibrated_on=[{"x": 2}]) is AGREES


def test_one_value_beside_calibrated_ones_alone_is_no_finding():
    told = verdict(trend(), values((1, {"x": 1}), (2, {"x": 2})), calibrated_on=[{"x": 2}])
    assert told.verdict is NOT_COMPARABLE and "calibrated" in told.reason
    two = values((1, {"x": 1, "g": 1}), (2, {"x": 2, "g": 1}), (1, {"x": 1, "g": 2}), (2, {"x": 2, "g": 2}))
    assert outcome(trend(), two, calibrated_on=[{"x": 2, "g": 2}]) is AGREES  # by the group g=1


def test_a_crossing_is_sought_among_the_places_that_a_cost_model_was_not_calibrated_on():
    claim = Crossover("c", quantity="time", between=("a", "b"), series="m", along="x", at=2.0, abs=0.0, because="rule")
    lines = [
        (line[x - 1], {"m": name, "x": x})
        for name, line in (("a", (0, 9, 3, 5)), ("b", (2, 2, 1, 2)))
        for x in (1, 2, 3, 4)
    ]
    rows = values(*lines)  # a - b: -2, 7, 2, 3: without the place 2 it is 0 half way from 1 to 3
    assert outcome(claim, rows) is DISAGREES
    assert verdict(claim, rows, calibrated_on=[{"x": 2}]).rows[0].ours == 2.0
    assert outcome(claim, rows, calibrated_on=[{"x": 2, "m": "a"}]) is AGREES  # one of the two is enough
    told = verdict(claim, rows, calibrated_on=[{"x": place} for place in (1, 2, 3)])
    assert told.verdict is NOT_COMPARABLE and "calibrated on all places of this sweep but one" in told.reason


def test_a_mean_that_rounding_puts_a_hair_outside_its_extremes_is_no_error():
    tenth = [{"quantity": "time", "value": 0.1, "unit": "ms", "seed": seed} for seed in range(3)]
    assert sum([0.1] * 3) / 3 > 0.1
    told = verdict(Within("w", quantity="time", abs=0.001, **WHY), read_rows(tenth, "values"), values((0.1, {})))
    assert told.verdict is AGREES


# what the paper's definition implies


def by_definition(expected=1.0, **more):
    return Within(
        "w", quantity="time", expected=expected, source="section 2: a share of itself", **WHY, **({"rel": 0.1} | more)
    )


def test_every_row_of_ours_is_compared_with_what_is_expected_by_definition_and_no_published_row_is():
    ours = values((1.05, {"m": "a"}), (0.95, {"m": "b"}), (7, {"m": "c"}))
    claim = by_definition(where={"m": ["a", "b"]})
    told = verdict(claim, ours, values((3, {"m": "a"})))
    assert told.verdict is AGREES
    assert [(dict(row.where), row.published, row.ours, row.by_definition) for row in told.rows] == [
        ({"m": "a"}, 1.0, 1.05, True),
        ({"m": "b"}, 1.0, 0.95, True),
    ]
    wrong = verdict(by_definition(), ours)
    assert wrong.verdict is DISAGREES and "off by +600 %" in wrong.reason
    assert wrong.rows[2].to_json()["by_definition"] is True and wrong.rows[2].source == "section 2: a share of itself"
    assert outcome(by_definition(2.0, rel=None, abs=0.0), values((2.0, {"m": "a"}))) is AGREES


def test_what_is_expected_by_definition_is_not_run_where_ours_is_missing():
    told = verdict(by_definition(where={"m": ["a", "b"]}), values((1, {"m": "a"})))
    assert (told.verdict, told.reason) == (NOT_RUN, "no value of ours for m=b")
    nothing = verdict(by_definition(where={"m": "a"}), ())
    assert nothing.verdict is NOT_RUN and [row.published for row in nothing.rows] == [1.0]


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
