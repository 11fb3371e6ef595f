"""Finished cells on disk: sealed JSON, one file a cell, or one line of recorded/<profile>/cells/*.jsonl once committed.

A study notes beside them which cells its item needs, and in the folder of the run each cell's origin.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workbench.reproduction.cells.cell import Cell, Finished
from workbench.reproduction.errors import RecordError
from workbench.reproduction.files import (
    canonical_json,
    checksum,
    claim,
    read_json,
    write_json,
    write_record,
    write_whole,
)
from workbench.reproduction.fingerprint import Fingerprinter, changes
from workbench.reproduction.machine import commit_of, num_cores
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.schema import CELL, NEEDS, inside, parse, read_text, trouble

__all__ = ["CELLS_FILE", "CellClaims", "CellStore", "CellsThere", "Notes"]
__all__ += ["cells_there", "num_cells", "origins", "promote_cells", "read_lines"]

SCHEMA = 1  # of a cell
CELLS_FILE = "cells.json"  # in the folder of the run
StoredCell = Mapping[str, Any]


def _trusted(stored: Any, cell: Cell | None, place: str) -> dict[str, Any]:
    """Return what was read, where it is a sealed cell: this one, or any where none is given."""
    if not isinstance(stored, dict) or stored.get("schema") != SCHEMA:
        raise RecordError(f"{place}: refused, it is no cell of schema {SCHEMA}; move it away and run again")
    if stored.get("checksum") != checksum(stored):
        raise RecordError(f"{place}: refused, its checksum does not fit its content; move it away and run again")
    if wrong := trouble(stored, CELL):
        raise RecordError(f"{place}: refused, {wrong}; move it away and run again")
    if cell is not None and (stored.get("function"), stored["arguments"]) != (cell.function, cell.arguments):
        raise RecordError(f"{place}: refused, it is the cell of other arguments or another function; move it away")
    return stored


def _digest(stored: StoredCell) -> str:
    return Cell(function=stored["function"], arguments=stored["arguments"]).digest


def _read_cell(path: Path, cell: Cell | None = None) -> dict[str, Any]:
    try:
        stored = read_json(path)
    except RecordError as error:
        raise RecordError(f"{error}; move it away and run again") from None
    return _trusted(stored, cell, str(path))


def read_lines(path: Path) -> dict[str, dict[str, Any]]:
    """Read the committed cells of one function, by digest; none where there is no file."""
    try:
        lines = read_text(path).splitlines()
    except FileNotFoundError:
        return {}
    places = [(f"{path}:{number}", line) for number, line in enumerate(lines, start=1) if line]
    cells = [_trusted(parse(line, place), None, place) for place, line in places]
    return {_digest(cell): cell for cell in cells}


@dataclass(frozen=True, kw_only=True, slots=True)
class CellStore:
    """The cells of one function in one profile."""

    folder: Path  # where they are written
    basis: Mapping[str, Mapping[str, str]]  # what they depend on now, see `Fingerprinter.basis`
    commit: str  # of the checkout
    keep: bool = False  # whether cells that are out of date are accepted, the committed ones included
    committed: Mapping[str, StoredCell] = field(default_factory=dict)  # digest to accepted committed cell

    @classmethod
    def of(cls, project: Project, technique: str, profile: str, cell: Cell, file: Path, *, keep: bool) -> "CellStore":
        """Open the store of a cell's function, whose source is `file`."""
        recorded = project.recorded_cells_folder(technique, profile) / f"{cell.name}.jsonl"
        above = file.parents[cell.module.count(".") + (file.name == "__init__.py")]  # the folder of its package
        return cls(
            folder=project.cells_folder(technique, profile) / cell.name,
            basis=Fingerprinter(project).basis(above, cell.module),
            commit=commit_of(project.root),
            keep=keep,
            committed=read_lines(recorded) if keep else {},
        )

    def path(self, cell: Cell) -> Path:
        """Return the path of a cell, whether it exists or not."""
        return self.folder / f"{cell.digest}.json"

    def find(self, cell: Cell) -> tuple[StoredCell | None, str]:
        """Return a current cell, or the newest where old ones are accepted, and the reason why it is out of date."""
        stored = [self.committed[cell.digest]] if cell.digest in self.committed else []
        with contextlib.suppress(FileNotFoundError):
            stored.append(_read_cell(self.path(cell), cell))
        stored.sort(key=lambda stored_cell: stored_cell["started"], reverse=True)
        reasons = [changes(stored_cell, self.basis) for stored_cell in stored]
        if "" in reasons:
            return stored[reasons.index("")], ""
        return (stored[0] if stored and self.keep else None), reasons[0] if reasons else ""

    def write(self, cell: Cell, finished: Finished) -> dict[str, Any]:
        """Seal a finished cell and write it; return it as written."""
        self.folder.mkdir(parents=True, exist_ok=True)
        about = {"schema": SCHEMA, "function": cell.function, "module": cell.module, "arguments": cell.arguments}
        run = {name: getattr(finished, name) for name in ("values", "started", "seconds", "machine")}
        return write_record(self.path(cell), about | {"commit": self.commit} | run | dict(self.basis))

    def durations(self) -> Iterator[tuple[Mapping[str, Any], float]]:
        """Return arguments and seconds of every cell of the folder that can be read, to estimate others by."""
        for path in sorted(self.folder.glob("*.json")):
            if stored := _timed(path):
                yield dict(stored["arguments"]), float(stored["seconds"])


