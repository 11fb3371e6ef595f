"""The files beside a record, such as its executed notebook and its figure: their checksums, and whether they still fit.

Source: the workbench's own rule: a record is sealed together with the sha256 of each file beside it, so that a figure
of another run cannot pass for this one's.
Simplified: files are read whole, at every look; those of a hundred items are hashed in a fraction of a second.
Left out: what the files show.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

__all__ = ["checksums", "misfits"]


def checksums(folder: Path, artifacts: Mapping[str, str | None]) -> dict[str, str]:
    """Return the sha256 of each file that is there.

    Args:
        folder: where the files lie.
        artifacts: what a file is to its name, or None where the run left none.

    Returns:
        What the file is to 64 hexadecimal digits.
    """
    files = {what: folder / name for what, name in artifacts.items() if name}
    return {what: _sha256(path) for what, path in files.items() if path.is_file()}


def misfits(folder: Path, record: Mapping[str, Any]) -> dict[str, str]:
    """Return what each file is that is missing beside a record or is not the one it was sealed with, and why.

    Args:
        folder: where the record lies.
        record: the record.

    Returns:
        What the file is to one line that names it; empty where all fit.
    """
    artifacts, sealed = record.get("artifacts") or {}, record.get("artifact_sha256") or {}
    found = checksums(folder, artifacts)
    lines = {what: _misfit(name, sealed.get(what), found.get(what)) for what, name in artifacts.items() if name}
    return {what: line for what, line in lines.items() if line}


def _misfit(name: str, sealed: str | None, found: str | None) -> str:
    if found is None:
        return f"{name} is missing beside its record"
    if sealed is None:
        return f"{name} has no checksum in its record"
    return "" if found == sealed else f"{name} is not the file that its record was sealed with"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
