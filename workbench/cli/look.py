"""`workbench list`, `show` and `report`: the items and their results, without importing torch or papermill."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from . import common

__all__ = ["list_items", "register", "show_item", "write"]

REFUSED = 2  # exit code where a record cannot be trusted
LEAST_TITLE = 30  # columns for the title, below which each item takes lines of its own


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    for name, command in (("list", list_items), ("show", show_item), ("report", write)):
        app.command(name, rich_help_panel=common.LOOK)(command)


def list_items(
    patterns: common.Patterns = None,
    as_json: Annotated[bool, Option("--json", help="id, technique, item, title, evidence, profiles, claims.")] = False,
) -> None:
    """List what can be reproduced.

    \b
    Examples
      workbench list
      workbench list 'activation-compression/table-*'
      workbench list --json
    """
    project, catalogue = common.load()
    chosen = common.pick(catalogue, patterns or [])
    cells = {item.id: _num_cells(project, item) for item in chosen}
    if as_json:
        common.print_json([_item_json(item) | ({"cells": cells[item.id]} if cells[item.id] else {}) for item in chosen])
        return
    _print_table(chosen, {item.id: _profiles(item, cells[item.id]) for item in chosen})


def _num_cells(project: Any, item: Any) -> dict[str, dict[str, int]]:
    """Count an item's cells in each profile, where a study of it has begun."""
    from workbench.reproduction.cells import num_cells

    counts = {profile: num_cells(project, item, profile) for profile in item.profiles}
    return {profile: {"there": there, "of": of} for profile, (there, of) in counts.items() if of}


def _profiles(item: Any, cells: Mapping[str, Mapping[str, int]]) -> str:
    words = {profile: f"{profile} ({counts['there']} of {counts['of']} cells)" for profile, counts in cells.items()}
    return " ".join(words.get(profile, profile) for profile in item.profiles)


def _print_table(chosen: Sequence[Any], profiles: Mapping[str, str]) -> None:
    out = common.console()
    longest = max((len(f"{item.id}  claims  {profiles[item.id]}  ") for item in chosen), default=0)
    if longest + LEAST_TITLE <= out.width:
        out.print(_wide_table(chosen, profiles))
    else:
        for item in chosen:  # ids are what one copies, so they are never cut
            claims = f"{len(item.claims)} claim{'s' if len(item.claims) != 1 else ''}"
            out.print(f"{item.id}\n    {item.title}\n    {claims}; {profiles[item.id]}", markup=False, soft_wrap=True)
    hint = f"\n{len(chosen)} items. One of them: workbench show {chosen[0].id}" if chosen else ""
    out.print(hint or "No items are declared yet.", style="dim", soft_wrap=True)


def _wide_table(chosen: Sequence[Any], profiles: Mapping[str, str]) -> Any:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("id", "left"), ("claims", "right"), ("profiles", "left"), ("what", "left")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis" if name == "what" else "fold")
    for item in chosen:
        table.add_row(item.id, str(len(item.claims)), profiles[item.id], escape(item.title))
    return table


def _item_json(item: Any) -> dict[str, Any]:
    copied = {name: getattr(item, name) for name in ("id", "technique", "item", "title")}
    claims = [claim.name for claim in item.claims]
    return copied | {"evidence": item.evidence.name, "profiles": list(item.profiles), "claims": claims}


def show_item(
    identity: Annotated[
        str, Argument(metavar="ID", help="An id, the beginning of one, an item such as table-1, or a glob.")
    ],
) -> None:
    """Show one item: its claims with their rules, its parameters, its last record.

    \b
    Examples
      workbench show activation-compression/table-1/counted
      workbench show table-1
    """
    project, catalogue = common.load()
    out = common.console()
    for number, item in enumerate(common.pick(catalogue, [identity])):
        if number:
            out.rule(style="dim")
        _show(out, project, item)


def _show(out: Any, project: Any, item: Any) -> None:
    from workbench.reproduction.report import about_text, rule_text

    path = f"reproductions/{item.technique}/published/{item.published}" if item.published else "none"
    out.print(f"[bold]{escape(item.title)}[/bold]\n{item.id}   evidence {item.evidence.name}")
    out.print(f"notebook   {item.notebook}\npublished  {path}")
    for profile, parameters in item.parameters.items():
        expected_s = item.expected_s.get(profile)
        time = "time unknown" if expected_s is None else f"about {about_text(expected_s)}"
        pairs = ", ".join(f"{name}={value!r}" for name, value in parameters.items()) or "no parameters"
        out.print(f"{profile:<10} {time:<12} [dim]{escape(pairs)}[/dim]")
    out.print("\n[bold]Claims[/bold]" if item.claims else "\nNo claims.")
    for claim in item.claims:
        kind = type(claim).__name__
        out.print(f"  [bold]{escape(claim.name)}[/bold]  [dim]{kind}[/dim]\n    {escape(rule_text(claim))}")
    for line in _states(project, item):
        out.print(line)


def _states(project: Any, item: Any) -> list[str]:
    """Return lines on each profile: its record, its verdicts, and how many of its cells are there."""
    from workbench.reproduction.report import gather

    lines = [
        f"\n[bold]Cells[/bold] ({profile})  {counts['there']} of {counts['of']} are there"
        for profile, counts in _num_cells(project, item).items()
    ]
    for profile in item.profiles:
        view = gather(project, [item], profile).techniques[0].items[0]
        if view.has_record:
            verdicts = common.verdict_words(view.counts)
            lines.append(f"\n[bold]Last {profile} run[/bold]  {view.date}, {view.duration}  {verdicts}")
        lines += [f"\n[bold red]Refused[/] ({profile})  {escape(line)}" for line in view.refused]
        lines += [f"[bold red]Not shown[/]  {escape(line)}" for line in view.wrong_files]
        if view.failure:
            lines.append(f"[bold red]Last {profile} run failed[/]  {view.failure.message}")
    return lines


def write(
    profile: common.OneProfile = "laptop",
    open_it: Annotated[bool, Option("--open", help="Open it in the browser.")] = False,
    single: Annotated[Path | None, Option("--single-file", help="Also write all its pages into this one file.")] = None,
    site: Annotated[
        Path | None, Option("--site", help="Also write a static site: report, notebooks, lessons, API pages.")
    ] = None,
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

    project, catalogue = common.load()
    report = gather(project, catalogue, profile)
    items = [item for technique in report.techniques for item in technique.items]
    if not report.only_recorded and not any(item.has_record or item.failure or item.refused for item in items):
        print(f"workbench: no records in profile {profile} yet", file=sys.stderr)
        return 0
    path = write_report(project, catalogue, profile, notebooks=True)
    common.console().print(str(path), markup=False)
    if report.only_recorded:
        print(f"workbench: {report.headline}", file=sys.stderr)
    if single is not None:
        single_file(path, single)
    if site is not None:
        write_site(project, catalogue, profile, path, site)
    for item in items:
        for line in (*item.refused, *(f"{item.id}: {wrong}" for wrong in item.wrong_files)):
            print(f"workbench: {line}", file=sys.stderr)
    if open_it:
        import webbrowser

        webbrowser.open(path.as_uri())
    return REFUSED if any(item.refused for item in items) else 0
