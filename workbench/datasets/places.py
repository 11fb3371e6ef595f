"""The places of data: the project's own `data`, the folder of `WORKBENCH_DATA`, the Hugging Face cache, a package.

If there are several cached snapshots, the newest is taken.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from workbench.checkout import HOME

__all__ = ["CARRIED", "DATA_VARIABLE", "DataError", "cached_files", "carried_file", "hub_cache", "hub_digest"]
__all__ += ["package_folder", "prepared_cache", "prepared_files", "sha256_of", "workbench_data"]

DATA_VARIABLE = "WORKBENCH_DATA"
CARRIED = HOME / "data"  # small data of papers' authors, and traces
READ_BYTES = 1 << 20  # bytes hashed at a time: large enough that calls cost nothing, small enough to stay in cache


class DataError(RuntimeError):
    """A data file that should be there is missing, broken, or cannot be fetched."""


def workbench_data() -> Path | None:
    """Return the folder that `WORKBENCH_DATA` names, or None where it is unset or empty."""
    named = os.environ.get(DATA_VARIABLE, "")
    if not named:
        return None
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise DataError(f"{DATA_VARIABLE} is {named!r}, which is not a folder; correct or unset it")
    return folder


def _hugging_face_home() -> Path:
    default = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(os.environ.get("HF_HOME", default)).expanduser()


def hub_cache() -> Path:
    """Return the folder in which `huggingface_hub` keeps the repositories it downloaded."""
    return Path(os.environ.get("HF_HUB_CACHE", _hugging_face_home() / "hub")).expanduser()


def prepared_cache() -> Path:
    """Return the folder in which the `datasets` library keeps prepared files."""
    return Path(os.environ.get("HF_DATASETS_CACHE", _hugging_face_home() / "datasets")).expanduser()


def _newest(paths: Iterable[Path], pattern: str) -> tuple[Path, ...]:
    folders = [path for path in paths if path.is_dir()]
    for folder in sorted(folders, key=lambda folder: folder.stat().st_mtime, reverse=True):
        matches = tuple(sorted(folder.glob(pattern)))
        if matches:
            return matches
    return ()


def cached_files(repo_id: str, pattern: str, *, repo_type: str) -> tuple[Path, ...]:
    """Find files in the newest cached snapshot of a hub repository, sorted; nothing is downloaded."""
    repository = hub_cache() / f"{repo_type}s--{repo_id.replace('/', '--')}" / "snapshots"
    return _newest(repository.glob("*"), pattern)


def prepared_files(repo_id: str, config: str, split: str) -> tuple[Path, ...]:
    """Find the Arrow files that the `datasets` library prepared last from a hub repository, sorted."""
    builds = prepared_cache().glob(f"{repo_id.replace('/', '___')}/{config}/*/*")
    stem = repo_id.split("/")[-1]
    return _newest(builds, f"{stem}-{split}*.arrow")


def package_folder(package: str) -> Path | None:
    """Return the folder of an installed package without importing it, or None."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def sha256_of(*paths: Path) -> str:
    """Hash the bytes of one file, or of several one after the other."""
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as stream:
            while block := stream.read(READ_BYTES):
                digest.update(block)
    return digest.hexdigest()


def carried_file(file: str, sha256: str) -> Path:
    """Return a file of the project's own `data`, after checking its sha256."""
    path = CARRIED / file
    if not path.is_file():
        raise DataError(f"{path} is not there: it comes with the project, so this copy of it is not whole")
    digest = sha256_of(path)
    if digest != sha256:
        raise DataError(f"{path} has sha256 {digest[:12]}…, must be {sha256[:12]}…")
    return path


def hub_digest(path: Path) -> str | None:
    """Return the sha256 in the blob's name of a cached large file, or None where the name is no sha256."""
    name = path.resolve().name
    is_digest = len(name) == 64 and all(letter in "0123456789abcdef" for letter in name)
    return name if is_digest else None
