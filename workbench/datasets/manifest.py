"""The list of data this project can use, one row a file of `data/manifest.csv`; `fetch` alone goes online.

Files from the hub are verified against the sha256 that the hub stores them under, since its Parquet files hold the same
rows in other bytes than the folder layout.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from workbench.checkout import HOME, find_root
from workbench.checks import require_one_of
from workbench.datasets import places
from workbench.datasets.places import DataError

__all__ = ["DataFile", "Entry", "FileCheck", "FileStatus", "entry_named", "fetch", "file_named", "list_data"]
__all__ += ["manifest_path", "missing", "verify"]

MODEL_PATTERNS = ("*.json", "*.txt", "model.safetensors")  # what an encoder needs; leaves out other frameworks' weights
PROBE_TIMEOUT_S = 20  # seconds to wait for the hub's first answer; downloads retry for much longer


@dataclass(frozen=True, kw_only=True, slots=True)
class DataFile:
    """One file of an entry."""

    split: str  # the split it holds; empty for a model's weights
    file: str  # path below `WORKBENCH_DATA`, or below the model's folder
    rows: int | None  # number of rows or lines, None for a model
    num_bytes: int | None  # size, None where it is not known beforehand
    sha256: str  # digest of the file, empty where it is not known beforehand
    hub_split: str  # the same split's name on the hub


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One data set or model of the manifest."""

    name: str  # such as "glue/sst2"
    files: tuple[DataFile, ...]  # its files
    licence: str  # terms of use
    origin: str  # the public project the files come from
    hub_id: str  # owner and name on the Hugging Face hub
    hub_config: str  # the configuration there; empty marks a model
    package: str  # optional installed package and folder that carries the files, such as "package/model"
    note: str  # warning for readers who compare scores

    def cached(self, file: DataFile) -> tuple[Path, ...]:
        """Return where a file lies in the Hugging Face cache; a split may be several files there."""
        kind = "model" if self.is_model else "dataset"
        pattern = file.file if self.is_model else f"{self.hub_config}/{file.hub_split}-*.parquet"
        return places.cached_files(self.hub_id, pattern, repo_type=kind)

    @property
    def is_model(self) -> bool:
        """Whether this is a pretrained model rather than a data set."""
        return not self.hub_config


class FileStatus(str, Enum):
    """The result of checking one file."""

    OK = "ok"
    DIFFERS = "differs"
    MISSING = "missing"
    UNCHECKED = "no checksum to compare with"


@dataclass(frozen=True, kw_only=True, slots=True)
class FileCheck:
    """The outcome of checking one file."""

    file: str  # the file's name in the manifest
    place: str  # "WORKBENCH_DATA", "hub" or "package"; empty where it was not found
    path: Path | None  # path of the file, None if it is missing
    status: FileStatus  # the outcome


def manifest_path(root: Path | None = None) -> Path:
    """Return the manifest of a root, by default that in use, or of the package where it has no data."""
    folders = [folder / "data" for folder in (root or find_root(), HOME)]
    return next((folder for folder in folders if folder.is_dir()), folders[0]) / "manifest.csv"


def _entry(rows: list[dict[str, str]]) -> Entry:
    files = tuple(
        DataFile(
            rows=int(row["rows"]) if row["rows"] else None,
            num_bytes=int(row["bytes"]) if row["bytes"] else None,
            **{column: row[column] for column in ("split", "file", "sha256", "hub_split")},
        )
        for row in rows
    )
    shared = ("name", "licence", "origin", "hub_id", "hub_config", "package", "note")
    return Entry(files=files, **{column: rows[0][column] for column in shared})


def list_data(path: Path | None = None) -> tuple[Entry, ...]:
    """List everything in the manifest, in its order."""
    path = path or manifest_path()
    grouped: dict[str, list[dict[str, str]]] = {}
    try:
        with path.open(newline="", encoding="utf-8") as stream:
            for row in csv.DictReader(stream):
                grouped.setdefault(row["name"], []).append(row)
        return tuple(_entry(rows) for rows in grouped.values())
    except FileNotFoundError:
        raise DataError(f"the manifest {path} is missing") from None
    except (KeyError, ValueError) as error:
        raise DataError(f"the manifest {path} is malformed: {error}") from error


