"""The schemas of records, failures and cells, checked before any content is used.

Records come from other machines and people, and a right checksum only excludes accidents. Only regular files of bounded
size and nesting are read, never links; pictures are shown only if they unpack to a bounded size. The files beside a
record have fixed names, so that a web server shows none of them as a page with scripts.
"""

import json
import os
import re
import stat
from collections.abc import Callable
from errno import ELOOP
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from workbench.reproduction.errors import RecordError

__all__ = ["ARTIFACTS", "CELL", "FAILED_ARTIFACTS", "FAILURE", "MAX_BYTES", "MAX_PIXELS", "NEEDS", "RECORD", "inside"]
__all__ += ["parse", "picture_trouble", "read_bytes", "read_text", "trouble"]

# kind of file to its fixed name, beside a record and beside a failure
ARTIFACTS = MappingProxyType(
    {"notebook": "notebook.ipynb", "log": "log.txt", "figure": "figure.png", "trace": "trace.json"}
)
FAILED_ARTIFACTS = MappingProxyType({"notebook": "failure.ipynb", "log": "failure.txt"})

MAX_BYTES = 64 * 1024**2  # size of a file; the largest in the repository has 1.5 MB
MAX_VALUES = 100_000  # values of a record; the largest in the repository has 2,000
MAX_PIXELS = 40_000_000  # pixels of a figure; the largest in the repository has 3 million
NAMES_SHOWN, MESSAGE_SHOWN = 3, 300  # missing fields, and characters, of a reason
MAX_SECONDS = 1e9  # 30 years; JSON has numbers that read as infinite
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")  # a file or folder named in a record or in a file of needs

TEXT = {"type": "string", "maxLength": 100_000}
NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
PLAIN = {"type": ["string", "number", "boolean", "null"]}
SECONDS = {"type": "number", "minimum": 0, "maximum": MAX_SECONDS}
OBJECT = {"type": "object"}
ROW = {
    "type": "object",
    "properties": {"quantity": TEXT, "value": NUMBER, "unit": TEXT, "low": NUMBER, "high": NUMBER},
    "additionalProperties": PLAIN,
    "required": ["quantity", "value", "unit"],
}
SOURCE = {"type": "object", "required": ["name", "source"], "additionalProperties": PLAIN}
VERDICT = {
    "type": "object",
    "properties": {"claim": TEXT, "verdict": TEXT, "rows": {"type": "array", "items": OBJECT, "maxItems": MAX_VALUES}},
    "required": ["claim", "verdict", "rows"],
}
ORIGIN = {
    "type": "object",
    "properties": {"commit": TEXT, "machine": OBJECT, "num_cells": {"type": "integer"}, "seconds": SECONDS},
    "required": ["commit", "machine", "num_cells", "seconds"],
}


def _files(names: MappingProxyType[str, str]) -> dict[str, Any]:
    kinds = {kind: {"enum": [name, None]} for kind, name in names.items()}
    return {"type": "object", "properties": kinds, "additionalProperties": False}


def _object(optional: tuple[str, ...] = (), /, **fields: Any) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": [name for name in fields if name not in optional]}


RECORD = _object(
    ("finding", "cells"),
    **dict.fromkeys(("id", "technique", "item", "evidence", "title", "profile", "notebook", "kernel"), TEXT),
    **dict.fromkeys(("commit", "started", "finding"), TEXT),
    **dict.fromkeys(("configuration", "machine", "versions", "environment", "parameters", "fingerprint"), OBJECT),
    values={"type": "array", "items": ROW, "maxItems": MAX_VALUES},
    verdicts={"type": "array", "items": VERDICT, "maxItems": MAX_VALUES},
    seeds={"type": "array", "items": {"type": "integer"}},
    data={"type": "array", "items": SOURCE},
    calibration={"type": ["object", "null"], "properties": {"cells": {"type": "array", "items": OBJECT}}},
    not_comparable={"type": "object", "additionalProperties": TEXT},
    seconds=SECONDS,
    artifacts=_files(ARTIFACTS),
    artifact_sha256={"type": "object", "additionalProperties": TEXT},
    cells={"type": "array", "items": ORIGIN},
)
FAILURE = _object(
    ("started", "artifacts"), reason=TEXT, traceback=TEXT, started=TEXT, artifacts=_files(FAILED_ARTIFACTS)
)
CELL = _object(
    **dict.fromkeys(("function", "module", "commit", "started"), TEXT),
    **dict.fromkeys(("arguments", "data", "library", "machine", "values", "versions"), OBJECT),
    seconds=SECONDS,
)
NEEDS = {  # name of a function to digests of its cells
    "type": "object",
    "propertyNames": {"pattern": r"^[A-Za-z_][A-Za-z0-9_]{0,199}\Z"},
    "additionalProperties": {"type": "array", "items": {"type": "string", "pattern": r"^[0-9a-f]{32}\Z"}},
}


