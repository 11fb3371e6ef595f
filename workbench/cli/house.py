"""`workbench doctor`, `bench`, `clean`, `data` and `kernels`: the machine, its files and what notebooks need."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer import Argument, Option

from . import common

__all__ = ["bench", "clean", "doctor", "register"]

NOT_MATERIAL = {".lock"}  # stays, since its holder is what makes removal safe


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("doctor", rich_help_panel=common.HOUSE)(doctor)
    data = typer.Typer(no_args_is_help=True, help="List, fetch and verify data sets and models.")
    data.command("list")(list_data)
    data.command("fetch")(fetch)
    data.command("verify")(verify)
    kernels = typer.Typer(no_args_is_help=True, help="Jupyter kernels for a number of ranks or GPUs.")
    kernels.command("install")(install_kernel)
    kernels.command("list")(list_kernels)
    kernels.command("remove")(remove_kernel)
    app.add_typer(data, name="data", rich_help_panel=common.HOUSE)
    app.add_typer(kernels, name="kernels", rich_help_panel=common.HOUSE)
    app.command("bench", rich_help_panel=common.HOUSE)(bench)
    app.command("clean", rich_help_panel=common.HOUSE)(clean)


def doctor(as_json: common.AsJson = False) -> int:
    """Check this machine: ranks, GPUs, shaped hosts, data, kernels, browser, each with what to do if it is missing.

    Ends with exit code 1 only where something required is missing.
    """
    from workbench.reproduction import Project
    from workbench.reproduction.doctor import examine

    out, checks = common.console(), []
    for check in examine(Project()):
        checks.append(check)
        if not as_json:
            _print_check(out, check)
    if as_json:
        fields = {"name": "name", "state": "state", "required": "required", "found": "detail", "advice": "advice"}
        common.print_json([{key: getattr(check, name) for key, name in fields.items()} for check in checks])
    parts = []
    for state, words in (("missing", "Missing and required"), ("broken", "Broken")):
        if names := [check.name for check in checks if check.state == state]:
            parts.append(f"{words}: {', '.join(names)}.")
    if not as_json:
        out.print("\n" + (" ".join(parts) or "Nothing required is missing."), markup=False)
    return 1 if parts else 0


def _print_check(out: Any, check: Any) -> None:
    mark = {
        "ok": "[green]✓[/]",
        "missing": "[bold red]✕ missing[/]",
        "broken": "[bold red]✕ broken[/]",
        "optional": "[yellow]○ optional[/]",
    }[check.state]
    out.print(f"{mark} [bold]{escape(check.name)}[/]  {escape(check.detail)}")
    if check.state != "ok":
        out.print(f"    {check.advice}", style="dim", markup=False)


def bench(pattern: Annotated[str, Argument(help="Names of benchmarks, as a glob.")] = "*") -> int:
    """Measure the speeds that are promised, each as a ratio taken in one run.

    Ends with exit code 1 where a ratio does not hold.

    \b
    Examples
      workbench bench
      workbench bench 'compression-quantize-*'
    """
    from workbench.reproduction import Project, UsageError
    from workbench.study.measuring import run_benchmarks

    out, folder = common.console(), Project().root / "tests" / "benchmarks"
    if not folder.is_dir():
        raise UsageError(f"benchmarks lie in a checkout of this project's source; there is no folder {folder}")
    try:
        rows = run_benchmarks(pattern, folder, on_row=lambda row: out.print(_bench_line(row)))
    except ValueError as error:
        raise UsageError(str(error)) from None
    return 1 if any(row.holds is False for row in rows) else 0


def _bench_line(row: Any) -> str:
    from workbench.reproduction.report import number_text

    spread = f" ({number_text(row.low)} to {number_text(row.high)})" if row.low is not None else ""
    holds = "[green]holds[/]" if row.holds else "[bold red]does not hold[/]"
    verdict = "" if row.holds is None else f"  {holds}: asked {escape(row.asked)}"
    return f"{escape(row.name)}  [bold]{number_text(row.figure)} {escape(row.unit)}[/]{spread}{verdict}"


def clean(
    profiles: Annotated[list[str] | None, Argument(metavar="PROFILE", help="All profiles by default.")] = None,
    yes: common.AskYes = False,
    cells: Annotated[bool, Option("--cells", help="Also finished cells, which may have taken hours.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only say what would be removed.")] = False,
    results: common.Results = None,
) -> int:
    """Remove what runs wrote, after asking; finished cells stay unless --cells is given.

    What is in the repository, recorded runs included, stays in any case.

    \b
    Examples
      workbench clean smoke
      workbench clean --dry-run
      workbench clean --yes
      workbench clean full --cells
    """
    import shutil

    from workbench.reproduction import Project, UsageError
    from workbench.reproduction.files import hold_lock

    project, out = Project(results=results), common.console()
    chosen = [common.choose(name, common.PROFILES, "profile") for name in profiles or common.PROFILES]
    folders = [folder for name in chosen if _material(folder := project.results_of(name), cells)]
    if not folders:
        out.print(f"Nothing to remove in {project.results}.", markup=False)
        return 0
    for folder in folders:
        out.print(f"{folder}: {_size_words(folder, cells)}", markup=False)
    if dry_run:
        return 0
    if not yes and not sys.stdin.isatty():
        raise UsageError("clean asks before it removes; without a terminal say --yes")
    if not yes and not typer.confirm("Remove them?"):
        out.print("Nothing removed.")
        return 0
    for folder in folders:
        with hold_lock(folder):  # so that no run loses its results under way
            for path in _material(folder, cells):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        rest = "" if cells or not _num_cells(folder) else ", but for its finished cells"
        out.print(f"Removed what {folder} held{rest}.", markup=False)
    return 0


def _material(folder: Path, cells: bool) -> Sequence[Path]:
    """Return the paths to remove: all in a folder, but the finished cells of its techniques unless asked for."""
    from workbench.reproduction.declare import CELLS

    held = [path for path in folder.iterdir() if path.name not in NOT_MATERIAL] if folder.is_dir() else []
    if cells:
        return held
    kept = [path for path in held if (path / CELLS).is_dir() and not path.is_symlink()]
    inside = [inner for path in kept for inner in path.iterdir() if inner.name != CELLS]
    return [path for path in held if path not in kept] + inside


def _size_words(folder: Path, cells: bool) -> str:
    size_bytes, num_cells = 0, _num_cells(folder)
    for path in _material(folder, cells):
        files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
        size_bytes += sum(file.lstat().st_size for file in files if not file.is_dir())
    words = f"{common.counted(len(list(folder.glob('*/*/*/record.json'))), 'record')}, {size_bytes / 1e6:.1f} MB"
    if not num_cells:
        return words
    return f"{words}, {num_cells} finished cells" if cells else f"{words}; {num_cells} finished cells stay (--cells)"


def _num_cells(folder: Path) -> int:
    from workbench.reproduction.declare import CELLS

    return len(list(folder.glob(f"*/{CELLS}/*/*.json")))


def list_data(as_json: common.AsJson = False) -> None:
    """List the data sets and models the items can use, and where each would come from now."""
    from workbench.datasets import manifest

    table, rows = common.table("name", "here", "licence", "origin"), []
    for entry in _checked(manifest.list_data):
        places = list(dict.fromkeys(check.place for check in _checked(manifest.verify, entry.name) if check.place))
        here = ", ".join(places) or ("no" if entry.is_model else "no (a stand-in is used)")
        table.add_row(entry.name, here, escape(entry.licence), escape(entry.origin))
        copied = {name: getattr(entry, name) for name in ("name", "is_model", "licence", "origin", "hub_id", "note")}
        rows.append({**copied, "here": places})
    common.print_json(rows) if as_json else common.console().print(table)


def fetch(names: Annotated[list[str], Argument(metavar="NAME", help="As workbench data list names them.")]) -> None:
    """Download data sets or models. The only command that goes online.

    \b
    Example
      workbench data fetch glue/sst2
    """
    from workbench.datasets import manifest

    for name in names:
        for path in _checked(manifest.fetch, name):
            common.console().print(str(path), markup=False)


def verify(names: Annotated[list[str] | None, Argument(metavar="NAME", help="All by default.")] = None) -> int:
    """Compare the files on this machine with the manifest's checksums; exit code 1 where one differs."""
    from workbench.datasets import manifest

    out, differs, is_here = common.console(), False, False
    for name in names or [entry.name for entry in _checked(manifest.list_data)]:
        for check in _checked(manifest.verify, name):
            differs |= check.status is manifest.FileStatus.DIFFERS
            is_here |= check.status is not manifest.FileStatus.MISSING
            place = f"  ({check.place})" if check.place else ""
            out.print(f"{name}  {check.file}  {check.status.value}{place}", markup=False)
    if not is_here:
        out.print("None of these files is on this machine; workbench data fetch NAME downloads them.", markup=False)
    return 1 if differs else 0


def install_kernel(
    num_ranks: Annotated[
        int, Option("--ranks", "-n", min=1, metavar="N", help="Ranks of %%ranks and Ranks() without a number.")
    ] = 4,
    device: Annotated[
        str, Option(metavar="cpu|cuda", help="Where its ranks compute: cuda gives each its own GPU.")
    ] = "cpu",
    user: Annotated[
        bool, Option("--user", help="For every Jupyter of this user, not this environment's alone.")
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


def remove_kernel(name: Annotated[str, Argument(metavar="NAME", help="As workbench kernels list names it.")]) -> None:
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
