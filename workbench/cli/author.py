"""`workbench records` keeps a run in the repository and compares it; `workbench new technique` writes furniture."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from . import common

__all__ = ["diff", "export", "promote", "register", "technique"]

CIRCUMSTANCES = ("machine", "parameters", "configuration", "versions", "environment")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    records = typer.Typer(no_args_is_help=True, help="Keep runs in the repository; compare new ones with them.")
    records.command("promote")(promote)
    records.command("diff")(diff)
    records.command("export")(export)
    app.add_typer(records, name="records", rich_help_panel=common.AUTHOR)
    new = typer.Typer(no_args_is_help=True, help="Write the furniture of something new.")
    new.callback()(lambda: None)
    new.command("technique")(technique)
    app.add_typer(new, name="new", rich_help_panel=common.AUTHOR)


def promote(
    patterns: common.Patterns = None,
    profile: common.OneProfile = "laptop",
    cells: Annotated[
        bool, Option("--cells", help="Finished cells alone, also of items that are not finished.")
    ] = False,
    results: common.Results = None,
) -> None:
    """Copy records of this machine, their figures and cells into the repository: reports show them beside their own.

    \b
    Examples
      workbench records promote
      workbench records promote table-1 --profile full
      workbench records promote --cells --profile full
    """
    from workbench import reproduction

    if profile == "smoke":
        raise reproduction.UsageError("the profile smoke gives no verdicts; there is nothing to promote")
    project, catalogue = common.load(results)
    chosen = common.pick(catalogue, patterns or [])
    if cells:
        from workbench.reproduction.cells import promote_cells

        paths = tuple(promote_cells(reproduction.ItemRun(project, item, profile) for item in chosen))
    else:
        paths = reproduction.promote(project, profile, [item.id for item in chosen])
    if not paths:
        raise reproduction.UsageError(
            f"none of the selected items has a finished cell in {project.results_of(profile)}"
        )
    for path in paths:
        _print_promoted(path)


def _print_promoted(path: Path) -> None:
    """Print the path of a record or of cells, and warn where they ran on changes that are in no commit."""
    import json

    text, is_cells = path.read_text(encoding="utf-8"), path.suffix == ".jsonl"
    runs = [json.loads(line) for line in text.splitlines()] if is_cells else [json.loads(text)]
    common.console().print(f"{path}  {common.counted(len(runs), 'cell')}" if is_cells else str(path), markup=False)
    if changed := sum("+changes" in str(run.get("commit")) for run in runs):
        name = f"{path.name}: {changed} of {len(runs)} cells" if is_cells else path.name
        print(f"workbench: {name} ran on a checkout with changes that are in no commit", file=sys.stderr)


def export(
    target: Annotated[Path, Argument(help="The file or, for ro-crate, the folder or .zip to write.")],
    patterns: common.Patterns = None,
    form: Annotated[str, Option("--format", metavar="csv|bibtex|ro-crate", help="What to write.")] = "csv",
) -> None:
    """Write recorded runs for others, with licence, machine, claims and the citation of the paper.

    \b
    Examples
      workbench records export runs.csv
      workbench records export papers.bib --format bibtex
      workbench records export crate.zip gemini --format ro-crate
    """
    from workbench.reproduction.export import export as write

    project, catalogue = common.load()
    number = write(project, common.pick(catalogue, patterns or []), form, target)
    common.console().print(f"{target}: {common.counted(number, 'recorded run')}", markup=False)


def diff(
    patterns: common.Patterns = None, profile: common.OneProfile = "laptop", results: common.Results = None
) -> None:
    """Compare this machine's records with the recorded ones: verdicts, values, and what the runs had different.

    \b
    Examples
      workbench records diff
      workbench records diff table-1 --profile full
    """
    from workbench.reproduction import UsageError

    out, seen = common.console(), 0
    project, catalogue = common.load(results)
    for item in common.pick(catalogue, patterns or []):
        lines = _differences(project, item, profile)
        if lines is None:
            continue
        seen += 1
        out.print(
            f"{item.id}: {common.counted(len(lines), 'difference')}" if lines else f"{item.id}: no difference",
            markup=False,
        )
        for line in lines:
            out.print(f"  {line}", markup=False)
    if not seen:
        raise UsageError(f"no item has both a record of this machine and a recorded one in the profile {profile}")


def _differences(project: Any, item: Any, profile: str) -> list[str] | None:
    """Return lines on how the two records of an item differ, or None where one is absent."""
    from workbench.reproduction import diff as value_table
    from workbench.reproduction.project import ItemRun
    from workbench.reproduction.records import record_of
    from workbench.reproduction.report import relative_text, value_text

    run = ItemRun(project, item, profile)
    recorded, ours = record_of(run, promoted=True), record_of(run)
    if recorded is None or ours is None:
        return None
    before, now = ({repr(one["claim"]): one["verdict"] for one in record["verdicts"]} for record in (recorded, ours))
    lines = _changed("verdict of", before, now)
    for row in value_table(project, profile, [item.id]).to_dict("records"):
        name = " ".join(part for part in (row["quantity"], row["of"]) if part)
        texts = [value_text(row[side], row["unit"]) for side in ("promoted", "now")]
        lines.append(f"{name}: recorded {texts[0]}, now {texts[1]}  {relative_text(row['now'], row['promoted'])}")
    for field in CIRCUMSTANCES:
        lines += _changed(field, recorded.get(field) or {}, ours.get(field) or {})
    return lines


def _changed(what: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    return [
        f"{what} {name}: recorded {old.get(name, 'absent')}, now {new.get(name, 'absent')}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def technique(name: Annotated[str, Argument(help="Lower case, digits and underscores, such as ring_sum.")]) -> None:
    """Write library, lesson, catalogue, published table and test of a new technique; they pass and run as they are.

    \b
    Example
      workbench new technique ring_sum
    """
    from workbench.checkout import place_to_write
    from workbench.reproduction import Project
    from workbench.reproduction.scaffold import new_technique

    project, out = Project(), common.console()
    for path in new_technique(project, name):
        out.print(str(path.relative_to(place_to_write(project.root))), markup=False)
    slug = name.replace("_", "-")
    out.print(
        f"\nNext: python -m pytest tests/techniques/{name}\n"
        f"      workbench reproduce {slug}, then workbench report --open\n"
        "Then put the technique in place of the example, file by file, in the order above;\n"
        "docs/architecture.md (A new technique) has the steps.",
        markup=False,
    )
