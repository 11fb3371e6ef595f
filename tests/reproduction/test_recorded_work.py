"""Recorded work stays found: every committed cell under the declared name of its function, every record by its item."""

import importlib
import inspect
import json
import re
from pathlib import Path

import pytest

import workbench
from workbench.reproduction import Project, load_catalogue, read_record, verdicts_of
from workbench.reproduction.cells import read_lines
from workbench.study.cells import declared_name, named

LIBRARY = Path(workbench.__file__).parent
CELLS = {  # committed cells; a move that orphans any of them would lose days of training
    "activation_compression/recorded/full/cells/fine_tune.jsonl": 546,
    "activation_compression/recorded/full/cells/pretrain_then_fine_tune.jsonl": 12,
    "activation_compression/recorded/laptop/cells/fine_tune.jsonl": 57,
    "activation_compression/recorded/laptop/cells/pretrain_then_fine_tune.jsonl": 6,
    "flextp/recorded/full/cells/train_vit.jsonl": 180,
    "flextp/recorded/laptop/cells/train_vit.jsonl": 58,
    "gemini/recorded/full/cells/run_cell.jsonl": 20,
    "gemini/recorded/laptop/cells/run_cell.jsonl": 2,
}


def _declared_functions():
    for path in LIBRARY.rglob("*.py"):
        for name in re.findall(r'@named\("[^"]+"\)\ndef (\w+)\(', path.read_text(encoding="utf-8")):
            module = ".".join(path.relative_to(LIBRARY.parent).with_suffix("").parts)
            function = getattr(importlib.import_module(module), name)
            yield declared_name(function), function


def test_every_committed_cell_is_found_under_the_declared_name_of_one_function_that_takes_its_arguments():
    functions = list(_declared_functions())
    assert len(dict(functions)) == len(functions)
    reproductions = Project().reproductions
    found = {
        path.relative_to(reproductions).as_posix(): read_lines(path)
        for path in reproductions.glob("*/recorded/*/cells/*.jsonl")
    }
    assert {name: len(cells) for name, cells in found.items()} == CELLS
    for cell in (cell for cells in found.values() for cell in cells.values()):
        inspect.signature(dict(functions)[cell["function"]]).bind(**cell["arguments"])


def test_every_committed_record_is_of_a_declared_item_and_is_judged_by_its_claims_of_today():
    project = Project()
    items = {item.id: item for item in load_catalogue(project)}
    paths = sorted(project.reproductions.glob("*/recorded/*/*/*.json"))
    assert len(paths) == 129
    for path in paths:
        told = json.loads(path.read_text(encoding="utf-8"))
        record = read_record(path, id=told["id"], profile=path.parts[-3])
        judged = verdicts_of(project, items[record["id"]], record)
        assert len(judged) == len(items[record["id"]].claims)


@pytest.mark.parametrize("name", ["train_vit", "flextp/Train", "flextp/", "a/b/c"])
def test_a_declared_name_reads_technique_and_name(name):
    with pytest.raises(ValueError, match="technique/name"):
        named(name)
