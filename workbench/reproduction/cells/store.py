"""Finished cells on disk: one sealed JSON file a cell, written whole or not at all, named by what it is.

Source: the workbench's own rule: a cell is up to date while the library modules that its function's module needs, the
data and the versions are unchanged; its arguments are in its name.
Simplified: no lock; two runs that finish the same cell write the same file, and the last one stays.
Left out: which cells an item needs (`workbench.reproduction.cells`).
"""

import contextlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.cells.work import Finished
from workbench.reproduction.errors import RecordError
from workbench.reproduction.fingerprint import Fingerprinter, changes
from workbench.reproduction.machine import commit_of
from workbench.reproduction.project import Project
from workbench.reproduction.records import checksum, read_json, write_record

__all__ = ["CellStore", "check_cell", "read_cell", "read_lines"]

SCHEMA = 1  # of a cell
FIELDS = frozenset({"arguments", "commit", "data", "library", "machine", "seconds", "started", "values", "versions"})


def check_cell(held: Any, cell: Cell | None, place: str) -> dict[str, Any]:
    """Return a cell as it was read, where it can be trusted.

    Args:
        held: what was read.
        cell: the cell that belongs there; None for any.
        place: the file, and the line where it has several.

    Raises:
        RecordError: naming the place.
    """
    if not isinstance(held, dict) or held.get("schema") != SCHEMA or not held.keys() >= FIELDS:
        raise RecordError(f"{place}: refused, it is no cell of schema {SCHEMA}; move it away and run again")
    if held.get("checksum") != checksum(held):
        raise RecordError(f"{place}: refused, its checksum does not fit its content; move it away and run again")
    if cell is not None and (held.get("function"), held["arguments"]) != (cell.function, cell.arguments):
        raise RecordError(f"{place}: refused, it is the cell of other arguments or another function; move it away")
    return held


def read_cell(path: Path, cell: Cell | None = None) -> dict[str, Any]:
    """Read the file of one cell and check it; see `check_cell`.

    Raises:
        FileNotFoundError: where there is none.
    """
    try:
        held = read_json(path)
    except RecordError as error:
        raise RecordError(f"{error}; move it away and run again") from None
    return check_cell(held, cell, str(path))


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Read the committed cells of one function.

    Returns:
        Digest to cell; empty where there is no file.

    Raises:
        RecordError: naming the file and the line that cannot be trusted.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: refused, it cannot be read: {error}") from None
    found = [check_cell(_parsed(line), None, f"{path}:{number}") for number, line in enumerate(lines, start=1) if line]
    return {Cell(function=held["function"], arguments=held["arguments"]).digest: held for held in found}


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None  # which is no cell


@dataclass(frozen=True, kw_only=True, slots=True)
class CellStore:
    """The cells of one function in one profile.

    Attributes:
        folder: where they are written.
        basis: what they depend on now, see `Fingerprinter.basis`.
        commit: of the checkout.
        keep: whether cells that are not up to date are accepted.
        committed: digest to committed cell, of those that are accepted.
    """

    folder: Path
    basis: Mapping[str, Mapping[str, str]]
    commit: str
    keep: bool = False
    committed: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, project: Project, technique: str, profile: str, cell: Cell, file: Path, *, keep: bool) -> "CellStore":
        """Open the store that a cell belongs to.

        Args:
            project, technique, profile: whose cells.
            cell: any one of the function.
            file: source of the function.
            keep: accept cells that are not up to date, the committed ones included.

        Raises:
            RecordError: naming a committed cell that cannot be trusted.
        """
        recorded = project.recorded_cells_folder(technique, profile) / f"{cell.name}.jsonl"
        above = file.parents[cell.module.count(".") + (file.name == "__init__.py")]  # what its package lies in
        return cls(
            folder=project.cells_folder(technique, profile) / cell.name,
            basis=Fingerprinter(project).basis(above, cell.module),
            commit=commit_of(project.root),
            keep=keep,
            committed=read_lines(recorded) if keep else {},
        )

    def path(self, cell: Cell) -> Path:
        """Return where a cell lies, whether it is there or not."""
        return self.folder / f"{cell.digest}.json"

    def find(self, cell: Cell) -> tuple[Mapping[str, Any] | None, str]:
        """Look for a cell that can be used: one that is up to date, else the newest where such are accepted.

        Returns:
            The cell or None, and what has changed since the one that was found ran; empty where it is up to date.

        Raises:
            RecordError: where it cannot be trusted.
        """
        found = [self.committed[cell.digest]] if cell.digest in self.committed else []
        with contextlib.suppress(FileNotFoundError):
            found.append(read_cell(self.path(cell), cell))
        found.sort(key=lambda held: held["started"], reverse=True)
        told = [changes(held, self.basis) for held in found]
        if "" in told:
            return found[told.index("")], ""
        return (found[0] if found and self.keep else None), told[0] if told else ""

    def write(self, cell: Cell, finished: Finished) -> dict[str, Any]:
        """Seal a finished cell and write it; return it as written.

        Raises:
            OSError: where the disk is full or cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"schema": SCHEMA, "function": cell.function, "module": cell.module, "arguments": cell.arguments}
        run = {name: getattr(finished, name) for name in ("values", "started", "seconds", "machine")}
        return write_record(self.path(cell), about | {"commit": self.commit} | run | dict(self.basis))

    def durations(self) -> Iterator[tuple[Mapping[str, Any], float]]:
        """Return arguments and seconds of every cell of the folder that can be read, to estimate others by."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                held = json.loads(path.read_text(encoding="utf-8"))
                yield dict(held["arguments"]), float(held["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it helps no estimate; whether it is refused is decided where it is asked for
