"""A recorded figure drawn again: the statements of a notebook that draw, on the values of its record, which stay.

A notebook is asked for its figure by what `record` gets: whatever the figure needs is run, from parameters and imports
to what is drawn over it, with the record's values in place of those that it would compute.
"""

from __future__ import annotations

import ast
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

from workbench.reproduction.files import figure_misfit, sha256, write_record, write_whole
from workbench.reproduction.machine import commit_of
from workbench.reproduction.notebook_cells import NotebookCells, parse_cell, read_notebook
from workbench.reproduction.project import ItemRun
from workbench.reproduction.recording import FIGURE_DPI, with_palette
from workbench.reproduction.records import SealedRecord, record_of
from workbench.reproduction.schema import read_bytes

__all__ = ["draw", "redraw"]

DRAWING = ("collections", "dataclasses", "itertools", "math", "matplotlib", "numpy", "pandas", "IPython")
OURS = ("workbench.datasets", "workbench.plots")  # and the module `plots` of each technique
READING = "published"  # of workbench.reproduction


def redraw(run: ItemRun) -> bool:
    """Draw the figure of a promoted record again, and say whether it has changed.

    The record keeps its values, and names the commit that drew.

    Raises:
        ValueError: says why the figure cannot be drawn from the record alone.
    """
    record, path = record_of(run, promoted=True), run.promoted_figure
    if record is None or not path.is_file() or figure_misfit(path, record):
        raise ValueError("it has no recorded figure")
    from matplotlib import pyplot

    drawn, buffer = draw(read_notebook(run.project.notebook(run.item)), record), io.BytesIO()
    drawn.savefig(buffer, format="png", dpi=FIGURE_DPI, bbox_inches="tight")
    pyplot.close("all")
    picture = with_palette(buffer.getvalue())
    if _pixels(picture) == _pixels(read_bytes(path)):
        return False
    sealed = record["artifact_sha256"] | {"figure": sha256(picture)}
    write_whole(path, picture)
    write_record(run.promoted, record | {"artifact_sha256": sealed, "redrawn": commit_of(run.project.root)})
    return True


def _pixels(picture: bytes) -> tuple[Any, ...]:
    from PIL import Image

    image = Image.open(io.BytesIO(picture)).convert("RGB")
    return image.size, image.tobytes()


def draw(notebook: NotebookCells, record: SealedRecord) -> Any:
    """Return the figure that a notebook draws of a record's values; ValueError says why there is none."""
    import matplotlib

    given = {name: ast.literal_eval(default) for name, (default, _) in notebook.parameters.items()}
    given |= {"item": record["id"], **record["parameters"]}
    written = [statement for cell in notebook.code for statement in getattr(parse_cell(cell), "body", ())]
    statements = list(_branches(written, given))
    place, call = _call(statements)
    figure = next(keyword.value for keyword in call.keywords if keyword.arg == "figure")
    if isinstance(figure, ast.IfExp) and given.keys() >= set(_names(figure.test, ast.Load)):
        figure = figure.body if _holds(figure.test, given) else figure.orelse
    held = dict(_held(statements[:place], call.args[1], list(record["values"])))
    needed = list(_needed(statements[:place], figure, held))
    scope = given | held | {"display": lambda *_: None}
    matplotlib.use("agg")
    try:
        exec(compile(ast.Module(needed, []), str(notebook.path), "exec"), scope)
        drawn = eval(compile(ast.Expression(figure), str(notebook.path), "eval"), scope)
    except Exception as error:  # of a notebook's drawing: whatever it raises, another figure can still be drawn
        raise ValueError(f"its drawing needs more than the record: {type(error).__name__}: {error}") from error
    if not all(ax.has_data() or not ax.axison for ax in drawn.axes):
        raise ValueError("an axes of its drawing would stay empty")
    return drawn


