"""Timelines as text that prints and parses, so that a test reads as a picture.

    rank 0 | F0 -  .  B0
    rank 1 | .  F0 B0 .

A row is a resource, a column one step of time. A word starts an action, `-` continues it, `.` is idle. Times that are
not a multiple of the step are refused.
"""

from collections.abc import Callable

from .actions import Action, Kind, Timeline

__all__ = ["CONTINUED", "IDLE", "format_rows", "format_timeline", "parse_rows", "parse_timeline", "whole_steps"]

IDLE = "."
CONTINUED = "-"

# Allowed distance of a time from a whole number of steps, for rounding errors of floating-point sums.
_STEP_TOLERANCE = 1e-6


def format_rows(rows: dict[str, list[str]]) -> str:
    """Write rows of words as lines `name | word word` in aligned columns; short rows are filled with idle cells."""
    num_columns = max((len(words) for words in rows.values()), default=0)
    filled = {name: words + [IDLE] * (num_columns - len(words)) for name, words in rows.items()}
    widths = [max(len(words[column]) for words in filled.values()) for column in range(num_columns)]
    name_width = max((len(name) for name in filled), default=0)
    lines = []
    for name, words in filled.items():
        cells = " ".join(word.ljust(width) for word, width in zip(words, widths, strict=True))
        lines.append(f"{name.ljust(name_width)} | {cells}".rstrip())
    return "\n".join(lines)


def parse_rows(text: str) -> dict[str, list[str]]:
    """Read what `format_rows` wrote; blank lines and indentation do not matter."""
    rows: dict[str, list[str]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, bar, cells = line.partition("|")
        if not bar:
            raise ValueError(f"line is {line!r}; it must be 'name | word word'")
        if name.strip() in rows:
            raise ValueError(f"row is {name.strip()!r}; each row must come once")
        rows[name.strip()] = cells.split()
    return rows


def format_timeline(timeline: Timeline, *, step_s: float = 1.0) -> str:
    """Print a timeline as a grid, a column for `step_s` seconds; an action without a label is printed as its kind.

    Raises:
        ValueError: if a time is no multiple of the step, actions overlap or last no step, or a label is no word.
    """
    rows = {}
    for resource in timeline.resources:
        words: list[str] = []
        for action in timeline.of(resource):
            first, last = (whole_steps(time_s, step_s) for time_s in (action.start_s, action.end_s))
            if first < len(words) or last == first:
                raise ValueError(f"action is {action!r}; it must last a step and overlap no other in a grid")
            words += [IDLE] * (first - len(words)) + [_word(action)] + [CONTINUED] * (last - first - 1)
        rows[resource] = words
    return format_rows(rows)


def parse_timeline(
    text: str, *, step_s: float = 1.0, kind_of: Callable[[str], Kind] = lambda label: Kind.COMPUTE
) -> Timeline:
    """Read a grid back into a timeline that starts at 0 s; `kind_of` gives the kind that goes with a label."""
    rows = parse_rows(text)
    actions = [action for name, words in rows.items() for action in _row(name, words, step_s, kind_of)]
    return Timeline(actions=tuple(actions), resources=tuple(rows))


def _row(name: str, words: list[str], step_s: float, kind_of: Callable[[str], Kind]) -> list[Action]:
    spans: list[list] = []  # label, first step, last step
    for step, word in enumerate(words):
        if word == CONTINUED:
            if not spans or spans[-1][2] != step:
                raise ValueError(f"row {name!r} is {words!r}; {CONTINUED!r} must follow an action")
            spans[-1][2] += 1
        elif word != IDLE:
            spans.append([word, step, step + 1])
    return [
        Action(resource=name, start_s=first * step_s, end_s=last * step_s, kind=kind_of(label), label=label)
        for label, first, last in spans
    ]


def whole_steps(time_s: float, step_s: float) -> int:
    """Return a time in steps; refuse a time that is not a multiple of the step."""
    steps = round(time_s / step_s)
    if abs(time_s / step_s - steps) > _STEP_TOLERANCE:
        raise ValueError(f"time is {time_s!r} s; in a grid it must be a multiple of step_s, {step_s!r}")
    return steps


def _word(action: Action) -> str:
    word = action.label or action.kind.value
    if word in (IDLE, CONTINUED) or len(word.split()) != 1:
        raise ValueError(
            f"label is {action.label!r}; in a grid it must be one word other than {IDLE!r} and {CONTINUED!r}"
        )
    return word