@dataclass(frozen=True, slots=True)
class CellClaims:
    """The cells that this process has claimed, so that no other study runs them; leaving the block frees them."""

    folder: Path  # of the cells
    _frees: dict[str, Callable[[], None]] = field(default_factory=dict)  # digest to the call that gives it back

    def __enter__(self) -> "CellClaims":
        return self

    def __exit__(self, *error: object) -> None:
        for digest in list(self._frees):
            self.free(digest)

    def take(self, cell: Cell) -> bool:
        """Claim a cell; return False where another process has it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        free = claim(self.folder / f".{cell.digest}.claim")
        if free is not None:
            self._frees[cell.digest] = free
        return free is not None

    def free(self, digest: str) -> None:
        """Give the cell of this digest back."""
        if free := self._frees.pop(digest, None):
            free()


@dataclass(frozen=True, kw_only=True, slots=True)
class Notes:
    """Notes of one study: the cells its item needs, and inside a run the origin of each cell."""

    needs: Path  # file of the item's needs
    run_folder: Path | None  # folder of the run, None outside one

    def begin(self, cells: Sequence[Cell]) -> None:
        """Note these cells beside those of the run's earlier studies (outside a run, of any)."""
        if self.run_folder is None:
            needed = _needs(self.needs)
        else:
            needed = {}
            for key in _read(self.run_folder / CELLS_FILE):
                name, _, digest = key.partition("/")
                needed.setdefault(name, []).append(digest)
        digests = needed.setdefault(cells[0].name, [])
        digests += [cell.digest for cell in cells if cell.digest not in digests]
        self.needs.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.needs, needed)

    def end(self, cells: Sequence[Cell], stored: Mapping[str, StoredCell]) -> None:
        """Note the origin of each cell, for the record of the run."""
        if self.run_folder is None:
            return
        facts = {
            f"{cell.name}/{cell.digest}": {name: stored[cell.digest][name] for name in ("commit", "machine", "seconds")}
            for cell in cells
        }
        write_json(self.run_folder / CELLS_FILE, _read(self.run_folder / CELLS_FILE) | facts)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except (FileNotFoundError, RecordError):  # not there, or not ours: then nothing is known
        return {}
    return content if isinstance(content, dict) else {}


def origins(run_folder: Path) -> list[dict[str, Any]]:
    """Return the origin of a run's cells: for each commit and machine their number and their seconds together."""
    by_place: dict[str, dict[str, Any]] = {}
    for facts in _read(run_folder / CELLS_FILE).values():
        machine = dict(facts["machine"])
        if job := machine.pop("slurm", None):  # the cell's own file has its number
            machine["slurm"] = {name: word for name, word in job.items() if name != "job"}
        place = {"commit": facts["commit"], "machine": machine}
        key = canonical_json(place)
        origin = by_place.setdefault(key, place | {"num_cells": 0, "seconds": 0.0})
        origin["num_cells"] += 1
        origin["seconds"] = round(origin["seconds"] + facts["seconds"], 3)
    return sorted(by_place.values(), key=lambda origin: -origin["num_cells"])


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


