"""Declared items and published numbers of reproductions/<technique>: catalogue.py, <evidence>*.py, published/*.csv."""

import csv
import difflib
import fnmatch
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.claims import Within
from workbench.reproduction.declare import Evidence, Page, Profile, Reproduction
from workbench.reproduction.errors import CatalogueError, UsageError
from workbench.reproduction.files import stamp
from workbench.reproduction.project import Project
from workbench.study.rows import Row, read_row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["find_item", "load_catalogue", "load_page", "published_rows", "published_table", "read_published", "select"]

FILES = ("catalogue.py", *(f"{evidence}*.py" for evidence in Evidence))  # the technique's page, then its files
COLUMNS = ("quantity", "value", "unit", "source")  # of every file of published numbers
CLOSE, CLOSE_SHOWN = 0.6, 3  # likeness from which a name is suggested, and the number of suggestions


def load_catalogue(project: Project | None = None) -> tuple[Reproduction, ...]:
    """Load every declared item, by technique, then by file; a CatalogueError names the file, the line and the field."""
    project = project or Project()
    items: list[Reproduction] = []
    for page_path in sorted(project.reproductions.glob("*/catalogue.py")):
        paths = [path for name in FILES for path in sorted(page_path.parent.glob(name))]
        own = [item for path in paths for item in _load_one(path, project)]
        items += _with_quick(own, load_page(project, page_path.parent.name), page_path)
    ids = [item.id for item in items]
    if twice := [name for name in ids if ids.count(name) > 1]:
        raise CatalogueError(f"{project.reproductions}: the id {twice[0]} is declared twice")
    return tuple(items)


def load_page(project: Project, technique: str) -> Page | None:
    """Load what a technique's page begins with; None where its catalogue declares none."""
    path = project.reproductions / technique / "catalogue.py"
    page = _execute(path).get("PAGE") if path.is_file() else None
    if page is not None and not isinstance(page, Page):
        raise CatalogueError(f"{path}: PAGE is {page!r}; it must be a Page")
    return page


def _with_quick(items: Sequence[Reproduction], page: Page | None, path: Path) -> list[Reproduction]:
    """Declare the items that a page names for the profile quick, too."""
    changes = dict(page.quick) if page is not None else {}
    quick = []
    for item in items:
        changed = changes.pop(f"{item.item}/{item.evidence}", None)
        if changed is not None:
            changed, seconds = dict(changed), dict(item.expected_s)
            if (expected_s := changed.pop("expected_s", seconds.get(Profile.LAPTOP))) is not None:
                seconds[Profile.QUICK.value] = expected_s
            laptop = item.parameters.get(Profile.LAPTOP, {})
            if strange := set(changed) - set(laptop):
                raise CatalogueError(f"{path}: quick changes {min(strange)!r} of {item.id}, no parameter of laptop")
            parameters = {**item.parameters, Profile.QUICK.value: {**laptop, **changed}}
            item = replace(item, parameters=parameters, expected_s=seconds)
        quick.append(item)
    if changes:
        raise CatalogueError(f"{path}: quick names the item {min(changes)!r}, which is not declared")
    return quick


def _load_one(path: Path, project: Project) -> Sequence[Reproduction]:
    catalogue = _execute(path).get("CATALOGUE")
    if not isinstance(catalogue, (tuple, list)) or not all(isinstance(item, Reproduction) for item in catalogue):
        raise CatalogueError(f"{path}: CATALOGUE must be a tuple of Reproduction objects")
    for item in catalogue:
        if item.technique != path.parent.name:
            rule = f"it must be its folder's name, {path.parent.name!r}"
            raise CatalogueError(f"{path}: technique of {item.id} is {item.technique!r}; {rule}")
        if not project.notebook(item).is_file():
            raise CatalogueError(
                f"{path}: notebook of {item.id} is {item.notebook!r}; there is no such file in {project.root}"
            )
        _check_quantities(path, item, {row.quantity for row in published_rows(project, item)})
    return catalogue


def _check_quantities(path: Path, item: Reproduction, published: set[str]) -> None:
    for claim in item.claims:
        if isinstance(claim, Within) and claim.expected is None and claim.quantity not in published:
            raise CatalogueError(
                f"{path}: claim {claim.name!r} of {item.id} compares {claim.quantity!r}, "
                f"which {item.published} does not have; it has {', '.join(sorted(published)) or 'no rows'}"
            )


