"""Items and claims as data: items.toml, claims.csv and the prose that claims name."""

import pytest

from tests.toy_project import ToyProject
from workbench.reproduction import Bound, Crossover, Ordering, Project, Trend, Within, load_catalogue
from workbench.reproduction.errors import CatalogueError

ITEMS = """
["table-2/counted"]
title = "Bytes"
notebook = "one"
published = "numbers.csv"
tags = ["real ranks"]
times = true
expected_s = { laptop = 3 }
common = { seed = 1 }
smoke = { size = 2 }
laptop = { size = 4 }
full = "laptop"

[decidable.loss]
baseline = { method = "w/o", place = "none" }
num_tested = 10
printed = { "in the text" = "numbers.csv" }
"""
HEAD = "item,claim,quantity,where,rule,because,source,whose,explanation,changed,decidable,needs_real_data,neutral\n"
ROW = "table-2/counted,{claim},bytes,{where},{rule},counted,table 1,{whose},{explanation},{changed},{decidable},,1\n"
FIELDS = dict.fromkeys(("where", "explanation", "changed", "decidable"), "")
FIELDS |= {"claim": "c", "rule": "= paper", "whose": "paper"}


@pytest.fixture
def data(toy: ToyProject):
    toy.folder_of_data = toy.root / "reproductions/toy"
    (toy.folder_of_data / "catalogue.py").write_text("")
    (toy.folder_of_data / "items.toml").write_text(ITEMS)
    return toy


def loaded(data, head=HEAD, **fields):
    (data.folder_of_data / "claims.csv").write_text(head + ROW.format(**FIELDS | fields))
    (item,) = load_catalogue(Project())
    return item


def test_an_item_has_the_parameters_that_its_profiles_share_and_those_of_a_profile_that_one_names(data):
    item = loaded(data)
    assert (item.id, item.notebook) == ("toy/table-2/counted", "notebooks/toy/one.ipynb")
    assert dict(item.parameters) == {
        "smoke": {"seed": 1, "size": 2},
        "laptop": {"seed": 1, "size": 4},
        "full": {"seed": 1, "size": 4},
    }
    assert item.times and item.tags == ["real ranks"] and item.expected_s == {"laptop": 3, "full": 3}


@pytest.mark.parametrize(
    ("rule", "kind", "fields"),
    [
        (">= 1.37", Bound, {"at_least": 1.37, "at_most": None}),
        ("<= -3", Bound, {"at_most": -3.0, "at_least": None}),
        ("paper ± 7%", Within, {"rel": 0.07, "abs": None, "expected": None, "no_effect": 0.0}),
        ("paper ± 25% of its distance from 1", Within, {"rel": 0.25, "no_effect": 1.0}),
        ("paper ± 0.3", Within, {"abs": 0.3, "rel": None}),
        ("0.46 ± 1e-2", Within, {"abs": 0.01, "expected": 0.46}),
        ("= paper", Within, {"rel": 1e-9, "expected": None}),
        ("= 2", Within, {"rel": 1e-9, "expected": 2.0}),
        ("mesh: ATP-1 < Zen, COO < 8", Ordering, {"along": "mesh", "order": ["ATP-1", "Zen, COO", 8]}),
        ("rises with devices", Trend, {"along": "devices", "direction": "increasing"}),
        ("falls with share lost", Trend, {"along": "share lost", "direction": "decreasing"}),
        (
            "scheme: A < B until gpus = 40 ± 25% on a log scale",
            Crossover,
            {"series": "scheme", "between": ("A", "B"), "smaller_before": "A", "at": 40.0, "rel": 0.25, "scale": "log"},
        ),
    ],
)
def test_a_rule_reads_as_it_is_meant(data, rule, kind, fields):
    (claim,) = loaded(data, rule=f'"{rule}"').claims
    assert type(claim) is kind
    assert {name: getattr(claim, name) for name in fields} == fields


def test_a_claim_has_the_prose_that_it_names_and_the_papers_values_of_its_files(data):
    (data.folder_of_data / "explanations.md").write_text(
        "# Toy\n\nWhat is what.\n\n## units\n\nOne line\nand one more.\n"
    )
    (data.folder_of_data / "changes.md").write_text("# Toy\n\n## 1: 2026-11-20, 0123abcd\n\nIt was 20 %.\n")
    where = "method=A1; size=[4 | 2.5]"
    (claim,) = loaded(data, where=where, explanation="units", changed="1", decidable="loss").claims
    assert (claim.explanation, claim.changed) == ("One line and one more.", "It was 20 %.")
    assert claim.where == {"method": "A1", "size": [4, 2.5]}
    assert claim.decidable.baseline == {"method": "w/o", "place": None}
    assert claim.neutral == 1.0
    (claim,) = loaded(data, where="method=A1", explanation="units", changed="1", decidable="loss").claims
    assert claim.decidable.printed == {"in the text": 8.0}
    with pytest.raises(CatalogueError, match=r"explanations.md: no claim names the heading 'units'"):
        loaded(data, changed="1")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"rule": "about 3"}, r"claims.csv:2: rule is 'about 3'; it must be of the form '>= 2'"),
        ({"rule": "= paper ± 3"}, "rule is '= paper ± 3'"),
        ({"where": "method"}, "claims.csv:2: where is 'method'; it must read 'column=value"),
        ({"where": "a=1; a=2"}, "where is 'a=1; a=2'"),
        ({"whose": "theirs"}, "whose is 'theirs'; it must be one of paper, ours, construction"),
        ({"explanation": "more"}, "explanation is 'more', which explanations.md does not have"),
        ({"changed": "2"}, "changed is '2', which changes.md does not have"),
        ({"decidable": "score"}, "decidable is 'score', which items.toml does not have"),
        ({"claim": ""}, "claims.csv:2: name of claim '' is ''"),
        ({"head": HEAD.replace("neutral", "neutrl")}, "column 'neutrl' is not known"),
        ({"head": HEAD.replace("rule", "kind")}, "column 'rule' is missing"),
    ],
)
def test_a_wrong_claim_is_named_with_file_and_line(data, fields, said):
    with pytest.raises(CatalogueError, match=said):
        loaded(data, **fields)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            '"table-2/counted"]',
            '"table-3/counted"]',
            "claims.csv: item is 'table-2/counted', which items.toml does not",
        ),
        ('title = "Bytes"', "", "items.toml: table-2/counted: 'title' is missing"),
        ("times = true", "tmes = true", "items.toml: table-2/counted: 'tmes' is not known; an item has common, "),
        ('"laptop"\n', '"lapton"\n', "full is 'lapton'; it must be a table of parameters, or a profile that has one"),
        ("size = 4 }", "size = 4", "items.toml: .*at line 11"),
        ("num_tested = 10", "num_tested = 0", "items.toml: num_tested is 0; it must be at least 1"),
        ("[decidable", '["fig-1/count"]\ntitle = "a"\nnotebook = "one"\n[decidable', "'count' is not a valid Evidence"),
    ],
)
def test_a_wrong_item_is_named_with_its_file(data, old, new, said):
    (data.folder_of_data / "items.toml").write_text(ITEMS.replace(old, new))
    with pytest.raises(CatalogueError, match=said):
        loaded(data)
