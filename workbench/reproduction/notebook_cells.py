"""What a notebook says before it runs: its code cells, the tagged parameters cell, its kernel.

Source: the notebook format (nbformat 4); the tag `parameters` is papermill's.
Simplified: the JSON is read as it stands, so that neither nbformat nor papermill is imported.
Left out: older notebook formats.
"""

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.errors import CatalogueError

__all__ = ["NotebookCells", "parse_cell", "read_notebook"]

DEFAULT_KERNEL = "python3"


@dataclass(frozen=True, kw_only=True, slots=True)
class NotebookCells:
    """The code of a notebook, in order."""

    path: Path  # where it lies
    code: Sequence[str]  # source of every code cell
    parameters: Mapping[str, ast.expr]  # name to default, of the cell tagged `parameters`
    kernel: str  # kernel it asks for


def read_notebook(path: Path) -> NotebookCells:
    """Read the code cells of a notebook.

    Raises:
        CatalogueError: naming the notebook and what is wrong with it.
    """
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        cells = [cell for cell in held["cells"] if cell["cell_type"] == "code"]
        sources = [_text(cell["source"]) for cell in cells]
    except FileNotFoundError:
        raise CatalogueError(f"{path}: no such notebook") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CatalogueError(f"{path}: not a notebook of format 4: {error!r}") from None
    tagged = [source for cell, source in zip(cells, sources, strict=True) if "parameters" in _tags(cell)]
    if len(tagged) != 1:
        raise CatalogueError(f"{path}: {len(tagged)} code cells have the tag 'parameters'; it must be one")
    kernel = held.get("metadata", {}).get("kernelspec", {}).get("name", DEFAULT_KERNEL)
    return NotebookCells(path=path, code=sources, parameters=_defaults(tagged[0], path), kernel=kernel)


def _text(source: Any) -> str:
    return source if isinstance(source, str) else "".join(source)


def _tags(cell: Mapping[str, Any]) -> Sequence[str]:
    return cell.get("metadata", {}).get("tags", [])


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


def parse_cell(source: str) -> ast.Module | None:
    """Parse the Python of a cell, leaving out IPython's magic lines; None if the rest is not Python."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return ast.parse("\n".join(lines))
    except SyntaxError:
        return None
