"""Recorded work stays found, by the declared names of its functions and its items, and is judged as when it ran."""

import importlib
import inspect
import re
from pathlib import Path

import pytest

import workbench
from workbench.reproduction import Project, load_catalogue, read_record, verdicts_of
from workbench.reproduction.audit import audit, share_noticed
from workbench.reproduction.catalogue import load_page
from workbench.reproduction.cells import read_lines
from workbench.reproduction.findings import best_runs, findings_of
from workbench.reproduction.report import gather
from workbench.rows.cells import declared_name, named

LIBRARY = Path(workbench.__file__).parent
PROJECT = Project()
ITEMS = {item.id: item for item in load_catalogue(PROJECT)}
PATHS = sorted(PROJECT.reproductions.glob("*/recorded/*/*/*.json"))
CELLS = {  # committed cells; a move that orphans any of them would lose days of training
    "activation_compression/recorded/full/cells/fine_tune.jsonl": 687,
    "activation_compression/recorded/full/cells/pretrain_then_fine_tune.jsonl": 12,
    "activation_compression/recorded/laptop/cells/fine_tune.jsonl": 57,
    "cupcake/recorded/full/cells/train.jsonl": 36,
    "espresso/recorded/full/cells/train.jsonl": 30,
    "activation_compression/recorded/laptop/cells/pretrain_then_fine_tune.jsonl": 6,
    "flextp/recorded/full/cells/train_vit.jsonl": 195,
    "flextp/recorded/laptop/cells/train_vit.jsonl": 58,
    "gemini/recorded/full/cells/run_cell.jsonl": 25,
    "gemini/recorded/laptop/cells/run_cell.jsonl": 1,
    "sdpipe/recorded/full/cells/beside.jsonl": 15,
    "sdpipe/recorded/full/cells/train.jsonl": 98,
    "sdpipe/recorded/full/cells/virtual.jsonl": 45,
    "sdpipe/recorded/laptop/cells/train.jsonl": 31,
    "zen/recorded/full/cells/train.jsonl": 20,
}


def recorded(path: Path) -> dict:
    id = f"{path.parts[-5].replace('_', '-')}/{path.parts[-2]}/{path.stem}"
    return read_record(path, id=id, profile=path.parts[-3])


def _declared_functions():
    for path in LIBRARY.rglob("*.py"):
        for name in re.findall(r'@named\("[^"]+"\)\ndef (\w+)\(', path.read_text(encoding="utf-8")):
            module = ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts)
            function = getattr(importlib.import_module(module), name)
            yield declared_name(function), function


def test_every_committed_cell_is_found_under_the_declared_name_of_one_function_that_takes_its_arguments():
    functions = list(_declared_functions())
    assert len(dict(functions)) == len(functions)
    root = PROJECT.reproductions
    files = {path.relative_to(root).as_posix(): read_lines(path) for path in root.glob("*/recorded/*/cells/*.jsonl")}
    assert {name: len(cells) for name, cells in files.items()} == CELLS
    for cell in (cell for cells in files.values() for cell in cells.values()):
        inspect.signature(dict(functions)[cell["function"]]).bind(**cell["arguments"])


def test_every_committed_record_is_of_a_declared_item_and_is_judged_by_its_claims_of_today():
    assert len(PATHS) >= 240
    for path in PATHS:
        record = recorded(path)
        item = ITEMS[record["id"]]
        assert len(verdicts_of(PROJECT, item, record)) == len(item.claims)


def test_every_claim_of_a_paper_notices_no_effect_or_the_opposite_or_says_why():
    audited = audit(PROJECT, ITEMS.values())
    assert [f"{entry.item}: {entry.claim.name}" for entry in audited if entry.is_unexplained] == []
    noticed, applying = share_noticed(audited)
    assert 0.8 * applying < noticed < applying  # some are blind, and say so


@pytest.mark.parametrize("profile", ["laptop", "full"])
def test_the_report_shows_the_value_of_every_recorded_claim_that_was_judged(profile):
    report = gather(PROJECT, tuple(ITEMS.values()), profile, under_way=True)
    items = [item for technique in report.techniques for item in technique.items]
    claims = [(item.id, claim) for item in items for claim in item.claims if claim.verdict != "NOT_RUN"]
    assert len(claims) > 400
    assert not [(id, claim.name) for id, claim in claims if all(row.ours == "—" for row in claim.rows)]


def test_every_finding_of_a_page_is_filled_from_records():
    runs = best_runs(PROJECT, ITEMS.values())
    for technique in dict.fromkeys(item.technique for item in ITEMS.values()):
        page = load_page(PROJECT, technique)
        assert 3 <= len(page.findings) <= 6
        findings = [*page.findings, *page.use.findings]
        assert [finding.missing for finding in findings_of(findings, technique, runs) if finding.missing] == []


@pytest.mark.parametrize("name", ["train_vit", "flextp/Train", "flextp/", "a/b/c"])
def test_a_declared_name_reads_technique_and_name(name):
    with pytest.raises(ValueError, match="technique/name"):
        named(name)


DECIDABLE = {id for id, item in ITEMS.items() if any(claim.decidable for claim in item.claims)}
TRAINED = [path for path in PATHS if f"{path.parts[-5].replace('_', '-')}/{path.parts[-2]}/{path.stem}" in DECIDABLE]


@pytest.mark.parametrize("path", TRAINED, ids=lambda path: "/".join(path.parts[-5:-1]))
def test_a_declaration_decides_as_the_recorded_reasons_did(path):
    record = recorded(path)
    item, plain = ITEMS[record["id"]], record | {"not_comparable": {}}
    then, now = (
        {judged.claim: judged.verdict for judged in verdicts_of(PROJECT, item, held)} for held in (record, plain)
    )
    assert now == then
