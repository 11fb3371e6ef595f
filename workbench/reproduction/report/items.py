"""One item as the report shows it: its claims, values, figure, files, failure and recorded runs, as plain texts."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from workbench.reproduction.declare import Profile
from workbench.reproduction.errors import RecordError
from workbench.reproduction.files import figure_misfit, misfits, stamp
from workbench.reproduction.fingerprint import Fingerprinter, changes
from workbench.reproduction.machine import machine_text
from workbench.reproduction.project import ItemRun
from workbench.reproduction.records import MOST_KEPT, RECORD_FILE, read_failure
from workbench.reproduction.runner.plan import lacking

from .charts import chart_data
from .claims import ClaimView, RecordedRun, claims_of, count_verdicts, recorded_beside, spread_text, trusted_record
from .pictures import figure_uri
from .texts import View, exact_text, key_text, pairs_text, seconds_text, slug, took_text, value_text, when_text

__all__ = ["ItemView", "item_view"]

NO_VERDICTS = "The smoke profile checks the plumbing only and gives no verdicts."
FILES = (("Notebook", "notebook"), ("Figure", "figure"), ("Log", "log"), ("Trace", "trace"))
HASH_SHOWN = 12  # characters of a checksum that tell two files apart
OF_CODE = ("notebook", "library", "parameters")  # parts of a fingerprint that differ after a change of code
NOT_KEYS = {"quantity", "value", "unit", "low", "high"}


@dataclass(frozen=True, kw_only=True, slots=True)
class ItemView:
    """One item of the catalogue as the report shows it."""

    id: str
    technique: str
    item: str
    evidence: str
    title: str
    page: str
    anchor: str
    has_record: bool
    date: str = ""
    duration: str = ""
    seconds: float = 0.0
    claims: tuple[ClaimView, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)  # verdict to number of claims, by the run that speaks
    own_counts: Mapping[str, int] = field(default_factory=dict)  # the same for claims that this machine's run judged
    recorded_profiles: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()  # runs recorded with an earlier version, one line each
    values: tuple[Mapping[str, str], ...] = ()
    facts: tuple[tuple[str, str], ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    figure: str = ""
    figure_link: str = ""
    picture: tuple[Path, Path] = (Path(), Path())  # the figure that stands for it, and the place of a small copy
    recorded_figures: tuple[View, ...] = ()
    chart: str = ""  # rows for the chart of a reader whose browser runs the page's script
    findings: tuple[View, ...] = ()
    failure: View | None = None
    not_run: str = ""
    no_verdicts: str = ""
    refused: tuple[str, ...] = ()  # records that cannot be trusted, one line each
    wrong_files: tuple[str, ...] = ()  # files that do not match the checksums in the record
    standin: str = ""
    running: bool = False
    data: tuple[Mapping[str, str], ...] = ()
    machine: str = ""

    @property
    def figure_anchor(self) -> str:
        """The anchor of its first figure: this run's, or else that of a recorded run."""
        is_recorded = not self.figure and self.recorded_figures
        return f"{self.anchor}-figure" + (f"-{self.recorded_figures[0].profile}" if is_recorded else "")


def item_view(run: ItemRun, *, running: bool, fingerprinter: Fingerprinter | None = None) -> ItemView:
    """Read the files of one item and lay them out; with a fingerprinter, name the runs of an earlier version."""
    if fingerprinter is not None:
        return _item_view(run, running, fingerprinter)
    run_files = sorted(run.folder.iterdir()) if run.folder.is_dir() else ()
    promoted = [path for known in run.recorded for path in (known.promoted, known.promoted_figure)]
    files = (*run_files, *promoted, run.notebook_page, run.project.published(run.item) or run.folder)
    return _kept_view(run, running, tuple(map(stamp, files)))


@lru_cache(maxsize=MOST_KEPT)
def _kept_view(run: ItemRun, running: bool, _: tuple[tuple[int, int, int], ...]) -> ItemView:
    """Return the view of an item while none of its files changes."""
    return _item_view(run, running, None)


