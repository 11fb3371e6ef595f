"""A claim about trainings is decided only where a score can mean it; the rules, each at its limit."""

from dataclasses import replace
from functools import partial

import pytest
from cases import refusals

from workbench.reproduction import Bound, Decidable, Ordering, Verdict, Within
from workbench.reproduction.judge import judge
from workbench.rows import read_rows, value_row
from workbench.study.training import loss_rows, points_below_rows, steps_row

AGREES, DISAGREES, NOT_COMPARABLE, _ = Verdict
RULE = Decidable(baseline={"method": "w/o"}, num_tested=400)  # the error of a share of 0.5: sqrt(0.25 / 400) = 0.025
WHERE = {"task": "mrpc", "method": "A1"}
LOST = {"quantity": "points_below", "where": WHERE, "because": "b", "source": "s", "decidable": RULE}
AT_MOST_3, AT_LEAST_3 = Bound("most", at_most=3.0, **LOST), Bound("least", at_least=3.0, **LOST)
KEPT = Within("kept", quantity="relative_score", where=WHERE, abs=0.04, because="b", decidable=RULE)
ORDER = Ordering(
    "o", quantity="score", along="method", order=["T1", "A1"], where={"task": "mrpc"}, because="b", decidable=RULE
)


def trained(scores: dict, *, chance: float = 0.5, steps: int = 0, accuracy: dict | None = None) -> list[dict]:
    """Return rows of trainings from the scores of each method, one or one a seed."""
    by_seed = {method: score if isinstance(score, tuple) else (score,) for method, score in scores.items()}
    rows = []
    for method, of_seeds in by_seed.items():
        for seed, score in enumerate(of_seeds):
            keys = {"task": "mrpc", "method": method, "seed": seed}
            rows += [value_row("score", 100 * score, "%", **keys), value_row("chance", 100 * chance, "%", **keys)]
            rows += [steps_row(steps, **keys)] if steps else []
            rows += [value_row("accuracy", 100 * accuracy[method], "%", **keys)] if accuracy else []
            rows += loss_rows(score, by_seed["w/o"][seed], **keys) if method != "w/o" else []
    return rows + points_below_rows(rows)


def judged(claim, scores: dict, *, printed: float | None = None, encoder: str = "small", **more):
    published = [] if printed is None else [value_row("relative_score", printed, **WHERE)]
    sources = [{"name": encoder, "source": "package"}]
    rows = read_rows(trained(scores, **more), "values")
    return judge([claim], rows, read_rows(published, "published"), sources=sources)[0]


def undecided(claim, scores: dict, **more) -> str:
    """Return the reason why a claim is not decided, empty where it is."""
    judgement = judged(claim, scores, **more)
    return judgement.reason if judgement.verdict is NOT_COMPARABLE else ""


@pytest.mark.parametrize("claim", [AT_MOST_3, AT_LEAST_3])
def test_nothing_is_decided_where_the_baseline_is_within_two_errors_of_chance(claim):
    scores = {"T1": 0.3, "A1": 0.4}
    assert "the baseline scores 55.0% (score), a constant answer 50.0%" in undecided(claim, {"w/o": 0.55} | scores)
    assert undecided(claim, {"w/o": 0.561} | scores) == ""
    # A correlation of 400 rows has the error 0.05; the mean over seeds, 0.1, decides.
    seeds = {"w/o": (0.05, 0.15), "T1": (0.0, 0.0), "A1": (0.01, 0.01)}
    assert "at chance, there is nothing to lose" in undecided(claim, seeds, chance=0.0)


def test_chance_is_judged_by_accuracy_where_f1_hides_it():
    # Always yes has F1 0.8122 and accuracy 0.6838 where 0.6838 are yes; the error over 400 rows is 0.023.
    claim = replace(AT_LEAST_3, decidable=replace(RULE, by_accuracy=True))
    scores = {"w/o": 0.86, "A1": 0.6}
    assert "(accuracy)" in undecided(claim, scores, chance=0.8122, accuracy={"w/o": 0.72, "A1": 0.6})
    assert undecided(claim, scores, chance=0.8122, accuracy={"w/o": 0.74, "A1": 0.6}) == ""


