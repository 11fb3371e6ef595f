"""An item in a notebook: run with a progress bar, and its verdicts as a table in place."""

import html
import re
from collections.abc import Iterator
from typing import Any

from workbench.notebook.panel import show

__all__ = ["report", "reproduce"]

COLUMNS = ("claim", "of", "paper", "ours", "difference", "evidence", "run", "verdict")
BAR = '<progress value="{share:.3f}" max="1" style="width: 20em"></progress> {words}'


def report(identity: str, profile: str) -> None:
    """Show the verdicts of items by this machine's last run, or else by a recorded one."""
    from workbench.cli.common import load, pick

    project, catalogue = load()
    _show_tables(project, pick(catalogue, [identity]), profile)


def reproduce(identity: str, profile: str) -> None:
    """Run items that are not up to date, with a bar, and show their verdicts; RuntimeError names one that failed."""
    from workbench.cli.common import load, pick
    from workbench.reproduction import run

    project, catalogue = load()
    chosen, bar = pick(catalogue, [identity]), _Bar()
    outcome = run(project, chosen, profile, on_event=bar)
    if outcome.failed:
        raise RuntimeError("; ".join(f"{item.id} failed: {item.reason}" for item in outcome.failed))
    bar.say(1.0, f"done in the profile {profile}, {outcome.seconds:.0f} s")
    _show_tables(project, chosen, profile)


class _Bar:
    """A progress bar that takes the events of a run."""

    def __init__(self) -> None:
        self._handle = show(BAR.format(share=0, words="planning"), "planning")

    def say(self, share: float, words: str) -> None:
        """Draw it, filled up to a share."""
        show(BAR.format(share=share, words=html.escape(words)), f"{share:.0%} {words}", self._handle)

    def __call__(self, event: Any) -> None:
        """Move with the run's progress."""
        from workbench.cli.progress import running_words, spent_words
        from workbench.reproduction.runner import Progress

        if isinstance(event, Progress):
            whole_s = event.elapsed_s + event.remaining_s
            self.say(event.elapsed_s / whole_s, f"{spent_words(event)}; {running_words(event)}")


def _show_tables(project: Any, chosen: Any, profile: str) -> None:
    import pandas

    from workbench.reproduction.report import gather

    for technique in gather(project, chosen, profile, under_way=True).techniques:
        for view in technique.items:
            table = pandas.DataFrame(_rows(view), columns=COLUMNS)
            run_line = f"Run on this machine: {view.date}, {view.duration}." if view.has_record else view.not_run
            foot = " ".join(filter(None, [run_line, view.no_verdicts, *view.refused]))
            with pandas.option_context("display.max_colwidth", None):
                text, drawn = table.to_string(index=False), table.to_html(index=False, border=0)
            drawn = re.sub("<(t[hd])>", r'<\1 style="text-align: left">', drawn)
            head = f"<b>{html.escape(view.title)}</b> <code>{view.id}</code>"
            show(f"{head}{drawn}<small>{html.escape(foot)}</small>", f"{view.title} ({view.id})\n{text}\n{foot}")


def _rows(view: Any) -> Iterator[tuple[str, ...]]:
    """Yield a row a comparison, and one for a claim that compares nothing."""
    for claim in view.claims:
        for number, row in enumerate(claim.rows or [None]):
            numbers = (row.where, row.published, row.ours, row.difference) if row else ("", "", "", "")
            verdict = (row.verdict if row else "") or claim.verdict
            reason = (row.reason if row else "") or claim.reason
            word = verdict.replace("_", " ").lower()
            said = word if verdict == "AGREES" or not reason else f"{word}: {reason}"
            yield ("" if number else claim.name, *numbers, view.evidence.lower(), claim.label.lower(), said)
