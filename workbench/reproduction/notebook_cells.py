"""What a notebook says before it runs: its cells, the tagged parameters cell, its kernel.

Source: the notebook format (nbformat 4); the tag `parameters` is papermill's.
Simplified: the JSON is read as it stands, so that neither nbformat nor papermill is imported.
Left out: older notebook formats.
"""

import ast
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.errors import CatalogueError

__all__ = ["NotebookCells", "parse_cell", "parse_source", "read_notebook"]

DEFAULT_KERNEL = "python3"
PARSING = threading.Lock()  # CPython 3.11 miscounts the depth of syntax trees that two threads build at once


@dataclass(frozen=True, kw_only=True, slots=True)
class NotebookCells:
    """What stands in a notebook, in order."""

    path: Path  # where it lies
    cells: Sequence[Mapping[str, Any]]  # of every cell its kind, source, tags and attachments; not what a run leaves
    code: Sequence[str]  # source of every code cell
    parameters: Mapping[str, ast.expr]  # name to default, of the cell tagged `parameters`
    kernel: str  # kernel it asks for


def read_notebook(path: Path) -> NotebookCells:
    """Read the cells of a notebook.

    Raises:
        CatalogueError: naming the notebook and what is wrong with it.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        written = [_as_written(cell) for cell in held["cells"]]
    except FileNotFoundError:
        raise CatalogueError(f"{path}: no such notebook") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CatalogueError(f"{path}: not a notebook of format 4: {error!r}") from None
    code = [cell for cell in written if cell["kind"] == "code"]
    tagged = [cell["source"] for cell in code if "parameters" in cell["tags"]]
    if len(tagged) != 1:
        raise CatalogueError(f"{path}: {len(tagged)} code cells have the tag 'parameters'; it must be one")
    kernel = held.get("metadata", {}).get("kernelspec", {}).get("name", DEFAULT_KERNEL)
    sources = [cell["source"] for cell in code]
    return NotebookCells(path=path, cells=written, code=sources, parameters=_defaults(tagged[0], path), kernel=kernel)


def _as_written(cell: Mapping[str, Any]) -> dict[str, Any]:
    source = cell["source"]
    return {
        "kind": cell["cell_type"],
        "source": source if isinstance(source, str) else "".join(source),
        "tags": cell.get("metadata", {}).get("tags", []),
        "attachments": cell.get("attachments", {}),
    }


def _defaults(source: str, path: Path) -> dict[str, ast.expr]:
    tree = parse_cell(source)
    if tree is None:
        raise CatalogueError(f"{path}: the parameters cell is not valid Python")
    return dict(_assignments(tree))


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            yield from ((target.id, statement.value) for target in statement.targets if isinstance(target, ast.Name))
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            yield statement.target.id, statement.value


def parse_source(source: str | bytes) -> ast.Module:
    """Parse Python, one thread at a time.

    Raises:
        SyntaxError: where it is not Python.
    """
    with PARSING:
        return ast.parse(source)


def parse_cell(source: str) -> ast.Module | None:
    """Parse the Python of a cell, leaving out IPython's magic lines; None if the rest is not Python."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return parse_source("\n".join(lines))
    except SyntaxError:
        return None