def test_an_agreement_that_a_constant_answer_would_reach_is_none_and_a_disagreement_stands():
    # A constant answer keeps 0.5 / 0.8 = 0.625 of the score; the score's standard error is 0.025 / 0.8 = 0.031 of it.
    assert "a constant answer keeps 0.62" in undecided(KEPT, {"w/o": 0.8, "A1": 0.54}, printed=0.664)
    for printed, score in ((0.664, 0.70), (0.666, 0.54), (0.58, 0.48)):  # ours is off, a constant answer, both are
        assert undecided(KEPT, {"w/o": 0.8, "A1": score}, printed=printed) == ""


def test_a_difference_below_the_scores_error_cannot_be_seen_and_a_large_one_can():
    fine = replace(KEPT, abs=0.031)
    assert "standard error" in undecided(fine, {"w/o": 0.8, "A1": 0.8}, printed=1.0)
    # 0.031 + 2 * 0.03125 = 0.0935 off
    assert "standard error" in undecided(fine, {"w/o": 0.8, "A1": 0.8 * 0.907}, printed=1.0)
    assert undecided(fine, {"w/o": 0.8, "A1": 0.8 * 0.906}, printed=1.0) == ""
    assert undecided(replace(KEPT, abs=0.032), {"w/o": 0.8, "A1": 0.8}, printed=1.0) == ""


def test_a_mean_of_shares_is_as_uncertain_as_the_seed_with_the_least_score():
    # 1/20 of 0.2 is a quarter of it: 0.1 and two of them are 0.6. Of the mean, 0.5, it would be a tenth: 0.3.
    scores, claim = {"w/o": (0.2, 0.8), "A1": (0.3, 0.8)}, replace(KEPT, abs=0.1)  # keeps 1.5 and 1
    assert "0.25 of it" in undecided(claim, scores, chance=0.0, printed=0.9)  # 0.35 off
    assert undecided(claim, scores, chance=0.0, printed=0.6) == ""  # 0.65 off


def test_near_one_of_two_printed_values_far_apart_nothing_is_decided_and_between_them_it_is():
    def near(share: float, other: float) -> str:
        rule = replace(RULE, printed={"512 tokens": 1.0, "128 tokens": other})
        return undecided(replace(KEPT, decidable=rule), {"w/o": 0.8, "A1": 0.8 * share}, printed=1.0)

    assert near(0.975, 0.921) == ""  # 0.08 apart: one value can be near both
    assert "prints 1.00 at 512 tokens and 0.92 at 128 tokens" in near(0.975, 0.919)
    assert all("0.70 at 128 tokens" in near(share, 0.7) for share in (0.661, 0.739, 0.961, 1.039))
    assert not any(near(share, 0.7) for share in (0.659, 0.741, 0.85, 0.959, 1.041))


SURE = {"decidable": replace(RULE, num_tested=10_000)}  # an error of 0.4 points
SURE_AT_MOST_3, SURE_AT_LEAST_3, SURE_KEPT = (replace(claim, **SURE) for claim in (AT_MOST_3, AT_LEAST_3, KEPT))
LITTLE = {"chance": 0.75}  # a baseline of 0.8 is 5 points, 0.0625 of its score, above it


@pytest.mark.parametrize(
    ("claim", "plain", "score", "more", "verdict", "reason"),
    [
        # few points lost by a method at chance, up to 0.5 and two errors of 0.025, are no agreement
        (AT_MOST_3, 0.57, 0.545, {}, NOT_COMPARABLE, "points can be lost"),
        (AT_MOST_3, 0.57, 0.56, {}, AGREES, ""),
        (AT_MOST_3, 0.8, 0.5, {}, DISAGREES, ""),
        # nor is an agreement within most of all there is to lose
        (SURE_AT_MOST_3, 0.8, 0.79, LITTLE, NOT_COMPARABLE, "5.0 points above a constant answer can be lost"),
        (SURE_AT_MOST_3, 0.8, 0.76, LITTLE, DISAGREES, ""),
        (SURE_KEPT, 0.8, 0.79, LITTLE | {"printed": 1.0}, NOT_COMPARABLE, "0.04, is most of what can be lost"),
        (SURE_KEPT, 0.8, 0.76, LITTLE | {"printed": 1.0}, DISAGREES, ""),
        # many points can be lost only where there are as many; a method at chance has lost them
        (AT_LEAST_3, 0.8, 0.5, {}, AGREES, ""),
        (AT_LEAST_3, 0.8, 0.78, {}, DISAGREES, ""),
        (SURE_AT_LEAST_3, 0.52, 0.51, {}, NOT_COMPARABLE, "only 2.0 points can be lost"),
        (SURE_AT_LEAST_3, 0.54, 0.53, {}, DISAGREES, ""),
        # three points bound all seeds
        (AT_MOST_3, (0.5, 0.5, 0.5), (0.43, 0.46, 0.55), {"chance": 0.0}, NOT_COMPARABLE, ""),  # 0 to 7 points
        (AT_MOST_3, (0.5, 0.5, 0.5), (0.48, 0.48, 0.55), {"chance": 0.0}, AGREES, ""),
        (AT_MOST_3, (0.5, 0.5, 0.5), (0.43, 0.44, 0.46), {"chance": 0.0}, DISAGREES, ""),
    ],
)
def test_points_lost_decide_only_where_there_are_enough_to_lose(claim, plain, score, more, verdict, reason):
    judgement = judged(claim, {"w/o": plain, "A1": score}, **more)
    assert judgement.verdict is verdict and reason in judgement.reason


