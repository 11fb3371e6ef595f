"""Records of items: checked as they are read, shown as tables, and promoted to reproductions/*/recorded."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.catalogue import load_catalogue, select
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.files import checksum, misfits, read_json, stamp, write_json, write_whole
from workbench.reproduction.project import Project
from workbench.reproduction.schema import FAILURE, RECORD, inside, read_bytes, trouble
from workbench.study.rows import Row, merge_seeds, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FAILURE_FILE", "RECORD_FILE", "SCHEMA", "FoundRecords", "SealedRecord", "diff", "find_records"]
__all__ += ["load_records", "load_verdicts", "merged_rows", "promote", "promoted_figure", "promoted_path"]
__all__ += ["read_failure", "read_record", "record_of"]

MOST_KEPT = 1000  # records kept in memory while their files do not change
SCHEMA = 1  # version of record.json and failure.json
RECORD_FILE, FAILURE_FILE = "record.json", "failure.json"
ABOUT = ("id", "technique", "item", "evidence", "profile")  # columns of every table of records
DIFF_COLUMNS = ("id", "quantity", "of", "promoted", "now", "unit", "difference", "what")


class SealedRecord(dict):
    """A record as read, never changed, so that results computed from it can be cached."""

    def __hash__(self) -> int:
        return hash(self["checksum"])


def read_record(path: Path, *, id: str, profile: str) -> dict[str, Any]:
    """Read the record of one item in one profile; a RecordError names a file that cannot be trusted."""
    return _read_record(path, stamp(path), id, profile)


@lru_cache(maxsize=MOST_KEPT)
def _read_record(path: Path, _: tuple[int, int, int], id: str, profile: str) -> dict[str, Any]:
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise RecordError(f"{path}: refused, it is no record of schema {SCHEMA}")
    if record.get("checksum") != checksum(record):
        raise RecordError(f"{path}: refused, its checksum does not fit its content")
    if record.get("id") != id:
        raise RecordError(f"{path}: refused, it is the record of {record.get('id')} in the place of {id}")
    if record.get("profile") != profile:
        raise RecordError(f"{path}: refused, it is of the profile {record.get('profile')} in the place of {profile}")
    if wrong := trouble(record, RECORD):
        raise RecordError(f"{path}: refused, {wrong}")
    return SealedRecord(record)


@lru_cache(maxsize=MOST_KEPT)
def merged_rows(record: SealedRecord) -> tuple[Row, ...]:
    """Return a record's values; values of several seeds are merged into their mean."""
    return merge_seeds(read_rows(record["values"], record["id"]))


def read_failure(path: Path) -> dict[str, Any] | None:
    """Read why the last run of an item failed; None where there is no failure."""
    try:
        failure = read_json(path)
    except FileNotFoundError:
        return None
    if wrong := trouble(failure, FAILURE):
        raise RecordError(f"{path}: refused, {wrong}")
    return failure


def record_of(path: Path, item: Reproduction, profile: str) -> dict[str, Any] | None:
    """Read the record of an item; None where there is none."""
    try:
        return read_record(path, id=item.id, profile=profile)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRecords:
    """The records of one profile."""

    records: tuple[dict[str, Any], ...]  # in the order of their ids
    refused: tuple[str, ...]  # one line for each file that cannot be trusted, naming it


def find_records(project: Project, profile: str = "laptop") -> FoundRecords:
    """Read every record of one profile; list records that cannot be trusted apart."""
    records, refused = [], []
    folder = project.results_of(profile)
    for path in sorted(folder.glob(f"*/*/*/{RECORD_FILE}")):
        id = path.parent.relative_to(folder).as_posix()
        if id.startswith("."):
            continue
        try:
            records.append(read_record(path, id=id, profile=profile))
        except RecordError as error:
            refused.append(str(error))
    return FoundRecords(records=tuple(records), refused=tuple(refused))


def _trusted(project: Project | None, profile: str) -> tuple[dict[str, Any], ...]:
    search = find_records(project or Project(), profile)
    if search.refused:
        raise RecordError("; ".join(search.refused))
    return search.records


def load_records(profile: str = "laptop", project: Project | None = None) -> "DataFrame":
    """Return every recorded value as a table: id, quantity, key columns, value, unit, commit and more."""
    import pandas

    rows = []
    for record in _trusted(project, profile):
        about = {name: record[name] for name in ABOUT}
        run = {name: record[name] for name in ("started", "seconds", "commit")}
        rows += [about | value | {"value": float(value["value"])} | run for value in record["values"]]
    return pandas.DataFrame(rows, columns=None if rows else [*ABOUT, "quantity", "value", "unit"])


