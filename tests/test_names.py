"""Variables say what they hold; some words of ours said nothing, and stay out of the code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
VAGUE = {"found", "one", "own", "each", "mine", "theirs", "told", "gone"}


def vague_names(tree):
    for node in ast.walk(tree):
        is_stored = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        name = node.id if is_stored else node.arg if isinstance(node, ast.arg) else ""
        if name in VAGUE:
            yield f"{name} (line {node.lineno})"


def test_a_vague_name_is_seen():
    tree = ast.parse("found = 1\nrows = [one for one in rows]\ndef f(own, rank): ...\nprint(each)")
    assert sorted(vague_names(tree)) == ["found (line 1)", "one (line 2)", "own (line 3)"]


@pytest.mark.parametrize("folder", ["workbench", "examples", "reproductions", "tests"])
def test_variables_say_what_they_hold(folder):
    files = {path: list(vague_names(ast.parse(path.read_text()))) for path in (ROOT / folder).rglob("*.py")}
    assert {str(path): names for path, names in files.items() if names} == {}
