"""One cell: a call of one function with plain arguments, and its run on a rank.

A cell is named by the sha256 of its function's declared name and arguments: items share it, and moving the function
loses none. It gives the same values in any process, whatever ran there before.
"""

import ctypes
import dataclasses
import gc
import importlib
import inspect
import os
import random
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from workbench.reproduction.declare import check_plain
from workbench.reproduction.files import canonical_json, jsonable, sha256
from workbench.reproduction.machine import machine_facts
from workbench.rows.cells import declared_name
from workbench.rows.progress import PROGRESS_VARIABLE

__all__ = ["Cell", "CellResult", "Finished", "check_function", "make_cell", "perform"]

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
        """Its name among the cells of functions of this name."""
        return sha256(canonical_json([self.function, self.arguments]))[:DIGEST_DIGITS]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellResult:
    """One finished cell."""

    arguments: Mapping[str, Any]  # requested arguments
    values: Mapping[str, Any]  # returned values, as plain JSON
    seconds: float  # duration
    started: str  # start time, ISO 8601
    commit: str  # commit of the checkout
    machine: str  # name of the machine
    versions: Mapping[str, str]  # versions of Python and packages
    reused: bool  # whether it had already run


def check_function(function: Callable[..., Any]) -> None:
    """Refuse a function that another process cannot import: of a notebook, a closure, a method or a lambda."""
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    name = getattr(function, "__qualname__", "")
    declared = None if module is None or module.__name__ == "__main__" else getattr(module, name, None)
    if not inspect.isfunction(function) or declared is not function or getattr(module, "__file__", None) is None:
        raise ValueError(f"function is {name or function!r} of {getattr(function, '__module__', 'no module')}; {RULE}")


def make_cell(function: Callable[..., Any], position: int, arguments: Mapping[str, Any]) -> Cell:
    """Check the arguments of one cell and name it."""
    if not isinstance(arguments, Mapping):
        raise ValueError(f"cells[{position}] is {arguments!r}; it must be a dictionary of keyword arguments")
    check_plain(f"cells[{position}]", dict(arguments))
    try:
        inspect.signature(function).bind(**arguments)
    except TypeError as error:
        raise ValueError(f"cells[{position}] is {dict(arguments)!r}; {function.__name__} refuses it: {error}") from None
    place = (function.__module__, function.__qualname__)
    return Cell(function=declared_name(function), arguments=dict(arguments), place=place)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """The outcome of a cell on a rank."""

    values: Mapping[str, Any]  # returned values, as plain JSON
    started: str  # start time, ISO 8601
    seconds: float  # duration
    machine: Mapping[str, Any]  # see `machine_facts`


def perform(cell: Cell, slot: int) -> Finished:
    """Run one cell in this process, which takes the GPU of number `slot`."""
    function = getattr(importlib.import_module(cell.module), cell.place[1])
    os.environ.pop(PROGRESS_VARIABLE, None)  # the study reports progress; a cell must not overwrite it
    _settle(cell, slot)
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), monotonic()
    returned = function(**cell.arguments)
    seconds = round(monotonic() - began, 3)
    is_dataclass = dataclasses.is_dataclass(returned) and not isinstance(returned, type)
    if not isinstance(returned, Mapping) and not is_dataclass:
        kind = type(returned).__name__
        raise ValueError(f"{cell.name} returned a value of type {kind}; it must be a mapping or dataclass")
    return Finished(values=jsonable(returned), started=started, seconds=seconds, machine=machine_facts())


def _settle(cell: Cell, slot: int) -> None:
    """Free the memory of the last cell, seed this process's generators from the cell's digest, choose a GPU."""
    import numpy
    import torch

    gc.collect()  # the last cell's model refers to itself through its hooks, so it would stay for long
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # ranks keep freed blocks, and cells of many sizes add up
        trim(0)
    seed = int(cell.digest[:8], 16)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.set_device(slot % torch.cuda.device_count())
