"""The fingerprint of an item: its notebook, the library modules it imports, parameters, data, versions and declaration.

Modules are found in the source without importing anything. Every import counts, wherever it stands, and so does a text
that is a module's dotted name. An item may run again without need, but never misses a change.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import workbench
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.files import canonical_json, jsonable, sha256, stamp
from workbench.reproduction.machine import versions
from workbench.reproduction.notebook_cells import NotebookCells, parse_cell, parse_source, read_notebook
from workbench.reproduction.project import Project

__all__ = ["Fingerprinter", "Library", "by_room", "changes"]

Parts = dict[str, Any]  # part to a digest, or to digests by name
DATA_PACKAGES = ("workbench.datasets", "workbench.models.pretrained")  # items that import these depend on data
SNAPSHOTS, BUILDS = "*--*/snapshots/*", "*/*/*/*"  # folders in the caches of the hub and of prepared data
MOST_PARSED = 2000  # files whose code is remembered; the library has 400
NAMES_SHOWN = 3  # names in one reason
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
TYPE = re.compile(r"^(\w+): [^=\n]+ = ", re.MULTILINE)  # type of a parameter: has no effect on numbers
FOLDER = re.compile(r"\w+(/\w+)+")  # a folder below the root named in a module, such as reproductions/tool/published
DATA_FILES = frozenset({".csv", ".json", ".mplstyle", ".txt", ".yaml", ".yml", ".toml"})
ROOT = "workbench"  # has no effect on numbers
HARNESS = "workbench.reproduction"  # running, judging and reporting have no effect on numbers ...
RECORDING = "workbench.reproduction.recording"  # ... but `record` has
PROGRESS = "say_progress"  # from workbench.rows.progress: without effect on numbers


@dataclass(slots=True)
class Fingerprinter:
    """Computes fingerprints of items, reading each file once."""

    project: Project  # has the notebooks, catalogues and data
    _library: dict[Path, Library] = field(default_factory=dict)
    _files: dict[Path, Module] = field(default_factory=dict)
    _shared: dict[str, Any] = field(default_factory=dict)

    def __call__(self, item: Reproduction, profile: str, kernel: str | None = None) -> Parts:
        """Return the fingerprint of one item in one profile."""
        notebook = read_notebook(self.project.notebook(item))
        modules = self._modules_of(notebook)
        published = self.project.published(item)
        return {
            "notebook": sha256(canonical_json([_without_types(cell) for cell in notebook.cells])),
            "library": {name: digest[:16] for name, digest in modules.items()},
            "parameters": jsonable(item.parameters[profile]),
            "data": self._data() if _need_data(modules) else {},
            "versions": self._once("versions", versions),
            "kernel": kernel or notebook.kernel,
            "published": None if published is None else sha256(published.read_bytes()),
            "declaration": sha256(canonical_json(_declaration(item))),
        }

    def basis(self, folder: Path, module: str) -> Parts:
        """Return the dependencies of a module's functions: library (by room), data and versions."""
        modules = self._library_at(folder).needed_by([f"import {module}"])
        data = self._data() if _need_data(modules) else {}
        return {"library": by_room(modules), "data": data, "versions": self._once("versions", versions)}

    def uses_data(self, item: Reproduction) -> bool:
        """Say whether an item's notebook may load data sets or trained models."""
        return _need_data(self._modules_of(read_notebook(self.project.notebook(item))))

    def _modules_of(self, notebook: NotebookCells) -> dict[str, str]:
        library = self._library_at(notebook.path.parent)
        return self._once(str(notebook.path), lambda: library.needed_by(notebook.code))

    def _library_at(self, folder: Path) -> Library:
        if folder not in self._library:
            roots = [folder, Path(workbench.__file__).parents[1], self.project.root]
            self._library[folder] = Library(list(dict.fromkeys(roots)), self._files)
        return self._library[folder]

    def _data(self) -> dict[str, str]:
        return self._once("data", lambda: data_identity(self.project))

    def _once(self, name: str, compute: Any) -> Any:
        if name not in self._shared:
            self._shared[name] = compute()
        return self._shared[name]


def _without_types(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**cell, "source": TYPE.sub(r"\1 = ", cell["source"])} if "parameters" in cell["tags"] else cell


