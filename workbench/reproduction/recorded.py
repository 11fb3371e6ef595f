"""Keeping records with the project: reproductions/<technique>/recorded/<profile>/<item>/<evidence>.json.

Source: the workbench's own convention; promoted records are committed, results/ is not.
Simplified: the record and its cells are promoted, not its notebook and figure.
Left out: deleting promoted records; git does that.
"""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.catalogue import load_catalogue, select
from workbench.reproduction.cells.recorded import promote_cells
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import UsageError
from workbench.reproduction.project import Project
from workbench.reproduction.records import read_record, write_json
from workbench.reproduction.rows import Row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["diff", "promote", "promote_cells", "promoted_path"]

COLUMNS = ["id", "quantity", "of", "promoted", "now", "unit", "difference", "what"]


def promoted_path(project: Project, item: Reproduction, profile: str) -> Path:
    """Return where the promoted record of an item lies."""
    return project.recorded_folder(item.technique, profile) / item.item / f"{item.evidence.value}.json"


def promote(project: Project, profile: str, patterns: Iterable[str] = ()) -> tuple[Path, ...]:
    """Copy the selected records of results/<profile>, with the cells they are made of, to where they are committed.

    All records are read and checked before the first is written.

    Returns:
        The files written.

    Raises:
        UsageError: where none of the selected items has a record.
        RecordError: naming a record that cannot be trusted.
    """
    items = select(load_catalogue(project), patterns)
    found = {item.id: _read(project.folder(item, profile) / "record.json", item, profile) for item in items}
    if not any(found.values()):
        raise UsageError(f"none of the selected items has a record in {project.results_of(profile)}")
    written = []
    for item in items:
        if record := found[item.id]:
            path = promoted_path(project, item, profile)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, record)
            written.append(path)
    finished = [item for item in items if found[item.id]]
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
