"""Placing: a finished item is moved into place whole, a failed one keeps its old record, dead runners are swept up.

An item is made whole in `.partial-<pid>/`, its record.json last; then its folder changes places with the old one. The
lock on results/<profile> is held, so every partial folder of another runner is that of a dead one.
"""

import contextlib
import json
import os
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.cells.store import CELLS_FILE, PROGRESS_FILE, origins
from workbench.reproduction.errors import RecordError
from workbench.reproduction.files import checksums, write_json, write_record
from workbench.reproduction.machine import commit_of
from workbench.reproduction.recording import RECORDING_FILE, verdicts_of
from workbench.reproduction.records import FAILURE_FILE, RECORD_FILE, SCHEMA, read_record

if TYPE_CHECKING:
    from workbench.reproduction.runner.execute import Failure, ItemRun

__all__ = ["LOG_FILE", "NOTEBOOK_FILE", "clear", "partial_folder", "place_failure", "place_record", "sweep"]

NOTEBOOK_FILE, LOG_FILE = "notebook.ipynb", "log.txt"
PARTIAL = ".partial-"
REPLACED = ".replaced"
FAILED_NOTEBOOK, FAILED_LOG = "failure.ipynb", "failure.txt"  # what is left of a failed run beside an old record
SWEEP_PATIENCE_S = 5.0  # seconds a dying kernel may go on writing into a folder that is being removed


def partial_folder(results: Path) -> Path:
    """Return the folder this runner works in."""
    return results / f"{PARTIAL}{os.getpid()}"


def place_record(run: "ItemRun") -> dict[str, Any]:
    """Judge a recording, seal its record, move its folder into place; on errors the old record stays."""
    recording = json.loads((run.folder / RECORDING_FILE).read_text(encoding="utf-8"))
    record = _record(run, recording)
    for name in (RECORDING_FILE, CELLS_FILE, PROGRESS_FILE):  # their content is in the record
        (run.folder / name).unlink(missing_ok=True)
    record = write_record(run.folder / RECORD_FILE, record)
    _swap(run.folder, run.target)
    return record


def _record(run: "ItemRun", recording: dict[str, Any]) -> dict[str, Any]:
    item, profile = run.item, run.profile
    verdicts = [verdict.to_json() for verdict in verdicts_of(run.project, item, recording)]
    artifacts = {"notebook": NOTEBOOK_FILE, "log": LOG_FILE, **recording["artifacts"]}
    about = {
        "schema": SCHEMA,
        "id": item.id,
        "technique": item.technique,
        "item": item.item,
        "evidence": item.evidence.value,
        "title": item.title,
        "profile": profile,
        "notebook": item.notebook,
        "kernel": run.kernel_name,
    }
    facts = {
        "verdicts": [] if profile == "smoke" else verdicts,
        "parameters": dict(item.parameters[profile]),
        "commit": commit_of(run.project.root),
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "fingerprint": run.fingerprint,
        "artifacts": artifacts,
        "artifact_sha256": checksums(run.folder, artifacts),
    }
    cells = origins(run.folder)
    return about | recording | facts | ({"cells": cells} if cells else {})


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


def place_failure(run: "ItemRun", failure: "Failure") -> None:
    """Keep the files of a failed run beside the old record; on a full disk failure.json alone, if it has room."""
    target, kept = run.target, {"notebook": (NOTEBOOK_FILE, FAILED_NOTEBOOK), "log": (LOG_FILE, FAILED_LOG)}
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
        for source, name in kept.values():
            if (run.folder / source).exists():
                os.replace(run.folder / source, target / name)
    clear(run.folder)
    artifacts = {kind: name for kind, (_, name) in kept.items() if (target / name).exists()}
    content = {
        "schema": SCHEMA,
        "id": run.item.id,
        "profile": run.profile,
        "message": failure.reason,
        "reason": failure.reason,
        "traceback": failure.traceback,
        "started": run.started,
        "seconds": round(run.seconds, 3),
        "fingerprint": run.fingerprint,
    }
    try:
        write_json(target / FAILURE_FILE, content | {"artifacts": artifacts})
    except OSError:
        with contextlib.suppress(OSError):
            for _, name in kept.values():
                (target / name).unlink(missing_ok=True)
            write_json(target / FAILURE_FILE, content | {"artifacts": {}})


def sweep(results: Path) -> None:
    """Move into place the items that dead runners had finished, and remove the rest; what cannot move stays."""
    for partial in results.glob(f"{PARTIAL}*"):
        folders = [folder for folder in partial.glob("*/*/*") if folder.suffix != REPLACED]
        moved = [
            _settle(folder, results / folder.relative_to(partial))
            for folder in folders
            if _is_whole(folder, folder.relative_to(partial).as_posix(), results.name)
        ]
        for aside in partial.glob(f"*/*/*{REPLACED}"):
            target = (results / aside.relative_to(partial)).with_suffix("")
            moved.append(target.exists() or _settle(aside, target))
        if all(moved):
            clear(partial)


def _is_whole(folder: Path, id: str, profile: str) -> bool:
    try:
        read_record(folder / RECORD_FILE, id=id, profile=profile)
    except (FileNotFoundError, NotADirectoryError, RecordError):
        return False
    return True


def _settle(folder: Path, target: Path) -> bool:
    try:
        _swap(folder, target)
    except OSError:  # another technique's folder that is a file, or on another disk, is no reason to run nothing
        return False
    return True


def clear(folder: Path) -> None:
    """Remove a folder, also while a dying kernel still writes into it."""
    give_up = time.monotonic() + SWEEP_PATIENCE_S
    while folder.exists() and time.monotonic() < give_up:
        shutil.rmtree(folder, ignore_errors=True)
        if folder.exists():
            time.sleep(0.05)
