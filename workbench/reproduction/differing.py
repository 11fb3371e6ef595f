"""Two sets of records compared: verdicts by the present rules, numbers with their intervals, circumstances of the runs.

A set is a folder, a record's file, the recorded runs of a profile, or those of a commit.
"""

import math
import subprocess
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from workbench.reproduction.declare import Evidence, Profile, Reproduction
from workbench.reproduction.errors import RecordError, UsageError
from workbench.reproduction.project import ON, RECORD_FILE, Project
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import SealedRecord, merged_rows, sealed_record
from workbench.reproduction.schema import parse, read_text
from workbench.rows import Row

__all__ = ["Compared", "Difference", "RecordSet", "compare", "differences", "pairs", "record_set"]

CIRCUMSTANCES = ("machine", "parameters", "configuration", "versions", "environment")
NAMES = (RECORD_FILE, *(f"{evidence.value}.json" for evidence in Evidence))  # of records, here and in the repository


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordSet:
    """Records to compare, by id and profile."""

    records: Mapping[tuple[str, str], SealedRecord]
    refused: tuple[str, ...]  # one line for each file that cannot be trusted


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """One thing in which two records of an item differ; None stands for what a record lacks."""

    id: str
    what: str  # verdict, value, or a circumstance such as machine
    name: str  # of the claim or the setting, or quantity and keys
    before: Any  # a verdict, a setting, or {"value", "low", "high", "unit"}
    after: Any
    told_apart: bool = True  # False for values whose intervals overlap

    def to_json(self) -> dict[str, Any]:
        """Return the difference as plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """Two sets of records compared."""

    differences: Mapping[str, Sequence[Difference]]  # by id and profile, of items with a record in both
    lacking: tuple[Sequence[str], Sequence[str]]  # in the first set, and in the second
    refused: tuple[str, ...]

    def count(self, what: str) -> int:
        """Return how many verdicts or values are told apart."""
        differences = chain.from_iterable(self.differences.values())
        return sum(difference.told_apart and difference.what == what for difference in differences)


def compare(
    project: Project, catalogue: Iterable[Reproduction], before: str, after: str, ids: Container[str] | None = None
) -> Compared:
    """Compare the records that two words name, item by item, or only those of some ids.

    Raises:
        UsageError: if a word names nothing, or no item has a record in both sets.
    """
    items = {item.id: item for item in catalogue}
    sets = [record_set(project, word) for word in (before, after)]
    lacking: tuple[list[str], list[str]] = ([], [])
    by_item = {}
    for old, new in pairs(*sets):
        either: Mapping[str, Any] = new or old or {}
        name = f"{either['id']} {either['profile']}"
        if ids is not None and either["id"] not in ids:
            continue
        if old and new:
            by_item[name] = differences(project, items, old, new)
        else:
            lacking[old is not None].append(name)
    if not by_item:
        raise UsageError(f"no item has both a record in {before} and one in {after}")
    return Compared(differences=by_item, lacking=lacking, refused=sets[0].refused + sets[1].refused)


def record_set(project: Project, word: str) -> RecordSet:
    """Return the records that a word names: a profile, a file, a folder or a commit."""
    path, place = Path(word), "reproductions/*/recorded"
    if word in [profile.value for profile in Profile]:
        paths = project.root.glob(f"{place}/{word}/*/*.json")
    elif path.is_dir():
        paths = (file for file in path.rglob("*.json") if not any(part.startswith(".") for part in file.parts[-5:]))
    elif path.is_file():
        return _read([(word, read_text(path))])
    else:
        return _read(_committed(project.root, word))
    return _read((str(file), read_text(file)) for file in sorted(paths) if file.name in NAMES)


def _read(texts: Iterable[tuple[str, str]]) -> RecordSet:
    records, refused = {}, []
    for place, text in texts:
        try:
            record = sealed_record(parse(text, place), place)
            records[record["id"], record["profile"]] = record
        except RecordError as error:
            refused.append(str(error))
    return RecordSet(records=records, refused=tuple(refused))


def _committed(root: Path, commit: str) -> Iterator[tuple[str, str]]:
    """Return place and text of each record that a commit holds."""
    known = _git(root, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{commit}^{{commit}}").decode().strip()
    if not known:
        choices = ", ".join(Profile)
        raise UsageError(f"{commit!r} is no folder, no file, no commit and no profile ({choices})")
    listed = _git(root, "ls-tree", "-r", "-z", "--name-only", known, "--", "reproductions").decode().split("\0")
    names = [name for name in listed if "/recorded/" in name and ON not in name and name.rpartition("/")[2] in NAMES]
    asked = "".join(f"{known}:./{name}\n" for name in names)
    content = _git(root, "cat-file", "--batch", stdin=asked.encode())
    for name in names:  # a line with the length of each file, and the file
        head, _, content = content.partition(b"\n")
        length = int(head.split()[-1])
        yield f"{commit}:{name}", content[:length].decode()
        content = content[length + 1 :]


def _git(root: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    try:
        return subprocess.run(["git", "-C", str(root), *arguments], input=stdin, capture_output=True).stdout
    except FileNotFoundError:
        return b""


def pairs(before: RecordSet, after: RecordSet) -> Iterator[tuple[SealedRecord | None, SealedRecord | None]]:
    """Pair the records of an item and a profile; two sets of one profile each are paired by item alone."""
    old, new = dict(before.records), dict(after.records)
    if len({profile for _, profile in old}) <= 1 and len({profile for _, profile in new}) <= 1:
        old, new = ({(id, ""): record for (id, _), record in side.items()} for side in (old, new))
    for key in sorted(old.keys() | new.keys()):
        yield old.get(key), new.get(key)


def differences(
    project: Project, catalogue: Mapping[str, Reproduction], old: SealedRecord, new: SealedRecord
) -> list[Difference]:
    """Return how two records of an item differ: verdicts, then values told apart first, then the runs' circumstances.

    Both are judged by the claims as they are now; records of items that are not declared keep the verdicts they had.
    """
    verdicts = [_verdicts(project, catalogue.get(record["id"]), record) for record in (old, new)]
    differing = [Difference(id=new["id"], what="verdict", name=name, **sides) for name, sides in _changed(*verdicts)]
    rows = [{(row.quantity, row.unit, _keys(row)): row for row in merged_rows(record)} for record in (old, new)]
    values = []
    for quantity, unit, keys in dict.fromkeys([*rows[0], *rows[1]]):
        before, after = (side.get((quantity, unit, keys)) for side in rows)
        if before is None or after is None or not _equal(before.value, after.value):
            overlap = (
                before and after and before.interval[0] <= after.interval[1] and after.interval[0] <= before.interval[1]
            )
            named = " ".join(filter(None, (quantity, keys)))
            sides: dict[str, Any] = {"before": _value(before), "after": _value(after)}
            values.append(Difference(id=new["id"], what="value", name=named, told_apart=not overlap, **sides))
    differing += sorted(values, key=lambda value: not value.told_apart)
    for field in CIRCUMSTANCES:
        settings = _changed(old.get(field) or {}, new.get(field) or {})
        differing += [Difference(id=new["id"], what=field, name=name, **sides) for name, sides in settings]
    return differing


def _verdicts(project: Project, item: Reproduction | None, record: SealedRecord) -> dict[str, str]:
    if item is None:
        return {verdict["claim"]: verdict["verdict"] for verdict in record["verdicts"]}
    if record["profile"] == Profile.SMOKE:
        return {}
    try:
        return {verdict.claim: verdict.verdict.value for verdict in verdicts_of(project, item, record)}
    except (ValueError, KeyError) as error:  # the claims changed since the record was made
        return {claim.name: f"cannot be judged: {error}" for claim in item.claims}


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    names = [name for name in dict.fromkeys([*old, *new]) if old.get(name) != new.get(name)]
    return [(name, {"before": old.get(name), "after": new.get(name)}) for name in names]


def _keys(row: Row) -> str:
    return ", ".join(f"{name}={key}" for name, key in sorted(row.keys.items()))


def _equal(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))


def _value(row: Row | None) -> dict[str, Any] | None:
    return None if row is None else {"value": row.value, "low": row.low, "high": row.high, "unit": row.unit}