def _needs(path: Path) -> dict[str, list[str]]:
    """Read which cells an item needs; none before its first study, and a RecordError for what is no list of cells."""
    try:
        needs = read_json(path)
    except FileNotFoundError:
        return {}
    if wrong := trouble(needs, NEEDS):
        raise RecordError(f"{path}: refused, {wrong}")
    return needs


def num_cells(run: ItemRun) -> tuple[int, int]:
    """Count an item's cells without reading them: those that are there, and those it needs; 0, 0 if none are known."""
    needs = {}
    with contextlib.suppress(RecordError):  # a study and a promotion say so
        needs = _needs(run.needed_cells)
    paths = [run.cells / name / f"{digest}.json" for name, digests in needs.items() for digest in digests]
    return sum(path.is_file() for path in paths), len(paths)


def cells_there(run: ItemRun, fingerprinter: Fingerprinter, *, keep: bool = False) -> CellsThere | None:
    """Count an item's cells without a run, None before its first study; `keep` accepts cells that are out of date."""
    needs = {}
    with contextlib.suppress(RecordError):  # a study says so
        needs = _needs(run.needed_cells)
    num_cells = sum(map(len, needs.values()))
    if not num_cells:
        return None
    stored = [cell for name, digests in needs.items() for cell in _stored(run, name, digests, keep)]
    modules = [str(cell["module"]) for cell in stored]
    basis = {module: fingerprinter.basis(run.project.notebook(run.item).parent, module) for module in set(modules)}
    is_stale = [bool(changes(cell, basis[module])) for cell, module in zip(stored, modules, strict=True)]
    num_stale = 0 if keep else sum(is_stale)
    to_run = num_cells - len(stored) + num_stale
    mean_s = sum(cell["seconds"] for cell in stored) / len(stored) if stored else None
    remaining_s = 0.0 if not to_run else None if mean_s is None else mean_s * to_run / min(num_cores(), to_run)
    return CellsThere(num_cells=num_cells, num_there=len(stored), num_stale=num_stale, remaining_s=remaining_s)


def _stored(run: ItemRun, name: str, digests: list[str], keep: bool) -> Iterator[StoredCell]:
    committed = {}
    if keep:
        with contextlib.suppress(RecordError):  # a study says so
            recorded = run.project.recorded_cells_folder(run.item.technique, run.profile)
            committed = read_lines(recorded / f"{name}.jsonl")
    for digest in digests:
        if stored := _timed(run.cells / name / f"{digest}.json") or committed.get(digest):
            yield stored


def _timed(path: Path) -> StoredCell | None:
    """Read a cell without checking it; None where its function, arguments or seconds are missing."""
    stored = _read(path)
    try:
        is_timed = stored["function"] and stored["seconds"] >= 0 and isinstance(stored["arguments"], dict)
    except (KeyError, TypeError):
        return None
    return stored if is_timed else None


def promote_cells(runs: Iterable[ItemRun]) -> dict[Path, int]:
    """Copy the finished cells that items need to the committed ones; return each file with its number of cells."""
    files: dict[Path, dict[str, Any]] = {}
    for run in runs:
        reproductions = run.project.reproductions
        recorded = run.project.recorded_cells_folder(run.item.technique, run.profile).relative_to(reproductions)
        for name, digests in _needs(run.needed_cells).items():
            path = inside(reproductions, *recorded.parts, f"{name}.jsonl")
            folder = run.cells / name
            for digest in (digest for digest in digests if (folder / f"{digest}.json").exists()):
                stored = _read_cell(folder / f"{digest}.json")
                if _digest(stored) != digest:
                    where = folder / f"{digest}.json"
                    raise RecordError(f"{where}: refused, it is the cell of other arguments or another function")
                committed = files.setdefault(path, read_lines(path))
                if digest not in committed or committed[digest]["started"] <= stored["started"]:
                    committed[digest] = stored
    for path, cells in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, "".join(f"{canonical_json(cells[digest])}\n" for digest in sorted(cells)))
    return {path: len(cells) for path, cells in files.items()}