def _item_view(run: ItemRun, running: bool, fingerprinter: Fingerprinter | None) -> ItemView:
    item, folder, page = run.item, run.folder, run.notebook_page
    anchor = slug(f"{item.item} {item.evidence.value}")
    record, refused = trusted_record(run)
    failure = _failure(run)
    missing = refused or _why_not_run(run)
    beside, refused_beside = recorded_beside(run, record)
    claims = claims_of(run, record, beside=beside, anchor=anchor, missing=missing)
    figures, wrong_figures = _recorded_figures(run, beside)
    wrong = misfits(folder, record) if record else {}
    drawn: list[tuple[str, Any]] = (
        [("this run", record)] if record and (record.get("artifacts") or {}).get("figure") else []
    )
    drawn += [(f"recorded {other} run", held) for other, held, _ in beside if held["artifacts"].get("figure")]
    kept = page.parents[1] / "thumbnails" / f"{page.stem}.png"
    if record:
        own_texts = _of_record(record, wrong, folder, item.id, page, kept)
    else:
        picture = run.at(figures[0].profile).promoted_figure if figures else Path()
        own_texts = {"not_run": missing if refused or not failure else "", "picture": (picture, kept)}
    return ItemView(
        id=item.id,
        technique=item.technique.replace("_", " "),
        item=item.item,
        title=item.title,
        evidence=item.evidence.name,
        page=f"{slug(item.technique)}.html",
        anchor=anchor,
        running=running,
        has_record=record is not None,
        failure=failure,
        claims=claims,
        refused=((refused,) if refused else ()) + refused_beside,
        recorded_figures=figures,
        chart=chart_data(run, drawn),
        findings=_findings(run.profile, record, beside),
        wrong_files=(*wrong.values(), *wrong_figures),
        counts=count_verdicts([claim.verdict for claim in claims]),
        own_counts=count_verdicts([claim.verdict for claim in claims if claim.is_own]),
        recorded_profiles=tuple(other for other, _, _ in beside),
        tags=tuple(item.tags),
        stale=_stale(run, record, beside, fingerprinter) if fingerprinter else (),
        no_verdicts=NO_VERDICTS if record and run.profile == Profile.SMOKE else "",
        **own_texts,
    )


def _why_not_run(run: ItemRun) -> str:
    item, profile = run.item, run.profile
    if profile not in item.parameters:
        with_verdicts = [name for name in item.profiles if name != Profile.SMOKE]
        return f"Not in the {profile} run; use --profile {' or '.join(with_verdicts or item.profiles)}."
    if lacks := lacking(item, profile):
        return f"It {lacks}."
    return f"To run it: workbench reproduce {item.id} --profile {profile}"


def _stale(
    run: ItemRun, record: Mapping[str, Any] | None, beside: Sequence[RecordedRun], fingerprinter: Fingerprinter
) -> tuple[str, ...]:
    runs = [("This machine's run", run.profile, record)] if record else []
    runs += [(f"The recorded {other} run", other, held) for other, held, _ in beside]
    lines = []
    for name, run_profile, held in runs:
        if run_profile not in run.item.parameters:
            continue
        now = {part: whole for part, whole in fingerprinter(run.item, run_profile).items() if part in OF_CODE}
        if what := changes(held.get("fingerprint") or {}, now):
            commit = str(held.get("commit") or "unknown")[:HASH_SHOWN]
            lines.append(f"{name} is from commit {commit}; since then: {what}.")
    return tuple(lines)


def _findings(profile: str, record: Mapping[str, Any] | None, beside: Sequence[RecordedRun]) -> tuple[View, ...]:
    """Return the answers of runs, recorded ones last; smoke runs and runs on stand-in data answer nothing."""
    if profile == Profile.SMOKE:
        return ()
    runs = [("this run", record or {})]
    runs += [(f"recorded {other} run, {when_text(held.get('started'))}", held) for other, held, _ in beside]
    answers = [(run, held) for run, held in runs if held.get("finding") and not _standin(held)]
    return tuple(View(run=run, text=str(held["finding"])) for run, held in answers)


def _recorded_figures(run: ItemRun, beside: Sequence[RecordedRun]) -> tuple[tuple[View, ...], tuple[str, ...]]:
    """Return the figures of recorded runs, and one line for each figure that does not match its record."""
    pages, figures, wrong = run.notebook_page.parents[1], [], []
    for other, record, _ in beside:
        path = run.at(other).promoted_figure
        if not path.is_file():
            continue  # the run drew none, or was recorded before figures were kept
        if line := figure_misfit(path, record):
            wrong.append(f"recorded {other} run: {line}")
            continue
        figure = View(
            profile=other,
            machine=machine_text(record.get("machine")),
            date=when_text(record.get("started")),
            picture=figure_uri(path),
            link=quote(os.path.relpath(path, pages)),
            redrawn=str(record.get("redrawn") or "")[:HASH_SHOWN],
        )
        figures.append(figure)
    return tuple(figures), tuple(wrong)


