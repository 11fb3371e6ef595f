"""What an item's record depends on, part by part, so that a changed part can be named.

Source: the workbench's own rule: an item is up to date while its notebook, the library modules it imports, its
parameters, data, versions, kernel, published numbers and declaration are unchanged.
Simplified: data is identified by name, size and time of change of its files, not by reading them.
Left out: the machine; a record says on which one it was made.
"""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import workbench
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.imports import Library, by_room
from workbench.reproduction.machine import versions
from workbench.reproduction.notebook_cells import NotebookCells, read_notebook
from workbench.reproduction.project import Project
from workbench.reproduction.records import canonical_json, jsonable

__all__ = ["Fingerprinter", "changes"]

Parts = dict[str, Any]  # part to a digest, or to digests by name
DATA_PACKAGES = ("workbench.datasets", "workbench.models.pretrained")  # items that need these depend on data
MANIFEST = "manifest.csv"  # in the project's data folder
SNAPSHOTS, BUILDS = "*--*/snapshots/*", "*/*/*/*"  # folders of files in the hub's cache, and in that of prepared data
LONGEST_TOLD = 3  # names in one reason


@dataclass(slots=True)
class Fingerprinter:
    """Computes fingerprints of items, reading each file once.

    Attributes:
        project: where notebooks, catalogues and data lie.
    """

    project: Project
    _library: dict[Path, Library] = field(default_factory=dict)
    _shared: dict[str, Any] = field(default_factory=dict)

    def __call__(self, item: Reproduction, profile: str, kernel: str | None = None) -> Parts:
        """Return the fingerprint of one item in one profile.

        Args:
            item: the item.
            profile: a profile it is declared for.
            kernel: the kernel asked for; by default the notebook's own.

        Raises:
            CatalogueError: where the notebook cannot be read.
        """
        notebook = read_notebook(self.project.notebook(item))
        modules = self._modules_of(notebook)
        published = self.project.published(item)
        return {
            "notebook": _digest(canonical_json(notebook.cells)),
            "library": {name: digest[:16] for name, digest in modules.items()},
            "parameters": jsonable(item.parameters[profile]),
            "data": self._data() if _need_data(modules) else {},
            "versions": self._once("versions", versions),
            "kernel": kernel or notebook.kernel,
            "published": None if published is None else _digest(published.read_bytes()),
            "declaration": _digest(canonical_json(_declaration(item))),
        }

    def basis(self, folder: Path, module: str) -> Parts:
        """Return what the values of a function depend on besides its arguments.

        Args:
            folder: where its module is looked for first, as for a notebook's.
            module: dotted name of its module.

        Returns:
            library (room to digest), data and versions.
        """
        modules = self._library_at(folder).needed_by([f"import {module}"])
        data = self._data() if _need_data(modules) else {}
        return {"library": by_room(modules), "data": data, "versions": self._once("versions", versions)}

    def uses_data(self, item: Reproduction) -> bool:
        """Say whether an item's notebook may load data sets or trained models."""
        return _need_data(self._modules_of(read_notebook(self.project.notebook(item))))

    def _modules_of(self, notebook: NotebookCells) -> dict[str, str]:
        return self._library_at(notebook.path.parent).needed_by(notebook.code)

    def _library_at(self, folder: Path) -> Library:
        if folder not in self._library:
            self._library[folder] = Library([folder, Path(workbench.__file__).parents[1]])
        return self._library[folder]

    def _data(self) -> dict[str, str]:
        return self._once("data", lambda: data_identity(self.project))

    def _once(self, name: str, compute: Any) -> Any:
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]


def _need_data(modules: Mapping[str, str]) -> bool:
    return any(name.startswith(DATA_PACKAGES) for name in modules)


def _declaration(item: Reproduction) -> dict[str, Any]:
    claims = [{"kind": type(claim).__name__} | jsonable(claim) for claim in item.claims]
    return {"id": item.id, "title": item.title, "notebook": item.notebook, "times": item.times, "claims": claims}


def data_identity(project: Project) -> dict[str, str]:
    """Return digests that change when other data would be found: manifest, WORKBENCH_DATA, Hugging Face cache."""
    from workbench.datasets import places

    manifest = project.data / MANIFEST
    folder = places.workbench_data()
    return {
        "manifest": _digest(manifest.read_bytes()) if manifest.is_file() else "none",
        "WORKBENCH_DATA": "none" if folder is None else _digest("\n".join(_listing(folder))),
        "hub": _digest("\n".join([*_cached(places.hub_cache(), SNAPSHOTS), *_cached(places.prepared_cache(), BUILDS)])),
    }


def _listing(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            facts = path.stat()
            yield f"{path.relative_to(folder)} {facts.st_size} {facts.st_mtime_ns}"


def _cached(cache: Path, pattern: str) -> Iterator[str]:
    for folder in sorted(cache.glob(pattern)):
        if folder.is_dir():  # the one changed last is the one that is used, so its own time counts too
            yield f"{folder.relative_to(cache)} {folder.stat().st_mtime_ns}"
            yield from _listing(folder)


def _digest(content: str | bytes) -> str:
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Say in one line which parts of a fingerprint changed; empty if none did."""
    return "; ".join(_told(part, before.get(part), now.get(part)) for part in now if before.get(part) != now.get(part))


def _told(part: str, before: Any, now: Any) -> str:
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return f"{part} changed"
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    rest = f" and {len(names) - LONGEST_TOLD} more" if len(names) > LONGEST_TOLD else ""
    return f"{part}: {', '.join(names[:LONGEST_TOLD])}{rest} changed"
