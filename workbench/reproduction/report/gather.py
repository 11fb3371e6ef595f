"""Read what lies on disk of a profile and lay it out for the pages: items, techniques, totals.

Source: the workbench's own files: catalogues, record.json, failure.json, recorded runs.
Simplified: everything is read anew each time; at a hundred items that takes tens of milliseconds.
Left out: HTML (the templates), running anything.
"""

from __future__ import annotations

import ast
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from workbench.reproduction.artifacts import misfits
from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.project import Project
from workbench.reproduction.recorded import promoted_figure

from .judged import RecordedRun, claims_of, recorded_beside, trusted_record
from .notebooks import notebook_page
from .numbers import seconds_text
from .pictures import figure_uri, thumbnail_uri
from .views import (
    FailureView,
    Finding,
    ItemView,
    RecordedFigure,
    count_recorded,
    count_verdicts,
    facts_of,
    machine_text,
    slug,
    value_rows,
    when_text,
)

__all__ = ["EVIDENCE_MEANINGS", "PROFILE_MEANINGS", "VERDICT_MEANINGS", "Report", "TechniqueView", "gather"]

EVIDENCE_MEANINGS = {
    "COUNTED": "Bytes, messages, counts or probabilities: the same on any machine.",
    "MEASURED": "Time or accuracy of real ranks on the machine named in the record; injected delays and shaped links are named there too.",
    "SIMULATED": "From a cost model or an event simulation of a named cluster; cells used for calibration never count as reproduced.",
}
VERDICT_MEANINGS = {
    "DISAGREES": "Outside the tolerance, or another order or direction than the paper's. It stays here, with its explanation.",
    "AGREES": "Within the tolerance that was fixed before the first run, or the order or direction that the paper states.",
    "NOT_COMPARABLE": "Ours was obtained, but it cannot bear on the paper's statement; the reason stands beside it.",
    "NOT_RUN": "Nothing was obtained yet; what is missing stands beside it.",
}
PROFILE_MEANINGS = {
    "smoke": "a check of the plumbing only, which gives no verdicts.",
    "laptop": "real ranks and small models on two processor cores, minutes a technique.",
    "full": "hours on processors, or a GPU.",
    "paper": "the paper's own models and scale, on its number of GPUs.",
}
NO_VERDICTS = "The smoke profile checks the plumbing only and gives no verdicts."
FILES = (("Notebook", "notebook"), ("Figure", "figure"), ("Log", "log"), ("Trace", "trace"))


@dataclass(frozen=True, kw_only=True, slots=True)
class TechniqueView:
    """One technique with its items."""

    name: str
    slug: str
    page: str
    summary: str
    items: tuple[ItemView, ...]
    counts: Mapping[str, int]
    by_evidence: tuple[Mapping[str, Any], ...]

    @property
    def recorded_counts(self) -> Mapping[str, Mapping[str, int]]:
        """Verdicts of all claims in recorded runs, by profile."""
        return count_recorded(self.items)

    def num_recorded(self, profile: str) -> int:
        """Return of how many items there is a recorded run of a profile."""
        return sum(profile in item.recorded_counts for item in self.items)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """Everything the pages of one profile show."""

    profile: str
    profile_meaning: str
    written: str
    headline: str
    machine: str
    only_recorded: bool
    running: bool
    progress: str
    techniques: tuple[TechniqueView, ...]
    counts: Mapping[str, int]
    by_evidence: tuple[Mapping[str, Any], ...]
    disagreements: tuple[tuple[ItemView, Any], ...]
    failures: tuple[ItemView, ...]
    facts: tuple[tuple[str, str], ...]
    data: tuple[Mapping[str, str], ...]
    verdict_meanings: tuple[tuple[str, str], ...] = tuple(VERDICT_MEANINGS.items())


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object, or None where the file is absent or is not one."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return held if isinstance(held, dict) else None