def entry_named(name: str) -> Entry:
    """Return the entry of that name."""
    entries = {entry.name: entry for entry in list_data()}
    require_one_of(entries, name=name)
    return entries[name]


def file_named(entry: Entry, split: str) -> DataFile:
    """Return the file that holds a split."""
    files = {file.split: file for file in entry.files}
    if split not in files:
        raise ValueError(f"split of {entry.name} is {split!r}; it must be one of {', '.join(files)}")
    return files[split]


def _places_of(entry: Entry, file: DataFile) -> Iterable[tuple[str, tuple[Path, ...]]]:
    folder = places.workbench_data()
    if folder is not None and not entry.is_model:
        path = folder / file.file
        yield "WORKBENCH_DATA", (path,) if path.is_file() else ()
        return
    yield "hub", entry.cached(file)
    if entry.package:
        package, _, inside = entry.package.partition("/")
        root = places.package_folder(package)
        carried = root / inside / file.file if root else None
        yield "package", (carried,) if carried and carried.is_file() else ()


def _status(entry: Entry, file: DataFile, place: str, path: Path) -> FileStatus:
    in_other_bytes = place == "hub" and not entry.is_model
    wanted = places.hub_digest(path) if in_other_bytes or not file.sha256 else file.sha256
    if not wanted:
        return FileStatus.UNCHECKED
    return FileStatus.OK if places.sha256_of(path) == wanted else FileStatus.DIFFERS


def verify(name: str) -> tuple[FileCheck, ...]:
    """Check the files of an entry, or of a folder such as "glue", in the place that they would be loaded from."""
    return tuple(check for entry in _selected(name) for file in entry.files for check in _checks(entry, file))


def missing(name: str) -> tuple[str, ...]:
    """Return the files of an entry, or of a folder such as "glue", that are in none of its places."""
    files = [(entry, file) for entry in _selected(name) for file in entry.files]
    return tuple(file.file for entry, file in files if not any(paths for _, paths in _places_of(entry, file)))


def _checks(entry: Entry, file: DataFile) -> list[FileCheck]:
    for place, paths in _places_of(entry, file):
        if paths:
            states = [(path, _status(entry, file, place, path)) for path in paths]
            return [FileCheck(file=file.file, place=place, path=path, status=status) for path, status in states]
    return [FileCheck(file=file.file, place="", path=None, status=FileStatus.MISSING)]


def _selected(name: str) -> list[Entry]:
    below = [entry for entry in list_data() if entry.name.startswith(f"{name}/")]
    return below or [entry_named(name)]


def fetch(name: str) -> tuple[Path, ...]:
    """Download an entry, or a folder of entries such as "glue", into the Hugging Face cache; return its files."""
    entries = _selected(name)
    for entry in entries:
        _download(entry)
    return tuple(path for entry in entries for file in entry.files for path in entry.cached(file))


def _download(entry: Entry) -> None:
    import datasets
    from huggingface_hub import HfApi, constants, snapshot_download

    if constants.HF_HUB_OFFLINE:
        raise DataError(f"cannot fetch {entry.name}: HF_HUB_OFFLINE is set; unset it, or set {places.DATA_VARIABLE}")
    try:
        kind = "model" if entry.is_model else "dataset"
        HfApi().repo_info(entry.hub_id, repo_type=kind, timeout=PROBE_TIMEOUT_S)
        if entry.is_model:
            snapshot_download(entry.hub_id, allow_patterns=list(MODEL_PATTERNS))
        else:
            datasets.load_dataset(entry.hub_id, entry.hub_config)
    except Exception as error:  # the client's network errors share no base class, and differ between its versions
        first_line = str(error).splitlines()[0] if str(error) else type(error).__name__
        remedy = f"with the files at hand, name their folder in {places.DATA_VARIABLE}"
        raise DataError(f"cannot fetch {entry.name} from {entry.hub_id} on the hub: {first_line}; {remedy}") from error
