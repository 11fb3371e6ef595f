"""How many of the cells that an item needs are there, known without running anything.

Source: what the item's last study noted, see `notes`; an item that has never begun one is not known of.
Simplified: a function's module is looked for beside the item's notebook and in the library; the seconds to go are the
mean of the cells that are there, times those that are not.
Left out: reading checksums; a study refuses what does not fit.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.notes import needs_of
from workbench.reproduction.cells.store import read_lines
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.fingerprint import Fingerprinter, changes
from workbench.reproduction.machine import num_cores
from workbench.reproduction.project import Project

__all__ = ["CellsThere", "cells_there", "num_cells"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CellsThere:
    """The cells of one item."""

    num_cells: int  # that it needs
    num_there: int  # that are there, those out of date included
    num_stale: int  # that are there and out of date
    remaining_s: float | None  # estimate for those that would run, on this machine's cores; None while nothing is known

    def __str__(self) -> str:
        stale = f", {self.num_stale} of them out of date" if self.num_stale else ""
        return f"{self.num_there} of {self.num_cells} cells are there{stale}"


def num_cells(project: Project, item: Reproduction, profile: str) -> tuple[int, int]:
    """Count an item's cells without reading them: those that are there, and those it needs; 0, 0 if none are known."""
    needs, folder = needs_of(project, item, profile), project.cells_folder(item.technique, profile)
    paths = [folder / name / f"{digest}.json" for name, digests in needs.items() for digest in digests]
    return sum(path.is_file() for path in paths), len(paths)


def cells_there(
    project: Project, item: Reproduction, profile: str, fingerprinter: Fingerprinter, *, keep: bool = False
) -> CellsThere | None:
    """Count the cells of an item.

    Args:
        project: where they lie.
        item: whose cells.
        profile: in which profile.
        fingerprinter: knows what a cell depends on now.
        keep: count those that are out of date, and the committed ones, as up to date.

    Returns:
        The count; None where no study of the item has begun.
    """
    needs = needs_of(project, item, profile)
    num_cells = sum(map(len, needs.values()))
    if not num_cells:
        return None
    found = [held for name, digests in needs.items() for held in _found(project, item, profile, name, digests, keep)]
    num_stale = 0 if keep else _num_stale(found, project.notebook(item).parent, fingerprinter)
    to_run = num_cells - len(found) + num_stale
    mean_s = sum(held["seconds"] for held in found) / len(found) if found else None
    remaining_s = 0.0 if not to_run else None if mean_s is None else mean_s * to_run / min(num_cores(), to_run)
    return CellsThere(num_cells=num_cells, num_there=len(found), num_stale=num_stale, remaining_s=remaining_s)


def _num_stale(found: list[Mapping[str, Any]], folder: Path, fingerprinter: Fingerprinter) -> int:
    modules = [str(held["module"]) for held in found]
    basis = {module: fingerprinter.basis(folder, module) for module in set(modules)}
    return sum(bool(changes(held, basis[module])) for held, module in zip(found, modules, strict=True))


def _found(
    project: Project, item: Reproduction, profile: str, name: str, digests: list[str], keep: bool
) -> Iterator[Mapping[str, Any]]:
    folder = project.cells_folder(item.technique, profile) / name
    committed = _committed(project.recorded_cells_folder(item.technique, profile) / f"{name}.jsonl") if keep else {}
    for digest in digests:
        held = _read(folder / f"{digest}.json") or committed.get(digest)
        if held is not None:
            yield held


def _committed(path: Path) -> Mapping[str, Mapping[str, Any]]:
    try:
        return read_lines(path)
    except RecordError:  # a study says so
        return {}


def _read(path: Path) -> Mapping[str, Any] | None:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        return held if held["function"] and held["seconds"] >= 0 else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
