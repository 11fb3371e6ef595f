"""`workbench list` and `report`: the items and their results, without importing torch or papermill."""

from __future__ import annotations

import gc
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from . import common
from .show import item_json, judged, num_cells, print_list, show_item

__all__ = ["list_items", "register", "write"]

REFUSED = 2  # exit code where a record cannot be trusted


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for name, command in (("list", list_items), ("show", show_item), ("report", write)):
        app.command(name, rich_help_panel=common.LOOK)(command)


def list_items(
    patterns: common.Patterns = None,
    as_json: Annotated[bool, Option("--json", help="Machine-readable: what is declared, and the last run.")] = False,
    results: common.Results = None,
) -> None:
    """List what can be reproduced, and what was found: a line an item.

    The verdicts are those of its last run on this machine, or of the recorded run where none is newer.

    \b
    Examples
      workbench list
      workbench list 'activation-compression/table-*'
      workbench list --json
    """
    project, catalogue = common.load(results)
    chosen = common.pick(catalogue, patterns or [])
    if as_json:
        runs = judged(project, chosen)
        entries = []
        for item in chosen:
            cells, run = num_cells(project, item), runs[item.id]
            more = ({"cells": cells} if cells else {}) | ({"run": asdict(run)} if run.profile else {})
            entries.append(item_json(item) | more)
        common.print_json(entries)
    else:
        print_list(project, chosen)


def write(
    profile: common.OneProfile = "laptop",
    open_it: Annotated[bool, Option("--open", help="Open it in the browser.")] = False,
    single: Annotated[
        Path | None, Option("--single-file", metavar="FILE", help="Also write all its pages into this one file.")
    ] = None,
    site: Annotated[
        Path | None,
        Option("--site", metavar="DIR", help="Also write a static site: report, notebooks, lessons, API pages."),
    ] = None,
    results: common.Results = None,
) -> int:
    """Write the report from the records there are, recorded runs included; every verdict is computed anew.

    Ends with exit code 2 where a record was refused; the report is written all the same, and names it.

    \b
    Examples
      workbench report --open
      workbench report --profile full
      workbench report --single-file report.html
      workbench report --site public
    """
    from workbench.reproduction.report import gather, single_file, write_report, write_site

    gc.disable()  # a short process that keeps nearly all it makes: looking for garbage takes a tenth of its time
    project, catalogue = common.load(results)
    report = gather(project, catalogue, profile)
    items = [item for technique in report.techniques for item in technique.items]
    if not report.only_recorded and not any(item.has_record or item.failure or item.refused for item in items):
        print(f"workbench: no records in profile {profile} yet", file=sys.stderr)
        return 0
    path = write_report(project, catalogue, profile, notebooks=True, anew=site is not None, report=report)
    common.console().print(str(path), markup=False)
    if report.only_recorded:
        print(f"workbench: {report.headline}", file=sys.stderr)
    if single is not None:
        single_file(path, single)
    if site is not None:
        from workbench.advisor.evidence import save

        for line in write_site(project, catalogue, profile, path, site, save):
            print(f"workbench: {line}", file=sys.stderr)
    for item in items:
        for line in (*item.refused, *(f"{item.id}: {wrong}" for wrong in item.wrong_files)):
            print(f"workbench: {line}", file=sys.stderr)
    if open_it:
        import webbrowser

        webbrowser.open(path.as_uri())
    return REFUSED if any(item.refused for item in items) else 0
