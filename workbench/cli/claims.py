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
        bool, Option("--blind", help="Only claims that notice neither no effect nor the opposite.")
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
    unexplained = [claim for claim in claims if claim.is_unexplained]
    if as_json:
        common.print_json([claim.to_json() for claim in claims])
        return int(bool(unexplained))
    table = common.table("claim", *FALSIFICATIONS)
    for claim in claims:
        if claim.is_blind or not blind:
            name = f"{escape(claim.claim.name)}\n[dim]{claim.item}[/]"
            table.add_row(name, *(WORDS[claim.noticed[falsification]] for falsification in FALSIFICATIONS))
    out = common.console()
    out.print(table)
    noticed, applying = share_noticed(claims)
    explained = sum(claim.is_blind for claim in claims) - len(unexplained)
    out.print(
        f"{common.counted(len(claims), 'claim')}: {noticed} of {applying} falsified results noticed. "
        f"Blind to no effect and to the opposite: {explained} with a reason, {len(unexplained)} without.",
        markup=False,
    )
    return int(bool(unexplained))
