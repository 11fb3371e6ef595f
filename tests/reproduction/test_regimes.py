"""Regimes: the ratios that decide claims, the paper's and ours, and claims withdrawn outside the paper's range."""

from types import SimpleNamespace

import pytest

from workbench.reproduction import (
    Bound,
    CatalogueError,
    ClaimError,
    Evidence,
    Ordering,
    Project,
    Verdict,
    Whose,
    Within,
)
from workbench.reproduction.audit import OFF, REGIME, audit_claim
from workbench.reproduction.catalogue import load_catalogue
from workbench.reproduction.findings import best_runs
from workbench.reproduction.judge import judge
from workbench.reproduction.regimes import place, read_formula, read_regimes
from workbench.reproduction.report.first import _regimes
from workbench.rows import read_rows

HEAD = "item,ratio,ours,paper,factor,where,decides,source,because,off\n"
ROW = "fig-1/*,{ratio},{ours},{paper},{factor},{where},{decides},section 2,{because},{off}\n"
FIELDS = dict.fromkeys(("where", "decides", "off"), "") | {"paper": "0.5", "factor": "1.25"}
FIELDS |= {"ratio": "share of communication", "ours": "1 - rate (scheme=FP32) / rate (scheme=free)"}
FIELDS |= {"because": "it sets the largest gain"}
ITEMS = ("fig-1/measured", "fig-1/counted", "fig-2/simulated")
# 1 - 40 / 100 = 0.6 of an iteration is communication
RECORD = [
    {"quantity": "rate", "scheme": "FP32", "value": 40.0, "unit": "1/s"},
    {"quantity": "rate", "scheme": "free", "value": 100.0, "unit": "1/s"},
    {"quantity": "gain", "model": "a", "value": 1.5, "unit": "1"},
    {"quantity": "gain", "model": "b", "value": 1.1, "unit": "1"},
    {"quantity": "loss", "value": 0.2, "unit": "1", "low": 0.1, "high": 0.9},
    {"quantity": "score", "value": 0.7, "unit": "1", "seed": 0},
]
ROWS = read_rows(RECORD, "rows")
RULE = {"because": "a rule", "source": "table 1"}


def regimes(tmp_path, **fields):
    (tmp_path / "regimes.csv").write_text(HEAD + ROW.format(**FIELDS | fields))
    return read_regimes(tmp_path, ITEMS)


def placed(tmp_path, **fields):
    (regime,) = place(regimes(tmp_path, **fields)["fig-1/measured"], ROWS)
    return regime


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("rate (scheme=FP32)", 40.0),
        ("rate (scheme=FP32) / rate (scheme=free)", 0.4),
        ("1 - rate (scheme=FP32) / rate (scheme=free)", 0.6),
        ("spread of loss", 0.8),
        ("spread of score", None),  # of one seed
        ("rate (scheme=FP16)", None),
        ("rate (scheme=FP32) / missing", None),
    ],
)
def test_ours_is_a_recorded_value_a_quotient_of_two_or_what_it_lacks_to_one(text, value):
    assert read_formula(text).value(ROWS) == pytest.approx(value)


# 0.6 lies 1.2 times above 0.5: inside with 1.25, outside with 1.1
@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({}, "inside"),
        ({"factor": "1.1"}, "outside"),
        ({"paper": "0.3 to 0.55", "factor": "1"}, "outside"),
        ({"paper": "0.3 to 0.6", "factor": "1"}, "inside"),
        ({"paper": ">= 0.7", "factor": "1.1"}, "outside"),
        ({"paper": ">= 0.4", "factor": "1"}, "inside"),
        ({"paper": "<= 0.4"}, "outside"),
        ({"ours": "share"}, "not recorded"),
    ],
)
def test_a_ratio_is_inside_up_to_its_factor_or_outside_or_not_recorded(tmp_path, fields, word):
    assert placed(tmp_path, **fields).word == word


def test_a_glob_gives_a_regime_to_its_measured_and_simulated_items_and_never_to_counted_ones(tmp_path):
    assert list(regimes(tmp_path)) == ["fig-1/measured"]
    assert read_regimes(tmp_path / "elsewhere", ITEMS) == {}


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"ours": "rate of FP32"}, "cannot be read"),
        ({"ours": "a / b / c"}, "cannot be read"),
        ({"paper": "about 0.5"}, "paper is 'about 0.5'"),
        ({"paper": "0.6 to 0.5"}, "paper is '0.6 to 0.5'"),
        ({"factor": "0.5"}, "factor at least 1"),
        ({"because": ""}, "because is empty"),
        ({"off": "0.45"}, "off is 0.45, which is inside"),
    ],
)
def test_an_error_names_file_and_line(tmp_path, fields, rule):
    with pytest.raises(CatalogueError, match=rf"regimes\.csv:2: .*{rule}"):
        regimes(tmp_path, **fields)


def test_an_item_that_has_no_regime_and_a_ratio_of_two_rows_are_refused(tmp_path):
    (tmp_path / "regimes.csv").write_text(HEAD + ROW.format(**FIELDS).replace("fig-1/*", "fig-1/counted"))
    with pytest.raises(CatalogueError, match=r"regimes\.csv:2: item is 'fig-1/counted'"):
        read_regimes(tmp_path, ITEMS)
    with pytest.raises(ClaimError, match=r"regimes\.csv:2: 2 rows of 'rate' fit"):
        placed(tmp_path, ours="rate")


GAIN = Bound("gains", quantity="gain", at_least=1.2, **RULE)


def outcomes(tmp_path, claim, **fields):
    (verdict,) = judge([claim], ROWS, (), regimes=regimes(tmp_path, **fields)["fig-1/measured"])
    return verdict.verdict, [row.verdict for row in verdict.rows], verdict.reason


