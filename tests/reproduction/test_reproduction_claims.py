"""Verdicts are computed: every kind of claim agrees, disagrees and refuses by its rule, never by a missing row."""

import math

import pytest
from cases import refusals

from workbench.reproduction import Bound, ClaimError, Crossover, Ordering, Trend, Verdict, Whose, Within
from workbench.reproduction.judge import judge
from workbench.rows import read_rows

AGREES, DISAGREES, NOT_COMPARABLE, NOT_RUN = Verdict
TIME = {"quantity": "time", "because": "the rule under test"}


def rows(*entries, unit="ms", quantity="time"):
    """Return rows from a value, (value, keys) or (value, keys, low, high)."""
    raw = []
    for entry in entries:
        value, keys, *spread = entry if isinstance(entry, tuple) else (entry, {})
        interval = dict(zip(("low", "high"), spread, strict=False))
        raw.append({"quantity": quantity, "value": value, "unit": unit, **keys, **interval})
    return read_rows(raw, "values")


def along(column, values, **keys):
    """Return a row for each place on a column; a value may be (value, low, high)."""
    entries = {place: value if isinstance(value, tuple) else (value,) for place, value in values.items()}
    return rows(*((value, {column: place, **keys}, *spread) for place, (value, *spread) in entries.items()))


def lines(a, b, places=(1, 2, 3, 4), **keys):
    """Return the rows of two methods along x."""
    named = {"a": a, "b": b}
    return sum((along("x", dict(zip(places, line, strict=False)), m=m, **keys) for m, line in named.items()), ())


def within(**more):
    tolerance = {} if "abs" in more else {"rel": 0.1}
    return Within("w", **(TIME | tolerance | more))


def bound(**more):
    return Bound("b", source="ours", **TIME, **more)


def ordering(*order, **more):
    return Ordering("o", along="m", order=list(order), **TIME, **more)


def trend(direction="increasing", **more):
    return Trend("t", along="x", direction=direction, **TIME, **more)


def crossover(**more):
    return Crossover("c", between=("a", "b"), series="m", along="x", **TIME, **more)


def by_definition(expected=1.0, **more):
    return within(expected=expected, source="section 2: a share of itself", **more)


def judged(claim, ours, published=(), **more):
    return judge([claim], ours, published, **more)[0]


def outcome(claim, ours, published=(), **more):
    return judged(claim, ours, published, **more).verdict


REACHES = "our interval 6.872 to 9.648 reaches the tolerance"


@pytest.mark.parametrize(
    ("tolerance", "ours", "verdict", "reason"),
    [
        ({"rel": 0.25}, 10.0, AGREES, ""),  # 8 +- 2
        ({"rel": 0.25}, 10.001, DISAGREES, "off by +25.01 %, more than 25 %"),
        ({"abs": 1.5}, 6.5, AGREES, ""),
        ({"rel": 0.1}, 7.1992, DISAGREES, "off by -10.01 %, more than 10 %"),  # -0.8008 of 8
        ({"rel": 0.1}, 7.199968, DISAGREES, "off by -10.0004 %, more than 10 %"),  # -0.800032 of 8
        ({"rel": 0.1}, 1110.4, DISAGREES, "ours is 139 times the published value, off by more than 10 %"),  # 138.8
        ({"abs": 0}, 9.0, DISAGREES, "ours is 9, not 8"),
        ({"abs": 0.5}, 9.0, DISAGREES, "off by +1, more than 0.5"),
        ({"rel": 0.1}, (8.96, {}, 6.872, 9.648), DISAGREES, f"off by +12 %, more than 10 %; {REACHES}"),  # 7.2 to 8.8
        ({"rel": 0.1}, (9.6, {}, 8.88, 10.4), DISAGREES, "off by +20 %, more than 10 %"),
    ],
)
def test_a_value_agrees_up_to_the_edge_of_its_tolerance_and_a_reason_has_the_digits_that_tell(
    tolerance, ours, verdict, reason
):
    judgement = judged(within(**tolerance), rows(ours), rows(8.0))
    assert (judgement.verdict, judgement.reason) == (verdict, reason)


