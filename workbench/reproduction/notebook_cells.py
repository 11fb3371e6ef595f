"""A notebook before it runs: its cells, its tagged parameters, its kernel, and whether a catalogue's parameters fit.

papermill only warns about an unknown name, and silently turns tuples, paths and NumPy scalars into texts; here both are
refused.
"""

import ast
import gc
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import CatalogueError

__all__ = ["NotebookCells", "check_parameters", "parse_cell", "parse_source", "read_notebook"]

DEFAULT_KERNEL = "python3"
# CPython 3.11 miscounts the depth of syntax trees that two threads build at once: within one, finalizers of a garbage
# collection let another thread run, perhaps in a library that parses, too.
PARSING = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class NotebookCells:
    """What stands in a notebook, in order."""

    path: Path  # where it lies
    cells: Sequence[Mapping[str, Any]]  # of every cell its kind, source, tags and attachments; not what a run leaves
    code: Sequence[str]  # source of every code cell
    parameters: Mapping[str, ast.expr]  # name to default, of the cell tagged `parameters`
    kernel: str  # kernel it asks for


def read_notebook(path: Path) -> NotebookCells:
    """Read the cells of a notebook."""
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
    """Parse Python, one thread at a time, and without a garbage collection."""
    with PARSING:
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            return ast.parse(source)
        finally:
            if was_enabled:
                gc.enable()


def parse_cell(source: str) -> ast.Module | None:
    """Parse the Python of a cell, leaving out IPython's magic lines; None if the rest is not Python."""
    lines = ["" if line.lstrip().startswith(("%", "!")) else line for line in source.splitlines()]
    try:
        return parse_source("\n".join(lines))
    except SyntaxError:
        return None


def check_parameters(item: Reproduction, notebook: NotebookCells) -> None:
    """Check names and types of an item's parameters, in all its profiles, against its notebook."""
    defaults = {name: _default(name, expression, item) for name, expression in notebook.parameters.items()}
    if not isinstance(defaults.get("item"), str):
        raise CatalogueError(f"{item.notebook}: the parameters cell must begin with item = {item.id!r}")
    for profile, parameters in item.parameters.items():
        for name, value in parameters.items():
            if name not in defaults:
                known = ", ".join(name for name in defaults if name != "item")
                raise CatalogueError(
                    f"{item.id}, profile {profile}: the notebook has no parameter {name!r}; it has {known or 'none'}"
                )
            _check_kind(f"{item.id}, profile {profile}: parameter {name!r}", value, defaults[name])


def _default(name: str, expression: ast.expr, item: Reproduction) -> Any:
    try:
        value = ast.literal_eval(expression)
    except ValueError:
        raise CatalogueError(
            f"{item.notebook}: default of parameter {name!r} is {ast.unparse(expression)}; it must be a literal"
        ) from None
    if not isinstance(value, (str, bool, int, float, list, dict, type(None))):
        raise CatalogueError(
            f"{item.notebook}: default of parameter {name!r} is {_kind(value)}; "
            "it must be a text, number, truth value, None, list or dict"
        )
    return value


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _check_kind(what: str, value: Any, default: Any) -> None:
    if default is None or (type(default) is float and type(value) is int):
        return
    if type(value) is not type(default):
        raise CatalogueError(f"{what} is {value!r}, {_kind(value)}; the notebook has {_kind(default)}")
    kinds = {type(inner) for inner in default} if isinstance(default, list) else set()
    if len(kinds) == 1:
        for position, inner in enumerate(value):
            _check_kind(f"{what}[{position}]", inner, default[0])
