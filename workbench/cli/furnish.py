"""`workbench new technique NAME`: the furniture of a technique, ready to run.

Source: `workbench.reproduction.scaffold`.
Simplified: nothing.
Left out: everything that makes it a technique.
"""

from __future__ import annotations

from typing import Annotated

import typer

from . import common

__all__ = ["register", "technique"]


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    group = typer.Typer(no_args_is_help=True, help="Write the furniture of something new.")
    group.callback()(_group)
    group.command("technique")(technique)
    app.add_typer(group, name="new", rich_help_panel=common.AUTHOR)


def _group() -> None:
    """Write the furniture of something new."""


def technique(
    name: Annotated[str, typer.Argument(help="Lower case, digits and underscores, such as ring_sum.")],
) -> None:
    """Write library, lesson, catalogue, published table and test of a new technique; they pass and run as they are.

    \b
    Example
      workbench new technique ring_sum
    """
    from workbench.reproduction import Project
    from workbench.reproduction.scaffold import new_technique

    project, out = Project(), common.console()
    for path in new_technique(project, name):
        out.print(str(path.relative_to(project.root)), markup=False)
    slug = name.replace("_", "-")
    out.print(
        f"\nNext: python -m pytest tests/techniques/{name}\n      workbench reproduce {slug} --profile smoke\n"
        "Then put the technique in place of the example, file by file, in the order above.",
        markup=False,
    )
