"""`workbench show`: one item on one screen, its claims a line each; several items, or `list`, a line an item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from . import common

__all__ = ["item_json", "judged", "num_cells", "print_list", "show_item"]

LEAST_TITLE = 16  # columns for the title, below which it is left out
GAP = 2  # columns between two of the table
HEADER = ("", "claim", "paper", "ours", "verdict")
MOST_CLAIMS = 24  # on a screen; those that agree are left out first
PARAMETERS_SHOWN = 300  # characters
ORDER = ("disagrees", "not comparable", "not run", "agrees")  # in which a reader looks for claims
WHOSE = {"ours": " (ours)", "construction": " (a check of the program)"}


def show_item(
    identity: Annotated[
        str, Argument(metavar="ID", help="An id, the beginning of one, an item such as table-1, or a glob.")
    ],
    everything: Annotated[
        bool, Option("--all", help="Every claim with its rule, and the parameters of every profile.")
    ] = False,
    as_json: common.AsJson = False,
    results: common.Results = None,
) -> None:
    """Show one item on one screen: its parameters, and of each claim the paper's value, ours and the verdict.

    The verdicts are those of its last run on this machine, or of the recorded run where none is newer. Several items
    have a line each.

    \b
    Examples
      workbench show activation-compression/table-1/counted
      workbench show 'atp/*'
      workbench show table-1 --all
    """
    from workbench.reproduction.findings import last_runs

    project, catalogue = common.load(results)
    chosen = common.pick(catalogue, [identity])
    if as_json:
        common.print_json([run_json(run) for run in last_runs(project, chosen).values()])
        return
    if len(chosen) > 1 and not everything:
        print_list(project, chosen)
        return
    for run in last_runs(project, chosen).values():
        _show(common.console(), project, run, everything)


def item_json(item: Any) -> dict[str, Any]:
    """Return what is declared of an item."""
    copied = {name: getattr(item, name) for name in ("id", "technique", "item", "title")}
    claims = [claim.name for claim in item.claims]
    return copied | {"evidence": item.evidence.name, "profiles": list(item.profiles), "claims": claims}


def run_json(run: Any) -> dict[str, Any]:
    """Return an item with its parameters, and its last run with the verdict of each claim."""
    from workbench.reproduction.files import jsonable

    declared = {name: jsonable(getattr(run.item, name)) for name in ("notebook", "published", "parameters")}
    about = item_json(run.item) | declared
    if run.record is None:
        return about
    kept = {name: run.record[name] for name in ("profile", "started", "seconds", "machine")}
    verdicts = [verdict.to_json() for verdict in run.verdicts]
    return about | {"run": {"is_own": run.is_own, **kept, "verdicts": verdicts}}


# a line an item


def print_list(project: Any, chosen: Sequence[Any]) -> None:
    """Print a line an item with the verdicts of its last run, and whose runs they are.

    Ids are copied and verdicts are asked for, so they are never cut: on a narrow terminal title and run are left out.
    """
    out, runs = common.console(), judged(project, chosen)
    rows = [("id", "verdicts", "last run", "what"), *(_row(project, item, runs[item.id]) for item in chosen)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    shown = [column for column in range(3) if sum(widths[: column + 1]) + GAP * column <= out.width]
    left = out.width - sum(widths[column] + GAP for column in shown)
    if len(shown) == 3 and left >= LEAST_TITLE:
        shown, widths[3] = [0, 1, 2, 3], left
    if len(shown) > 1:
        lines = [(" " * GAP).join(_fitted(row[at], widths[at]) for at in shown).rstrip() for row in rows]
        out.print(lines[0], style="bold")
        print(*lines[1:], sep="\n")
    else:
        for id, *others in rows[1:]:
            print(id, *(f"    {text}" for text in others if text), sep="\n")
    for line in _below(runs):
        out.print(line, style="dim", soft_wrap=True, markup=False)


def _fitted(text: str, width: int) -> str:
    return text.ljust(width) if len(text) <= width else f"{text[: width - 1]}…"


def judged(project: Any, chosen: Sequence[Any]) -> dict[str, Any]:
    """Return the last run of each item; the first time takes seconds, so a terminal says what it waits for."""
    from workbench.reproduction.summary import summaries

    with common.console(error=True).status("Judging the records"):
        return summaries(project, chosen)


def _row(project: Any, item: Any, run: Any) -> tuple[str, str, str, str]:
    verdicts = " ".join(f"{common.mark_of(word)}{run.verdicts[word]}" for word in ORDER if run.verdicts.get(word))
    cells = [f"{profile}: {n['there']} of {n['of']} cells" for profile, n in num_cells(project, item).items()]
    return item.id, verdicts, _run_words(run), item.title + (f" ({'; '.join(cells)})" if cells else "")


def _run_words(run: Any) -> str:
    """Say which run it is: "recorded full 2026-01-31"."""
    return f"{'ran' if run.is_own else 'recorded'} {run.profile} {run.started[:10]}" if run.profile else "none yet"


def _below(runs: Mapping[str, Any]) -> Iterator[str]:
    from workbench.reproduction.machine import machine_text

    score = sum((Counter(run.score) for run in runs.values()), Counter())
    verdicts = ", ".join(f"{score[word]} {word}" for word in ("agree", "disagree", "could not be tested"))
    yield f"\n{common.counted(len(runs), 'item')}; {common.counted(score.total(), 'claim')} of the papers: {verdicts}"
    places = Counter((run.is_own, machine_text(run.machine)) for run in runs.values() if run.profile)
    for (is_own, machine), number in places.items():
        yield f"{number} {'ran here' if is_own else 'recorded'} on {machine}"
    if first := next(iter(runs), None):
        yield f"One of them: workbench show {first}"


def num_cells(project: Any, item: Any) -> dict[str, dict[str, int]]:
    """Count an item's cells in each profile, where a study of it has begun."""
    from workbench.reproduction import ItemRun
    from workbench.reproduction.cells import num_cells as count

    counts = {profile: count(ItemRun(project, item, profile)) for profile in item.profiles}
    return {profile: {"there": there, "of": of} for profile, (there, of) in counts.items() if of}


