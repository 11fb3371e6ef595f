"""`workbench list` and `workbench show`: what can be reproduced, without importing torch or papermill.

Source: the catalogues, reproductions/<technique>/catalogue.py.
Simplified: nothing is hidden behind options; a pattern narrows the list.
Left out: running (`workbench reproduce`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from . import common

__all__ = ["item_json", "list_items", "register", "show_item"]

LEAST_TITLE = 30  # columns for the title, below which each item takes lines of its own


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("list", rich_help_panel=common.LOOK)(list_items)
    app.command("show", rich_help_panel=common.LOOK)(show_item)


def list_items(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="ID", help="Ids or globs; all items by default.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="id, technique, item, title, evidence, profiles, claims.")
    ] = False,
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
        common.print_json([item_json(item) | ({"cells": cells[item.id]} if cells[item.id] else {}) for item in chosen])
        return
    _print_table(chosen, {item.id: _profiles(item, cells[item.id]) for item in chosen})


def _num_cells(project: Any, item: Any) -> dict[str, dict[str, int]]:
    """Count an item's cells in each profile, where a study of it has begun."""
    from workbench.reproduction.cells.there import num_cells

    counts = {profile: num_cells(project, item, profile) for profile in item.profiles}
    return {profile: {"there": there, "of": of} for profile, (there, of) in counts.items() if of}


def _profiles(item: Any, cells: Mapping[str, Mapping[str, int]]) -> str:
    told = {profile: f"{profile} ({counts['there']} of {counts['of']} cells)" for profile, counts in cells.items()}
    return " ".join(told.get(profile, profile) for profile in item.profiles)


def _print_table(chosen: Sequence[Any], profiles: Mapping[str, str]) -> None:
    out = common.console()
    longest = max((len(f"{item.id}  claims  {profiles[item.id]}  ") for item in chosen), default=0)
    if longest + LEAST_TITLE <= out.width:
        out.print(_wide_table(chosen, profiles))
    else:
        for item in chosen:  # ids are what one copies, so they are never cut
            claims = f"{len(item.claims)} claim{'s' if len(item.claims) != 1 else ''}"
            out.print(f"{item.id}\n    {item.title}\n    {claims}; {profiles[item.id]}", markup=False, soft_wrap=True)
    out.print(
        f"\n{len(chosen)} items. One of them: workbench show {chosen[0].id}"
        if chosen
        else "No items are declared yet.",
        style="dim",
        soft_wrap=True,
    )


def _wide_table(chosen: Sequence[Any], profiles: Mapping[str, str]) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name, justify in (("id", "left"), ("claims", "right"), ("profiles", "left"), ("what", "left")):
        table.add_column(name, justify=justify, no_wrap=True, overflow="ellipsis" if name == "what" else "fold")
    for item in chosen:
        table.add_row(item.id, str(len(item.claims)), profiles[item.id], escape(item.title))
    return table


def item_json(item: Any) -> dict[str, Any]:
    """Return what `list --json` says of one item."""
    return {
        "id": item.id,
        "technique": item.technique,
        "item": item.item,
        "title": item.title,
        "evidence": item.evidence.name,
        "profiles": list(item.profiles),
        "claims": [claim.name for claim in item.claims],
    }


def show_item(
    identity: Annotated[
        str, typer.Argument(metavar="ID", help="An id, the beginning of one, an item such as table-1, or a glob.")
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
    from rich.markup import escape

    from workbench.reproduction.report import rule_text

    out.print(f"[bold]{escape(item.title)}[/bold]\n{item.id}   evidence {item.evidence.name}")
    out.print(f"notebook   {item.notebook}\npublished  {_published(item)}")
    for profile, parameters in item.parameters.items():
        expected = item.expected_s.get(profile)
        out.print(f"{profile:<10} {_duration(expected):<12} [dim]{escape(_pairs(parameters))}[/dim]")
    out.print("\n[bold]Claims[/bold]" if item.claims else "\nNo claims.")
    for claim in item.claims:
        out.print(
            f"  [bold]{escape(claim.name)}[/bold]  [dim]{type(claim).__name__}[/dim]\n    {escape(rule_text(claim))}"
        )
    for line in _states(project, item):
        out.print(line)


def _published(item: Any) -> str:
    return f"reproductions/{item.technique}/published/{item.published}" if item.published else "none"


def _duration(expected_s: float | None) -> str:
    from workbench.reproduction.report.numbers import about_text

    return "time unknown" if expected_s is None else f"about {about_text(expected_s)}"


def _pairs(parameters: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in parameters.items()) or "no parameters"


def _states(project: Any, item: Any) -> list[str]:
    """Say for each profile whether a record exists, what it came to, and how many of its cells are there."""
    from rich.markup import escape

    from workbench.reproduction.report import gather

    lines = [
        f"\n[bold]Cells[/bold] ({profile})  {counts['there']} of {counts['of']} are there"
        for profile, counts in _num_cells(project, item).items()
    ]
    for profile in item.profiles:
        view = gather(project, [item], profile).techniques[0].items[0]
        if view.has_record:
            lines.append(
                f"\n[bold]Last {profile} run[/bold]  {view.date}, {view.duration}  {common.verdict_words(dict(view.counts))}"
            )
        lines += [f"\n[bold red]Refused[/] ({profile})  {escape(line)}" for line in view.refused]
        lines += [f"[bold red]Not shown[/]  {escape(line)}" for line in view.wrong_files]
        if view.failure:
            lines.append(f"[bold red]Last {profile} run failed[/]  {view.failure.message}")
    return lines
