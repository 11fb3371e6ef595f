"""Declared items and published numbers of reproductions/<technique>.

items.toml has the items and their parameters, claims.csv the claims, regimes.csv the ratios that decide them,
published/*.csv the paper's numbers, and catalogue.py the technique's page, and items that are computed, in `CATALOGUE`.
"""

import difflib
import fnmatch
import tomllib
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench.reproduction.claims import Claim, Decidable, Within
from workbench.reproduction.claims_table import read_claims, read_table
from workbench.reproduction.declare import Evidence, Page, Profile, Reproduction
from workbench.reproduction.errors import CatalogueError, UsageError
from workbench.reproduction.files import stamp
from workbench.reproduction.project import Project
from workbench.reproduction.regimes import Regime, read_regimes
from workbench.rows import Row, matches, read_row, read_rows

if TYPE_CHECKING:
    from pandas import DataFrame

__all__ = ["declared_item", "find_item", "load_catalogue", "load_page", "published_rows", "published_table"]
__all__ += ["read_published", "select"]

COLUMNS = ("quantity", "value", "unit", "source")  # columns of every file of published numbers
FIELDS = {"title", "notebook", "published", "expected_s", "tags", "times", "needs", "common"}  # in items.toml
CLOSE, CLOSE_SHOWN = 0.6, 3  # least likeness of a suggested name, and the most suggestions


def load_catalogue(project: Project | None = None) -> tuple[Reproduction, ...]:
    """Load every declared item, by technique, in the order of its file; a CatalogueError names file and field."""
    return _catalogue(project or Project(), "*")


def declared_item(project: Project, id: str) -> Reproduction:
    """Return the item of exactly this id; only the files of its technique are read."""
    technique = id.partition("/")[0].replace("-", "_")
    known = technique.isidentifier() and (project.reproductions / technique).is_dir()
    return find_item(_catalogue(project, technique if known else "*"), id)


def _catalogue(project: Project, technique: str) -> tuple[Reproduction, ...]:
    patterns = (f"{technique}/*.*", f"{technique}/published/*.csv")
    files = (path for pattern in patterns for path in project.reproductions.glob(pattern))
    return _loaded(project, technique, tuple((path, stamp(path)) for path in sorted(files)))


@lru_cache(maxsize=10)
def _loaded(
    project: Project, technique: str, _: tuple[tuple[Path, tuple[int, int, int]], ...]
) -> tuple[Reproduction, ...]:
    """Load the items of a technique, or of all (`*`); once while none of their files changes."""
    items: list[Reproduction] = []
    for page_path in sorted(project.reproductions.glob(f"{technique}/catalogue.py")):
        items += _computed(page_path)
        items += _declared(page_path.parent)
        for item in items:
            if item.technique == page_path.parent.name:
                _check_item(page_path.parent, item, project)
    ids = [item.id for item in items]
    if twice := [name for name in ids if ids.count(name) > 1]:
        raise CatalogueError(f"{project.reproductions}: the id {twice[0]} is declared twice")
    return tuple(items)


def load_page(project: Project, technique: str) -> Page | None:
    """Load the `PAGE` of a technique; None if its catalogue declares none."""
    path = project.reproductions / technique / "catalogue.py"
    page = _execute(path).get("PAGE") if path.is_file() else None
    if page is not None and not isinstance(page, Page):
        raise CatalogueError(f"{path}: PAGE is {page!r}; it must be a Page")
    return page


def _computed(path: Path) -> Sequence[Reproduction]:
    catalogue = _execute(path).get("CATALOGUE", ())
    if not isinstance(catalogue, (tuple, list)) or not all(isinstance(item, Reproduction) for item in catalogue):
        raise CatalogueError(f"{path}: CATALOGUE must be a tuple of Reproduction objects")
    for item in catalogue:
        if item.technique != path.parent.name:
            rule = f"it must be its folder's name, {path.parent.name!r}"
            raise CatalogueError(f"{path}: technique of {item.id} is {item.technique!r}; {rule}")
    return catalogue


