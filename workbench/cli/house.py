"""What looks after the house: `doctor`, `data`, `kernels`, `bench`, `clean`.

Source: the library functions each command names.
Simplified: each command prints what its function returns.
Left out: repairing what the doctor finds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import common

__all__ = ["bench", "clean", "doctor", "register"]

AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable.")]
NOT_MATERIAL = {".lock"}  # stays, since its holder is what makes removal safe


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    from . import supplies

    app.command("doctor", rich_help_panel=common.HOUSE)(doctor)
    supplies.register(app)
    app.command("bench", rich_help_panel=common.HOUSE)(bench)
    app.command("clean", rich_help_panel=common.HOUSE)(clean)


def doctor(as_json: AsJson = False) -> int:
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
        common.print_json(
            [
                {name: getattr(check, name) for name in ("name", "state", "required", "found", "advice")}
                for check in checks
            ]
        )
    wanting = {state: [check.name for check in checks if check.state == state] for state in ("missing", "broken")}
    told = [
        f"{words}: {', '.join(wanting[state])}."
        for state, words in (("missing", "Missing and required"), ("broken", "Broken"))
        if wanting[state]
    ]
    if not as_json:
        out.print("\n" + (" ".join(told) or "Nothing required is missing."), markup=False)
    return 1 if told else 0


def _print_check(out: Any, check: Any) -> None:
    from rich.markup import escape

    mark = {
        "ok": "[green]✓[/]",
        "missing": "[bold red]✕ missing[/]",
        "broken": "[bold red]✕ broken[/]",
        "optional": "[yellow]○ optional[/]",
    }[check.state]
    out.print(f"{mark} [bold]{escape(check.name)}[/]  {escape(check.found)}")
    if check.state != "ok":
        out.print(f"    {check.advice}", style="dim", markup=False)


def bench(pattern: Annotated[str, typer.Argument(help="Names of benchmarks, as a glob.")] = "*") -> int:
    """Measure the speeds that are promised, each as a ratio taken in one run.

    Ends with exit code 1 where a ratio does not hold.

    \b
    Examples
      workbench bench
      workbench bench 'compression-quantize-*'
    """
    from workbench.reproduction import Project, UsageError
    from workbench.training.measuring import run_benchmarks

    out = common.console()
    try:
        rows = run_benchmarks(
            pattern, Project().root / "tests" / "benchmarks", on_row=lambda row: out.print(_bench_line(row))
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    return 1 if any(row.holds is False for row in rows) else 0


def _bench_line(row: Any) -> str:
    from rich.markup import escape

    from workbench.reproduction.report.numbers import number_text

    spread = f" ({number_text(row.low)} to {number_text(row.high)})" if row.low is not None else ""
    holds = "[green]holds[/]" if row.holds else "[bold red]does not hold[/]"
    verdict = "" if row.holds is None else f"  {holds}: asked {escape(row.asked)}"
    return f"{escape(row.name)}  [bold]{number_text(row.figure)} {escape(row.unit)}[/]{spread}{verdict}"


def clean(
    profiles: Annotated[list[str] | None, typer.Argument(metavar="PROFILE", help="All profiles by default.")] = None,
    yes: common.AskYes = False,
    cells: Annotated[bool, typer.Option("--cells", help="Also finished cells, which may have taken hours.")] = False,
) -> int:
    """Remove what runs wrote, after asking; finished cells stay unless --cells is given.

    What is in the repository, recorded runs included, stays in any case.

    \b
    Examples
      workbench clean smoke
      workbench clean --yes
      workbench clean full --cells
    """
    from workbench.reproduction import Project, UsageError

    project, out = Project(), common.console()
    chosen = [common.choose(name, common.PROFILES, "profile") for name in profiles or common.PROFILES]
    folders = [folder for name in chosen if _material(folder := project.results_of(name), cells)]
    if not folders:
        out.print(f"Nothing to remove in {project.results}.", markup=False)
        return 0
    for folder in folders:
        out.print(f"{folder}: {_told(folder, cells)}", markup=False)
    if not yes and not sys.stdin.isatty():
        raise UsageError("clean asks before it removes; without a terminal say --yes")
    if not yes and not typer.confirm("Remove them?"):
        out.print("Nothing removed.")
        return 0
    for folder in folders:
        _empty(folder, cells)
        out.print(
            f"Removed what {folder} held{'' if cells or not _num_cells(folder) else ', but for its finished cells'}.",
            markup=False,
        )
    return 0


def _material(folder: Path, cells: bool) -> Sequence[Path]:
    """Return what to remove: all that a folder holds, but the finished cells of its techniques unless they are meant too."""
    from workbench.reproduction.declare import CELLS

    held = [path for path in folder.iterdir() if path.name not in NOT_MATERIAL] if folder.is_dir() else []
    if cells:
        return held
    kept = [path for path in held if (path / CELLS).is_dir() and not path.is_symlink()]
    inside = [inner for path in kept for inner in path.iterdir() if inner.name != CELLS]
    return [path for path in held if path not in kept] + inside


def _told(folder: Path, cells: bool) -> str:
    size_bytes = sum(_size_bytes(path) for path in _material(folder, cells))
    told = f"{len(list(folder.glob('*/*/*/record.json')))} records, {size_bytes / 1e6:.1f} MB"
    found = _num_cells(folder)
    return (
        f"{told}, {found} finished cells"
        if found and cells
        else f"{told}; {found} finished cells stay (--cells)"
        if found
        else told
    )


def _num_cells(folder: Path) -> int:
    from workbench.reproduction.declare import CELLS

    return len(list(folder.glob(f"*/{CELLS}/*/*.json")))


def _size_bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(file.lstat().st_size for file in files if not file.is_dir())


def _empty(folder: Path, cells: bool) -> None:
    """Remove what a folder holds while holding its lock, so that no run loses its results under way."""
    import shutil

    from workbench.reproduction.runner.lock import hold_lock

    with hold_lock(folder):
        for path in _material(folder, cells):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
