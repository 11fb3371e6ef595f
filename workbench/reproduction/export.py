"""Records for others: a table of all values and claims (csv), references (bibtex), or a research object (RO-Crate).

Papers and this suite are described by CITATION.cff, whose references name the technique in their notes.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from workbench.reproduction.declare import Profile, Reproduction
from workbench.reproduction.errors import UsageError
from workbench.reproduction.files import figure_misfit
from workbench.reproduction.project import ItemRun, Project
from workbench.reproduction.recording import verdicts_of
from workbench.reproduction.records import record_of

__all__ = ["FORMATS", "export", "papers"]

CITATION, NOTE = "CITATION.cff", "workbench/techniques/"
COLUMNS = (
    *("id", "profile", "claim", "whose", "verdict", "where", "published", "ours", "low", "high", "unit", "rule"),
    *("source", "changed", "paper", "machine", "started", "commit", "licence"),
)
Promoted = tuple[ItemRun, Mapping[str, Any]]  # a run and its promoted record


def export(project: Project, catalogue: Sequence[Reproduction], form: str, target: Path) -> int:
    """Write the recorded runs of a catalogue in one of FORMATS; return their number."""
    if form not in FORMATS:
        raise UsageError(f"format {form!r} is unknown; it must be one of {', '.join(FORMATS)}")
    runs = [ItemRun(project, item, profile.value) for item in catalogue for profile in Profile]
    recorded = [(run, record) for run in runs if (record := record_of(run, promoted=True)) is not None]
    if not recorded:
        raise UsageError("none of the selected items has a recorded run")
    if target.exists():
        raise UsageError(f"{target} is there already; name another place")
    FORMATS[form](project, recorded, target)
    return len(recorded)


def _citation(project: Project) -> dict[str, Any]:
    import yaml

    try:
        return yaml.safe_load((project.root / CITATION).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{project.root / CITATION} cannot be read: {error.strerror}") from None


def papers(project: Project) -> dict[str, dict[str, Any]]:
    """Return the reference of each technique's paper, by technique."""
    references = _citation(project).get("references", ())
    noted = {str(reference.get("notes", "")): reference for reference in references}
    return {note.removeprefix(NOTE): held for note, held in noted.items() if note.startswith(NOTE)}


def _address(paper: Mapping[str, Any]) -> str:
    return f"https://doi.org/{paper['doi']}" if "doi" in paper else str(paper.get("url", ""))


def _write_csv(project: Project, recorded: Sequence[Promoted], target: Path) -> None:
    licence, of = _citation(project)["license"], papers(project)
    with target.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for run, record in recorded:
            circumstances = {name: record[name] for name in ("started", "commit")} | {"licence": licence}
            circumstances |= {"machine": json.dumps(record["machine"])}
            circumstances |= {"paper": _address(of.get(run.item.technique, {}))}
            for verdict in verdicts_of(project, run.item, record):
                about = {"claim": verdict.claim, "whose": verdict.whose, "rule": verdict.because}
                about |= {"changed": verdict.changed, "source": verdict.source}
                for row in verdict.rows or (None,):
                    fields = {"id": run.item.id, "profile": run.profile} | about | circumstances | _row(verdict, row)
                    writer.writerow({name: _plain(value) for name, value in fields.items()})


def _plain(value: Any) -> Any:
    """Keep a text from being read as a formula by a spreadsheet, which would run it."""
    return f"'{value}" if isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r")) else value


def _row(verdict: Any, row: Any) -> dict[str, Any]:
    if row is None:
        return {"verdict": verdict.verdict.value}
    numbers = {name: getattr(row, name) for name in ("published", "ours", "low", "high", "unit")}
    return numbers | {"where": json.dumps(dict(row.where)), "verdict": row.verdict.value}


def _write_bibtex(project: Project, recorded: Sequence[Promoted], target: Path) -> None:
    suite = _citation(project)
    of, used = papers(project), dict.fromkeys(run.item.technique for run, _ in recorded)
    entries = [_entry("software", "workbench", suite | {"year": str(suite["date-released"])[:4]})]
    kinds = {"conference-paper": "inproceedings", "thesis": "phdthesis"}
    entries += [_entry(kinds.get(of[name]["type"], "article"), name, of[name]) for name in used if name in of]
    target.write_text("\n\n".join(entries) + "\n", encoding="utf-8")


def _entry(kind: str, key: str, held: Mapping[str, Any]) -> str:
    names = [who.get("name") or f"{who['family-names']}, {who['given-names']}" for who in held.get("authors", ())]
    fields = {"title": f"{{{held['title']}}}", "author": " and ".join(names), "year": held.get("year")}
    fields |= {"booktitle": held.get("collection-title"), "journal": held.get("journal"), "doi": held.get("doi")}
    fields |= {"url": held.get("url"), "license": held.get("license"), "version": held.get("version")}
    lines = [f"  {name} = {{{value}}}," for name, value in fields.items() if value]
    return "\n".join([f"@{kind}{{{key},", *lines, "}"])


def _write_crate(project: Project, recorded: Sequence[Promoted], target: Path) -> None:
    from rocrate.model.contextentity import ContextEntity
    from rocrate.rocrate import ROCrate

    suite, of, crate = _citation(project), papers(project), ROCrate()
    crate.name, crate.license = suite["title"], suite["license"]
    crate.description = "Recorded runs: values, machine, data and the verdict on each claim of the papers."
    cited = {}
    for technique in dict.fromkeys(run.item.technique for run, _ in recorded):
        if paper := of.get(technique):
            about = {"@type": "ScholarlyArticle", "name": paper["title"], "datePublished": str(paper.get("year", ""))}
            cited[technique] = crate.add(ContextEntity(crate, _address(paper) or f"#{technique}", properties=about))
    for run, record in recorded:
        item = run.item
        claims = [f"{verdict.verdict.value}: {verdict.claim}" for verdict in verdicts_of(project, item, record)]
        properties = {"name": f"{item.id}, {run.profile}: {item.title}", "description": "\n".join(claims)}
        properties |= {"license": suite["license"], "encodingFormat": "application/json"}
        properties |= {"dateCreated": record["started"], "version": record["commit"]}
        place = f"{item.id}/{run.profile}"
        file = crate.add_file(run.promoted, f"{place}.json", properties=properties)
        if item.technique in cited:
            file["citation"] = cited[item.technique]
        if not figure_misfit(run.promoted_figure, record):
            crate.add_file(
                run.promoted_figure, f"{place}.png", properties={"name": item.title, "encodingFormat": "image/png"}
            )
    crate.write_zip(target) if target.suffix == ".zip" else crate.write(target)


FORMATS = {"ro-crate": _write_crate, "csv": _write_csv, "bibtex": _write_bibtex}
