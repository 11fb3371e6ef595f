"""`workbench records`: keep a run in the repository, and compare a new run with the one kept.

Source: `workbench.reproduction.recorded`.
Simplified: verdicts are compared as they were recorded; the report judges both anew.
Left out: deleting what was kept; git does that.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from . import common

__all__ = ["diff", "promote", "register"]

Patterns = Annotated[list[str] | None, typer.Argument(metavar="ID", help="Ids or globs; all items by default.")]
CIRCUMSTANCES = ("machine", "parameters", "configuration", "versions", "environment")


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    group = typer.Typer(no_args_is_help=True, help="Keep runs in the repository; compare new ones with them.")
    group.command("promote")(promote)
    group.command("diff")(diff)
    app.add_typer(group, name="records", rich_help_panel=common.AUTHOR)


def promote(
    patterns: Patterns = None,
    profile: common.OneProfile = "laptop",
    cells: Annotated[
        bool, typer.Option("--cells", help="Finished cells alone, also of items that are not finished.")
    ] = False,
) -> None:
    """Copy records of this machine, their figures and cells into the repository: reports show them beside their own.

    \b
    Examples
      workbench records promote
      workbench records promote table-1 --profile full
      workbench records promote --cells --profile full
    """
    from workbench.reproduction import UsageError
    from workbench.reproduction.recorded import promote as keep
    from workbench.reproduction.recorded import promote_cells

    if profile == "smoke":
        raise UsageError("the profile smoke gives no verdicts; there is nothing to promote")
    project, catalogue = common.load()
    chosen = common.pick(catalogue, patterns or [])
    paths = (
        tuple(promote_cells(project, chosen, profile))
        if cells
        else keep(project, profile, [item.id for item in chosen])
    )
    if not paths:
        raise UsageError(f"none of the selected items has a finished cell in {project.results_of(profile)}")
    for path in paths:
        common.console().print(f"{path}{_counted(path)}", markup=False)
        _warn_of_changes(path)


def _counted(path: Path) -> str:
    return f"  {len(_held(path))} cells" if path.suffix == ".jsonl" else ""


def _held(path: Path) -> list[Mapping[str, Any]]:
    """Return what a promoted file holds: a record, or cells; it was checked as it was promoted."""
    import json

    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()] if path.suffix == ".jsonl" else [json.loads(text)]


def _warn_of_changes(path: Path) -> None:
    held = _held(path)
    changed = sum("+changes" in str(each.get("commit")) for each in held)
    if changed:
        what = path.name if path.suffix == ".json" else f"{path.name}: {changed} of {len(held)} cells"
        print(f"workbench: {what} ran on a checkout with changes that are in no commit", file=sys.stderr)


def diff(patterns: Patterns = None, profile: common.OneProfile = "laptop") -> None:
    """Compare this machine's records with the recorded ones: verdicts, values, and what the runs had different.

    \b
    Examples
      workbench records diff
      workbench records diff table-1 --profile full
    """
    from workbench.reproduction import UsageError

    out, seen = common.console(), 0
    project, catalogue = common.load()
    for item in common.pick(catalogue, patterns or []):
        lines = _differences(project, item, profile)
        if lines is None:
            continue
        seen += 1
        out.print(f"{item.id}: {len(lines)} differences" if lines else f"{item.id}: no difference", markup=False)
        for line in lines:
            out.print(f"  {line}", markup=False)
    if not seen:
        raise UsageError(f"no item has both a record of this machine and a recorded one in the profile {profile}")


def _differences(project: Any, item: Any, profile: str) -> list[str] | None:
    """Say how the two records of an item differ, or None where one is absent."""
    from workbench.reproduction import read_record
    from workbench.reproduction.recorded import diff as value_table
    from workbench.reproduction.recorded import promoted_path

    paths = promoted_path(project, item, profile), project.folder(item, profile) / "record.json"
    if not all(path.is_file() for path in paths):
        return None
    recorded, ours = (read_record(path, id=item.id, profile=profile) for path in paths)
    table = value_table(project, profile, [item.id]).to_dict("records")
    return [*_verdict_lines(recorded, ours), *_value_lines(table), *_circumstance_lines(recorded, ours)]


def _verdict_lines(recorded: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    before, now = (
        {verdict["claim"]: verdict["verdict"] for verdict in record["verdicts"]} for record in (recorded, ours)
    )
    return [
        f"verdict of {claim!r}: recorded {before.get(claim, 'absent')}, now {now.get(claim, 'absent')}"
        for claim in dict.fromkeys([*before, *now])
        if before.get(claim) != now.get(claim)
    ]


def _value_lines(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    from workbench.reproduction.report.numbers import relative_text, value_text

    lines = []
    for row in rows:
        name = " ".join(part for part in (row["quantity"], row["of"]) if part)
        texts = [value_text(row[side], row["unit"]) for side in ("promoted", "now")]
        lines.append(f"{name}: recorded {texts[0]}, now {texts[1]}  {relative_text(row['now'], row['promoted'])}")
    return lines


def _circumstance_lines(recorded: Mapping[str, Any], ours: Mapping[str, Any]) -> list[str]:
    lines = []
    for field in CIRCUMSTANCES:
        old, new = recorded.get(field) or {}, ours.get(field) or {}
        lines += [
            f"{field} {name}: recorded {old.get(name)}, now {new.get(name)}"
            for name in dict.fromkeys([*old, *new])
            if old.get(name) != new.get(name)
        ]
    return lines
