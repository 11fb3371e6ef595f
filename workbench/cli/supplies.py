"""`workbench data` and `workbench kernels`: what notebooks need from outside.

Source: `workbench.datasets.manifest`, `workbench.launch.kernels`.
Simplified: nothing.
Left out: where data is looked for (`workbench.datasets`).
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from . import common

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    data = typer.Typer(no_args_is_help=True, help="List, fetch and verify data sets and models.")
    for name, command in (("list", list_data), ("fetch", fetch), ("verify", verify)):
        data.command(name)(command)
    kernels = typer.Typer(no_args_is_help=True, help="Jupyter kernels for a number of ranks or GPUs.")
    for name, command in (("install", install_kernel), ("list", list_kernels), ("remove", remove_kernel)):
        kernels.command(name)(command)
    app.add_typer(data, name="data", rich_help_panel=common.HOUSE)
    app.add_typer(kernels, name="kernels", rich_help_panel=common.HOUSE)


def list_data() -> None:
    """List the data sets and models the items can use, and where each would come from now."""
    from rich.markup import escape
    from rich.table import Table

    from workbench.datasets import manifest

    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("name", "here", "licence", "origin"):
        table.add_column(name, no_wrap=name == "name")
    for entry in _checked(manifest.list_data):
        table.add_row(
            entry.name,
            _whereabouts(entry, _checked(manifest.verify, entry.name)),
            escape(entry.licence),
            escape(entry.origin),
        )
    common.console().print(table)


def _whereabouts(entry: Any, checks: Any) -> str:
    places = list(dict.fromkeys(check.place for check in checks if check.place))
    return ", ".join(places) or ("no" if entry.is_model else "no (a stand-in is used)")


def fetch(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As workbench data list names them.")],
) -> None:
    """Download data sets or models. The only command that goes online.

    \b
    Example
      workbench data fetch glue/sst2
    """
    from workbench.datasets import manifest

    for name in names:
        for path in _checked(manifest.fetch, name):
            common.console().print(str(path), markup=False)


def verify(names: Annotated[list[str] | None, typer.Argument(metavar="NAME", help="All by default.")] = None) -> int:
    """Compare the files on this machine with the manifest's checksums; exit code 1 where one differs."""
    from workbench.datasets import manifest

    out, differs, found = common.console(), False, False
    for name in names or [entry.name for entry in _checked(manifest.list_data)]:
        for check in _checked(manifest.verify, name):
            differs |= check.status is manifest.FileStatus.DIFFERS
            found |= check.status is not manifest.FileStatus.MISSING
            out.print(
                f"{name}  {check.file}  {check.status.value}" + (f"  ({check.place})" if check.place else ""),
                markup=False,
            )
    if not found:
        out.print("None of these files is on this machine; workbench data fetch NAME downloads them.", markup=False)
    return 1 if differs else 0


def install_kernel(
    num_ranks: Annotated[
        int, typer.Option("--ranks", "-n", min=1, help="Ranks that Ranks() starts in this kernel.")
    ] = 4,
    device: Annotated[
        str, typer.Option(metavar="cpu|cuda", help="Where its ranks compute: cuda gives each its own GPU.")
    ] = "cpu",
    user: Annotated[
        bool, typer.Option("--user", help="For every Jupyter of this user, not this environment's alone.")
    ] = False,
) -> None:
    """Register a Jupyter kernel for a number of ranks or GPUs; reproduce --kernel NAME takes it.

    \b
    Examples
      workbench kernels install --ranks 4
      workbench kernels install --ranks 2 --device cuda
    """
    from workbench.launch import kernels

    place = kernels.KernelPlace.USER if user else kernels.KernelPlace.ENVIRONMENT
    folder = kernels.install(num_ranks, device=common.choose(device, ("cpu", "cuda"), "device"), place=place)
    common.console().print(f"{folder.name}  {folder}", markup=False)


def list_kernels() -> None:
    """List the Jupyter kernels that notebooks and reproduce --kernel can use."""
    from jupyter_client.kernelspec import KernelSpecManager

    for name, folder in sorted(KernelSpecManager().find_kernel_specs().items()):
        common.console().print(f"{name}  {folder}", markup=False)


def remove_kernel(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As workbench kernels list names it.")],
) -> None:
    """Remove a kernel that workbench kernels install registered."""
    from workbench.launch import kernels

    common.console().print(f"removed {_checked(kernels.remove, name)}", markup=False)


def _checked(function: Any, *names: Any) -> Any:
    """Call a function of the library; a name it does not know, or data it cannot get, is wrong use."""
    from workbench.datasets.places import DataError
    from workbench.reproduction import UsageError

    try:
        return function(*names)
    except (ValueError, DataError) as error:
        raise UsageError(str(error)) from None