def test_outside_the_papers_regime_its_claim_is_not_comparable_whatever_it_would_have_said(tmp_path):
    passing = Bound("any", quantity="gain", at_least=1.0, **RULE)
    assert outcomes(tmp_path, passing)[0] is Verdict.AGREES
    for claim in (passing, GAIN):
        verdict, rows, reason = outcomes(tmp_path, claim, factor="1.1")
        assert verdict is Verdict.NOT_COMPARABLE
        assert rows == [Verdict.NOT_COMPARABLE] * 2
        assert "share of communication is 0.6 here, 0.5 in the paper (section 2; up to 1.1 times off counts)" in reason


def test_where_the_record_lacks_the_ratio_the_claim_is_not_comparable_either(tmp_path):
    verdict, _, reason = outcomes(tmp_path, GAIN, ours="share")
    assert verdict is Verdict.NOT_COMPARABLE
    assert "the record does not hold its regime: share of communication, 0.5 in the paper" in reason


def test_a_regime_decides_the_rows_of_its_setting_and_the_quantities_that_it_names(tmp_path):
    """Model b alone disagrees with GAIN; a claim whose rows or conditions name another model is left alone."""
    outside = {"factor": "1.1"}
    assert outcomes(tmp_path, GAIN, **outside, where="model=b")[0] is Verdict.NOT_COMPARABLE
    assert outcomes(tmp_path, GAIN, **outside, where="model=a")[1] == [Verdict.NOT_COMPARABLE, Verdict.DISAGREES]
    assert outcomes(tmp_path, GAIN, **outside, where="model=a")[0] is Verdict.DISAGREES
    assert outcomes(tmp_path, GAIN, **outside, decides="loss | rate")[0] is Verdict.DISAGREES
    assert outcomes(tmp_path, GAIN, **outside, decides="gain")[0] is Verdict.NOT_COMPARABLE
    order = Ordering("b gains more", quantity="gain", along="model", order=["b", "a"], **RULE)
    for model in "ab":  # a regime of either value decides their order
        assert outcomes(tmp_path, order, **outside, where=f"model={model}")[0] is Verdict.NOT_COMPARABLE
    assert outcomes(tmp_path, order, **outside, where="model=c")[0] is not Verdict.NOT_COMPARABLE


def test_ours_checks_and_claims_of_any_regime_are_judged_outside_it_too_and_missing_values_stay_missing(tmp_path):
    outside = {"factor": "1.1"}
    for more in ({"whose": Whose.OURS}, {"whose": Whose.CONSTRUCTION}, {"any_regime": "a count of messages"}):
        claim = Bound("gains", quantity="gain", at_least=1.2, **RULE, **more)
        assert outcomes(tmp_path, claim, **outside)[0] is Verdict.DISAGREES
    order = Ordering("order", quantity="gain", along="model", order=["b", "c"], **RULE)
    assert outcomes(tmp_path, order, **outside)[0] is Verdict.NOT_RUN


def test_the_audit_moves_a_regime_out_of_range_and_only_claims_that_it_decides_notice(tmp_path):
    of_item = place(regimes(tmp_path, decides="gain")["fig-1/measured"], ROWS)
    ours = Bound("ours", quantity="gain", at_least=1.2, whose=Whose.OURS, **RULE)
    other = Within("loss", quantity="loss", expected=0.2, abs=0.1, **RULE)
    assert audit_claim(GAIN, ROWS, (), of_item)[REGIME] is True
    assert [audit_claim(claim, ROWS, (), of_item)[REGIME] for claim in (ours, other)] == [None, None]
    assert audit_claim(GAIN, ROWS, ())[REGIME] is None
    assert audit_claim(GAIN, ROWS, (), of_item)[OFF] is None
    compressed = place(regimes(tmp_path, decides="gain", off="0")["fig-1/measured"], ROWS)
    assert audit_claim(GAIN, ROWS, (), compressed)[OFF] is True


def test_the_page_has_a_row_a_ratio_with_ours_by_kind_of_evidence(tmp_path):
    (regime,) = regimes(tmp_path)["fig-1/measured"]
    runs = [
        SimpleNamespace(
            item=SimpleNamespace(item="fig-1", regimes=[regime], evidence=SimpleNamespace(name=name)), rows=of
        )
        for name, of in (("MEASURED", ROWS), ("SIMULATED", ()))
    ]
    (row,) = _regimes(runs)
    assert {kind: (view.text, view.word) for kind, view in row.ours.items()} == {
        "MEASURED": ("0.6", "inside"),
        "SIMULATED": ("", "not recorded"),
    }


def test_every_regime_of_the_catalogue_can_be_placed_and_can_fail():
    project = Project()
    runs = best_runs(project, load_catalogue(project))
    placed_regimes = [(regime, regime.moved()) for run in runs.values() for regime in place(run.item.regimes, run.rows)]
    assert placed_regimes
    assert all(moved.is_outside for _, moved in placed_regimes)
    assert {regime.word for regime, _ in placed_regimes} == {"inside", "outside", "not recorded"}


OPEN = ("activation_compression", "sdpipe")  # their items without a regime are not gone through yet


def test_an_item_with_a_claim_of_its_paper_has_a_regime_or_the_claim_says_why_it_needs_none():
    project = Project()
    items = [item for item in load_catalogue(project) if item.technique not in OPEN and not item.regimes]
    claims = [(item.id, claim) for item in items if item.evidence is not Evidence.COUNTED for claim in item.claims]
    assert [pair for pair in claims if pair[1].whose is Whose.PAPER and not pair[1].any_regime] == []