def gather(
    project: Project,
    catalogue: Sequence[Reproduction],
    profile: str,
    *,
    running: Sequence[str] = (),
    progress: str = "",
    under_way: bool = False,
) -> Report:
    """Lay out the report of one profile.

    Args:
        project: where the folders are.
        catalogue: the declared items.
        profile: "smoke", "laptop", "full" or "paper".
        running: ids of the items that run now.
        progress: a sentence on the run under way.
        under_way: whether a run is under way.

    Returns:
        The report, ready for the templates.
    """
    items = [_item(project, reproduction, profile, reproduction.id in running) for reproduction in catalogue]
    techniques = tuple(
        _technique(project, name, [i for i in items if i.technique == name])
        for name in dict.fromkeys(item.technique for item in items)
    )
    words = [claim.verdict for item in items for claim in item.claims]
    ran, recorded = sum(item.has_record for item in items), count_recorded(items)
    only_recorded = (
        not under_way and not any(item.has_record or item.failure or item.refused for item in items) and bool(recorded)
    )
    headline = (
        f"Nothing ran on this machine yet: these are the recorded runs, {' and '.join(recorded)}."
        if only_recorded
        else _headline(ran, items, words, profile)
    )
    return Report(
        profile=profile,
        profile_meaning=PROFILE_MEANINGS.get(profile, ""),
        written=when_text(datetime.now().astimezone().isoformat()),
        headline=headline,
        only_recorded=only_recorded,
        machine="; ".join(dict.fromkeys(i.machine for i in items if i.machine)),
        running=under_way,
        progress=progress,
        techniques=techniques,
        counts=count_verdicts(words),
        by_evidence=_by_evidence(items),
        disagreements=tuple((item, claim) for item in items for claim in item.claims if claim.verdict == "DISAGREES"),
        failures=tuple(item for item in items if item.failure),
        facts=_run_facts(items),
        data=_data(items),
    )


def _item(project: Project, item: Reproduction, profile: str, running: bool) -> ItemView:
    folder, anchor = project.folder(item, profile), slug(f"{item.item} {item.evidence.value}")
    (record, refused), failure = (
        trusted_record(folder / "record.json", item, profile),
        read_json(folder / "failure.json"),
    )
    missing = refused or _why_not_run(item, profile)
    beside, refused_beside = recorded_beside(project, item, profile, record)
    claims = claims_of(project, item, profile, record, beside=beside, anchor=anchor, missing=missing)
    wrong = {} if record is None else misfits(folder, record)
    figures, wrong_figures = _recorded_figures(project, item, profile, beside)
    common = {
        "id": item.id,
        "technique": item.technique.replace("_", " "),
        "item": item.item,
        "title": item.title,
        "evidence": item.evidence.name,
        "page": f"{slug(item.technique)}.html",
        "anchor": anchor,
        "running": running,
        "failure": _failure(failure, folder, item.id),
        "claims": claims,
        "refused": ((refused,) if refused else ()) + refused_beside,
        "recorded_figures": figures,
        "findings": _findings(profile, record, beside),
        "wrong_files": (*wrong.values(), *wrong_figures),
        "counts": count_verdicts([claim.verdict for claim in claims]),
    }
    if record is not None:
        return ItemView(
            **common,
            **_of_record(
                _without_files(record, wrong),
                folder,
                item.id,
                notebook_page(project, item, profile),
                _kept_thumbnail(project, item, profile),
            ),
            no_verdicts=NO_VERDICTS if profile == Profile.SMOKE else "",
        )
    return ItemView(
        has_record=False,
        not_run=missing if refused or not failure else "",
        **common,
        thumbnail=thumbnail_uri(
            promoted_figure(project, item, figures[0].profile), _kept_thumbnail(project, item, profile)
        )
        if figures
        else "",
    )