def test_an_order_of_scores_at_chance_cannot_be_decided():
    reason = undecided(ORDER, {"w/o": 0.8, "T1": 0.5, "A1": 0.55})
    assert reason.endswith("at chance, no order can be seen") and "mrpc T1: 50.0% (score)" in reason
    assert undecided(ORDER, {"w/o": 0.8, "T1": 0.5, "A1": 0.56}) == ""


def test_where_the_lowest_of_an_order_loses_nothing_there_is_no_harm_to_order():
    assert undecided(ORDER, {"w/o": 0.8, "T1": 0.8, "A1": 0.9}) == (
        "T1 scores 80.0%, no less than the baseline's 80.0%: no variant does harm, so there is nothing to order"
    )
    assert undecided(ORDER, {"w/o": 0.8, "T1": 0.79, "A1": 0.9}) == ""
    against = replace(ORDER, order=["T1", "w/o"])
    assert judged(against, {"w/o": 0.8, "T1": 0.9}).verdict is DISAGREES


def test_after_too_few_steps_a_loss_is_not_judged_and_after_enough_it_is():
    claim = replace(AT_LEAST_3, decidable=replace(RULE, least_steps=1_000, steps_of="small"))
    scores = {"w/o": 0.8, "A1": 0.7}
    assert undecided(claim, scores, steps=999) == (
        "999 steps are too few: before 1,000 a loss mostly shows unfinished learning"
    )
    for decided in ({"steps": 1_000}, {"steps": 999, "encoder": "large"}, {"steps": 0}):  # the last is not recorded
        assert undecided(claim, scores, **decided) == ""


def test_a_variant_at_chance_after_few_steps_is_not_judged_and_the_others_are():
    rule = replace(RULE, learns_after=200, steps_of="small", where={"task": "mrpc"})
    of_t1 = replace(AT_LEAST_3, where={"task": "mrpc", "method": "T1"}, decidable=rule)
    order, others = replace(ORDER, decidable=rule), replace(ORDER, order=["A1", "Q1"], decidable=rule)
    scores = {"w/o": 0.8, "A1": 0.7, "Q1": 0.75, "T1": 0.5}
    for claim in (of_t1, order):
        assert undecided(claim, scores, steps=199) == ("mrpc T1 is at chance after 199 steps: it may still learn later")
        assert undecided(claim, scores, steps=200) == undecided(claim, scores | {"T1": 0.6}, steps=199) == ""
    assert undecided(others, scores, steps=199) == ""


def test_few_points_lost_mean_nothing_where_the_contrast_loses_as_few():
    contrast = {"decidable": replace(RULE, contrast={"method": "T2"})}
    assert undecided(replace(AT_MOST_3, **contrast), {"w/o": 0.8, "A1": 0.79, "T2": 0.78}) == (
        "mrpc T2, which should lose more, loses only 2.0 points: neither does enough harm to tell"
    )
    assert undecided(replace(AT_MOST_3, **contrast), {"w/o": 0.8, "A1": 0.79, "T2": 0.76}) == ""
    assert undecided(replace(AT_LEAST_3, **contrast), {"w/o": 0.8, "A1": 0.79, "T2": 0.78}) == ""


test_a_declaration_that_says_too_little_is_refused = refusals(
    ({"baseline": {}}, "baseline is {}; it must name the key columns"),
    ({"num_tested": 0}, "num_tested is 0; it must be at least 1"),
    ({"least_steps": 5}, "steps_of is ''; it must name the data source"),
    of=partial(replace, RULE),
)
