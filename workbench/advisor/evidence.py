"""What the records say of each technique: its model's error, the regime that was seen, and what accuracy it cost."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from workbench.reproduction import Missed, Project, Value, load_catalogue
from workbench.reproduction.catalogue import load_page
from workbench.reproduction.findings import ADVICE, BestRun, advice_tested, best_runs, findings_of
from workbench.rows import Row, matches

from .predictions import PREDICTIONS

__all__ = ["Evidence", "evidence", "save", "tested"]

SAVED = Path(__file__).with_name("evidence.json")  # of `save`, in a browser's copy of this library: it has no records


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """What stands behind the advice on one technique."""

    name: str  # in the authors' spelling
    line: str  # of code
    lost: str  # accuracy in our records
    missed: tuple[float, float] | None  # least and largest of measured over predicted gains; None where not measured
    seen: tuple[float, float] | None  # least and largest of the ratio that decides, in our records
    ratio: str  # that ratio in words
    items: tuple[str, ...]  # ids behind all of this


def evidence(project: Project | None = None) -> Mapping[str, Evidence]:
    """Read what the records of a project say, by technique; only the items that are needed are judged."""
    if project is None and SAVED.exists():
        saved = json.loads(SAVED.read_text(encoding="utf-8"))["evidence"]
        return {technique: Evidence(**_with_tuples(fields)) for technique, fields in saved.items()}
    project = project or Project()
    catalogue, by_technique = load_catalogue(project), {}
    for technique in PREDICTIONS:
        page = load_page(project, technique)
        if page is None or page.use is None:
            raise ValueError(f"technique is {technique!r}; PAGE of its catalogue must say when to use it")
        use, folder = page.use, technique.replace("_", "-")
        values = [value for finding in use.findings for value in finding.values.values()]
        more = [place for place in (use.missed, use.seen) if place is not None]
        names = dict.fromkeys(place.item for place in (*values, *more))
        runs = best_runs(project, [item for item in catalogue if item.id.removeprefix(f"{folder}/") in names])
        _, lost = findings_of(use.findings, technique, runs)
        by_technique[technique] = Evidence(
            name=page.name or technique.replace("_", " ").capitalize(),
            line=use.line,
            lost=lost.sentence or f"not recorded: {'; '.join(lost.missing)}",
            missed=_missed(use.missed, _rows(runs, folder, use.missed)),
            seen=_seen(use.seen, _rows(runs, folder, use.seen)),
            ratio=use.ratio,
            items=tuple(f"{folder}/{name}" for name in names),
        )
    return by_technique


def tested(project: Project | None = None) -> str:
    """Say what the blind test came to."""
    if project is None and SAVED.exists():
        return str(json.loads(SAVED.read_text(encoding="utf-8"))["tested"])
    project = project or Project()
    return advice_tested(best_runs(project, [item for item in load_catalogue(project) if item.id == ADVICE]))


def save(folder: Path) -> None:
    """Write what the records of this library's checkout say into a copy of this package."""
    project = Project(SAVED.parents[2])
    by_technique = {technique: asdict(behind) for technique, behind in evidence(project).items()}
    text = json.dumps({"evidence": by_technique, "tested": tested(project)}, indent=1)
    (folder / SAVED.name).write_text(text, encoding="utf-8")


def _with_tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


def _rows(runs: Mapping[str, BestRun], folder: str, place: Missed | Value | None) -> Sequence[Row]:
    return () if place is None else runs[f"{folder}/{place.item}"].rows


def _seen(value: Value | None, rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return the range of the rows that fit, or of their key column of that name."""
    if value is None:
        return None
    ratios = [row.value for row in rows if row.quantity == value.quantity and matches(row, value.where)]
    ratios += [float(row.keys[value.quantity]) for row in rows if value.quantity in row.keys]
    return (min(ratios), max(ratios)) if ratios else None


def _missed(missed: Missed | None, rows: Sequence[Row]) -> tuple[float, float] | None:
    """Return the range of measured over predicted gains, each of rows with the same other keys."""
    if missed is None:
        return None
    of_technique = _ratios(missed, rows, missed.technique)
    factors = list(of_technique.values())
    if missed.plain:  # ratios of times: the gain is the plain setting's over the technique's
        plain = _ratios(missed, rows, missed.plain)
        factors = [plain[keys] / ratio for keys, ratio in of_technique.items() if keys in plain]
    return (min(factors), max(factors)) if factors else None


def _ratios(missed: Missed, rows: Sequence[Row], where: Mapping[str, Any]) -> dict[Any, float]:
    """Return measured over predicted values, by the keys that `where` does not name."""
    predicted = [row for row in rows if row.quantity == missed.predicted and matches(row, where)]
    ratios = {}
    for row in rows:
        if row.quantity != missed.measured or not matches(row, where):
            continue
        beside = [prediction.value for prediction in predicted if prediction.keys.items() <= row.keys.items()]
        if beside or not missed.predicted:
            keys = frozenset((name, key) for name, key in row.keys.items() if name not in where)
            ratios[keys] = row.value / beside[0] if beside else row.value
    return ratios