def _need_data(modules: Mapping[str, str]) -> bool:
    return any(name.startswith(DATA_PACKAGES) for name in modules)


def _declaration(item: Reproduction) -> dict[str, Any]:
    claims = [{"kind": type(claim).__name__} | jsonable(claim) for claim in item.claims]
    for claim in claims:  # how a claim is judged has no effect on numbers
        for name in ("any_regime", "pick"):
            claim.pop(name, None)
    return {"id": item.id, "title": item.title, "notebook": item.notebook, "times": item.times, "claims": claims}


def data_identity(project: Project) -> dict[str, str]:
    """Return digests of the places of data: manifest, WORKBENCH_DATA, Hugging Face cache."""
    from workbench.datasets import places
    from workbench.datasets.manifest import manifest_path

    manifest = manifest_path(project.root)
    folder = places.workbench_data()
    return {
        "manifest": sha256(manifest.read_bytes()) if manifest.is_file() else "none",
        "WORKBENCH_DATA": "none" if folder is None else sha256("\n".join(_listing(folder))),
        "hub": sha256("\n".join([*_cached(places.hub_cache(), SNAPSHOTS), *_cached(places.prepared_cache(), BUILDS)])),
    }


def _listing(folder: Path) -> Iterator[str]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            facts = path.stat()
            yield f"{path.relative_to(folder)} {facts.st_size} {facts.st_mtime_ns}"


def _cached(cache: Path, pattern: str) -> Iterator[str]:
    for folder in sorted(cache.glob(pattern)):
        if folder.is_dir():  # the newest folder is used, so its own time counts too
            yield f"{folder.relative_to(cache)} {folder.stat().st_mtime_ns}"
            yield from _listing(folder)


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name the changed parts of a fingerprint in one line; "" if none changed."""
    held = {part: _counted(before.get(part)) if part == "library" else before.get(part) for part in now}
    return "; ".join(_change(part, held[part], now[part]) for part in now if held[part] != now[part])


def _counted(part: Any) -> Any:
    """Leave out modules without effect on numbers, which older records name."""
    return {name: held for name, held in part.items() if not _is_harness(name)} if isinstance(part, Mapping) else part


def _is_harness(name: str) -> bool:
    return name == ROOT or (name.startswith(f"{HARNESS}.") and name != RECORDING)


def _change(part: str, before: Any, now: Any) -> str:
    if not (isinstance(before, Mapping) and isinstance(now, Mapping)):
        return f"{part} changed"
    names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
    rest = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{part}: {', '.join(names[:NAMES_SHOWN])}{rest} changed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One source file."""

    digest: str  # sha256 of its code without docstrings and of data files beside a package or in named folders
    imports: frozenset[str]  # dotted names it may import
    lazy: frozenset[str]  # modules that its `__getattr__` may load later


@dataclass(slots=True)
class Library:
    """Modules below some roots, each read once."""

    roots: Sequence[Path]  # folders of packages, searched in order; after the first only for our own packages
    files: dict[Path, Module] = field(default_factory=dict)  # modules read so far, shared by libraries
    _modules: dict[str, Module | None] = field(default_factory=dict)
    _imports: dict[str, tuple[dict[str, str], frozenset[str]]] = field(default_factory=dict)
    _with_ours: Sequence[Path] = ()  # the roots that have modules of our own

    def __post_init__(self) -> None:
        self._with_ours = [root for root in self.roots if (root / ROOT).is_dir()]

    def needed_by(self, cells: Sequence[str]) -> dict[str, str]:
        """Return the modules that a notebook's code cells need, directly or not: dotted name to digest."""
        trees = [tree for cell in cells if (tree := parse_cell(cell))]
        waiting = {name for tree in trees for name in _imported(ast.walk(tree), "")}
        digests: dict[str, str] = {}
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            seen.add(name)
            executed, following = self._import(name)
            digests |= executed
            waiting |= following - seen
        return dict(sorted(digests.items()))

    def _import(self, name: str) -> tuple[dict[str, str], frozenset[str]]:
        """Return the digests of the modules that importing a name executes, and what these import in their turn."""
        if name not in self._imports:
            name_of_code = RECORDING if name == HARNESS else name
            module = None if _is_harness(name_of_code) else self._module(name_of_code)
            modules = {name_of_code: module} if module else {}
            for parent in _parents(name_of_code) if module else ():
                if parent not in (ROOT, HARNESS) and (above := self._module(parent)):
                    modules[parent] = above
            following = frozenset().union(*(one.imports for one in modules.values()), module.lazy if module else ())
            self._imports[name] = {part: one.digest for part, one in modules.items()}, following
        return self._imports[name]

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._find(name)
        return self._modules[name]

    def _find(self, name: str) -> Module | None:
        is_ours = name.partition(".")[0] == ROOT  # other installed packages, such as torch, are not
        for root in self._with_ours if is_ours else self.roots[:1]:
            base = root.joinpath(*name.split("."))
            for path in (base / "__init__.py", base.with_suffix(".py")):
                if path in self.files or path.is_file():
                    self.files[path] = self.files.get(path) or _read(path, name, root)
                    return self.files[path]
        return None


