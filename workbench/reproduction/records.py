"""Records of items: checked as they are read, shown as tables, and promoted to reproductions/*/recorded."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.catalogue import load_catalogue, select
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.files import checksum, figure_misfit, read_json, stamp, write_json, write_whole
from workbench.reproduction.project import FAILURE_FILE, RECORD_FILE, ItemRun, Project
from workbench.reproduction.schema import FAILURE, RECORD, inside, read_bytes, trouble
from workbench.rows import Row, merge_seeds, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["FAILURE_FILE", "RECORD_FILE", "SCHEMA", "FoundRecords", "SealedRecord", "find_records"]
__all__ += ["load_records", "load_verdicts", "merged_rows", "promote"]
__all__ += ["read_failure", "read_record", "record_of", "record_rows", "sealed_record"]

MOST_KEPT = 1000  # records kept in memory while their files do not change
SCHEMA = 1  # version of record.json and failure.json
ABOUT = ("id", "technique", "item", "evidence", "profile")  # columns of every table of records


class SealedRecord(dict):
    """A record as read, never changed, so that results computed from it can be cached."""

    def __hash__(self) -> int:  # type: ignore[override]  # a dict has none
        return hash(self["checksum"])


def read_record(path: Path, *, id: str, profile: str) -> SealedRecord:
    """Read the record of one item in one profile; a RecordError names a file that cannot be trusted."""
    return _read_record(path, stamp(path), id, profile)


@lru_cache(maxsize=MOST_KEPT)
def _read_record(path: Path, _: tuple[int, int, int], id: str, profile: str) -> SealedRecord:
    return sealed_record(read_json(path), path, id, profile)


def sealed_record(record: Any, place: object, id: str = "", profile: str = "") -> SealedRecord:
    """Check a record's schema and checksum, and its id and profile where given; a RecordError names its place."""
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise RecordError(f"{place}: refused, it is no record of schema {SCHEMA}")
    if record.get("checksum") != checksum(record):
        raise RecordError(f"{place}: refused, its checksum does not fit its content")
    if id and record.get("id") != id:
        raise RecordError(f"{place}: refused, it is the record of {record.get('id')} in the place of {id}")
    if profile and record.get("profile") != profile:
        raise RecordError(f"{place}: refused, it is of the profile {record.get('profile')} in the place of {profile}")
    if wrong := trouble(record, RECORD):
        raise RecordError(f"{place}: refused, {wrong}")
    return SealedRecord(record)


@lru_cache(maxsize=MOST_KEPT)
def record_rows(record: SealedRecord) -> tuple[Row, ...]:
    """Return a record's values."""
    return read_rows(record["values"], "values")


@lru_cache(maxsize=MOST_KEPT)
def merged_rows(record: SealedRecord) -> tuple[Row, ...]:
    """Return a record's values; values of several seeds are merged into their mean."""
    return merge_seeds(record_rows(record))


def read_failure(path: Path) -> dict[str, Any] | None:
    """Read why the last run of an item failed; None where there is no failure."""
    try:
        failure = read_json(path)
    except FileNotFoundError:
        return None
    if wrong := trouble(failure, FAILURE):
        raise RecordError(f"{path}: refused, {wrong}")
    return failure


def record_of(run: ItemRun, promoted: bool = False) -> SealedRecord | None:
    """Read the record of an item's run here, or the promoted one; None where there is none."""
    try:
        return read_record(run.promoted if promoted else run.record, id=run.item.id, profile=run.profile)
    except FileNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRecords:
    """The records of one profile."""

    records: tuple[SealedRecord, ...]  # in the order of their ids
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


def _trusted(project: Project | None, profile: str) -> tuple[SealedRecord, ...]:
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


def promote(project: Project, profile: str, patterns: Iterable[str] = (), machine: str = "") -> tuple[Path, ...]:
    """Copy selected records, figures and cells into the repository after all are checked; return the files.

    Records of a further machine, which is named, are kept beside those of the project's own, without cells.
    """
    from workbench.reproduction.cells.store import promote_cells

    runs = [ItemRun(project, item, profile, machine) for item in select(load_catalogue(project), patterns)]
    finished = [(run, record) for run in runs if (record := record_of(run)) is not None]
    if not finished:
        raise UsageError(f"none of the selected items has a record in {project.results_of(profile)}")
    figures = [_figure(run.folder, record) for run, record in finished]
    paths = [run.promoted for run, _ in finished]
    for path in paths:
        for name in (path, path.with_suffix(".png")):
            inside(project.reproductions, *name.relative_to(project.reproductions).parts)
    cells = () if machine else promote_cells([run for run, _ in finished])
    for path, (_, record), figure in zip(paths, finished, figures, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        if figure is None:  # remove the figure of an older record
            path.with_suffix(".png").unlink(missing_ok=True)
        else:
            write_whole(path.with_suffix(".png"), figure)
        write_json(path, record)
    return (*paths, *cells)


def _figure(folder: Path, record: Mapping[str, Any]) -> bytes | None:
    name = (record.get("artifacts") or {}).get("figure")
    if not name:
        return None
    if wrong := figure_misfit(folder / name, record):
        raise RecordError(f"{folder / name}: refused, {wrong}")
    return read_bytes(folder / name)
