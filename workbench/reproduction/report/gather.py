"""The report of one profile: every item read anew from disk, techniques and totals, ready for the templates."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

from workbench.reproduction.claims import Whose
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.fingerprint import Fingerprinter
from workbench.reproduction.notebook_cells import parse_source
from workbench.reproduction.project import ItemRun, Project

from .claims import WHOSE_MEANINGS, count_verdicts
from .items import ItemView, item_view
from .pictures import thumbnail_uri
from .texts import View, seconds_text, slug, when_text

__all__ = ["EVIDENCE_MEANINGS", "PROFILE_MEANINGS", "VERDICT_MEANINGS", "gather"]

EVIDENCE_MEANINGS = {
    "COUNTED": "Bytes, messages, counts or probabilities: the same on any machine.",
    "MEASURED": "Time or accuracy of real ranks on the machine named in the record; "
    "injected delays and shaped links are named there too.",
    "SIMULATED": "From a cost model or an event simulation of a named cluster; "
    "cells used for calibration never count as reproduced.",
}
VERDICT_MEANINGS = {
    "DISAGREES": "Outside the tolerance, or in another order or direction than the paper's. "
    "The claim stays in the report, with an explanation.",
    "AGREES": "Within the tolerance, or the order or direction that the paper states. A tolerance was fixed before "
    "results were seen unless the claim says what was changed.",
    "NOT_COMPARABLE": "We have a value, but it cannot test the paper's statement; the reason stands beside it.",
    "NOT_RUN": "We have no value yet; the report names what is missing.",
}
PROFILE_MEANINGS = {
    "smoke": "a check of the plumbing only, which gives no verdicts.",
    "quick": "the headline findings of each paper, on real ranks and small models, in ten minutes.",
    "laptop": "real ranks and small models on two processor cores, minutes a technique.",
    "full": "hours on processors, or a GPU.",
    "paper": "the paper's own models and scale, on its number of GPUs.",
}


def gather(
    project: Project,
    catalogue: Sequence[Reproduction],
    profile: str,
    *,
    running: Sequence[str] = (),
    progress: str = "",
    under_way: bool = False,
    kept: bool = False,
) -> View:
    """Lay out the report of one profile; `running` names items and `progress` is a sentence on the run under way.

    While a run is under way, or with `kept`, items whose files have not changed are not laid out again, and runs of an
    earlier version are not named.
    """
    fingerprinter = None if under_way or kept else Fingerprinter(project)
    items = []
    with ThreadPoolExecutor(1) as drawing:  # thumbnails, beside the verdicts: Pillow leaves the interpreter free
        for declared in catalogue:
            run = ItemRun(project, declared, profile)
            item = item_view(run, running=declared.id in running, fingerprinter=fingerprinter)
            drawing.submit(thumbnail_uri, *item.picture)
            items.append(item)
    techniques = tuple(
        _technique(project, name, tuple(item for item in items if item.technique == name))
        for name in dict.fromkeys(item.technique for item in items)
    )
    recorded = dict.fromkeys(profile for item in items for profile in item.recorded_profiles)
    is_empty = not any(item.has_record or item.failure or item.refused for item in items)
    only_recorded = not under_way and is_empty and bool(recorded)
    return View(
        profile=profile,
        profile_meaning=PROFILE_MEANINGS.get(profile, ""),
        written=when_text(datetime.now().astimezone().isoformat()),
        headline=f"Nothing ran on this machine yet: these are the recorded runs, {' and '.join(recorded)}."
        if only_recorded
        else f"{sum(item.has_record for item in items)} of {len(items)} items ran.",
        only_recorded=only_recorded,
        machine="; ".join(dict.fromkeys(item.machine for item in items if item.machine)),
        running=under_way,
        progress=progress,
        techniques=techniques,
        counts=_counts(items),
        by_evidence=_by_evidence(items),
        failures=tuple(item for item in items if item.failure),
        facts=_run_facts(items),
        data=_data(items),
        verdict_meanings=tuple(VERDICT_MEANINGS.items()),
        whose_meanings=_whose_meanings(items),
    )


def _technique(project: Project, name: str, items: tuple[ItemView, ...]) -> View:
    return View(
        name=name,
        title=name.capitalize(),
        slug=slug(name),
        page=f"{slug(name)}.html",
        summary=_card(project, slug(name).replace("-", "_")),
        items=items,
        groups=_groups(items),
        errata=tuple((item, claim) for item in items for claim in item.claims if claim.erratum),
        counts=_counts(items),
        by_evidence=_by_evidence(items),
    )


def _whose_meanings(items: Sequence[ItemView]) -> tuple[tuple[str, str], ...]:
    claims = [claim for item in items for claim in item.claims]
    named = {Whose.PAPER: "The paper's", Whose.OURS: "Ours", Whose.CONSTRUCTION: "By construction"}
    counts = Counter(claim.whose for claim in claims if not claim.repeats)
    rows = [(f"{name}: {_claims_text(counts[whose])}", WHOSE_MEANINGS[whose]) for whose, name in named.items()]
    repeated = f"Repeated: {_claims_text(sum(bool(claim.repeats) for claim in claims))}"
    changed = f"Rule changed: {_claims_text(sum(bool(claim.changed) for claim in claims))}"
    return (
        *rows,
        (repeated, "Judged by the trainings of another item, where it is counted. Every count is of the paper's own."),
        (changed, "The rule was changed after results were seen; the claim says how and why."),
    )


def _claims_text(number: int) -> str:
    return f"{number} claim{'' if number == 1 else 's'}"


def _groups(items: Sequence[ItemView]) -> tuple[View, ...]:
    """Put items in the paper's order: tables, figures, then the rest, each with its kinds of evidence side by side."""
    names = sorted(dict.fromkeys(item.item for item in items), key=_place)
    groups = []
    for name in names:
        members = sorted((item for item in items if item.item == name), key=lambda item: item.evidence)
        thumbnails = ((item, uri) for item in members if (uri := thumbnail_uri(*item.picture)))
        pictured, thumbnail = next(thumbnails, (None, ""))
        title = name.replace("fig-", "figure ").replace("table-", "table ").replace("-", " ")
        title = re.sub(r"(?<=\d) (?=\d)", ".", title)  # figure 6.9 of a thesis
        groups.append(View(name=title, items=tuple(members), pictured=pictured, thumbnail=thumbnail))
    return tuple(groups)