# one item


def _show(out: Any, project: Any, run: Any, everything: bool) -> None:
    item = run.item
    path = f"reproductions/{item.technique}/published/{item.published}" if item.published else "none"
    tags = f" ({', '.join(item.tags)})" if item.tags else ""
    out.print(f"[bold]{escape(item.title)}[/bold]\n{item.id}   evidence {item.evidence.name}{escape(tags)}")
    out.print(f"notebook   {item.notebook}\npublished  {path}")
    shown = run.record["profile"] if run.record else next(iter(set(item.profiles) & {"laptop"}), item.profiles[-1])
    for profile in item.profiles:
        if everything or profile == shown:
            _print_parameters(out, item, profile, everything)
    out.print(_last_run(run))
    for line in _states(project, item):
        out.print(line, soft_wrap=True)
    verdicts = {verdict.claim: verdict for verdict in run.verdicts}
    if everything:
        _print_rules(out, item, verdicts)
    elif item.claims:
        _print_claims(out, item, verdicts)
    else:
        out.print("\nNo claims.")
    if not everything:
        out.print(f"\nMore: workbench show {item.id} --all; workbench report --open", style="dim", soft_wrap=True)


def _print_parameters(out: Any, item: Any, profile: str, everything: bool) -> None:
    from workbench.reproduction.report import about_text

    expected_s = item.expected_s.get(profile)
    time = "time unknown" if expected_s is None else f"about {about_text(expected_s)}"
    pairs = ", ".join(f"{name}={value!r}" for name, value in item.parameters[profile].items()) or "no parameters"
    pairs = pairs if everything or len(pairs) <= PARAMETERS_SHOWN else f"{pairs[:PARAMETERS_SHOWN]}…"
    out.print(f"{profile:<10} {time}; [dim]{escape(pairs)}[/dim]")


def _last_run(run: Any) -> str:
    from workbench.reproduction.machine import machine_text
    from workbench.reproduction.report import took_text
    from workbench.reproduction.summary import summary_of

    if run.record is None:
        return "run        none yet"
    summary, took = summary_of(run), took_text(run.record)
    where = escape(machine_text(summary.machine))
    verdicts = common.verdict_words(summary.verdicts)
    return f"run        {_run_words(summary)}, {took} on {where}\nverdicts   {verdicts}"


def _states(project: Any, item: Any) -> Iterator[str]:
    """Return lines on cells, and on records and failures that a reader must know of."""
    from workbench.reproduction.errors import RecordError
    from workbench.reproduction.files import misfits
    from workbench.reproduction.project import ItemRun
    from workbench.reproduction.records import read_failure, record_of

    for profile, counts in num_cells(project, item).items():
        yield f"cells      {counts['there']} of {counts['of']} are there ({profile})"
    for profile in item.profiles:
        run = ItemRun(project, item, profile)
        for is_promoted in (False, True):
            try:
                record = record_of(run, is_promoted)
            except RecordError as error:
                yield f"[bold red]refused[/]    ({profile}) {escape(str(error))}"
                continue
            if record is not None and not is_promoted:
                yield from (f"[bold red]not shown[/]  {escape(line)}" for line in misfits(run.folder, record).values())
        try:
            failure = read_failure(run.failure)
        except RecordError as error:
            failure = {"reason": str(error)}
        if failure is not None:
            yield f"[bold red]failed[/]     the last {profile} run: {escape(str(failure['reason']))}"