def trouble(content: Any, schema: dict[str, Any]) -> str:
    """Name the first misfit of a content with a schema; "" if it fits."""
    from fastjsonschema import JsonSchemaValueException

    try:
        _checker(json.dumps(schema))(content)
    except JsonSchemaValueException as error:
        name = str(error.name)
        place = name.removeprefix("data").lstrip(".") or "it"
        if error.rule == "required":
            missing = [field for field in error.rule_definition if field not in error.value]
            return f"{place} lacks {', '.join(missing[:NAMES_SHOWN])}"
        return f"{place} {error.message.removeprefix(name).strip()}"[:MESSAGE_SHOWN]
    return ""


@cache
def _checker(schema: str) -> Callable[[Any], Any]:
    from fastjsonschema import compile

    return compile(json.loads(schema))


def inside(folder: Path, *names: str) -> Path:
    """Return the path of names below a folder; a RecordError refuses links and names that are not plain."""
    path = folder
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise RecordError(f"{folder}: refused, {name!r} is no name of a file or folder in it")
        path = path / name
        if path.is_symlink():
            raise RecordError(f"{path}: refused, it is a symbolic link")
    return path


def read_bytes(path: Path, *, max_bytes: int = MAX_BYTES, single: bool = False) -> bytes:
    """Read a regular file of bounded size, without following a link or waiting for a writer.

    Raises:
        RecordError: for any other file; with `single` also for a file with further hard links.
        FileNotFoundError: for a missing file.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(handle, "rb") as file:
            state = os.fstat(handle)
            if not stat.S_ISREG(state.st_mode):
                raise RecordError(f"{path}: refused, it is no regular file")
            if single and state.st_nlink > 1:
                raise RecordError(f"{path}: refused, it is a hard link")
            content = file.read(max_bytes + 1)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        reason = "it is a symbolic link" if getattr(error, "errno", 0) == ELOOP else f"it cannot be read: {error}"
        raise RecordError(f"{path}: refused, {reason}") from None
    if len(content) > max_bytes:
        raise RecordError(f"{path}: refused, it has more than {max_bytes:,} bytes")
    return content


def read_text(path: Path) -> str:
    """Read a text as `read_bytes` does."""
    try:
        return read_bytes(path).decode("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(f"{path}: refused, it cannot be read: {error}") from None


def parse(text: str, place: object) -> Any:
    """Parse JSON; a RecordError names `place` if the text is no JSON, nests too deeply or is no valid Unicode."""
    try:
        content = json.loads(text, parse_constant=_refuse_constant)
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except RecursionError:
        raise RecordError(f"{place}: refused, it cannot be read: it nests too deeply") from None
    except ValueError as error:
        raise RecordError(f"{place}: refused, it cannot be read: {error}") from None
    return content


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def picture_trouble(path: Path) -> str:
    """Say why a picture is not shown; empty if it is."""
    from PIL import Image

    try:
        with Image.open(path) as picture:
            width, height = picture.size
    except Image.DecompressionBombError:
        return f"{path.name} unpacks to too many pixels"
    except (OSError, ValueError):
        return ""  # a broken picture does no harm: a browser shows that it is broken
    return "" if width * height <= MAX_PIXELS else f"{path.name} unpacks to {width:,} by {height:,} pixels, too many"
