"""One cell: a call of one function with plain arguments, named by what it is, not by who asks for it.

Source: the workbench's own rule: the name of a cell is the sha256 of its function's declared name (`study.cells.named`)
and its arguments, so that two items that need the same cell share it, and moving the function loses none.
Simplified: 1 and 1.0 are different arguments, and so is an argument that is left out and one that is given its default.
Left out: methods, closures and functions of a notebook, which another process could not find again.
"""

import hashlib
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from workbench.reproduction.declare import check_plain
from workbench.reproduction.records import canonical_json
from workbench.study.cells import declared_name

__all__ = ["Cell", "CellResult", "check_function", "make_cell"]

DIGEST_DIGITS = 32  # hexadecimal digits of the sha256: no two cells of one function will ever meet
RULE = "it must be a function at the top level of a module that can be imported, not of a notebook"


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """One call to be made."""

    function: str  # declared name, "technique/name"; by default its qualified name
    arguments: Mapping[str, Any]  # plain keyword arguments
    place: tuple[str, str] = ("", "")  # module and name that the function is imported by; no part of its digest

    @property
    def module(self) -> str:
        """The module of the function."""
        return self.place[0]

    @property
    def name(self) -> str:
        """The last part of the function's name: cells of one name lie in one folder."""
        return re.split(r"[./]", self.function)[-1]

    @property
    def digest(self) -> str:
        """What the cell is known by among those of functions of this name."""
        text = canonical_json([self.function, self.arguments])
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResult:
    """One finished cell."""

    arguments: Mapping[str, Any]  # as they were asked for
    values: Mapping[str, Any]  # what the function returned, as JSON holds it
    seconds: float  # it took
    started: str  # when, ISO 8601
    commit: str  # of the checkout it ran from
    machine: str  # name of the machine it ran on
    versions: Mapping[str, str]  # of Python and packages
    reused: bool  # whether it was there already


def check_function(function: Callable[..., Any]) -> str:
    """Return the qualified name of a function that another process can import.

    Raises:
        ValueError: for a function of a notebook, a closure, a method or a lambda.
    """
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    found = None if module is None or module.__name__ == "__main__" else getattr(module, name, None)
    if not inspect.isfunction(function) or found is not function or getattr(module, "__file__", None) is None:
        raise ValueError(f"function is {name or function!r} of {getattr(function, '__module__', 'no module')}; {RULE}")
    return f"{module.__name__}.{name}"


def make_cell(function: Callable[..., Any], position: int, arguments: Mapping[str, Any]) -> Cell:
    """Check the arguments of one cell and name it.

    Args:
        function: what is called.
        position: the cell's place in the list, for the error.
        arguments: keyword arguments.

    Raises:
        ValueError: for an argument that is not plain or that the function does not take.
    """
    if not isinstance(arguments, Mapping):
        raise ValueError(f"cells[{position}] is {arguments!r}; it must be a dictionary of keyword arguments")
    check_plain(f"cells[{position}]", dict(arguments))
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"cells[{position}] is {dict(arguments)!r}; {function.__name__} refuses it: {error}") from None
    place = (function.__module__, function.__qualname__)
    return Cell(function=declared_name(function), arguments=dict(arguments), place=place)
