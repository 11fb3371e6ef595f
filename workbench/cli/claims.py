"""`workbench claims`: whether claims notice falsified results, causes of disagreements, and each number of a paper."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from typer import Argument, Option

from . import common

__all__ = ["audit", "causes", "numbers", "register"]

WORDS = {True: "[green]noticed[/]", False: "[bold red]not noticed[/]", None: "[dim]—[/]"}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    claims = typer.Typer(no_args_is_help=True, help="Test the claims themselves.")
    claims.command("audit")(audit)
    claims.command("causes")(causes)
    claims.command("numbers")(numbers)
    app.add_typer(claims, name="claims", rich_help_panel=common.LOOK)


def audit(
    patterns: common.Patterns = None,
    as_json: common.AsJson = False,
    blind: Annotated[
        bool, Option("--blind", help="Only those that notice neither no effect nor the opposite.")
    ] = False,
) -> int:
    """Judge every claim on falsified results: no effect, the opposite, twice the effect, rows shuffled,
    another regime; a dash where one does not apply.

    Ends with exit code 1 where a claim of the paper notices neither no effect nor the opposite, and does not say why.

    \b
    Examples
      workbench claims audit
      workbench claims audit gemini --blind
    """
    from workbench.reproduction.audit import NAMES, share_noticed
    from workbench.reproduction.audit import audit as audited

    project, catalogue = common.load()
    claims = audited(project, common.pick(catalogue, patterns or []))
    unexplained = [row for row in claims if row.is_unexplained]
    if as_json:
        common.print_json([row.to_json() for row in claims])
        return int(bool(unexplained))
    table = common.table("claim", *NAMES)
    for row in claims:
        if row.is_blind or not blind:
            name = f"{escape(row.claim.name)}\n[dim]{row.item}[/]"
            table.add_row(name, *(WORDS[row.noticed[falsification]] for falsification in NAMES))
    out = common.console()
    out.print(table)
    number, of = share_noticed(claims)
    explained = sum(row.is_blind for row in claims) - len(unexplained)
    out.print(
        f"{len(claims)} claims notice {number} of the {of} falsified results that apply to them. "
        f"Blind to no effect and to the opposite: {explained} that say why, {len(unexplained)} that do not.",
        markup=False,
    )
    return int(bool(unexplained))


def causes(patterns: common.Patterns = None, as_json: common.AsJson = False) -> int:
    """Show the disagreements of main findings, and all by more than 1.5 times, each with its cause.

    A cause is an intervention: one thing is changed, and our number is then at least twice as near to the paper's.

    \b
    Examples
      workbench claims causes
      workbench claims causes atp --json
    """
    from workbench.reproduction.causes import disagreements, summary
    from workbench.reproduction.findings import best_runs

    project, catalogue = common.load()
    picked = common.pick(catalogue, patterns or [])
    techniques = {item.technique for item in picked}
    runs = best_runs(project, [item for item in catalogue if item.technique in techniques])
    ids = {item.id for item in picked}
    disagreeing = [row for row in disagreements(project, runs) if row.item in ids]
    if as_json:
        common.print_json({"disagreements": [row.to_json() for row in disagreeing], "summary": summary(disagreeing)})
        return 0
    table = common.table("claim", "paper", "ours", "after", "cause")
    for row in sorted(disagreeing, key=lambda row: not row.is_finding):
        name = f"{escape(row.claim.name)}\n[dim]{row.item}{', a main finding' if row.is_finding else ''}[/]"
        cause = f"{row.cause.kind}: {escape(row.cause.changed)}" if row.cause else ""
        words = cause if row.is_explained else f"[bold red]unexplained[/]{cause and f'; tried {cause}'}"
        after = "" if row.after is None else f"{row.after:.3g}"
        table.add_row(name, f"{row.paper:.3g}", f"{row.ours:.3g}", after, words)
    out = common.console()
    out.print(table)
    out.print(summary(disagreeing), markup=False)
    return 0


def numbers(
    technique: Annotated[str, Argument(help="A technique, such as zen.")], as_json: common.AsJson = False
) -> int:
    """List every number that a technique's paper prints, with the verdict of its claim or why it has none.

    \b
    Examples
      workbench claims numbers zen
      workbench claims numbers zen --json
    """
    from workbench.reproduction.findings import best_runs
    from workbench.reproduction.numbers import read_numbers, summary

    project, catalogue = common.load()
    picked = common.pick(catalogue, [technique])
    printed = read_numbers(project.reproductions / picked[0].technique, best_runs(project, picked))
    if as_json:
        common.print_json([number.to_json() for number in printed])
        return 0
    table = common.table("place", "number", "about", "verdict", "why")
    for number in printed:
        table.add_row(*map(escape, (number.place, number.number, number.about, number.verdict, number.why)))
    out = common.console()
    out.print(table)
    out.print(summary(printed), markup=False)
    return 0
