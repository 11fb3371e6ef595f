"""The fingerprint of an item: its notebook, the library modules it imports, parameters, data, versions and declaration.

Modules are found in the source without importing anything. Every import counts, wherever it stands, and so does a text
that is a module's dotted name. An item may run again without need, but never misses a change.
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import workbench
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.files import canonical_json, jsonable, sha256, stamp
from workbench.reproduction.machine import versions
from workbench.reproduction.notebook_cells import NotebookCells, parse_cell, parse_source, read_notebook
from workbench.reproduction.project import Project

__all__ = ["Fingerprinter", "Library", "by_room", "changes", "named_modules"]

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
            "notebook": self._once(f"cells of {notebook.path}", partial(_digest_of_cells, notebook)),
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


def _digest_of_cells(notebook: NotebookCells) -> str:
    return sha256(canonical_json([_without_types(cell) for cell in notebook.cells]))


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
    _names: dict[tuple[Path, str], frozenset[str]] = field(default_factory=dict)  # in the folder of a package
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
            named = frozenset().union(*(source.imports for source in modules.values()), module.lazy if module else ())
            following = frozenset(other for other in named if not _is_harness(other) and self._module(other))
            self._imports[name] = {part: source.digest for part, source in modules.items()}, following
        return self._imports[name]

    def has(self, name: str) -> bool:
        """Say whether a dotted name is a module."""
        return self._module(name) is not None

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._find(name)
        return self._modules[name]

    def _find(self, name: str) -> Module | None:
        is_ours = name.partition(".")[0] == ROOT  # other installed packages, such as torch, are not
        parent, _, last = name.rpartition(".")
        for root in self._with_ours if is_ours else self.roots[:1]:
            if (root, parent) not in self._names:
                folder = root.joinpath(*parent.split("."))
                self._names[root, parent] = frozenset(os.listdir(folder) if folder.is_dir() else ())
            if self._names[root, parent].isdisjoint((last, f"{last}.py")):  # most names are of functions and classes
                continue
            base = root.joinpath(*name.split("."))
            for path in (base / "__init__.py", base.with_suffix(".py")):
                if path in self.files or path.is_file():
                    self.files[path] = self.files.get(path) or _read(path, name, root)
                    return self.files[path]
        return None


def named_modules(notebooks: Iterable[Path]) -> list[str]:
    """Return the modules of this library that notebooks import by name."""
    cells = [cell for path in sorted(set(notebooks)) for cell in read_notebook(path).code]
    names = {name for cell in cells if (tree := parse_cell(cell)) for name in _imported(ast.walk(tree), "")}
    library = Library([Path(workbench.__file__).parents[1]], {})
    return sorted(name for name in names if name.partition(".")[0] == ROOT and library.has(name))


def by_room(modules: Mapping[str, str]) -> dict[str, str]:
    """Return one digest a room, such as workbench.compression or workbench.techniques.tool, from its modules'."""
    rooms: dict[str, list[str]] = {}
    for name in sorted(modules):
        parts = name.split(".")
        rooms.setdefault(".".join(parts[: 3 if parts[1:2] == ["techniques"] else 2]), []).append(modules[name])
    return {room: sha256(" ".join(digests))[:16] for room, digests in rooms.items()}


def _read(path: Path, name: str, root: Path) -> Module:
    is_package = path.name == "__init__.py"
    parsed = _parsed(path, name if is_package else name.rpartition(".")[0], stamp(path))
    folders = [*([path.parent] if is_package else []), *(root / folder for folder in parsed.folders)]
    data = b"".join(_data_files(folder) for folder in folders if folder.is_dir())
    digest = sha256(_code_or_source(path.read_bytes())[0] + data) if data else parsed.digest
    inside = (f"{name}.{file.stem}" for file in path.parent.glob("*.py") if file.stem != "__init__")
    lazy = frozenset(inside if is_package and parsed.is_lazy else ())
    return Module(digest=digest, imports=frozenset(parsed.imports), lazy=lazy)


class Parsed(NamedTuple):
    """What a fingerprint needs of a source file."""

    digest: str  # sha256 of its code without docstrings
    imports: Sequence[str]  # dotted names it may import
    folders: Sequence[str]  # named folders below the root
    is_lazy: bool  # whether it has a `__getattr__`


@lru_cache(maxsize=MOST_PARSED)
def _parsed(path: Path, package: str, _: tuple[int, int, int]) -> Parsed:
    """Parse a file while it does not change; of our own package, keep the result beside the compiled module."""
    source = path.read_bytes()
    if not path.is_relative_to(Path(workbench.__file__).parent):
        return _parse(source, package)
    kept = path.parent / "__pycache__" / f"{path.stem}.{sys.implementation.cache_tag}.json"
    key = sha256(b"\0".join([_own_source(), package.encode(), source]))
    with suppress(OSError, ValueError):
        held = json.loads(kept.read_bytes())
        if isinstance(held, dict) and held.pop("key", "") == key:
            return Parsed(**held)
    parsed = _parse(source, package)
    with suppress(OSError):  # a folder that cannot be written
        kept.parent.mkdir(exist_ok=True)
        written = kept.with_suffix(f".{os.getpid()}")
        written.write_text(json.dumps(parsed._asdict() | {"key": key}))
        written.replace(kept)
    return parsed


@lru_cache
def _own_source() -> bytes:
    return Path(__file__).read_bytes()


def _parse(source: bytes, package: str) -> Parsed:
    code, tree, nodes = _code_or_source(source)
    is_lazy = any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    folders = sorted(filter(FOLDER.fullmatch, texts))
    return Parsed(sha256(code), sorted(set(_imported(nodes, package))), folders, is_lazy)


def _code_or_source(source: bytes) -> tuple[bytes, ast.Module, list[ast.AST]]:
    """Return a file's code without docstrings, its tree and all its nodes; the source itself if it is not Python."""
    nodes: list[ast.AST] = []
    try:
        tree = parse_source(source)
    except SyntaxError:
        return source, ast.Module([], []), nodes
    return _code(tree, nodes).encode(), tree, nodes


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


def _data_files(folder: Path) -> bytes:
    files = [file for file in sorted(folder.iterdir()) if file.suffix in DATA_FILES and file.is_file()]
    return b"".join(file.name.encode() + file.read_bytes() for file in files)


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
