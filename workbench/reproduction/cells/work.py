"""What a rank does with one cell: call the function, time it, say on which machine.

Source: the workbench's own rule: a cell gives the same values whichever process runs it and whatever ran there before.
Simplified: the random generators of the process, which belongs to the cell alone while it runs, begin from the cell's
digest; a function that takes a seed and makes its own generators does not notice.
Left out: writing the result, which the caller does, so that a process that is killed cannot leave half of one.
"""

import ctypes
import dataclasses
import gc
import importlib
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from time import monotonic
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.machine import machine_facts
from workbench.reproduction.records import jsonable

__all__ = ["Finished", "perform"]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """What came of a cell on a rank."""

    values: Mapping[str, Any]  # what the function returned, as JSON holds it
    started: str  # when, ISO 8601
    seconds: float  # it took
    machine: Mapping[str, Any]  # see `machine_facts`


def perform(cell: Cell, slot: int) -> Finished:
    """Run one cell in this process.

    Args:
        cell: what to run.
        slot: number of this process among those that run cells side by side; it takes the GPU of this number.

    Raises:
        ValueError: where the function returns anything but a mapping or dataclass of plain values.
    """
    function = getattr(importlib.import_module(cell.module), cell.place[1])
    _settle(cell, slot)
    started, began = datetime.now(UTC).isoformat(timespec="seconds"), monotonic()
    returned = function(**cell.arguments)
    seconds = round(monotonic() - began, 3)
    return Finished(values=_plain(returned, cell), started=started, seconds=seconds, machine=machine_facts())


def _settle(cell: Cell, slot: int) -> None:
    import numpy
    import torch

    gc.collect()  # the last cell's model refers to itself through its hooks, so it would stay for long
    _return_free_memory()
    seed = int(cell.digest[:8], 16)
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)
    if torch.cuda.is_available():
        torch.cuda.set_device(slot % torch.cuda.device_count())


def _return_free_memory() -> None:
    """Give freed blocks back to the kernel: ranks keep them (see `rank_environment`), and cells of many sizes add up.

    Source: malloc_trim(3); other C libraries than glibc have none, and keep less.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _plain(returned: Any, cell: Cell) -> dict[str, Any]:
    is_dataclass = dataclasses.is_dataclass(returned) and not isinstance(returned, type)
    if not isinstance(returned, Mapping) and not is_dataclass:
        kind = type(returned).__name__
        raise ValueError(f"{cell.name} returned a value of type {kind}; it must be a mapping or dataclass")
    return jsonable(returned)
