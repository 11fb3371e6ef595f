"""Do the catalogue's parameters fit the notebook's parameters cell? Asked before anything runs.

Source: papermill only warns about a name that the notebook does not have, and turns tuples, paths and NumPy scalars
into texts without a word; here both are refused.
Simplified: the type of a parameter is that of its default in the notebook; None takes any plain value, and a whole
number may stand where the default is a float.
Left out: ranges of values, which the library functions check themselves.
"""

import ast
from typing import Any

from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import CatalogueError
from workbench.reproduction.notebook_cells import NotebookCells

__all__ = ["check_parameters"]


def check_parameters(item: Reproduction, notebook: NotebookCells) -> None:
    """Check names and types of an item's parameters, in all its profiles, against its notebook.

    Raises:
        CatalogueError: naming the item, the parameter and the rule.
    """
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