def load_verdicts(profile: str = "laptop", project: Project | None = None) -> "DataFrame":
    """Return every recorded verdict as a table: id, claim, kind, verdict, reason and number of rows."""
    import pandas

    rows = [
        {name: record[name] for name in ABOUT} | verdict | {"rows": len(verdict["rows"])}
        for record in _trusted(project, profile)
        for verdict in record["verdicts"]
    ]
    return pandas.DataFrame(rows, columns=None if rows else [*ABOUT, "claim", "kind", "verdict", "reason", "rows"])


def promoted_path(project: Project, item: Reproduction, profile: str) -> Path:
    """Return the path of an item's promoted record."""
    return project.recorded_folder(item.technique, profile) / item.item / f"{item.evidence.value}.json"


def promoted_figure(project: Project, item: Reproduction, profile: str) -> Path:
    """Return the path of the figure beside an item's promoted record; a record may have none."""
    return promoted_path(project, item, profile).with_suffix(".png")


def promote(project: Project, profile: str, patterns: Iterable[str] = ()) -> tuple[Path, ...]:
    """Copy selected records, figures and cells into the repository after all are checked; return the files."""
    from workbench.reproduction.cells.store import promote_cells

    items = select(load_catalogue(project), patterns)
    records = {item.id: record_of(project.folder(item, profile) / RECORD_FILE, item, profile) for item in items}
    finished = [item for item in items if records[item.id]]
    if not finished:
        raise UsageError(f"none of the selected items has a record in {project.results_of(profile)}")
    figures = {item.id: _figure(project.folder(item, profile), records[item.id]) for item in finished}
    paths = {item.id: _inside(project, promoted_path(project, item, profile)) for item in finished}
    pictures = {item.id: _inside(project, promoted_figure(project, item, profile)) for item in finished}
    cells = promote_cells(project, finished, profile)
    for id, path in paths.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if figures[id] is None:  # remove the figure of an older record
            pictures[id].unlink(missing_ok=True)
        else:
            write_whole(pictures[id], figures[id])
        write_json(path, records[id])
    return (*paths.values(), *cells)


def _inside(project: Project, path: Path) -> Path:
    return inside(project.reproductions, *path.relative_to(project.reproductions).parts)


def _figure(folder: Path, record: Mapping[str, Any]) -> bytes | None:
    name = (record.get("artifacts") or {}).get("figure")
    if not name:
        return None
    if wrong := misfits(folder, dict(record) | {"artifacts": {"figure": name}}):
        raise RecordError(f"{folder / name}: refused, {wrong['figure']}")
    return read_bytes(folder / name)


def diff(project: Project, profile: str, patterns: Iterable[str] = ()) -> "DataFrame":
    """Compare the values of results/<profile> with the promoted ones, one row for each that differs."""
    import pandas

    rows: list[list[Any]] = []
    for item in select(load_catalogue(project), patterns):
        promoted = _rows(record_of(promoted_path(project, item, profile), item, profile))
        now = _rows(record_of(project.folder(item, profile) / RECORD_FILE, item, profile))
        for key in {**promoted, **now}:
            rows += _difference(item.id, promoted.get(key), now.get(key))
    return pandas.DataFrame(rows, columns=list(DIFF_COLUMNS))


def _rows(record: Mapping[str, Any] | None) -> dict[tuple, Row]:
    rows = read_rows(record["values"], "values") if record else ()
    return {(row.quantity, row.unit, row.seed, str(sorted(row.keys.items()))): row for row in rows}


def _difference(id: str, promoted: Row | None, now: Row | None) -> list[list[Any]]:
    row = promoted or now
    seed = {} if row.seed is None else {"seed": row.seed}
    keys = ", ".join(f"{name}={key}" for name, key in (row.keys | seed).items())
    if promoted is None or now is None:
        values = [None if side is None else side.value for side in (promoted, now)]
        return [[id, row.quantity, keys, *values, row.unit, None, "only now" if promoted is None else "only promoted"]]
    if promoted.value == now.value or (math.isnan(promoted.value) and math.isnan(now.value)):
        return []
    change = now.value - promoted.value
    return [[id, row.quantity, keys, promoted.value, now.value, row.unit, change, "differs"]]
