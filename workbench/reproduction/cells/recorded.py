"""Keeping cells with the project: reproductions/<technique>/recorded/<profile>/cells/<function>.jsonl.

Source: the workbench's own convention; each line is one sealed cell as it was written.
Simplified: lines are in the order of the cells' names, so that one new cell is one new line.
Left out: deleting them; git does that.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.cells.notes import needs_of
from workbench.reproduction.cells.store import read_cell, read_lines
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.project import Project
from workbench.reproduction.records import canonical_json, write_whole

__all__ = ["promote_cells"]


def promote_cells(project: Project, items: Iterable[Reproduction], profile: str) -> dict[Path, int]:
    """Copy the finished cells that items need to where they are committed; a newer one takes the place of an older.

    All of them are read and checked before the first is written. An item need not be finished.

    Args:
        project: where everything lies.
        items: whose cells.
        profile: in which profile.

    Returns:
        Each file written, with the number of cells it now holds; none where no study of the items has begun.

    Raises:
        RecordError: naming a cell that cannot be trusted.
    """
    files: dict[Path, dict[str, Any]] = {}
    for item in items:
        for name, digests in needs_of(project, item, profile).items():
            path = project.recorded_cells_folder(item.technique, profile) / f"{name}.jsonl"
            found = _finished(project.cells_folder(item.technique, profile) / name, digests)
            if found:
                files.setdefault(path, read_lines(path)).update(_newer(found, files[path]))
    for path, cells in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{canonical_json(cells[digest])}\n" for digest in sorted(cells)))
    return {path: len(cells) for path, cells in files.items()}


def _finished(folder: Path, digests: Iterable[str]) -> dict[str, Any]:
    found = {digest: read_cell(folder / f"{digest}.json") for digest in digests if (folder / f"{digest}.json").exists()}
    for digest, held in found.items():
        if Cell(function=held["function"], arguments=held["arguments"]).digest != digest:
            raise RecordError(f"{folder / digest}.json: refused, it is the cell of other arguments or another function")
    return found


def _newer(found: Mapping[str, Any], committed: Mapping[str, Any]) -> dict[str, Any]:
    return {
        digest: held
        for digest, held in found.items()
        if digest not in committed or committed[digest]["started"] <= held["started"]
    }
