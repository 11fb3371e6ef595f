"""The numbers that a paper prints: each has a claim with a verdict, or a reason."""

import json

import pytest

from workbench.cli import exit_code
from workbench.reproduction import CatalogueError, Project, load_catalogue
from workbench.reproduction.findings import best_runs
from workbench.reproduction.numbers import FILE, NO_CLAIM, read_numbers, summary

PROJECT = Project()
HEAD = "place,number,about,claim,why\n"


@pytest.fixture(scope="module")
def runs():
    return best_runs(PROJECT, [item for item in load_catalogue(PROJECT) if item.technique == "zen"])


def test_every_claim_of_zens_paper_stands_beside_a_number_and_every_number_has_a_verdict_or_a_reason(runs):
    numbers = read_numbers(PROJECT.reproductions / "zen", runs)
    claims = {
        f"{run.item.item}/{run.item.evidence}: {claim.name}"
        for run in runs.values()
        for claim in run.item.claims
        if claim.whose == "paper"
    }
    assert claims <= {number.claim for number in numbers}
    assert all(number.verdict == NO_CLAIM or number.claim for number in numbers)
    assert all(number.why for number in numbers if number.verdict in (NO_CLAIM, "disagrees", "not comparable"))
    assert summary(numbers).startswith(f"{len(numbers)} numbers: ")


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ("3.1,7,times,,", "not both"),
        ("3.1,7,times,fig-3-7/simulated: With 128 GPUs SparCML is behind Dense,a setting", "not both"),
        ("3.1,7,times,fig-3-7/simulated: No such claim,", "not declared"),
        ("3.1,7,times,fig-9-9/simulated: No such item,", "not declared"),
    ],
)
def test_a_row_with_both_claim_and_reason_with_neither_or_with_an_unknown_claim_is_refused(tmp_path, runs, row, rule):
    folder = tmp_path / "zen"
    folder.mkdir()
    (folder / FILE).write_text(HEAD + row + "\n")
    with pytest.raises(CatalogueError, match=rf"numbers\.csv:2: .*{rule}"):
        read_numbers(folder, runs)
    assert read_numbers(tmp_path / "none", runs) == []


def test_the_command_lists_them(capsys):
    assert exit_code(["claims", "numbers", "zen", "--json"]) == 0
    first, *others = json.loads(capsys.readouterr().out)
    assert first["place"] == "3.1" and first["verdict"] == NO_CLAIM
    assert len(others) > 100
