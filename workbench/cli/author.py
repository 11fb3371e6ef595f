"""`workbench records` keeps runs in the repository, `compare` compares them; `new technique` writes furniture."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from . import common

__all__ = ["compare", "diff", "export", "promote", "redraw", "register", "technique"]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    records = typer.Typer(no_args_is_help=True, help="Keep runs in the repository; compare new ones with them.")
    records.command("promote")(promote)
    records.command("diff")(diff)
    records.command("redraw")(redraw)
    records.command("export")(export)
    app.command("compare", rich_help_panel=common.LOOK)(compare)
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
    machine: Annotated[
        str, Option(metavar="NAME", help="Keep them beside those of the project's own machine, under this name.")
    ] = "",
    results: common.Results = None,
) -> None:
    """Copy records of this machine, their figures and cells into the repository: reports show them beside their own.

    \b
    Examples
      workbench records promote
      workbench records promote table-1 --profile full
      workbench records promote zen --machine lab-a100
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
        paths = reproduction.promote(project, profile, [item.id for item in chosen], machine)
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
        name = f"{path.name}: {changed} of {len(runs)} cells" if is_cells else f"{path.parent.name}/{path.name}"
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
    """Compare this machine's records with the recorded ones, as `workbench compare` does.

    \b
    Examples
      workbench records diff
      workbench records diff table-1 --profile full
    """
    project, _ = common.load(results)
    compare(profile, str(project.results_of(profile)), patterns, every=True)


def redraw(
    patterns: common.Patterns = None,
    reasons: Annotated[
        bool, Option("--reasons", help="Also name the figures that need more than their record.")
    ] = False,
) -> None:
    """Draw recorded figures again, each from its record's values by its notebook as it is now. No value changes.

    \b
    Examples
      workbench records redraw zen
      workbench records redraw table-1 --reasons
    """
    from workbench.reproduction import ItemRun
    from workbench.reproduction.redraw import redraw as draw_again

    (project, catalogue), out = common.load(), common.console()
    counts: dict[str, int] = {"drawn again": 0, "unchanged": 0, "not drawn from a record alone": 0}
    for run in (
        run for item in common.pick(catalogue, patterns or []) for run in ItemRun(project, item, "laptop").recorded
    ):
        try:
            word = "drawn again" if draw_again(run) else "unchanged"
            line = f"{run.promoted_figure}" if word == "drawn again" else ""
        except ValueError as error:
            word = "not drawn from a record alone"
            line = f"{run.item.id} {run.profile}: {error}" if reasons else ""
        counts[word] += 1
        if line:
            out.print(line, markup=False)
    out.print(", ".join(f"{number} {word}" for word, number in counts.items()), markup=False)


def compare(
    before: Annotated[str, Argument(metavar="A", help="A results folder, a record's file, a profile or a commit.")],
    after: Annotated[str, Argument(metavar="B", help="The same; a profile stands for its recorded runs.")],
    patterns: common.Patterns = None,
    every: Annotated[
        bool, Option("--all", help="Also numbers whose intervals overlap, and how the runs differ.")
    ] = False,
    page: Annotated[Path | None, Option(metavar="FILE", help="Also write them as a page of HTML.")] = None,
    json: common.AsJson = False,
) -> None:
    """Compare two sets of records: verdicts and numbers that differ, with intervals; verdicts by the present rules.

    \b
    Examples
      workbench compare laptop results             recorded runs with this machine's
      workbench compare HEAD~20 HEAD zen           records of two commits
      workbench compare ../other/results results --page compared.html
    """
    from workbench.reproduction.differing import compare as compare_sets
    from workbench.reproduction.report import compared_page, difference_texts

    project, catalogue = common.load()
    ids = {item.id for item in common.pick(catalogue, patterns)} if patterns else None
    compared, out = compare_sets(project, catalogue, before, after, ids), common.console()
    for line in compared.refused:
        print(f"workbench: {line}", file=sys.stderr)
    if page:
        page.write_text(compared_page(compared, before, after), encoding="utf-8")
    by_item, lacking = compared.differences, compared.lacking
    if json:
        listed = [difference.to_json() for differences in by_item.values() for difference in differences]
        only = {"only_before": lacking[1], "only_after": lacking[0]}
        return common.print_json({"compared": list(by_item), **only, "differences": listed})
    for name, differences in by_item.items():
        if not differences:
            continue
        out.print(f"{name}: {common.counted(len(differences), 'difference')}", markup=False)
        shown = [row for row in differences if every or (row.told_apart and row.what in ("verdict", "value"))]
        for row in shown:
            named, old, new, change = difference_texts(row)
            out.print(f"  {named}: {old} → {new}  {change}".rstrip(), markup=False)
        if left := len(differences) - len(shown):
            out.print(f"  {left} more inside the intervals, or of machine and versions; --all shows them", markup=False)
    numbers = [common.counted(compared.count(what), what) for what in ("verdict", "value")]
    alike = sum(not differences for differences in by_item.values())
    words = f"{common.counted(len(by_item), 'item')} compared, {alike} without difference"
    out.print(f"{words}; told apart: {', '.join(numbers)}", markup=False)
    for word, names in ((after, lacking[0]), (before, lacking[1])):
        if names:
            out.print(f"Only in {word}: {common.counted(len(names), 'record')}", markup=False)


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