def _held(statements: Sequence[ast.stmt], values: ast.expr, rows: list[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the names that stand for the record's values.

    Of a sum this is what was measured, "study.rows": pictures of that pick rows by quantity.
    """
    while isinstance(values, ast.BinOp):
        values = values.left
        if isinstance(values, ast.Name):
            raise ValueError("its values are a sum")
    if isinstance(values, ast.Attribute) and isinstance(values.value, ast.Name):
        yield values.value.id, SimpleNamespace(**{values.attr: rows})
    elif isinstance(values, ast.Name):
        yield values.id, rows
        for node in statements:
            if isinstance(node, ast.Assign) and values.id in _stored(node) and isinstance(node.value, ast.BinOp):
                with suppress(ValueError):  # a sum of calls has no name that a picture could use
                    yield from _held((), node.value, rows)
    else:
        raise ValueError(f"its values are made in the call: {ast.unparse(values)}")


def _branches(statements: Iterable[ast.stmt], given: Mapping[str, Any]) -> Iterator[ast.stmt]:
    """Yield the statements that run, where parameters decide that."""
    for statement in statements:
        if isinstance(statement, ast.If) and given.keys() >= set(_names(statement.test, ast.Load)):
            yield from _branches(statement.body if _holds(statement.test, given) else statement.orelse, given)
        else:
            yield statement


def _holds(test: ast.expr, given: Mapping[str, Any]) -> bool:
    return bool(eval(compile(ast.Expression(test), "parameters", "eval"), dict(given)))


def _call(statements: Sequence[ast.stmt]) -> tuple[int, ast.Call]:
    for place, statement in enumerate(statements):
        for node in ast.walk(statement):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "record":
                if len(node.args) < 2 or "figure" not in [keyword.arg for keyword in node.keywords]:
                    raise ValueError("its notebook records no figure")
                return place, node
    raise ValueError("its notebook records nothing")


def _needed(statements: Sequence[ast.stmt], figure: ast.expr, held: Mapping[str, Any]) -> Iterator[ast.stmt]:
    """Yield what the figure needs, in order: definitions of its names, and what draws on its axes."""
    wanted = set(_names(figure, ast.Load)) - held.keys()
    drawn = _figure_and_axes(statements, wanted)  # what uses them draws
    chosen: list[ast.stmt] = []
    for statement in reversed(statements):
        stored = {name for name in _stored(statement) if name != "_"}
        if not (stored & wanted or drawn.intersection(_names(statement, ast.Load))):
            continue
        if isinstance(statement, ast.AnnAssign) or (stored <= held.keys() and stored):
            continue  # a parameter, or values that are held
        if stored & held.keys():
            raise ValueError(f"its values and its drawing are computed together: {ast.unparse(statement)}")
        _check_import(statement, wanted)
        wanted |= set(_names(statement, ast.Load)) - held.keys()
        chosen.append(statement)
    yield from reversed(chosen)


def _figure_and_axes(statements: Sequence[ast.stmt], figure: set[str]) -> set[str]:
    names = set(figure)
    for statement in statements:
        if isinstance(statement, ast.Assign) and figure.intersection(_stored(statement)):
            names.update(_stored(statement))  # figure, axes = plots.figure()
            if isinstance(statement.value, ast.Attribute):  # figure = axes.figure
                names.update(_names(statement.value, ast.Load))
    return names


def _check_import(statement: ast.stmt, wanted: set[str]) -> None:
    """Refuse what could compute: a figure is of the record's values, not of today's."""
    if not isinstance(statement, (ast.Import, ast.ImportFrom)):
        return
    for alias in statement.names:
        if (alias.asname or alias.name) not in wanted:
            continue
        module = getattr(statement, "module", None) or alias.name
        place = f"{module}.{alias.name}" if isinstance(statement, ast.ImportFrom) else module
        is_plots = place.startswith("workbench.techniques.") and ".plots" in place
        if not (place.startswith((*DRAWING, *OURS)) or is_plots or place == f"workbench.reproduction.{READING}"):
            raise ValueError(f"its drawing computes with {place}")


def _stored(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines, or whose columns or fields it sets."""
    yield from _names(statement, ast.Store)
    for target in getattr(statement, "targets", [getattr(statement, "target", None)]):
        if isinstance(target, (ast.Subscript, ast.Attribute)):
            yield from list(_names(target, ast.Load))[:1]
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name


def _names(node: ast.AST, kind: type[ast.expr_context]) -> Iterator[str]:
    return (child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, kind))