def _of_record(
    record: Mapping[str, Any], wrong: Mapping[str, str], folder: Path, id: str, page: Path, kept: Path
) -> dict[str, Any]:
    artifacts = {kind: name for kind, name in (record.get("artifacts") or {}).items() if kind not in wrong}
    picture, seconds = folder / str(artifacts.get("figure") or ""), float(record["seconds"])
    is_readable = artifacts.get("notebook") and page.is_file()
    readable = (("Notebook, to read", f"notebooks/{quote(page.name)}"),) if is_readable else ()
    return {
        "date": when_text(record.get("started")),
        "duration": seconds_text(round(seconds, 1)),
        "seconds": seconds,
        "values": tuple(_value(value) for value in record.get("values") or ()),
        "facts": _facts(record),
        "links": readable + _links(folder, artifacts, id) + (("Record", _address(id, RECORD_FILE)),),
        "figure": figure_uri(picture),
        "picture": (picture, kept),
        "figure_link": _address(id, artifacts.get("figure")),
        "standin": _standin(record),
        "data": tuple(record.get("data") or ()),
        "machine": machine_text(record.get("machine")),
    }


def _failure(run: ItemRun) -> View | None:
    try:
        failure = read_failure(run.failure)
    except RecordError as error:
        failure = {"reason": str(error), "traceback": ""}
    if failure is None:
        return None
    return View(
        message=str(failure.get("reason") or ""),
        traceback=str(failure.get("traceback") or ""),
        when=when_text(failure.get("started")),
        links=_links(run.folder, failure.get("artifacts") or {}, run.item.id),
    )


def _address(id: str, name: str | None) -> str:
    return quote(f"../{id}/{name}") if name else ""


def _links(folder: Path, artifacts: Mapping[str, Any], id: str) -> tuple[tuple[str, str], ...]:
    named = [(title, artifacts[kind]) for title, kind in FILES if artifacts.get(kind)]
    return tuple((title, _address(id, name)) for title, name in named if (folder / name).is_file())


def _standin(record: Mapping[str, Any]) -> str:
    sources = [source for source in record.get("data") or () if source.get("source") == "stand-in"]
    return " ".join(f"{source.get('name')}: {source.get('detail') or 'generated'}." for source in sources)


def _value(value: Mapping[str, Any]) -> dict[str, str]:
    keys = {name: part for name, part in value.items() if name not in NOT_KEYS and part is not None}
    words = (str(value.get("quantity", "")).replace("_", " "), key_text(keys))
    return {
        "name": ", ".join(filter(None, words)),
        "text": value_text(value.get("value"), value.get("unit")) + spread_text(value),
        "exact": exact_text(value.get("value"), value.get("unit")),
    }


def _facts(record: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """List what a reader needs to repeat the run: machine, data, configuration, versions."""
    pairs = [
        ("Machine", machine_text(record.get("machine"))),
        ("Date", when_text(record.get("started"))),
        ("Took", took_text(record)),
        ("Commit", str(record.get("commit") or "")),
    ]
    settings = {"calibration": "Calibrated on"}
    for name in ("parameters", "configuration", "calibration", "versions", "environment"):
        held = record.get(name)
        text = pairs_text(held) if isinstance(held, Mapping) else str(held or "")
        pairs.append((settings.get(name, name.capitalize()), text))
    pairs += [("Cells", _origins_text(record)), ("Seeds", ", ".join(map(str, record.get("seeds") or ())))]
    for source in record.get("data") or ():
        digest = str(source.get("sha256") or "")[:HASH_SHOWN]
        words = (source.get("source"), source.get("detail"), f"sha256 {digest}" if digest else "")
        pairs.append((f"Data: {source.get('name')}", ", ".join(str(word) for word in words if word)))
    return tuple((name, text) for name, text in pairs if text)


def _origins_text(record: Mapping[str, Any]) -> str:
    """Name the origins of a record's cells: "120 from commit abc on machine X, 30 here"."""
    parts = []
    for origin in record.get("cells") or ():
        here, machine = record.get("machine") or {}, origin.get("machine") or {}
        is_here = all(machine.get(name) == here.get(name) for name in ("host", "cpu"))
        same = is_here and origin.get("commit") == record.get("commit")
        commit = "" if same else f" from commit {str(origin.get('commit'))[:HASH_SHOWN]}"
        parts.append(f"{origin.get('num_cells')}{commit} {'here' if is_here else f'on {machine_text(machine)}'}")
    return ", ".join(parts)
