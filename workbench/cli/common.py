"""Shared by the commands: the project and its items, the profile option, consoles, verdicts in words."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

__all__ = [
    "AsJson",
    "AskYes",
    "OneProfile",
    "Patterns",
    "Results",
    "choose",
    "console",
    "counted",
    "load",
    "mark_of",
    "pick",
    "print_json",
    "reason_words",
    "table",
    "verdict_words",
]

LOOK, RUN, HOUSE, AUTHOR = "Look", "Run", "Look after the house", "Write"  # groups of the help
INTERRUPTED = 130  # exit code: 128 + SIGINT, as shells count it
PIPED_WIDTH = 240  # columns where there is no terminal, so that a line of a table stays a line
MOST_REASONS = 5  # lines on why claims are not comparable
PROFILES = ("smoke", "quick", "laptop", "full", "paper")
STYLES = {"DISAGREES": "bold red", "AGREES": "green", "NOT_COMPARABLE": "yellow", "NOT_RUN": "dim"}
MARKS = {"AGREES": "✓", "DISAGREES": "✕", "NOT_COMPARABLE": "?", "NOT_RUN": "○"}


def choose(word: str, choices: tuple[str, ...], what: str) -> str:
    """Return `word` where it is one of the choices, else refuse and name the closest."""
    from workbench.reproduction import UsageError

    if word in choices:
        return word
    close = difflib.get_close_matches(word.lower(), choices, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise UsageError(f"there is no {what} {word!r}; {hint}choose from {', '.join(choices)}")


def _profile(word: str) -> str:
    return word and choose(word, PROFILES, "profile")


OneProfile = Annotated[
    str,
    Option(
        "--profile",
        "-p",
        metavar="|".join(PROFILES),
        callback=_profile,
        help="smoke checks the plumbing; quick takes ten minutes, laptop two hours, full a day, paper needs GPUs.",
    ),
]
Patterns = Annotated[list[str] | None, Argument(metavar="ID", help="Ids or globs; all items by default.")]
Results = Annotated[
    Path | None, Option(envvar="WORKBENCH_RESULTS", metavar="DIR", help="Folder of results, by default results/.")
]
AsJson = Annotated[bool, Option("--json", help="Machine-readable.")]
AskYes = Annotated[bool, Option("--yes", "-y", help="Do not ask.")]


def console(error: bool = False) -> Console:
    """Return a console on stdout or stderr that keeps to plain lines where there is no terminal."""
    stream = sys.stderr if error else sys.stdout
    return Console(stderr=error, highlight=False, width=None if stream.isatty() else PIPED_WIDTH)


def table(*names: str, right: str = "") -> Table:
    """Return an empty table without lines, its first column never broken, one column to the right."""
    empty = Table(box=None, pad_edge=False, header_style="bold")
    for name in names:
        empty.add_column(name, justify="right" if name == right else "left", no_wrap=name == names[0])
    return empty


def load(results: Path | None = None) -> tuple[Any, tuple[Any, ...]]:
    """Return the project, whose runs write to the folder `results`, and its catalogue."""
    from workbench.reproduction import Project, load_catalogue

    project = Project(results=results)
    return project, load_catalogue(project)


def pick(catalogue: Sequence[Any], patterns: Sequence[str]) -> tuple[Any, ...]:
    """Select items as the library does, and also by a bare item such as "table-1"."""
    from workbench.reproduction import select

    items = {item.item for item in catalogue}
    return select(catalogue, [f"*/{pattern}/*" if pattern in items else pattern for pattern in patterns])


def print_json(value: Any) -> None:
    """Print a value as JSON, whatever the width of the terminal."""
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def verdict_words(counts: Mapping[str, int]) -> str:
    """Write counted verdicts with rich's marks: "✕ 1 disagrees  ✓ 3 agrees"."""
    named = {name.upper().replace(" ", "_"): number for name, number in counts.items() if number}
    words = [
        f"[{STYLES[name]}]{MARKS[name]} {named[name]} {name.lower().replace('_', ' ')}[/]"
        for name in STYLES
        if name in named
    ]
    return "  ".join(words) or "[dim]none[/]"


def reason_words(reasons: Mapping[str, str]) -> list[str]:
    """Say why claims are not comparable, a line for each reason, that of the most claims first."""
    names: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        names.setdefault(reason, []).append(name)
    style, mark, lines = STYLES["NOT_COMPARABLE"], MARKS["NOT_COMPARABLE"], []
    for reason, (first, *others) in sorted(names.items(), key=lambda pair: -len(pair[1])):
        more = f" and {len(others)} more" if others else ""
        lines.append(f"[{style}]{mark}[/] {escape(first)}{more}: {escape(reason)}")
    rest = len(lines) - MOST_REASONS
    return lines if rest <= 0 else [*lines[:MOST_REASONS], f"{mark} and {rest} more reasons"]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: "1 item", "2 items"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def mark_of(word: str) -> str:
    """Return the mark of a verdict's word."""
    return MARKS[word.upper().replace(" ", "_")]