def _kept_thumbnail(project: Project, item: Reproduction, profile: str) -> Path:
    page = notebook_page(project, item, profile)
    return page.parents[1] / "thumbnails" / f"{page.stem}.png"


def _findings(profile: str, record: Mapping[str, Any] | None, beside: Sequence[RecordedRun]) -> tuple[Finding, ...]:
    """Return what runs answer, the recorded ones after this machine's own; a check of the plumbing and a stand-in answer nothing."""
    if profile == Profile.SMOKE:
        return ()
    runs = [("this run", record)] + [
        (f"recorded {profile} run, {when_text(held.get('started'))}", held) for profile, held, _ in beside
    ]
    return tuple(
        Finding(run=run, text=str(held["finding"]))
        for run, held in runs
        if held and held.get("finding") and not _standin(held)
    )


def _recorded_figures(
    project: Project, item: Reproduction, profile: str, beside: Sequence[RecordedRun]
) -> tuple[tuple[RecordedFigure, ...], tuple[str, ...]]:
    """Return the figures of recorded runs, and one line for each that is not the one its record was sealed with."""
    pages, figures, wrong = notebook_page(project, item, profile).parents[1], [], []
    for other, record, _ in beside:
        path = promoted_figure(project, item, other)
        if not path.is_file():
            continue  # the record has none, or was promoted before figures were
        if line := misfits(path.parent, dict(record) | {"artifacts": {"figure": path.name}}).get("figure"):
            wrong.append(f"recorded {other} run: {line}")
        else:
            figures.append(
                RecordedFigure(
                    profile=other,
                    machine=machine_text(record.get("machine")),
                    date=when_text(record.get("started")),
                    picture=figure_uri(path),
                    link=quote(os.path.relpath(path, pages)),
                )
            )
    return tuple(figures), tuple(wrong)


def _without_files(record: Mapping[str, Any], wrong: Mapping[str, str]) -> dict[str, Any]:
    artifacts = {what: None if what in wrong else name for what, name in (record.get("artifacts") or {}).items()}
    return dict(record) | {"artifacts": artifacts}


def _of_record(record: Mapping[str, Any], folder: Path, item_id: str, readable: Path, kept: Path) -> dict[str, Any]:
    artifacts, seconds = record.get("artifacts") or {}, float(record.get("seconds") or 0)
    picture = folder / str(artifacts.get("figure") or "")
    pages = (
        (("Notebook, to read", f"notebooks/{quote(readable.name)}"),)
        if artifacts.get("notebook") and readable.is_file()
        else ()
    )
    return {
        "has_record": True,
        "date": when_text(record.get("started")),
        "duration": seconds_text(round(seconds, 1)),
        "seconds": seconds,
        "values": value_rows(record.get("values") or ()),
        "facts": facts_of(record),
        "links": pages + _links(folder, artifacts, item_id),
        "figure": figure_uri(picture),
        "thumbnail": thumbnail_uri(picture, kept),
        "figure_link": _address(item_id, artifacts.get("figure")),
        "standin": _standin(record),
        "data": tuple(record.get("data") or ()),
        "machine": machine_text(record.get("machine")),
    }


def _why_not_run(item: Reproduction, profile: str) -> str:
    if profile not in item.parameters:
        return f"It declares no parameters for the profile {profile}; it has {', '.join(item.profiles)}."
    return f"To run it: workbench reproduce {item.id} --profile {profile}"


def _failure(held: Mapping[str, Any] | None, folder: Path, item_id: str) -> FailureView | None:
    if held is None:
        return None
    trace = str(held.get("traceback") or "")
    last = next((line.strip() for line in reversed(trace.splitlines()) if line.strip()), "")
    return FailureView(
        message=str(held.get("reason") or last),
        traceback=trace,
        when=when_text(held.get("started")),
        links=_links(folder, held.get("artifacts") or {}, item_id, record=False),
    )


def _address(item_id: str, name: str | None) -> str:
    return quote(f"../{item_id}/{name}") if name else ""


