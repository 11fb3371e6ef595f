"""Keeping records with the project: reproductions/<technique>/recorded/<profile>/<item>/<evidence>.json, and .png.

Source: the workbench's own convention; promoted records are committed, results/ is not.
Simplified: the record, its figure and its cells are promoted, not its notebook, log and trace.
Left out: deleting promoted records; git does that.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.artifacts import misfits
from workbench.reproduction.catalogue import load_catalogue, select
from workbench.reproduction.cells.recorded import promote_cells
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.project import Project
from workbench.reproduction.records import read_record, write_json, write_whole
from workbench.study.rows import Row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["diff", "promote", "promote_cells", "promoted_figure", "promoted_path"]

COLUMNS = ["id", "quantity", "of", "promoted", "now", "unit", "difference", "what"]


def promoted_path(project: Project, item: Reproduction, profile: str) -> Path:
    """Return where the promoted record of an item lies."""
    return project.recorded_folder(item.technique, profile) / item.item / f"{item.evidence.value}.json"


def promoted_figure(project: Project, item: Reproduction, profile: str) -> Path:
    """Return where the figure of an item's promoted record lies; records promoted before figures were have none."""
    return promoted_path(project, item, profile).with_suffix(".png")


def promote(project: Project, profile: str, patterns: Iterable[str] = ()) -> tuple[Path, ...]:
    """Copy the selected records of results/<profile>, with their figures and cells, to where they are committed.

    All records and figures are read and checked before the first is written.

    Returns:
        The records and the files of cells written; the figure of a record lies beside it.

    Raises:
        UsageError: where none of the selected items has a record.
        RecordError: naming a record that cannot be trusted, or a figure that is not the one it was sealed with.
    """
    items = select(load_catalogue(project), patterns)
    found = {item.id: _read(project.folder(item, profile) / "record.json", item, profile) for item in items}
    if not any(found.values()):
        raise UsageError(f"none of the selected items has a record in {project.results_of(profile)}")
    finished = [item for item in items if found[item.id]]
    figures = {item.id: _figure(project.folder(item, profile), found[item.id]) for item in finished}
    written = []
    for item in finished:
        path = promoted_path(project, item, profile)
        path.parent.mkdir(parents=True, exist_ok=True)
        _place_figure(promoted_figure(project, item, profile), figures[item.id])
        write_json(path, found[item.id])
        written.append(path)
    return (*written, *promote_cells(project, finished, profile))


def diff(project: Project, profile: str, patterns: Iterable[str] = ()) -> "DataFrame":
    """Compare the values of results/<profile> with the promoted ones.

    Returns:
        One row for each value that differs or stands on one side alone: id, quantity, of, promoted, now, unit,
        difference (now minus promoted), what ("differs", "only promoted", "only now"). Empty if all are equal.

    Raises:
        RecordError: naming a record that cannot be trusted.
    """
    import pandas

    rows: list[list[Any]] = []
    for item in select(load_catalogue(project), patterns):
        promoted = _rows(_read(promoted_path(project, item, profile), item, profile))
        now = _rows(_read(project.folder(item, profile) / "record.json", item, profile))
        for key in {**promoted, **now}:
            rows += _differing(item.id, promoted.get(key), now.get(key))
    return pandas.DataFrame(rows, columns=COLUMNS)


def _read(path: Path, item: Reproduction, profile: str) -> dict[str, Any] | None:
    try:
        return read_record(path, id=item.id, profile=profile)
    except FileNotFoundError:
        return None


def _figure(folder: Path, record: Mapping[str, Any]) -> bytes | None:
    """Return the figure that a record was sealed with, or None where its run left none."""
    name = (record.get("artifacts") or {}).get("figure")
    if not name:
        return None
    if wrong := misfits(folder, dict(record) | {"artifacts": {"figure": name}}):
        raise RecordError(f"{folder / name}: refused, {wrong['figure']}")
    return (folder / name).read_bytes()


def _place_figure(path: Path, figure: bytes | None) -> None:
    """Write a figure; where the record has none, that of an older record goes."""
    if figure is None:
        path.unlink(missing_ok=True)
    else:
        write_whole(path, figure)


def _rows(record: Mapping[str, Any] | None) -> dict[tuple, Row]:
    rows = read_rows(record["values"], "values") if record else ()
    return {(row.quantity, row.unit, row.seed, str(sorted(row.keys.items()))): row for row in rows}


def _differing(id: str, promoted: Row | None, now: Row | None) -> list[list[Any]]:
    one = promoted or now
    told = ", ".join(f"{name}={key}" for name, key in one.keys.items()) + (
        "" if one.seed is None else f", seed={one.seed}"
    )
    if promoted is None or now is None:
        what = "only now" if promoted is None else "only promoted"
        values = [None if row is None else row.value for row in (promoted, now)]
        return [[id, one.quantity, told, *values, one.unit, None, what]]
    if promoted.value == now.value or (math.isnan(promoted.value) and math.isnan(now.value)):
        return []
    return [[id, one.quantity, told, promoted.value, now.value, one.unit, now.value - promoted.value, "differs"]]