def _declared(folder: Path) -> list[Reproduction]:
    """Read items.toml, and give each item its claims."""
    path = folder / "items.toml"
    if not path.is_file():
        return []
    decidable = {}
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
        for name, facts in tables.pop("decidable", {}).items():  # "none": the baseline's rows lack the column
            keys = {column: None if key == "none" else key for column, key in facts.pop("baseline", {}).items()}
            decidable[name] = Decidable(baseline=keys, **facts)
    except (OSError, ValueError, TypeError) as error:
        raise CatalogueError(f"{path}: {error}") from None
    claims = read_claims(folder, decidable)
    if strange := claims.keys() - tables.keys():
        raise CatalogueError(f"{folder / 'claims.csv'}: item is {min(strange)!r}, which {path.name} does not have")
    regimes = read_regimes(folder, tables)
    items = []
    for name, table in tables.items():
        try:
            completed = [_with_printed(claim, folder) for claim in claims.get(name, ())]
            items.append(_item(folder.name, name, table, completed, regimes.get(name, ())))
        except (ValueError, TypeError) as error:
            raise CatalogueError(f"{path}: {name}: {error}") from None
    return items


def _item(
    technique: str, name: str, table: dict[str, Any], claims: Sequence[Claim], regimes: Sequence[Regime]
) -> Reproduction:
    """Build an item from its table, with parameters `common` to all profiles and a table for each profile.

    A profile may name another profile in place of a table, and takes its parameters and its time.
    """
    if strange := table.keys() - FIELDS - set(Profile):
        raise ValueError(f"{min(strange)!r} is not known; an item has {', '.join(sorted(FIELDS))} and its profiles")
    if missing := {"title", "notebook"} - table.keys():
        raise ValueError(f"{min(missing)!r} is missing")
    item, _, evidence = name.rpartition("/")
    common = table.pop("common", {})
    profiles = {profile.value: table.pop(profile) for profile in Profile if profile in table}
    expected_s = table.setdefault("expected_s", {})
    parameters = {}
    for profile, changes in profiles.items():
        table_of_profile = profiles.get(changes) if isinstance(changes, str) else changes
        if not isinstance(table_of_profile, dict):
            raise ValueError(f"{profile} is {changes!r}; it must be a table of parameters, or a profile that has one")
        parameters[profile] = {**common, **table_of_profile}
        if isinstance(changes, str) and changes in expected_s:
            expected_s.setdefault(profile, expected_s[changes])
    return Reproduction(
        technique=technique,
        item=item,
        evidence=Evidence(evidence),
        notebook=f"notebooks/{technique}/{table.pop('notebook')}.ipynb",
        parameters=parameters,
        claims=tuple(claims),
        regimes=tuple(regimes),
        **table,
    )


def _with_printed(claim: Claim, folder: Path) -> Claim:
    """Replace the names of files in a claim's `printed` by the paper's values in them."""
    if claim.decidable is None or not claim.decidable.printed:
        return claim
    printed = {}
    for setting, name in claim.decidable.printed.items():
        path = folder / "published" / str(name)
        for row in _published(path, stamp(path)):
            if row.quantity == claim.quantity and matches(row, claim.where):
                printed[setting] = row.value
    return replace(claim, decidable=replace(claim.decidable, printed=printed))


def _check_item(folder: Path, item: Reproduction, project: Project) -> None:
    """Check that the notebook exists, and that the published numbers have the quantity of every claim about them."""
    if not project.notebook(item).is_file():
        raise CatalogueError(
            f"{folder}: notebook of {item.id} is {item.notebook!r}; there is no such file in {project.root}"
        )
    published = {row.quantity for row in published_rows(project, item)}
    for claim in item.claims:
        if isinstance(claim, Within) and claim.expected is None and claim.quantity not in published:
            raise CatalogueError(
                f"{folder}: claim {claim.name!r} of {item.id} compares {claim.quantity!r}, "
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
    known = list(known)  # equally close names keep the catalogue's order
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
    rows = []
    for line, row in read_table(path, COLUMNS):
        if not row["source"].strip():
            raise CatalogueError(f"{path}: line {line} has no source; say where the paper gives the number")
        try:
            read_row(row)
        except ValueError as error:
            raise CatalogueError(f"{path}: line {line}: {error}") from None
        rows.append(row)
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
