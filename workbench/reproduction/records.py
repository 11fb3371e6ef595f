"""Records: JSON with a schema and a checksum, written whole or not at all, read only if it fits.

Source: the workbench's own format; the checksum is the sha256 of the canonical JSON (sorted keys, no spaces)
without it.
Simplified: numbers that JSON does not have are the texts "nan", "inf" and "-inf", which `float` reads.
Left out: what a record says (`recording`, `runner`).
"""

import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.errors import RecordError
from workbench.reproduction.project import Project

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = [
    "SCHEMA",
    "FoundRecords",
    "canonical_json",
    "checksum",
    "find_records",
    "load_records",
    "load_verdicts",
    "read_record",
    "sealed",
    "write_json",
    "write_record",
    "write_whole",
]

SCHEMA = 1  # of record.json and failure.json
ABOUT = ("id", "technique", "item", "evidence", "profile")  # columns of every table of records


def jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it: plain numbers, lists and dictionaries with text keys.

    Raises:
        ValueError: for a value that has no such form.
    """
    if value is None or isinstance(value, (bool, int, str)):
        return value if not hasattr(value, "value") else value.value
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [jsonable(inner) for inner in (sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if hasattr(value, "__dataclass_fields__"):
        return {name: jsonable(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, os.PathLike) or hasattr(value, "__fspath__"):
        return os.fspath(value)
    raise ValueError(
        f"{value!r}, a {type(value).__name__}, has no place in a record; "
        "give plain numbers, texts, lists and dictionaries"
    )


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return json.dumps(jsonable(value), sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def checksum(record: Mapping[str, Any]) -> str:
    """Return the sha256 of a record without its field `checksum`, as hexadecimal digits."""
    rest = {name: value for name, value in record.items() if name != "checksum"}
    return hashlib.sha256(canonical_json(rest).encode()).hexdigest()


def sealed(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with its checksum."""
    plain = jsonable(record)
    return plain | {"checksum": checksum(plain)}


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file so that a reader, a kill or a full disk sees the old file or the new one, never a part."""
    write_whole(path, f"{json.dumps(jsonable(value), indent=1, allow_nan=False, ensure_ascii=False)}\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, a kill or a full disk sees the old file or the new one, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with partial.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        FileNotFoundError: where there is none.
        RecordError: naming the file, where it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: refused, it cannot be read: {error}") from None


def write_record(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Seal a record, write it and return it as written."""
    written = sealed(record)
    write_json(path, written)
    return written


def read_record(path: Path, *, id: str, profile: str) -> dict[str, Any]:
    """Read a record and check it.

    Args:
        path: where it lies.
        id: the item whose record belongs there.
        profile: the profile whose record belongs there.

    Raises:
        RecordError: naming the file, where it cannot be read, its checksum does not fit, or it belongs elsewhere.
        FileNotFoundError: where there is none.
    """
    record = read_json(path)
    if not isinstance(record, dict) or record.get("schema") != SCHEMA:
        raise RecordError(f"{path}: refused, it is no record of schema {SCHEMA}")
    if record.get("checksum") != checksum(record):
        raise RecordError(f"{path}: refused, its checksum does not fit its content")
    if record.get("id") != id:
        raise RecordError(
            f"{path}: refused, it is the record of {record.get('id')}, and lies where that of {id} belongs"
        )
    if record.get("profile") != profile:
        raise RecordError(
            f"{path}: refused, it is of the profile {record.get('profile')}, and lies where one of {profile} belongs"
        )
    return record


@dataclass(frozen=True, kw_only=True, slots=True)
class FoundRecords:
    """The records of one profile, and those that were refused."""

    records: tuple[dict[str, Any], ...]  # in the order of their ids
    refused: tuple[str, ...]  # one line for each file that was refused, naming it


def find_records(project: Project, profile: str = "laptop") -> FoundRecords:
    """Read every record of one profile, keeping apart those that cannot be trusted."""
    records, refused = [], []
    folder = project.results_of(profile)
    for path in _record_files(folder):
        try:
            records.append(read_record(path, id=path.parent.relative_to(folder).as_posix(), profile=profile))
        except RecordError as error:
            refused.append(str(error))
    return FoundRecords(records=tuple(records), refused=tuple(refused))


def _record_files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.glob("*/*/*/record.json")):
        if not path.relative_to(folder).parts[0].startswith("."):
            yield path


def _trusted(project: Project | None, profile: str) -> tuple[dict[str, Any], ...]:
    found = find_records(project or Project(), profile)
    if found.refused:
        raise RecordError("; ".join(found.refused))
    return found.records


def load_records(profile: str = "laptop", project: Project | None = None) -> "DataFrame":
    """Return every recorded value as one table.

    Args:
        profile: whose records.
        project: where they lie; by default this checkout.

    Returns:
        One row a value: id, technique, item, evidence, profile, quantity, the key columns, value, unit, low, high,
        seed, and of its run `started`, `seconds`, `commit`.

    Raises:
        RecordError: naming every record that cannot be trusted.
    """
    import pandas

    rows = []
    for record in _trusted(project, profile):
        about = {name: record[name] for name in ABOUT}
        run = {"started": record["started"], "seconds": record["seconds"], "commit": record["commit"]}
        rows += [about | value | {"value": float(value["value"])} | run for value in record["values"]]
    return pandas.DataFrame(rows, columns=None if rows else [*ABOUT, "quantity", "value", "unit"])


def load_verdicts(profile: str = "laptop", project: Project | None = None) -> "DataFrame":
    """Return every recorded verdict as one table, one row a claim: id, ..., claim, kind, verdict, reason, rows.

    Raises:
        RecordError: naming every record that cannot be trusted.
    """
    import pandas

    rows = [
        {name: record[name] for name in ABOUT} | verdict | {"rows": len(verdict["rows"])}
        for record in _trusted(project, profile)
        for verdict in record["verdicts"]
    ]
    return pandas.DataFrame(rows, columns=None if rows else [*ABOUT, "claim", "kind", "verdict", "reason", "rows"])