def by_room(modules: Mapping[str, str]) -> dict[str, str]:
    """Return one digest a room, such as workbench.compression or workbench.techniques.tool, from its modules'."""
    rooms: dict[str, list[str]] = {}
    for name in sorted(modules):
        parts = name.split(".")
        rooms.setdefault(".".join(parts[: 3 if parts[1:2] == ["techniques"] else 2]), []).append(modules[name])
    return {room: sha256(" ".join(digests))[:16] for room, digests in rooms.items()}


def _read(path: Path, name: str, root: Path) -> Module:
    is_package = path.name == "__init__.py"
    of_code, imports, folders, is_lazy = _parsed(path, name if is_package else name.rpartition(".")[0], stamp(path))
    digest = of_code.copy()
    if is_package:
        _add_data_files(digest, path.parent)
    for folder in folders:
        if (root / folder).is_dir():
            _add_data_files(digest, root / folder)
    inside = (f"{name}.{file.stem}" for file in path.parent.glob("*.py") if file.stem != "__init__")
    lazy = frozenset(inside if is_package and is_lazy else ())
    return Module(digest=digest.hexdigest(), imports=imports, lazy=lazy)


@lru_cache(maxsize=MOST_PARSED)
def _parsed(
    path: Path, package: str, _: tuple[int, int, int]
) -> tuple[hashlib._Hash, frozenset[str], Sequence[str], bool]:
    """Return a file's digest, imports, named folders, and whether it has a `__getattr__`, while it does not change."""
    source = path.read_bytes()
    try:
        tree = parse_source(source)
    except SyntaxError:
        return hashlib.sha256(source), frozenset(), (), False
    nodes: list[ast.AST] = []
    digest = hashlib.sha256(_code(tree, nodes).encode())
    is_lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return digest, frozenset(_imported(nodes, package)), sorted(filter(FOLDER.fullmatch, texts)), is_lazy


def _code(node: Any, nodes: list[ast.AST]) -> str:
    """Return `ast.dump` without docstrings and progress calls, in half its time, and add all nodes to a list."""
    kind = type(node)
    if kind is list:
        return f"[{', '.join([_code(part, nodes) for part in node])}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    nodes.append(node)
    fields = []
    for name in kind._fields:
        value = getattr(node, name, None)
        if value is None and getattr(kind, name, ...) is None:
            continue
        if name == "body" and type(value) is list:
            value = [part for at, part in enumerate(value) if not (_is_progress(part) or (at == 0 and _is_text(part)))]
        fields.append(f"{name}={_code(value, nodes)}")
    return f"{kind.__name__}({', '.join(fields)})"


def _is_progress(node: ast.AST) -> bool:
    """Say whether a statement calls or imports `say_progress`."""
    if isinstance(node, ast.ImportFrom):
        return [alias.name for alias in node.names] == [PROGRESS]
    call = node.value if isinstance(node, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == PROGRESS


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _add_data_files(digest: hashlib._Hash, folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        if file.suffix in DATA_FILES and file.is_file():
            digest.update(file.name.encode() + file.read_bytes())


def _imported(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and DOTTED.fullmatch(node.value):
            yield node.value


def _base(node: ast.ImportFrom, package: str) -> str:
    if node.level == 0:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