@pytest.mark.parametrize(
    ("rule", "ours", "verdict"),
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
def test_a_bound_holds_for_the_whole_interval(rule, ours, verdict):
    judgement = judged(bound(**rule), rows(ours))
    assert judgement.verdict is verdict
    assert [row.published for row in judgement.rows] == list(rule.values()) and judgement.rows[0].by_definition


def test_a_bound_gives_our_interval_and_the_missing_rows():
    judgement = judged(bound(where={"tp": [2, 4]}, at_most=1.0), along("tp", {2: (2.0, 1.5, 2.5)}))
    assert [row.verdict for row in judgement.rows] == [DISAGREES, NOT_RUN]
    assert judgement.rows[0].reason == "ours is 2 (1.5 to 2.5), not at most 1"
    assert outcome(bound(at_most=1.0), ()) is NOT_RUN


def test_values_are_written_with_four_digits_or_as_many_as_tell_them_apart():
    for t1, plain, text in ((1.08717, 1.0, "1.087 and 1"), (1.000002, 1.000001, "1.000002 and 1.000001")):
        judgement = judged(ordering("T1", "w/o"), along("m", {"T1": t1, "w/o": plain}))
        assert judgement.reason == f"expected T1 below w/o; found {text}"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_value_that_is_not_finite_agrees_with_nothing(bad):
    pairs = along("m", {"a": 1.0, "b": bad})
    for claim, ours, published in (
        (within(rel=1e9), pairs, along("m", {"a": 1.0, "b": 2.0})),
        (within(rel=1e9), rows(1.0), rows(bad)),
        (ordering("a", "b"), pairs, ()),
        (trend(), along("x", {1: 1.0, 2: bad}), ()),
        (crossover(at=1.5, rel=9.0), lines((1.0, bad), (2.0, 1.0)), ()),
    ):
        assert outcome(claim, ours, published) is DISAGREES


def test_what_cannot_be_compared_is_refused_by_the_claims_name():
    single, batches = rows(1.0), along("batch", {1: 1.0, 2: 1.0})
    finer = rows((1, {"m": "a"}), (9, {"m": "a", "tp": 1}), (2, {"m": "b"}))
    for claim, ours, published, message in (
        (within(), single, rows(1.0, unit="s"), "'w'.*published in 's' and ours is in 'ms'"),
        (within(where={"metod": "A1"}), *(along("method", {"A1": 1.0}),) * 2, "'w'.*where names.*metod"),
        (within(), batches, single, "2 of our rows.*batch"),
        (within(where={"m": ["a", "z"]}), *(along("m", {"a": 1}),) * 2, "where lists m='z', and no published row"),
        (
            ordering("a", "b"),
            along("m", {"a": 1, "b": 2}, tp=1),
            finer,
            "'o': 2 published rows fit ours with m=a, tp=1",
        ),
    ):
        with pytest.raises(ClaimError, match=message):
            judged(claim, ours, published)


def test_keys_match_as_numbers_where_both_read_as_numbers_and_a_list_in_where_means_any():
    common = {"quantity": "time", "value": "3", "unit": "ms", "tp": "4"}
    published = read_rows([common | {"m": name} for name in ("w/o", "A1", "B")], "published")
    claim = within(where={"m": ["A1", "w/o"]}, abs=0)
    assert outcome(claim, along("m", {"w/o": 3, "A1": 3}, tp=4.0), published) is AGREES


def test_an_ordering_holds_in_every_group_or_disagrees():
    claim, good = ordering("a", "b", "c"), along("m", {"a": 1, "b": 2, "c": 3}, tp=1)
    assert outcome(claim, good) is AGREES
    judgement = judged(claim, good + along("m", {"c": 5, "a": 1, "b": 6}, tp=2))
    assert judgement.verdict is DISAGREES and judgement.reason == "expected b below c; found 6 and 5"
    assert outcome(claim, good[:2]) is NOT_RUN
    assert outcome(claim, along("m", {"a": 1, "b": 1, "c": 2})) is DISAGREES


def test_an_ordering_inside_the_spread_is_not_a_finding():
    claim, b = ordering("a", "b"), (2.0, 1.2, 2.8)
    assert outcome(claim, along("m", {"a": (1.0, 0.9, 1.1), "b": b})) is AGREES
    assert outcome(claim, along("m", {"a": (3.0, 2.9, 3.1), "b": b})) is DISAGREES
    judgement = judged(claim, along("m", {"a": (1.0, 0.9, 1.3), "b": b}))
    assert judgement.verdict is NOT_COMPARABLE
    assert "found 1 (0.9 to 1.3) and 2 (1.2 to 2.8): the intervals overlap" in judgement.reason


def test_seeds_are_merged_into_their_mean_with_smallest_and_largest_as_the_spread():
    ours = along("m", {"a": 0.70, "b": 0.78}, seed=0) + along("m", {"a": 0.80, "b": 0.90}, seed=1)
    judgement = judged(ordering("a", "b"), ours)
    assert judgement.verdict is NOT_COMPARABLE  # 0.70..0.80 and 0.78..0.90 overlap
    assert (judgement.rows[0].ours, judgement.rows[0].low, judgement.rows[0].high) == (0.75, 0.70, 0.80)
    assert sum([0.1] * 3) / 3 > 0.1  # a mean that rounding puts a hair outside its extremes is no error
    assert outcome(within(abs=0.001), along("seed", dict.fromkeys(range(3), 0.1)), rows(0.1)) is AGREES


def test_an_ordering_that_the_published_values_themselves_break_disagrees_also_across_a_value_of_ours_alone():
    ours = along("m", {"a": 1, "b": 2, "c": 3})
    for order, last in (("ab", "b"), ("abc", "c")):
        judgement = judged(ordering(*order), ours, along("m", {"a": 7, last: 5}))
        assert judgement.verdict is DISAGREES
        assert judgement.reason == f"expected a below {last}, but the published values are 7 and 5"


def test_a_trend_looks_along_the_column_whatever_the_order_of_the_rows():
    unordered = along("x", {4: 30, 16: 10, 8: 20})
    assert outcome(trend("decreasing"), unordered) is AGREES
    assert outcome(trend(), unordered) is DISAGREES
    assert outcome(trend(), unordered[:1]) is NOT_RUN


def test_a_crossover_is_found_by_interpolation_and_must_be_the_only_one():
    sweep = lines((0, 1, 5), (1, 3, 3), (1, 2, 4))  # a - b: -1, -2, 2: crosses half way from 2 to 4
    judgement = judged(crossover(at=3.0, rel=0.0), sweep)
    assert judgement.verdict is AGREES and judgement.rows[0].ours == 3.0
    assert outcome(crossover(at=2 * math.sqrt(2), rel=1e-12, scale="log"), sweep) is AGREES
    assert outcome(crossover(at=2.0, rel=0.1), sweep) is DISAGREES
    assert outcome(crossover(at=3.0, rel=0.1, smaller_before="b"), sweep) is DISAGREES
    assert outcome(crossover(at=3.0, rel=9.0), lines((0, 1, 2), (1, 2, 3))) is DISAGREES
    assert "cross 2 times" in judged(crossover(at=1.5, rel=9.0), lines((0, 3, 0), (1, 1, 1))).reason
    assert outcome(crossover(at=2.0, rel=0.0), lines((0, 1, 2), (1, 1, 1))) is AGREES  # equal at 2


def test_a_stand_in_or_no_source_at_all_can_never_support_a_claim_about_real_data():
    claim, same = within(needs_real_data=True), rows(1.0)
    real, stand_in = {"name": "sst2", "source": "hub"}, {"name": "mnli", "source": "stand-in"}
    assert outcome(claim, same, same, sources=[real]) is AGREES
    judgement = judged(claim, same, same, sources=[real, stand_in])
    assert judgement.verdict is NOT_COMPARABLE and judgement.reason == "stand-in data: mnli"
    assert {(row.verdict, row.reason) for row in judgement.rows} == {(judgement.verdict, judgement.reason)}
    assert outcome(claim, same, same, sources=[]) is NOT_COMPARABLE


def test_a_reason_for_not_comparing_must_name_a_claim_and_never_hides_that_nothing_ran():
    same = rows(1.0)
    judgement = judged(within(), same, same, not_comparable={"w": "the model is at chance level"})
    assert (judgement.verdict, judgement.reason) == (NOT_COMPARABLE, "the model is at chance level")
    assert outcome(within(), (), same, not_comparable={"w": "chance"}) is NOT_RUN
    with pytest.raises(ValueError, match="'v', which is no claim"):
        judged(within(), same, same, not_comparable={"v": "chance"})


test_a_claim_without_its_reason_or_its_rule_is_refused = refusals(
    (lambda: within(rel=None), "give exactly one"),
    (lambda: within(rel=0.1, abs=1.0), "give exactly one"),
    (lambda: within(rel=-0.1), "zero or more"),
    (lambda: within(because=" "), "because"),
    (lambda: bound(), "give exactly one"),
    (lambda: bound(at_most=1.0, at_least=0.0), "give exactly one"),
    (lambda: bound(at_most=math.nan), "must be a finite number"),
    (lambda: Bound("b", source=" ", at_most=1.0, **TIME), "must say why"),
    (lambda: ordering("a"), "order"),
    (lambda: trend("up"), "direction"),
    (lambda: Crossover("c", between=("a", "a"), series="m", along="x", at=1.0, rel=0.1, **TIME), "between"),
    (lambda: by_definition(0.0), "expected of claim 'w' is 0, of which rel is no tolerance; give abs"),
    (lambda: by_definition(math.nan), "expected of claim 'w' is nan; it must be a finite number"),
    (lambda: by_definition(True), "expected of claim 'w' is True; it must be a finite number"),
    (lambda: by_definition("1"), "expected of claim 'w' is '1'; it must be a finite number"),
    (lambda: within(expected=1.0, source=" "), "source of claim 'w' is ' '; it must say why this is expected"),
)


# rows that are missing

A, AB, X12 = along("m", {"a": 1}), along("m", {"a": 1, "b": 2}), along("x", {1: 1, 2: 2})


@pytest.mark.parametrize(
    ("claim", "ours", "published", "missing"),
    [
        (within(), along("tp", {1: 1.0}), along("tp", {1: 1.0, 2: 2.0}), " for tp=2"),
        (within(), rows(1.0, quantity="bytes"), rows(1.0), ""),
        (within(where={"m": ["a", "z"]}), A, along("m", {"a": 1, "z": 2}), " for m=z"),
        # a column that only ours has
        (within(where={"depth": ["middle", "last"]}), along("m", {"a": 1}, depth="middle"), A, " for depth=last"),
        (by_definition(where={"m": ["a", "b"]}), A, (), " for m=b"),
        (ordering("a", "b", where={"tp": [1, 2]}), along("m", {"a": 1, "b": 2}, tp=1), (), " for tp=2"),
        (trend(), X12, along("x", {1: 1, 2: 2, 4: 3}), " for x=4"),
        (trend(where={"x": [1, 2, 4]}), X12, (), " for x=4"),
        (crossover(where={"tp": [1, 2]}, at=1.5, rel=0.0), lines((1, 3), (2, 2), tp=1), (), " for tp=2"),
    ],
)
def test_a_claim_does_not_agree_while_a_published_or_listed_row_is_missing(claim, ours, published, missing):
    judgement = judged(claim, ours, published)
    assert (judgement.verdict, judgement.reason) == (NOT_RUN, f"no value of ours{missing}")


def test_a_claim_that_fits_no_row_is_not_run_and_says_its_name():
    judgement = judged(within(quantity="bytes"), rows(1.0), rows(1.0))
    assert judgement.verdict is NOT_RUN and "'w' matches no rows of 'bytes'" in judgement.reason
    # a column that only ours would have is no typo where ours did not run
    assert outcome(within(where={"reading": "points"}), (), along("tp", {1: 1.0})) is NOT_RUN
    nothing = judged(by_definition(where={"m": "a"}), ())
    assert nothing.verdict is NOT_RUN and [row.published for row in nothing.rows] == [1.0]


def test_the_missing_rows_of_an_ordering_stand_once_beside_the_judged_ones():
    group = along("m", {"a": 1, "b": 2}, tp=1)
    more = along("m", {"a": 3, "b": 4, "not in the order": 0}, tp=2)
    abc = along("m", {"a": 1, "b": 2, "c": 3})
    for claim, ours, published, missing in (
        (ordering("a", "b", where={"tp": [1, 2]}), group, (), [({"tp": 2}, None)]),
        (ordering("a", "b"), group, group + more, [({"m": "a", "tp": 2}, 3), ({"m": "b", "tp": 2}, 4)]),
        (ordering("a", "b", "c", where={"m": ["a", "b", "c"]}), abc[:2], abc, [({"m": "c"}, None)]),
    ):
        judgement = judged(claim, ours, published)
        assert judgement.verdict is NOT_RUN
        assert [(dict(row.where), row.published) for row in judgement.rows if row.verdict is NOT_RUN] == missing
    assert outcome(ordering("a", "b", where={"tp": [1]}), group) is AGREES
    assert outcome(ordering("a", "b"), AB, along("m", {"a": 9, "b": 2}, tp=1)) is NOT_RUN  # published at a finer key


# rows a cost model was calibrated on


def test_cells_used_for_calibration_never_count_as_reproduced():
    published = along("tp", {1: 1.0, 2: 2.0})
    calibrated = [{"quantity": "time", "tp": 1}]
    assert outcome(within(), along("tp", {1: 1.0}), published[:1], calibrated_on=calibrated) is NOT_COMPARABLE
    ours = along("tp", {1: 1.0, 2: 9.0})
    assert outcome(within(), ours, published, calibrated_on=[{"tp": 1}]) is DISAGREES
    assert outcome(within(), ours, published, calibrated_on=[{"tp": 2}]) is AGREES


def test_a_step_does_not_count_only_where_the_cost_model_was_calibrated_on_both_of_its_values():
    fallen = along("x", {1: 5, 2: 2, 3: 6})  # 5 to 2 falls, 2 to 6 rises
    assert outcome(trend(), fallen, calibrated_on=[{"x": 2}]) is DISAGREES  # a prediction beside a calibrated value
    judgement = judged(trend(), fallen, calibrated_on=[{"x": 1}, {"x": 2}])
    assert [row.verdict for row in judgement.rows] == [NOT_COMPARABLE, NOT_COMPARABLE, AGREES]
    assert judgement.verdict is AGREES
    assert outcome(trend(), X12, calibrated_on=[{"x": 1}, {"x": 2}]) is NOT_COMPARABLE
    in_order = along("m", {"a": 5, "b": 9, "c": 3})
    judgement = judged(ordering("a", "b", "c"), in_order, calibrated_on=[{"m": "b"}])
    assert judgement.verdict is DISAGREES and judgement.reason.endswith("; found 9 and 3")


def test_a_crossing_is_sought_among_the_places_that_a_cost_model_was_not_calibrated_on():
    claim = crossover(at=2.0, abs=0.0)
    sweep = lines((0, 9, 3, 5), (2, 2, 1, 2))  # a - b: -2, 7, 2, 3: without the place 2 it is 0 half way from 1 to 3
    assert outcome(claim, sweep) is DISAGREES
    assert judged(claim, sweep, calibrated_on=[{"x": 2}]).rows[0].ours == 2.0
    assert outcome(claim, sweep, calibrated_on=[{"x": 2, "m": "a"}]) is AGREES  # one of the two is enough
    judgement = judged(claim, sweep, calibrated_on=[{"x": place} for place in (1, 2, 3)])
    assert judgement.verdict is NOT_COMPARABLE and "calibrated on all places of this sweep but one" in judgement.reason


# effects


def test_the_effect_is_judged_and_not_the_ratio_that_contains_it():
    published = along("m", {"a": 1.10}, quantity="time")
    gain = within(rel=0.5, no_effect=1.0)  # half of the effect, 0.05
    for verdict, values in {AGREES: (1.06, 1.14), DISAGREES: (0.9, 1.0, 1.04, 1.16)}.items():
        for ours in values:
            assert outcome(gain, along("m", {"a": ours}), published) is verdict
    assert "ours is 1, published is 1.1; tolerance" in judged(gain, along("m", {"a": 1.0}), published).reason
    with pytest.raises(ValueError, match="no_effect of claim .* must be left out where abs is the tolerance"):
        within(rel=None, abs=1.0, no_effect=1.0)


def test_whose_a_claim_is_and_what_was_changed_stand_in_its_verdict():
    held = judged(within(whose=Whose.OURS, changed="twice as wide, after a trial"), along("m", {"a": 1.0})).to_json()
    assert (held["whose"], held["changed"], held["repeats"]) == ("ours", "twice as wide, after a trial", "")
    with pytest.raises(ValueError, match="whose of claim .* must be Whose.PAPER"):
        within(whose="ours")


# what the paper's definition implies


def test_every_row_of_ours_is_compared_with_what_is_expected_by_definition_and_no_published_row_is():
    ours = along("m", {"a": 1.05, "b": 0.95, "c": 7})
    judgement = judged(by_definition(where={"m": ["a", "b"]}), ours, along("m", {"a": 3}))
    assert judgement.verdict is AGREES
    assert [(dict(row.where), row.published, row.ours, row.by_definition) for row in judgement.rows] == [
        ({"m": "a"}, 1.0, 1.05, True),
        ({"m": "b"}, 1.0, 0.95, True),
    ]
    wrong = judged(by_definition(), ours)
    assert wrong.verdict is DISAGREES and "off by +600 %" in wrong.reason
    assert wrong.rows[2].to_json()["by_definition"] is True and wrong.rows[2].source == "section 2: a share of itself"
    assert outcome(by_definition(2.0, abs=0.0), along("m", {"a": 2.0})) is AGREES
    assert by_definition(0, abs=0.1).expected == 0
