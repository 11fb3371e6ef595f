"""`workbench report`: write the pages of a profile anew, and open them.

Source: `workbench.reproduction.report`.
Simplified: nothing.
Left out: running (`workbench reproduce` writes the report as it goes).
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from . import common

__all__ = ["register", "write"]


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("report", rich_help_panel=common.LOOK)(write)


def write(
    profile: common.OneProfile = "laptop",
    open_it: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
) -> None:
    """Write the report from the records there are, the recorded runs included, with every verdict computed anew; name the records it refuses.

    \b
    Examples
      workbench report --open
      workbench report --profile full
    """
    from workbench.reproduction.report import gather, write_report

    project, catalogue = common.load()
    report = gather(project, catalogue, profile)
    items = [item for technique in report.techniques for item in technique.items]
    if not report.only_recorded and not any(item.has_record or item.failure or item.refused for item in items):
        print(f"workbench: no records in profile {profile} yet", file=sys.stderr)
        return
    path = write_report(project, catalogue, profile, notebooks=True)
    common.console().print(str(path), markup=False)
    if report.only_recorded:
        print(f"workbench: {report.headline}", file=sys.stderr)
    for line in (
        line for item in items for line in item.refused + tuple(f"{item.id}: {wrong}" for wrong in item.wrong_files)
    ):
        print(f"workbench: {line}", file=sys.stderr)
    if open_it:
        import webbrowser

        webbrowser.open(path.as_uri())