def _execute(path: Path) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": f"reproductions.{path.parent.name}.{path.stem}", "__file__": str(path)}
    try:
        exec(compile(path.read_bytes(), str(path), "exec"), names)
    except SyntaxError as error:
        raise CatalogueError(f"{path}:{error.lineno}: {error.msg}") from None
    except (Exception, SystemExit) as error:  # any error of the catalogue's own code is the catalogue's
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        place = f"{path}:{lines[-1]}" if lines else str(path)
        raise CatalogueError(f"{place}: {str(error) or type(error).__name__}") from error
    return names


def find_item(catalogue: Iterable[Reproduction], id: str) -> Reproduction:
    """Return the item of exactly this id."""
    known = {item.id: item for item in catalogue}
    if id not in known:
        raise UsageError(f"no item {id!r}{_close(id, known)}")
    return known[id]


def select(catalogue: Sequence[Reproduction], patterns: Iterable[str] = ()) -> tuple[Reproduction, ...]:
    """Select items by id, the beginning of an id (whole parts of it), or a glob; all of them without patterns."""
    patterns = [patterns] if isinstance(patterns, str) else list(patterns)
    chosen: set[str] = set()
    for pattern in patterns:
        wanted = pattern.strip("/").replace("_", "-")
        fitting = {item.id for item in catalogue if _fits(item.id, wanted)}
        if not fitting:
            raise UsageError(f"no item fits {pattern!r}{_close(wanted, [item.id for item in catalogue])}")
        chosen |= fitting
    return tuple(item for item in catalogue if not patterns or item.id in chosen)


def _fits(id: str, wanted: str) -> bool:
    return bool(wanted) and (id == wanted or id.startswith(f"{wanted}/") or fnmatch.fnmatchcase(id, wanted))


def _nearest(wanted: str, names: Iterable[str]) -> list[str]:
    scores = {name: difflib.SequenceMatcher(None, wanted, name).ratio() for name in names}
    return sorted((name for name in scores if scores[name] >= CLOSE), key=scores.__getitem__, reverse=True)


def _close(wanted: str, known: Iterable[str]) -> str:
    known = list(known)  # in the catalogue's order, which equally close ones keep
    parts = dict.fromkeys("/".join(id.split("/")[:count]) for id in known for count in (1, 2, 3))
    last = wanted.split("/")[-1 if wanted.count("/") < 2 else 1]
    same = [id for id in known if f"/{last}/" in id]
    names = dict.fromkeys(id.split("/")[1] for id in known)
    pool = names if "/" not in wanted else parts
    near = same or _nearest(wanted, pool) or _nearest(wanted, parts)
    near = near[:CLOSE_SHOWN]
    return f"; did you mean {' or '.join(near)}?" if near else f"; `workbench list` names all {len(known)}"


def read_published(path: Path) -> tuple[Row, ...]:
    """Read one file of published numbers."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            reader = csv.DictReader(file, strict=True)
            rows = list(reader)
            columns = reader.fieldnames or []
    except OSError as error:
        raise CatalogueError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise CatalogueError(f"{path}: cannot be read: {error}") from None
    if missing := [name for name in COLUMNS if name not in columns]:
        raise CatalogueError(f"{path}: column {missing[0]!r} is missing; every file has {', '.join(COLUMNS)}")
    for line, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise CatalogueError(f"{path}: line {line} does not have {len(columns)} columns")
        if not row["source"].strip():
            raise CatalogueError(f"{path}: line {line} has no source; say where the paper gives the number")
        try:
            read_row(row)
        except ValueError as error:
            raise CatalogueError(f"{path}: line {line}: {error}") from None
    try:
        return read_rows(rows, path.name)
    except ValueError as error:
        raise CatalogueError(f"{path.parent}: {error}") from None


def published_rows(project: Project, item: Reproduction) -> tuple[Row, ...]:
    """Return the published numbers of an item; none where its paper gives none."""
    path = project.published(item)
    return () if path is None else _published(path, stamp(path))


@lru_cache(maxsize=1000)
def _published(path: Path, _: tuple[int, int, int]) -> tuple[Row, ...]:
    return read_published(path)


def published_table(project: Project, item: Reproduction, quantity: str) -> "DataFrame":
    """Return the published rows of one quantity, a key column each, for figures; empty where there are none."""
    import pandas

    rows = [row.to_json() for row in published_rows(project, item) if row.quantity == quantity]
    return pandas.DataFrame(rows, columns=None if rows else list(COLUMNS))