def _place(name: str) -> tuple[int, list[tuple[int, str]]]:
    kinds = ("table", "fig")
    kind = next((place for place, word in enumerate(kinds) if re.match(rf"{word}-\d", name)), len(kinds))
    parts = [(int(part), "") if part.isdigit() else (0, part) for part in re.findall(r"\d+|\D+", name)]
    return kind, parts if kind < len(kinds) else []


def _counts(items: Sequence[ItemView]) -> dict[str, int]:
    return count_verdicts([claim.verdict for item in items for claim in item.claims if claim.is_scored])


def _card(project: Project, technique: str) -> str:
    """Read the first line of a technique's card without importing it (which would import torch)."""
    for root in (Path(project.root, "workbench"), Path(__file__).parents[2]):
        path = root / "techniques" / technique / "__init__.py"
        if path.is_file():
            text = ast.get_docstring(parse_source(path.read_text(encoding="utf-8"))) or ""
            return text.strip().split("\n", 1)[0]
    return ""


def _by_evidence(items: Sequence[ItemView]) -> tuple[Mapping[str, Any], ...]:
    """Count the papers' claims of each kind of evidence by verdict, and list the items with claims not run."""
    rows = []
    for name, meaning in EVIDENCE_MEANINGS.items():
        of_kind = [item for item in items if item.evidence == name]
        not_run = tuple(item for item in of_kind if item.counts["NOT_RUN"])
        rows.append({"evidence": name, "meaning": meaning, "counts": _counts(of_kind), "not_run": not_run})
    return tuple(rows)


def _run_facts(items: Sequence[ItemView]) -> tuple[tuple[str, str], ...]:
    ran = [item for item in items if item.has_record]
    texts_by_name = {
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
        (name, text) for name, texts in texts_by_name.items() for text in texts
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
