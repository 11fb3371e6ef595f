"""Which library modules a notebook depends on, found in the source without importing anything.

Source: Python's import rules, as far as they can be read from the syntax tree.
Simplified: an import counts wherever it stands; texts that are the dotted name of a module count as imports of it; a
package that loads its modules lazily (`__getattr__`) counts with all of them where it is imported by name. What is
found may be too much, so that an item runs again without need, rather than too little.
Left out: modules outside the given roots (they are covered by the packages' versions), and names built at run time.
"""

import ast
import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from workbench.reproduction.notebook_cells import parse_cell, parse_source

__all__ = ["Library", "by_room"]

DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
FOLDER = re.compile(r"\w+(/\w+)+")  # as a module may name one below the root, such as reproductions/tool/published
DATA_FILES = frozenset({".csv", ".json", ".mplstyle", ".txt", ".yaml", ".yml", ".toml"})
HARNESS = "workbench.reproduction"  # running and reporting touch no number ...
RECORDING = "workbench.reproduction.recording"  # ... but what `record` does counts


@dataclass(frozen=True, kw_only=True, slots=True)
class Module:
    """One source file."""

    digest: str  # sha256 of its code without comments and docstrings, of data files beside a package's __init__, and of those in folders it names
    imports: frozenset[str]  # dotted names it may import
    lazy: frozenset[str]  # modules it may load later, for what is asked of it by name


@dataclass(slots=True)
class Library:
    """Modules below some roots, each read once.

    Attributes:
        roots: folders that packages lie in, searched in order.
    """

    roots: Sequence[Path]
    _modules: dict[str, Module | None] = field(default_factory=dict)

    def needed_by(self, cells: Sequence[str]) -> dict[str, str]:
        """Return the modules a notebook's code needs, directly or not.

        Args:
            cells: source of its code cells.

        Returns:
            Dotted name to digest, sorted by name.
        """
        waiting = [name for cell in cells if (tree := parse_cell(cell)) for name in _imported(tree, "")]
        found: dict[str, str] = {}
        seen: set[str] = set()
        while waiting:
            name = waiting.pop()
            name = RECORDING if name == HARNESS else name
            module = self._module(name)
            if module is None or name in seen:
                continue
            seen.add(name)
            found |= {name: module.digest} | self._executed_on_the_way(name, waiting)
            waiting += module.imports | module.lazy
        return dict(sorted(found.items()))

    def _executed_on_the_way(self, name: str, waiting: list[str]) -> dict[str, str]:
        parents = {parent: self._module(parent) for parent in _parents(name) if parent != HARNESS}
        for module in filter(None, parents.values()):
            waiting += module.imports
        return {parent: module.digest for parent, module in parents.items() if module}

    def _module(self, name: str) -> Module | None:
        if name not in self._modules:
            self._modules[name] = self._find(name)
        return self._modules[name]

    def _find(self, name: str) -> Module | None:
        for root in self.roots:
            base = root.joinpath(*name.split("."))
            for path in (base / "__init__.py", base.with_suffix(".py")):
                if path.is_file():
                    return _read(path, name, root)
        return None


def by_room(modules: Mapping[str, str]) -> dict[str, str]:
    """Return one digest a room instead of one a module, to be kept many times.

    Args:
        modules: dotted name to digest.

    Returns:
        The room, such as workbench.compression or workbench.techniques.tool, to 16 hexadecimal digits.
    """
    rooms: dict[str, list[str]] = {}
    for name in sorted(modules):
        parts = name.split(".")
        rooms.setdefault(".".join(parts[: 3 if parts[1:2] == ["techniques"] else 2]), []).append(modules[name])
    return {room: hashlib.sha256(" ".join(digests).encode()).hexdigest()[:16] for room, digests in rooms.items()}


def _read(path: Path, name: str, root: Path) -> Module:
    source = path.read_bytes()
    is_package = path.name == "__init__.py"
    try:
        tree = parse_source(source)
        digest = hashlib.sha256(_code(tree).encode())
    except SyntaxError:
        return Module(digest=hashlib.sha256(source).hexdigest(), imports=frozenset(), lazy=frozenset())
    if is_package:
        _add_data_files(digest, path.parent)
    for folder in sorted(_named_folders(tree)):
        if (root / folder).is_dir():
            _add_data_files(digest, root / folder)
    imports = frozenset(_imported(tree, name if is_package else name.rpartition(".")[0]))
    is_lazy = is_package and any(isinstance(node, ast.FunctionDef) and node.name == "__getattr__" for node in tree.body)
    inside = (f"{name}.{each.stem}" for each in path.parent.glob("*.py") if each.stem != "__init__")
    return Module(digest=digest.hexdigest(), imports=imports, lazy=frozenset(inside if is_lazy else ()))


def _code(tree: ast.Module) -> str:
    """Return the syntax tree as a text, without docstrings: what cannot change a number is left out."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and _is_text(body[0]):
            del body[0]
    return ast.dump(tree)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _add_data_files(digest: "hashlib._Hash", folder: Path) -> None:
    for file in sorted(folder.iterdir()):
        if file.suffix in DATA_FILES and file.is_file():
            digest.update(file.name.encode() + file.read_bytes())


def _named_folders(tree: ast.Module) -> set[str]:
    texts = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    return {text for text in texts if FOLDER.fullmatch(text)}


def _imported(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
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
