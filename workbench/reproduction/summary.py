"""The last run of each item in a few words, for `workbench list`.

Judging all records takes seconds, so what was found is kept in results/, as long as records, claims and library stay.
Nothing is kept in a folder that is neither a checkout's nor has runs: an installed package can be asked anywhere.
"""

import contextlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import workbench
from workbench.reproduction.declare import Reproduction
from workbench.reproduction.errors import RecordError
from workbench.reproduction.files import read_json, write_json
from workbench.reproduction.findings import PROFILES, BestRun, last_runs, score
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.schema import trouble

__all__ = ["Summary", "summaries", "summary_of"]

KEPT_FILE = ".verdicts.json"  # in results/


@dataclass(frozen=True, kw_only=True, slots=True)
class Summary:
    """An item's last run; all but empty where it has none."""

    is_own: bool = False  # whether this machine made it
    profile: str = ""
    started: str = ""  # ISO 8601
    machine: dict[str, Any] = field(default_factory=dict)
    verdicts: dict[str, int] = field(default_factory=dict)  # verdict to the number of claims
    score: dict[str, int] = field(default_factory=dict)  # the same of the paper's own claims, each once


def summary_of(run: BestRun) -> Summary:
    """Sum a run up."""
    if run.record is None:
        return Summary(score=score([run]))
    copied = {name: run.record[name] for name in ("profile", "started", "machine")}
    counts = Counter(verdict.verdict.value for verdict in run.verdicts)
    return Summary(is_own=run.is_own, verdicts=dict(counts), score=score([run]), **copied)


def summaries(project: Project, catalogue: Iterable[Reproduction]) -> dict[str, Summary]:
    """Return the last run of each item, by id."""
    path, sources = project.results / KEPT_FILE, Path(workbench.__file__).parent.rglob("*.*")
    library = _newest(source for source in sources if source.parent.name != "__pycache__")
    kept, catalogue = _kept(path), tuple(catalogue)
    techniques = {item.technique for item in catalogue}
    declared = {name: _newest((project.reproductions / name).glob("*.*")) for name in techniques}
    current = {}
    for item in catalogue:
        runs = [ItemRun(project, item, profile) for profile in PROFILES]
        files = [path for run in runs for path in (run.record, run.promoted)]
        files += [path for path in [project.published(item)] if path]
        stamp = [*library, *declared[item.technique], *(fact for file in files for fact in _newest([file]))]
        current[item.id] = kept.get(item.id, {})
        if current[item.id].get("stamp") != stamp:
            current[item.id] = {"stamp": stamp, "summary": asdict(summary_of(last_runs(project, [item])[item.id]))}
    has_place = project.results.parent == project.root or any((project.results / name).is_dir() for name in PROFILES)
    if has_place and any(current[id] is not kept.get(id) for id in current):
        with contextlib.suppress(OSError):  # where nothing can be written, all is judged again next time
            path.parent.mkdir(exist_ok=True)
            write_json(path, kept | current)
    return {id: Summary(**held["summary"]) for id, held in current.items()}


def _kept(path: Path) -> dict[str, Any]:
    """Read what was kept; nothing where it is of another shape, as that of an older version."""
    names = [known.name for known in fields(Summary)]
    summary = {"type": "object", "required": names, "propertyNames": {"enum": names}}
    held = {"type": "object", "required": ["stamp", "summary"], "properties": {"summary": summary}}
    try:
        kept = read_json(path)
    except (FileNotFoundError, RecordError):
        return {}
    return {} if trouble(kept, {"type": "object", "additionalProperties": held}) else kept


def _newest(paths: Iterable[Path]) -> tuple[int, int]:
    """Return how many files there are, and when the newest was written."""
    times = []
    for path in paths:
        with contextlib.suppress(OSError):
            times.append(path.stat().st_mtime_ns)
    return len(times), max(times, default=0)
