"""What records, failures and cells must look like: one schema each, checked before anything in them is believed.

They come from other machines and people, so a right checksum proves nothing but that nobody slipped. Files are read
only if they are regular, of bounded size and nesting; pictures are shown only if they unpack to a bounded size.
"""

import json
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from workbench.reproduction.errors import RecordError

__all__ = ["CELL", "FAILURE", "MAX_BYTES", "MAX_PIXELS", "RECORD", "parse", "picture_trouble", "read_text", "trouble"]

MAX_BYTES = 64 * 1024**2  # of a file of records; the largest committed one has 1.5 MB
MAX_VALUES = 100_000  # of a record; the largest committed one has 2,000
MAX_PIXELS = 40_000_000  # of a figure; the largest committed one has 3 million
NAMES_SHOWN, MESSAGE_SHOWN = 3, 300  # missing fields, and characters, of a reason
MAX_SECONDS = 1e9  # 30 years; JSON has numbers that read as infinite

TEXT = {"type": "string", "maxLength": 100_000}
NUMBER = {"anyOf": [{"type": "number"}, {"enum": ["nan", "inf", "-inf"]}]}
PLAIN = {"type": ["string", "number", "boolean", "null"]}
SECONDS = {"type": "number", "minimum": 0, "maximum": MAX_SECONDS}
OBJECT = {"type": "object"}
FILES = {
    "type": "object",
    "additionalProperties": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": r"^[^/]+$"}]},
}
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


def _object(optional: tuple[str, ...] = (), **fields: Any) -> dict[str, Any]:
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
    artifacts=FILES,
    artifact_sha256={"type": "object", "additionalProperties": TEXT},
    cells={"type": "array", "items": ORIGIN},
)
FAILURE = _object(("started", "artifacts"), reason=TEXT, traceback=TEXT, started=TEXT, artifacts=FILES)
CELL = _object(
    **dict.fromkeys(("function", "module", "commit", "started"), TEXT),
    **dict.fromkeys(("arguments", "data", "library", "machine", "values", "versions"), OBJECT),
    seconds=SECONDS,
)


def trouble(content: Any, schema: dict[str, Any]) -> str:
    """Say in a few words what of a content does not fit a schema; empty if all does."""
    from fastjsonschema import JsonSchemaValueException

    try:
        _checker(json.dumps(schema))(content)
    except JsonSchemaValueException as error:
        place = error.name.removeprefix("data").lstrip(".") or "it"
        if error.rule == "required":
            missing = [name for name in error.rule_definition if name not in error.value]
            return f"{place} lacks {', '.join(missing[:NAMES_SHOWN])}"
        return f"{place} {error.message.removeprefix(error.name).strip()}"[:MESSAGE_SHOWN]
    return ""


@cache
def _checker(schema: str) -> Callable[[Any], Any]:
    from fastjsonschema import compile

    return compile(json.loads(schema))


def read_text(path: Path) -> str:
    """Read a regular file of bounded size; a RecordError names any other, FileNotFoundError one that is not there."""
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            raise RecordError(f"{path}: refused, it is no regular file")
        if state.st_size > MAX_BYTES:
            raise RecordError(f"{path}: refused, it has {state.st_size:,} bytes, more than {MAX_BYTES:,}")
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise RecordError(f"{path}: refused, it cannot be read: {error}") from None


def parse(text: str, place: object) -> Any:
    """Parse JSON; a RecordError names the place of what is none, nests without end, or is no text of Unicode."""
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

    if path.suffix.lower() == ".svg":
        return "" if path.stat().st_size <= MAX_BYTES else f"{path.name} is too large"
    try:
        with Image.open(path) as picture:
            width, height = picture.size
    except Image.DecompressionBombError:
        return f"{path.name} unpacks to too many pixels"
    except (OSError, ValueError):
        return ""  # a broken picture does no harm: a browser shows that it is broken
    return "" if width * height <= MAX_PIXELS else f"{path.name} unpacks to {width:,} by {height:,} pixels, too many"
