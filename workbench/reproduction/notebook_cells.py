"""A notebook before it runs: its cells, parameters and kernel, and a check of the catalogue's parameters.

papermill only warns about unknown names, and silently turns tuples, paths and NumPy scalars into texts. The check
refuses both.
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

__all__ = ["NotebookCells", "check_parameters", "parameter_types", "parse_cell", "parse_source", "read_notebook"]

DEFAULT_KERNEL = "python3"
# CPython 3.11 miscounts the depth of syntax trees that two threads build at once: within one, finalizers of a garbage
# collection let another thread run, perhaps in a library that parses, too.
PARSING = threading.Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class NotebookCells:
    """The content of a notebook, in order."""

    path: Path  # file of the notebook
    cells: Sequence[Mapping[str, Any]]  # kind, source, tags and attachments of every cell, without outputs
    code: Sequence[str]  # source of every code cell
    parameters: Mapping[str, tuple[ast.expr, ast.expr | None]]  # name to default and type, from the cell with the tag
    kernel: str  # name of its kernel


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
    tree = parse_cell(tagged[0])
    if tree is None:
        raise CatalogueError(f"{path}: the parameters cell is not valid Python")
    parameters = {name: (default, type_) for name, default, type_ in _assignments(tree)}
    return NotebookCells(path=path, cells=written, code=sources, parameters=parameters, kernel=kernel)


def _as_written(cell: Mapping[str, Any]) -> dict[str, Any]:
    source = cell["source"]
    return {
        "kind": cell["cell_type"],
        "source": source if isinstance(source, str) else "".join(source),
        "tags": cell.get("metadata", {}).get("tags", []),
        "attachments": cell.get("attachments", {}),
    }


def _assignments(tree: ast.Module) -> Iterator[tuple[str, ast.expr, ast.expr | None]]:
    for statement in tree.body:
        if isinstance(statement, ast.Assign):
            names = [target.id for target in statement.targets if isinstance(target, ast.Name)]
            yield from ((name, statement.value, None) for name in names)
        elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
            yield statement.target.id, statement.value, statement.annotation


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
    types = parameter_types(notebook)
    if "item" not in types or ast.unparse(types["item"]) != "str":
        raise CatalogueError(f"{item.notebook}: the parameters cell must begin with item = {item.id!r}")
    for profile, parameters in item.parameters.items():
        for name, value in parameters.items():
            if name not in types:
                known = ", ".join(name for name in types if name != "item")
                raise CatalogueError(
                    f"{item.id}, profile {profile}: {item.notebook} has no parameter {name!r}; it has {known or 'none'}"
                )
            if wrong := next(_misfits(f"parameter {name!r}", value, types[name]), None):
                raise CatalogueError(f"{item.id}, profile {profile}: {wrong}, as {item.notebook} says")


def parameter_types(notebook: NotebookCells) -> dict[str, ast.expr]:
    """Return the type of every parameter: its annotation, which the default must fit, or the type of the default."""
    types = {}
    for name, (expression, annotation) in notebook.parameters.items():
        what = f"{notebook.path}: default of parameter {name!r}"
        try:
            default = ast.literal_eval(expression)
        except ValueError:
            raise CatalogueError(f"{what} is {ast.unparse(expression)}; it must be a literal") from None
        if not isinstance(default, (str, bool, int, float, list, dict, type(None))):
            raise CatalogueError(
                f"{what} is {_kind(default)}; it must be a text, number, truth value, None, list or dict"
            )
        types[name] = annotation or ast.parse(_type_of(default), mode="eval").body
        if wrong := next(_misfits(what, default, types[name]), None):
            raise CatalogueError(wrong)
    return types


def _type_of(default: Any) -> str:
    """Write the type of a default; None gives Any, a list of equal types gives list[...]."""
    if default is None:
        return "Any"
    if isinstance(default, list) and len({type(element) for element in default}) == 1:
        return f"list[{_type_of(default[0])}]"
    return type(default).__name__


def _expression(text: str) -> ast.expr | None:
    match parse_cell(text):
        case ast.Module(body=[ast.Expr(value=value)]):
            return value
    return None


def _kind(value: Any) -> str:
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def _misfits(what: str, value: Any, wanted: ast.expr) -> Iterator[str]:
    """Yield a message for a value, or each element of a list or dict, that does not have the wanted type."""
    match wanted:
        case ast.Constant(value=str(text)) if inner := _expression(text):
            yield from _misfits(what, value, inner)
            return
        case ast.Subscript(value=ast.Name(id="list"), slice=of) if type(value) is list:
            for position, element in enumerate(value):
                yield from _misfits(f"{what}[{position}]", element, of)
            return
        case ast.Subscript(value=ast.Name(id="dict"), slice=ast.Tuple(elts=[of_key, of])) if type(value) is dict:
            for key, element in value.items():
                yield from _misfits(f"key of {what}", key, of_key)
                yield from _misfits(f"{what}[{key!r}]", element, of)
            return
        case ast.Subscript(value=ast.Name(id="Optional"), slice=of):
            fits = value is None or not any(_misfits(what, value, of))
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            fits = any(not any(_misfits(what, value, part)) for part in (left, right))
        case ast.Constant(value=None):
            fits = value is None
        case ast.Name(id="float"):
            fits = type(value) in (int, float)
        case ast.Name(id=name):
            fits = name in ("Any", type(value).__name__)
        case _:
            fits = False
    if not fits:
        yield f"{what} is {value!r}, {_kind(value)}; it must be {ast.unparse(wanted)}"
