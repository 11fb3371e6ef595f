"""Files: written whole or not at all, sealed with checksums, and locked by one process at a time."""

import contextlib
import fcntl
import hashlib
import json
import math
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from errno import EACCES, EWOULDBLOCK
from functools import partial
from pathlib import Path
from typing import Any

from filelock import SoftFileLock, Timeout

from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.schema import parse, picture_trouble, read_bytes, read_text

__all__ = ["LOCK_FILE", "MIN_FREE_BYTES", "canonical_json", "check_folder", "checksum", "checksums", "claim"]
__all__ += ["figure_misfit", "hold_lock", "jsonable", "misfits", "read_json", "sha256", "take_lock"]
__all__ += ["write_json", "write_record", "write_whole"]

LOCK_FILE = ".lock"
LINE = 400  # characters of JSON that stay on one line, enough for a row with its keys
MIN_FREE_BYTES = 200_000_000  # a laptop run of all items leaves well under 100 MB of notebooks, figures and traces
CANONICAL = partial(json.dumps, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def jsonable(value: Any) -> Any:
    """Return a value as JSON can hold it; numbers that JSON lacks are the texts "nan", "inf" and "-inf"."""
    if value is None or isinstance(value, (bool, int, str)):
        return getattr(value, "value", value)  # of an enumeration
    if isinstance(value, Mapping):
        return {str(key): jsonable(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        value = sorted(value, key=str)
    if isinstance(value, (list, tuple)):
        return [jsonable(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(float(value))
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    if hasattr(value, "__dataclass_fields__"):
        return {name: jsonable(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "__fspath__"):
        return os.fspath(value)
    kind = type(value).__name__
    raise ValueError(f"value is {value!r}, a {kind}; it must be a plain number, text, list or dictionary")


def canonical_json(value: Any) -> str:
    """Return the one JSON text of a value: sorted keys, no spaces."""
    return CANONICAL(jsonable(value))


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file, whole or not at all; short values stay on one line, so that each row is a line."""
    write_whole(path, f"{_laid_out(jsonable(value))}\n")


def _laid_out(value: Any, indent: str = "") -> str:
    line = json.dumps(value, allow_nan=False, ensure_ascii=False)
    if len(line) <= LINE or not value or not isinstance(value, (dict, list)):
        return line
    deeper = f"{indent} "
    if isinstance(value, dict):
        parts = [f"{json.dumps(key, ensure_ascii=False)}: {_laid_out(inner, deeper)}" for key, inner in value.items()]
    else:
        parts = [_laid_out(inner, deeper) for inner in value]
    begin, end = "{}" if isinstance(value, dict) else "[]"
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(parts) + f"\n{indent}{end}"


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file in one step: a reader, a kill or a full disk leaves the old or the new file, never a part."""
    partial = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}")  # a name that nobody can guess
    try:
        with partial.open("xb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Read a JSON file; a RecordError names a file that cannot be read."""
    return parse(read_text(path), path)


def stamp(path: Path) -> tuple[int, int, int]:
    """Return a file's inode, time and size, which change with its content; zeros if there is no file."""
    try:
        state = path.stat()
    except OSError:
        return 0, 0, 0
    return state.st_ino, state.st_mtime_ns, state.st_size


def sha256(content: str | bytes) -> str:
    """Return the sha256 of a text or of bytes, as hexadecimal digits."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def checksum(record: Mapping[str, Any]) -> str:
    """Return the sha256 of the canonical JSON of a record without its field `checksum`."""
    content = {name: value for name, value in record.items() if name != "checksum"}
    try:
        return sha256(CANONICAL(content))  # a record that was read holds plain JSON already
    except (TypeError, ValueError):
        return sha256(canonical_json(content))


def write_record(path: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Seal a record with its checksum, write it and return it as written."""
    plain = jsonable(record)
    sealed = plain | {"checksum": checksum(plain)}
    write_json(path, sealed)
    return sealed


def checksums(folder: Path, artifacts: Mapping[str, str | None]) -> dict[str, str]:
    """Return the sha256 of each existing file, by kind."""
    files = {kind: folder / name for kind, name in artifacts.items() if name}
    return {kind: sha256(path.read_bytes()) for kind, path in files.items() if path.is_file()}


def misfits(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    """Return a reason for each file, by kind, that is missing beside a record or differs from its checksum."""
    artifacts, sealed = record.get("artifacts") or {}, record.get("artifact_sha256") or {}
    reasons = {kind: _misfit(folder / name, sealed.get(kind)) for kind, name in artifacts.items() if name}
    if artifacts.get("figure") and not reasons["figure"]:
        reasons["figure"] = picture_trouble(folder / artifacts["figure"])
    return {kind: reason for kind, reason in reasons.items() if reason}


def figure_misfit(path: Path, record: Mapping[str, Any]) -> str:
    """Return why a figure does not match its record; "" if it does."""
    return misfits(path.parent, {**record, "artifacts": {"figure": path.name}}).get("figure", "")


def _misfit(path: Path, sealed: str | None) -> str:
    try:
        content = read_bytes(path)
    except FileNotFoundError:
        return f"{path.name} is missing beside its record"
    except RecordError as error:
        return str(error)
    if sealed is None:
        return f"{path.name} has no checksum in its record"
    return "" if sha256(content) == sealed else f"{path.name} does not match the checksum in its record"


def check_folder(folder: Path, min_free_bytes: int = MIN_FREE_BYTES) -> None:
    """Make a folder of results, and check that it can be written and that the disk has room."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, prefix=".probe-"):
            pass
    except OSError as error:
        raise UsageError(f"{folder} cannot be written: {error.strerror}") from None
    free = shutil.disk_usage(folder).free
    if free < min_free_bytes:
        raise UsageError(f"{folder} has {free / 1e6:.0f} MB free; a run needs at least {min_free_bytes / 1e6:.0f} MB")


def take_lock(path: Path, *, share: bool = False) -> int | None:
    """Lock a file until its handle is closed or this process dies; return None if another process holds it.

    A shared lock only excludes those that are not shared.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if share else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno in (EWOULDBLOCK, EACCES):
            return None
        raise
    return handle


def claim(path: Path) -> Callable[[], None] | None:
    """Claim what a file stands for and return the call that frees it, or None where another process has claimed it.

    Where the file system has no locks, a file beside it is the claim while it exists. filelock removes that file if
    its owner has died on this machine; one that a dead process of another machine has left must be removed by hand.
    """
    try:
        handle = take_lock(path)
    except OSError:
        path.unlink(missing_ok=True)
        beside = SoftFileLock(path.with_name(f"{path.name}.soft"), timeout=0)
        try:
            beside.acquire()
        except Timeout:
            return None
        return beside.release
    if handle is None:
        return None
    if stamp(path)[0] != os.fstat(handle).st_ino:  # its last owner has just removed it, and a third may have made it
        os.close(handle)
        return None
    return partial(_free, path, handle)


def _free(path: Path, handle: int) -> None:
    with contextlib.suppress(OSError):
        path.unlink(missing_ok=True)
    os.close(handle)


@contextlib.contextmanager
def hold_lock(folder: Path, *, share: bool = False) -> Iterator[Callable[[], None] | None]:
    """Hold the lock of a folder while the block runs; its file stays and names the holder.

    Where it may be shared, yield what lets others in, or None where others are in already.
    """
    path = folder / LOCK_FILE
    open_up: Callable[[], None] | None = None
    try:
        handle = take_lock(path)
        if handle is not None:
            open_up = partial(fcntl.flock, handle, fcntl.LOCK_SH)
        elif share:
            handle = take_lock(path, share=True)
    except OSError as error:
        raise UsageError(f"{folder} cannot be locked: {error.strerror}") from None
    if handle is None:
        raise UsageError(f"{folder} is in use by another run: {_holder(path)}")
    try:
        holder = {"pid": os.getpid(), "host": platform.node(), "since": datetime.now(UTC).isoformat(timespec="seconds")}
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)
        yield open_up
        os.ftruncate(handle, 0)
    finally:
        os.close(handle)


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"pid {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "it has only just begun"
