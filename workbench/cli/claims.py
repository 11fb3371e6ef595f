"""`workbench claims audit`: whether claims notice falsified results."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.markup import escape
from typer import Option

from . import common

__all__ = ["audit", "register"]

WORDS = {True: "[green]noticed[/]", False: "[bold red]not noticed[/]", None: "[dim]—[/]"}


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    claims = typer.Typer(no_args_is_help=True, help="Test the claims themselves.")
    claims.command("audit")(audit)
    app.add_typer(claims, name="claims", rich_help_panel=common.LOOK)


def audit(
    patterns: common.Patterns = None,
    as_json: common.AsJson = False,
    blind: Annotated[
        bool, Option("--blind", help="Only those that notice neither no effect nor the opposite.")
    ] = False,
) -> int:
    """Judge every claim on falsified results: no effect, the opposite, twice the effect, rows shuffled.

    Ends with exit code 1 where a claim of the paper notices neither no effect nor the opposite, and does not say why.

    \b
    Examples
      workbench claims audit
      workbench claims audit gemini --blind
    """
    from workbench.reproduction.audit import FALSIFICATIONS, share_noticed
    from workbench.reproduction.audit import audit as audited

    project, catalogue = common.load()
    claims = audited(project, common.pick(catalogue, patterns or []))
    unexplained = [each for each in claims if each.is_unexplained]
    if as_json:
        common.print_json([each.to_json() for each in claims])
        return int(bool(unexplained))
    table = common.table("claim", *FALSIFICATIONS)
    for each in claims:
        if each.is_blind or not blind:
            name = f"{escape(each.claim.name)}\n[dim]{each.item}[/]"
            table.add_row(name, *(WORDS[each.noticed[falsification]] for falsification in FALSIFICATIONS))
    out = common.console()
    out.print(table)
    number, of = share_noticed(claims)
    explained = sum(each.is_blind for each in claims) - len(unexplained)
    out.print(
        f"{len(claims)} claims notice {number} of the {of} falsified results that apply to them. "
        f"Blind to no effect and to the opposite: {explained} that say why, {len(unexplained)} that do not.",
        markup=False,
    )
    return int(bool(unexplained))
