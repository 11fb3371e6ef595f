"""Moving a finished item into place, keeping a failed one's old record, and sweeping up after dead runners.

Source: rename(2). An item is made whole in `.partial-<pid>/`, its record.json last; then its folder changes places with
the old one. A runner killed between two renames leaves a whole folder that the next one moves into place.
Simplified: the lock on results/<profile> is held, so every partial folder of another runner is a dead one's.
Left out: file systems where a rename within one folder is not atomic.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workbench.reproduction.artifacts import checksums
from workbench.reproduction.cells.notes import CELLS_FILE, PROGRESS_FILE, origins
from workbench.reproduction.errors import RecordError
from workbench.reproduction.machine import commit_of
from workbench.reproduction.recording import RECORDING_FILE, verdicts_of
from workbench.reproduction.records import SCHEMA, read_record, write_json, write_record
from workbench.reproduction.runner.execute import LOG_FILE, NOTEBOOK_FILE, Execution, Failure
from workbench.reproduction.runner.plan import FAILURE_FILE, RECORD_FILE

__all__ = ["PARTIAL", "clear", "partial_folder", "place_failure", "place_record", "sweep"]

PARTIAL = ".partial-"
REPLACED = ".replaced"
FAILED_NOTEBOOK, FAILED_LOG = "failure.ipynb", "failure.txt"  # what is left of a failed run beside an old record
SWEEP_PATIENCE_S = 5.0  # seconds a dying kernel may go on writing into a folder that is being removed


def partial_folder(results: Path) -> Path:
    """Return the folder this runner works in."""
    return results / f"{PARTIAL}{os.getpid()}"


def place_record(execution: Execution, fingerprint: Mapping[str, Any], target: Path) -> dict[str, Any]:
    """Complete and seal the record of a run that succeeded, and move its folder into place.

    Returns:
        The record as written.

    Raises:
        OSError: where the disk is full or the folder cannot be written; the old record is then untouched.
        ValueError: where the recording cannot be judged.
    """
    recording = json.loads((execution.folder / RECORDING_FILE).read_text(encoding="utf-8"))
    record = _record(execution, recording, fingerprint)
    for name in (RECORDING_FILE, CELLS_FILE, PROGRESS_FILE):  # what they say is in the record
        (execution.folder / name).unlink(missing_ok=True)
    record = write_record(execution.folder / RECORD_FILE, record)
    _swap(execution.folder, target)
    return record


def _record(execution: Execution, recording: dict[str, Any], fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    item, profile = execution.item, execution.profile
    verdicts = verdicts_of(execution.project, item, recording)
    about = {
        "schema": SCHEMA,
        "id": item.id,
        "technique": item.technique,
        "item": item.item,
        "evidence": item.evidence.value,
        "title": item.title,
        "profile": profile,
        "notebook": item.notebook,
        "kernel": execution.kernel_name,
    }
    run = {
        "verdicts": [] if profile == "smoke" else [verdict.to_json() for verdict in verdicts],
        "parameters": dict(item.parameters[profile]),
        "commit": commit_of(execution.project.root),
        "started": execution.started,
        "seconds": round(execution.seconds, 3),
        "fingerprint": fingerprint,
    }
    artifacts = {"notebook": NOTEBOOK_FILE, "log": LOG_FILE, **recording["artifacts"]}
    sums = checksums(execution.folder, artifacts)
    cells = origins(execution.folder)
    return (
        about
        | recording
        | run
        | {"artifacts": artifacts, "artifact_sha256": sums}
        | ({"cells": cells} if cells else {})
    )


def _swap(folder: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = folder.with_name(f"{folder.name}{REPLACED}")
    if target.exists():
        os.rename(target, aside)
    try:
        os.rename(folder, target)
    except OSError:
        if aside.exists():
            os.rename(aside, target)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def place_failure(execution: Execution, failure: Failure, fingerprint: Mapping[str, Any], target: Path) -> None:
    """Keep what a failed run left beside the old record; on a full disk failure.json alone, if even that has room."""
    kept = {"notebook": (NOTEBOOK_FILE, FAILED_NOTEBOOK), "log": (LOG_FILE, FAILED_LOG)}
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        for source, name in kept.values():
            if (execution.folder / source).exists():
                os.replace(execution.folder / source, target / name)
    clear(execution.folder)
    artifacts = {what: name for what, (_, name) in kept.items() if (target / name).exists()}
    told = {
        "schema": SCHEMA,
        "id": execution.item.id,
        "profile": execution.profile,
        "message": failure.reason,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "started": execution.started,
        "seconds": round(execution.seconds, 3),
        "fingerprint": fingerprint,
    }
    try:
        write_json(target / FAILURE_FILE, told | {"artifacts": artifacts})
    except OSError:
        with contextlib.suppress(OSError):
            for _, name in kept.values():
                (target / name).unlink(missing_ok=True)
            write_json(target / FAILURE_FILE, told | {"artifacts": {}})


def sweep(results: Path) -> None:
    """Move into place what dead runners had finished, and remove what they had not; what cannot be moved stays."""
    for partial in results.glob(f"{PARTIAL}*"):
        moved = [_settle(folder, results / folder.relative_to(partial)) for folder in _finished(partial, results.name)]
        for aside in partial.glob(f"*/*/*{REPLACED}"):
            target = (results / aside.relative_to(partial)).with_suffix("")
            moved.append(target.exists() or _settle(aside, target))
        if all(moved):
            clear(partial)


def _finished(partial: Path, profile: str) -> list[Path]:
    folders = [folder for folder in partial.glob("*/*/*") if folder.suffix != REPLACED]
    return [folder for folder in folders if _is_whole(folder, folder.relative_to(partial).as_posix(), profile)]


def _settle(folder: Path, target: Path) -> bool:
    try:
        _swap(folder, target)
    except OSError:  # another technique's folder that is a file, or on another disk, is no reason to run nothing
        return False
    return True


def _is_whole(folder: Path, id: str, profile: str) -> bool:
    try:
        read_record(folder / RECORD_FILE, id=id, profile=profile)
    except (FileNotFoundError, NotADirectoryError, RecordError):
        return False
    return True


def clear(folder: Path) -> None:
    """Remove a folder, also while a dying kernel still writes into it."""
    give_up = time.monotonic() + SWEEP_PATIENCE_S
    while folder.exists() and time.monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.05)
