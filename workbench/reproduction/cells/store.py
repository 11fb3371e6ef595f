"""Finished cells on disk: one sealed JSON file a cell, written whole or not at all, named by what it is.

Source: the workbench's own rule: a cell is up to date while the library modules that its function's module needs, the
data and the versions are unchanged; its arguments are in its name.
Simplified: no lock; two runs that finish the same cell write the same file, and the last one stays.
Left out: which cells an item needs (`workbench.reproduction.cells`).
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workbench
from workbench.reproduction.cells.cell import Cell
from workbench.reproduction.cells.work import Finished
from workbench.reproduction.errors import RecordError
from workbench.reproduction.fingerprint import changes, data_identity, need_data
from workbench.reproduction.library import Library
from workbench.reproduction.machine import commit_of, versions
from workbench.reproduction.project import Project
from workbench.reproduction.records import checksum, write_record

__all__ = ["CellStore", "basis_of", "check_cell"]

SCHEMA = 1  # of a cell
FIELDS = frozenset({"arguments", "commit", "data", "library", "machine", "seconds", "started", "values", "versions"})


def basis_of(project: Project, module: str, file: Path) -> dict[str, dict[str, str]]:
    """Return what the values of a function depend on besides its arguments.

    Args:
        project: where data is looked for.
        module: name of the function's module.
        file: its source.

    Returns:
        library (module to digest), data and versions.
    """
    above = file.parents[module.count(".") + (file.name == "__init__.py")]
    modules = Library([above, Path(workbench.__file__).parents[1]]).needed_by([f"import {module}"])
    return {
        "library": {name: digest[:16] for name, digest in modules.items()},
        "data": data_identity(project) if need_data(modules) else {},
        "versions": versions(),
    }


def check_cell(held: Any, cell: Cell | None, place: str) -> dict[str, Any]:
    """Return a cell as it was read, where it can be trusted.

    Args:
        held: what was read.
        cell: the cell that belongs there; None for any.
        place: the file, and the line where it has several.

    Raises:
        RecordError: naming the place.
    """
    if not isinstance(held, dict) or held.get("schema") != SCHEMA or not FIELDS <= held.keys():
        raise RecordError(f"{place}: refused, it is no cell of schema {SCHEMA}; move it away and run again")
    if held.get("checksum") != checksum(held):
        raise RecordError(f"{place}: refused, its checksum does not fit its content; move it away and run again")
    if cell is not None and (held.get("function"), held["arguments"]) != (cell.function, cell.arguments):
        raise RecordError(f"{place}: refused, it is the cell of other arguments or another function; move it away")
    return held


@dataclass(frozen=True, kw_only=True, slots=True)
class CellStore:
    """The cells of one function in one profile.

    Attributes:
        folder: where they are written.
        recorded: file of those that are committed.
        basis: what they depend on now, see `basis_of`.
        commit: of the checkout.
    """

    folder: Path
    recorded: Path
    basis: Mapping[str, Mapping[str, str]]
    commit: str
    _recorded: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, project: Project, technique: str, profile: str, cell: Cell, file: Path) -> "CellStore":
        """Open the store that a cell belongs to; `file` is the source of its function."""
        return cls(
            folder=project.cells_folder(technique, profile) / cell.name,
            recorded=project.recorded_cells_folder(technique, profile) / f"{cell.name}.jsonl",
            basis=basis_of(project, cell.module, file), commit=commit_of(project.root),
        )  # fmt: skip

    def path(self, cell: Cell) -> Path:
        """Return where a cell lies, whether it is there or not."""
        return self.folder / f"{cell.digest}.json"

    def read(self, cell: Cell) -> dict[str, Any] | None:
        """Return a cell that this checkout has run, up to date or not; None where there is none.

        Raises:
            RecordError: where it cannot be trusted.
        """
        path = self.path(cell)
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise RecordError(f"{path}: refused, it cannot be read: {error}") from None
        return check_cell(held, cell, str(path))

    def changed(self, held: Mapping[str, Any]) -> str:
        """Say what a cell depends on that has changed since it ran; empty where it is up to date."""
        return changes(held, self.basis)

    def write(self, cell: Cell, finished: Finished) -> dict[str, Any]:
        """Seal a finished cell and write it; return it as written.

        Raises:
            OSError: where the disk is full or cannot be written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"schema": SCHEMA, "function": cell.function, "arguments": cell.arguments, "commit": self.commit}
        run = {name: getattr(finished, name) for name in ("values", "started", "seconds", "machine")}
        return write_record(self.path(cell), about | run | dict(self.basis))

    def durations(self) -> Iterator[tuple[Mapping[str, Any], float]]:
        """Return arguments and seconds of every cell of the folder that can be read, to estimate others by."""
        for path in sorted(self.folder.glob("*.json")):
            try:
                held = json.loads(path.read_text(encoding="utf-8"))
                yield dict(held["arguments"]), float(held["seconds"])
            except (OSError, ValueError, KeyError, TypeError):
                continue  # it helps no estimate; whether it is refused is decided where it is asked for
