"""`workbench init` writes a copy to edit; `workbench lab` opens JupyterLab on a working copy of the notebooks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from . import common

__all__ = ["init", "lab", "register"]

FIRST_NOTEBOOK = "00_start_here.ipynb"


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("lab", rich_help_panel=common.RUN)(lab)
    app.command("init", rich_help_panel=common.AUTHOR)(init)


def init(folder: Annotated[Path, Argument(metavar="DIR", help="A new or empty folder.")]) -> None:
    """Write a copy of catalogue, notebooks and small data to edit; workbench takes it wherever one works inside it.

    \b
    Example
      workbench init my-workbench && cd my-workbench
    """
    from workbench.checkout import copy_root
    from workbench.reproduction import Project, UsageError

    project = Project()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not empty; name a new folder")
    copy_root(project.root, folder)
    common.console().print(f"Wrote {folder}. Next: cd {folder}, then workbench list", markup=False, soft_wrap=True)


def lab(
    arguments: Annotated[list[str] | None, Argument(metavar="[-- OPTION...]", help="Options of JupyterLab.")] = None,
    results: common.Results = None,
) -> None:
    """Open JupyterLab on the first notebook, in a working copy of the notebooks: results/lab.

    \b
    Examples
      workbench lab
      workbench lab -- --no-browser --port 8890
    """
    import jupyterlab  # noqa: F401  # named by the error where it is missing

    from workbench.explore.working_copy import refresh
    from workbench.reproduction import Project

    project = Project(results=results)
    copy, jupyter = project.results / "lab", Path(__file__).parents[1] / "explore" / "jupyter"
    for changed in refresh(project.notebooks, copy):
        print(f"There is a new version of a notebook that you have changed. Yours is now {changed}")
    environment = dict(os.environ)
    first = {"PATH": Path(sys.executable).parent, "JUPYTER_CONFIG_PATH": jupyter, "JUPYTER_PATH": jupyter}
    for name, place in first.items():
        environment[name] = os.pathsep.join(filter(None, [str(place), environment.get(name)]))
    options = {
        "ServerApp.root_dir": project.results.parent,
        "ServerApp.preferred_dir": copy,
        "LabApp.default_url": f"/lab/tree/{project.results.name}/lab/{FIRST_NOTEBOOK}",
        "ServerApp.terminado_settings": f"shell_command={os.environ.get('SHELL') or 'sh'}",
        "ServerApp.allow_root": os.geteuid() == 0,  # as in most containers
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    os.execve(sys.executable, [sys.executable, "-m", "jupyterlab", *words, *(arguments or [])], environment)
