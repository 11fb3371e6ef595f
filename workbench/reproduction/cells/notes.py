"""What a study notes for others: which cells its item needs, how far it is, where its cells came from.

Source: the workbench's own convention: the needs lie beside the cells, the rest in the folder of the run, where the
runner reads it.
Simplified: outside a run only the needs are noted.
Left out: the cells themselves, see `store`.
"""

import contextlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.project import Project
from workbench.reproduction.records import canonical_json, write_json

__all__ = ["CELLS_FILE", "PROGRESS_FILE", "CellProgress", "Notes", "needs_file", "needs_of", "origins", "read_progress"]

PROGRESS_FILE = "cells_progress.json"  # in the folder of the run
CELLS_FILE = "cells.json"  # the same


@dataclass(frozen=True, kw_only=True, slots=True)
class CellProgress:
    """How far the cells of an item are."""

    num_done: int  # cells that have ended, reused ones included
    num_cells: int  # cells in all
    remaining_s: float | None  # estimate of the seconds to go; None while nothing has been timed


def needs_file(project: Project, item: Reproduction, profile: str) -> Path:
    """Return where it is noted which cells an item needs."""
    return project.cells_folder(item.technique, profile) / f"{item.item}.{item.evidence.value}.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """What one study notes.

    Attributes:
        needs: file of the item's needs.
        run_folder: folder of the run, None outside one.
    """

    needs: Path
    run_folder: Path | None

    def begin(self, cells: Sequence[Cell]) -> None:
        """Note which cells the item needs: these, and those of the run's earlier studies (outside a run, of any)."""
        needed = _read(self.needs) if self.run_folder is None else self._needed_so_far()
        mine = needed.setdefault(cells[0].name, [])
        mine += [cell.digest for cell in cells if cell.digest not in mine]
        self.needs.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.needs, needed)

    def _needed_so_far(self) -> dict[str, list[str]]:
        needed: dict[str, list[str]] = {}
        for key in _read(self.run_folder / CELLS_FILE):
            name, _, digest = key.partition("/")
            needed.setdefault(name, []).append(digest)
        return needed

    def progress(self, progress: CellProgress) -> None:
        """Note how far the study is; on a full disk the last note stays."""
        if self.run_folder is not None:
            with contextlib.suppress(OSError):
                write_json(self.run_folder / PROGRESS_FILE, progress)

    def end(self, cells: Sequence[Cell], held: Mapping[str, Mapping[str, Any]]) -> None:
        """Note where each cell came from, for the record of the run."""
        if self.run_folder is None:
            return
        facts = {f"{cell.name}/{cell.digest}": _facts(held[cell.digest]) for cell in cells}
        write_json(self.run_folder / CELLS_FILE, _read(self.run_folder / CELLS_FILE) | facts)


def _facts(held: Mapping[str, Any]) -> dict[str, Any]:
    return {name: held[name] for name in ("commit", "machine", "seconds")}


def _read(path: Path) -> dict[str, Any]:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # not there, or not ours: then nothing is known
        return {}
    return held if isinstance(held, dict) else {}


def read_progress(run_folder: Path) -> CellProgress | None:
    """Return how far the cells of a run are; None where it has none, or none yet."""
    try:
        return CellProgress(**_read(run_folder / PROGRESS_FILE))
    except TypeError:
        return None


def origins(run_folder: Path) -> list[dict[str, Any]]:
    """Return where the cells of a run came from, for its record.

    Returns:
        For each commit and machine: commit, machine, num_cells, and the seconds that the cells took together.
    """
    found: dict[str, dict[str, Any]] = {}
    for facts in _read(run_folder / CELLS_FILE).values():
        key = canonical_json([facts["commit"], facts["machine"]])
        none_yet = {"commit": facts["commit"], "machine": facts["machine"], "num_cells": 0, "seconds": 0.0}
        origin = found.setdefault(key, none_yet)
        origin["num_cells"] += 1
        origin["seconds"] = round(origin["seconds"] + facts["seconds"], 3)
    return sorted(found.values(), key=lambda origin: -origin["num_cells"])


def needs_of(project: Project, item: Reproduction, profile: str) -> dict[str, list[str]]:
    """Return which cells an item needs, as far as a study has noted it: function's name to digests."""
    return _read(needs_file(project, item, profile))
