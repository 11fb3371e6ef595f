"""Claims are judged on falsified copies of what they state: one that agrees there, too, says nothing."""

import json

import pytest

from workbench.cli import exit_code
from workbench.reproduction import Bound, Crossover, Ordering, Trend, Within
from workbench.reproduction.audit import OFF, REGIME, audit_claim
from workbench.rows import read_rows

RULE = {"because": "a rule", "source": "table 1"}
ALL = {"no effect": True, "opposite": True, "factor 2": True, "shuffled": True}


def rows(values: dict, quantity: str = "speedup", key: str = "method"):
    return read_rows([{"quantity": quantity, key: name, "value": v, "unit": ""} for name, v in values.items()], "rows")


TABLE = rows({"A1": 1.2, "A2": 1.1})


@pytest.mark.parametrize(
    ("claim", "noticed"),
    [
        (Within("gain", quantity="speedup", rel=0.5, no_effect=1.0, **RULE), ALL),
        (Within("any", quantity="speedup", rel=2.0, **RULE), dict.fromkeys(ALL, False)),
        # of 1.2 and 1.1 within 10 %: a constant 1.2, their exchange and their shuffling pass, twice does not
        (
            Within("ratio", quantity="speedup", rel=0.1, **RULE),
            {"no effect": False, "opposite": False, "factor 2": True, "shuffled": False},
        ),
        # 3.0 ± 4 points: no loss (0), a gain of 3 points no longer, twice the loss
        (
            Within("loss", quantity="points", expected=3.0, abs=4.0, **RULE),
            {"no effect": False, "opposite": True, "factor 2": False, "shuffled": None},
        ),
        (Ordering("order", quantity="speedup", along="method", order=["A2", "A1"], **RULE), ALL | {"factor 2": None}),
        (
            Bound("at least", quantity="speedup", at_least=1.05, neutral=1.0, **RULE),
            {"no effect": True, "opposite": True, "factor 2": None, "shuffled": None},
        ),
        (Within("nothing", quantity="points", expected=0.0, abs=1.0, **RULE), dict.fromkeys(ALL)),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_claim_notices_what_its_tolerance_excludes(claim, noticed):
    assert audit_claim(claim, TABLE, TABLE) == noticed | {REGIME: None, OFF: None}


def test_a_trend_and_a_crossover_notice_what_has_no_effect_and_the_opposite():
    trend = Trend("rises", quantity="speedup", along="tp", direction="increasing", **RULE)
    assert audit_claim(trend, rows({1: 5.0, 2: 5.0, 4: 1.0}, key="tp"), ()) == ALL | {
        "factor 2": None,
        REGIME: None,
        OFF: None,
    }
    both = [{"quantity": "s", "way": way, "size": size, "value": 0.0, "unit": ""} for way in "ab" for size in (1, 2, 4)]
    crossing = Crossover("cross", quantity="s", between=("a", "b"), series="way", along="size", at=3, abs=1, **RULE)
    noticed = audit_claim(crossing, read_rows(both, "rows"), ())
    assert noticed["no effect"] and noticed["shuffled"] is None


def test_the_command_counts_and_names_blind_claims_and_its_exit_code_says_whether_one_is_unexplained(capsys):
    assert exit_code(["claims", "audit", "activation-compression/table-16", "--blind"]) == 0
    out = capsys.readouterr().out
    assert "claims notice" in out and "that say why, 0 that do not" in out
    assert exit_code(["claims", "audit", "gemini/fig-6-9", "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert {"item", "claim", "noticed", "whose"} <= set(entries[0])