def _links(
    folder: Path, artifacts: Mapping[str, Any], item_id: str, record: bool = True
) -> tuple[tuple[str, str], ...]:
    links = [
        (title, _address(item_id, artifacts[key]))
        for title, key in FILES
        if artifacts.get(key) and (folder / str(artifacts[key])).is_file()
    ]
    return tuple(links + ([("Record", _address(item_id, "record.json"))] if record else []))


def _standin(record: Mapping[str, Any]) -> str:
    return " ".join(
        f"{source.get('name')}: {source.get('detail') or 'generated'}."
        for source in record.get("data") or ()
        if source.get("source") == "stand-in"
    )


def _technique(project: Any, name: str, items: list[ItemView]) -> TechniqueView:
    words = [claim.verdict for item in items for claim in item.claims]
    return TechniqueView(
        name=name,
        slug=slug(name),
        page=f"{slug(name)}.html",
        summary=_card(project, slug(name).replace("-", "_")),
        items=tuple(items),
        counts=count_verdicts(words),
        by_evidence=_by_evidence(items),
    )


def _card(project: Any, technique: str) -> str:
    """Read the first line of a technique's card without importing it (which would import torch)."""
    for root in (Path(project.root, "workbench"), Path(__file__).parents[2]):
        path = root / "techniques" / technique / "__init__.py"
        if path.is_file():
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            return text.strip().split("\n", 1)[0]
    return ""


def _headline(ran: int, items: Sequence[ItemView], words: Sequence[str], profile: str) -> str:
    if profile == "smoke":
        return f"{ran} of {len(items)} items ran."
    told = (
        ("AGREES", "agree"),
        ("DISAGREES", "disagree"),
        ("NOT_COMPARABLE", "cannot be compared"),
        ("NOT_RUN", "were not run"),
    )
    counts = count_verdicts(words)
    parts = ", ".join(f"{counts[word]} {verb}" for word, verb in told if counts[word])
    return f"{ran} of {len(items)} items ran. Of {len(words)} claims {parts}."


def _by_evidence(items: Sequence[ItemView]) -> tuple[Mapping[str, Any], ...]:
    """Count the verdicts of each kind of evidence, and list the items of which claims were not run."""
    return tuple(
        {
            "evidence": name,
            "meaning": meaning,
            "counts": count_verdicts(
                [claim.verdict for item in items if item.evidence == name for claim in item.claims]
            ),
            "not_run": tuple(item for item in items if item.evidence == name and item.counts["NOT_RUN"]),
        }
        for name, meaning in EVIDENCE_MEANINGS.items()
    )


def _run_facts(items: Sequence[ItemView]) -> tuple[tuple[str, str], ...]:
    ran = [item for item in items if item.has_record]
    found = {
        name: list(dict.fromkeys(text for item in ran for key, text in item.facts if key == name))
        for name in ("Machine", "Commit", "Versions", "Environment")
    }
    dates = sorted(item.date for item in ran)
    pairs = [
        ("Items", f"{len(ran)} of {len(items)}"),
        ("From", dates[0] if dates else ""),
        ("To", dates[-1] if dates else ""),
        ("Time in items", seconds_text(sum(item.seconds for item in ran))),
    ]
    return tuple(pair for pair in pairs if pair[1]) + tuple(
        (name, text) for name, texts in found.items() for text in texts
    )


def _data(items: Sequence[ItemView]) -> tuple[Mapping[str, str], ...]:
    users: dict[tuple[str, str, str], list[str]] = {}
    for item in items:
        for source in item.data:
            key = (str(source.get("name")), str(source.get("source")), str(source.get("detail") or ""))
            users.setdefault(key, []).append(item.item)
    return tuple(
        {"name": name, "kind": kind, "detail": detail, "used_by": ", ".join(dict.fromkeys(ids))}
        for (name, kind, detail), ids in users.items()
    )