def _print_claims(out: Any, item: Any, verdicts: Mapping[str, Any]) -> None:
    """Print a line a claim: the paper's value, ours, and the verdict; below them why some are not comparable."""
    words = {claim.name: verdicts[claim.name].verdict.value if verdicts else "not run" for claim in item.claims}
    claims = sorted(item.claims, key=lambda claim: ORDER.index(words[claim.name]))
    rows = [_claim_row(claim, words[claim.name], verdicts.get(claim.name)) for claim in claims[:MOST_CLAIMS]]
    others = sum(max(len(row[column]) for row in [HEADER, *rows]) for column in (0, 2, 3, 4))
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in HEADER:
        width = max(out.width - others - 2 * len(HEADER), LEAST_TITLE) if name == "claim" else None
        is_number = name in ("paper", "ours")
        table.add_column(
            name, no_wrap=True, overflow="ellipsis", justify="right" if is_number else "left", max_width=width
        )
    for row in rows:
        style = next(style for name, style in common.STYLES.items() if common.MARKS[name] == row[0])
        table.add_row(*(f"[{style}]{escape(text)}[/]" if text in (row[0], row[-1]) else escape(text) for text in row))
    out.print()
    out.print(table)
    if left_out := claims[MOST_CLAIMS:]:
        counts = Counter(words[claim.name] for claim in left_out)
        out.print(f"and {len(left_out)} more: {common.verdict_words(counts)}")
    silent = {name: verdict.reason for name, verdict in verdicts.items() if words[name] == "not comparable"}
    for line in common.reason_words(silent):
        out.print(line)


def _claim_row(claim: Any, word: str, verdict: Any) -> tuple[str, ...]:
    paper, ours = _values(claim, verdict) if verdict else ("", "")
    rows = [row for row in (verdict.rows if verdict else ()) if row.counts]
    share = f", {sum(row.verdict.value == word for row in rows)} of {len(rows)}" if len(rows) > 1 else ""
    words = f"{word}{share}" if word == "disagrees" else word
    return common.mark_of(word), claim.name + WHOSE.get(claim.whose.value, ""), paper, ours, words


def _values(claim: Any, verdict: Any) -> tuple[str, str]:
    """Return the paper's value and ours, or the span of several."""
    rows = verdict.rows
    side = {"at_most": "≤ ", "at_least": "≥ "}
    bound = next((sign for name, sign in side.items() if getattr(claim, name, None) is not None), "")
    paper = _span([row.published for row in rows], rows)
    return f"{bound}{paper}" if paper else "", _span([row.ours for row in rows], rows)


def _span(values: Sequence[float | None], rows: Sequence[Any]) -> str:
    from workbench.reproduction.report import value_text

    known = [value for value in values if value is not None]
    if not known:
        return ""
    least, most = (value_text(value, rows[0].unit) for value in (min(known), max(known)))
    if least == most:
        return most
    least, _, unit = least.partition(" ")
    return f"{least} to {most}" if most.endswith(f" {unit}") or not unit else f"{least} {unit} to {most}"


def _print_rules(out: Any, item: Any, verdicts: Mapping[str, Any]) -> None:
    """Print every claim with its rule, and with each value where there is a run."""
    from workbench.reproduction.report import rule_text, value_text
    from workbench.reproduction.report.texts import key_text

    out.print("\n[bold]Claims[/bold]" if item.claims else "\nNo claims.")
    for claim in item.claims:
        verdict = verdicts.get(claim.name)
        word = f"  {common.verdict_words({verdict.verdict.value: 1})}" if verdict else ""
        out.print(f"  [bold]{escape(claim.name)}[/bold]  [dim]{type(claim).__name__}[/dim]{word}")
        texts = [rule_text(claim), claim.explanation, verdict.reason if verdict else ""]
        for row in verdict.rows if verdict else ():
            values = f"paper {value_text(row.published, row.unit)}, ours {value_text(row.ours, row.unit)}"
            texts.append(f"{key_text(row.where) or claim.quantity}: {values}")
        for text in filter(None, texts):
            out.print(f"    {text}", markup=False)
