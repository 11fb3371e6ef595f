"""The answer: a line a technique, best first, with what stands behind it; it can be none of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn

from workbench.cluster import Topology
from workbench.reproduction import Project

from .evidence import Evidence, evidence, tested
from .predictions import DECIDERS, PAYS, PREDICTIONS, Prediction, break_even, predict
from .question import Question, ask

__all__ = ["Advice", "Advised", "advise"]

# Pairs that act on different parts of a training, as tests/contracts/test_combinations.py has them together.
TOGETHER = "they work together: what resumes has the bits of the undisturbed training"
COMBINED = {
    ("zen", "gemini"): TOGETHER,
    ("espresso", "gemini"): f"{TOGETHER}, with the exchange in `extra`",
    ("cupcake", "gemini"): f"{TOGETHER}, with the exchange in `extra`",
    ("flextp", "activation_compression"): "they work together; which rank multiplies a column changes what Top-K keeps",
}
UNMEASURED = "their gains were not measured together"
INDENT = 4  # of what stands behind a line


@dataclass(frozen=True, kw_only=True, slots=True)
class Advised:
    """What is advised on one technique."""

    technique: str
    prediction: Prediction | str  # the reason where it does not apply
    behind: Evidence
    limit: str = ""  # the input that decides, and its value

    @property
    def interval(self) -> tuple[float, float] | None:
        """The gain times the least and the largest error in our records; None where none was measured in this regime.

        It cannot be larger than if all but computation vanished.
        """
        if isinstance(self.prediction, str) or self.behind.missed is None or self.is_inside is False:
            return None
        most = self.prediction.without_s / self.prediction.least_s if self.prediction.least_s else math.inf
        low, high = (min(self.prediction.gain * missed, most) for missed in self.behind.missed)
        return low, high

    @property
    def word(self) -> str:
        """Say whether it pays: a gain below `PAYS` is not worth its trouble."""
        if isinstance(self.prediction, str):
            return "does not apply"
        low, high = self.interval or (1.0, self.prediction.gain)  # an error that is not measured may take all of it
        if low >= PAYS:
            return "pays"
        return "does not pay" if max(high, self.prediction.gain) < PAYS else "may pay"

    @property
    def is_inside(self) -> bool | None:
        """Whether the ratio that decides was seen in our records; None where it is not known."""
        if isinstance(self.prediction, str) or self.prediction.ratio is None or self.behind.seen is None:
            return None
        return self.behind.seen[0] <= self.prediction.ratio <= self.behind.seen[1]

    def __str__(self) -> str:
        name, prediction, behind = self.behind.name, self.prediction, self.behind
        if isinstance(prediction, str):
            return f"{name}: does not apply: {prediction}" + (f"; {self.limit}" if self.limit else "")
        error = "the model's error is not measured" + (" in this regime" if behind.missed else "")
        if self.interval:
            error = f"{self.interval[0]:.2f} to {self.interval[1]:.2f} by its recorded errors"
        times = f"{_seconds(prediction.without_s)} without, {_seconds(prediction.with_s)} with it"
        lines = [f"{name}: {self.word}: {times} for {prediction.of}, {prediction.gain:.2f} times as fast ({error})"]
        lines.append(
            f"beside {prediction.plain}; {prediction.how}" + (f"; {prediction.memory}" if prediction.memory else "")
        )
        lines += [self.limit] if self.limit else []
        lines.append(f"lost in our records: {behind.lost}")
        if prediction.ratio is not None and behind.seen is not None:
            place = "you are inside" if self.is_inside else "you are outside"
            low, high = behind.seen
            lines.append(
                f"{behind.ratio}: {prediction.ratio:.3g} here, {low:.3g} to {high:.3g} in our records: {place}"
            )
        else:
            lines.append("regime: no ratio is recorded")
        lines += [f"code: {behind.line}", f"records: {', '.join(behind.items)}"]
        return ("\n" + " " * INDENT).join(lines)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """What is advised on a training; prints."""

    question: Question
    rows: tuple[Advised, ...]  # the best first, then those that do not apply
    combined: tuple[str, ...]  # combinations that work together, and what is known of them
    tested: str  # the result of the blind test

    @property
    def best(self) -> tuple[str, ...]:
        """The techniques that pay; () for none of them."""
        return tuple(row.behind.name for row in self.rows if row.word == "pays")

    def __getitem__(self, technique: str) -> Advised:
        return next(row for row in self.rows if row.technique == technique)

    def __str__(self) -> str:
        asked = self.question
        maybe = [row.behind.name for row in self.rows if row.word == "may pay"]
        answer = f"{', '.join(self.best)}" if self.best else "none of them: keep the plain setting"
        answer += f"; perhaps {', '.join(maybe)}: measure first" if maybe else ""
        head = [f"{asked.name} on {asked.machines.name}", f"Assumed: {'; '.join(asked.said)}.", f"Advice: {answer}."]
        about = f"A gain below {PAYS - 1:.0%} is not worth its trouble. {self.tested}"
        return "\n".join([*head, "", *map(str, self.rows), *self.combined, "", about])

    def to_json(self) -> dict[str, Any]:
        """Return the advice as plain values."""
        rows = []
        for row in self.rows:
            known = {"technique": row.technique, "word": row.word, "limit": row.limit, "behind": asdict(row.behind)}
            if isinstance(row.prediction, str):
                rows.append(known | {"reason": row.prediction})
            else:
                gain = {"gain": row.prediction.gain, "interval": row.interval, "is_inside": row.is_inside}
                rows.append(known | asdict(row.prediction) | gain)
        asked = self.question
        head = {"model": asked.name, "machines": asked.machines.name, "assumed": list(asked.said)}
        return head | {"best": list(self.best), "rows": rows, "combined": list(self.combined), "tested": self.tested}


def advise(
    model: str | Path | dict[str, Any] | nn.Module,
    machines: str | Topology = "1x8 H100",
    *,
    limits: bool = True,
    project: Project | None = None,
    **inputs: Any,
) -> Advice:
    """Say which technique pays for a training, how much, and how sure that is.

    Args:
        model: a name such as "GPT-2 medium"; a Hugging Face config, as a dict or the path of its config.json; or a
            module, with `step=` a function that runs one forward and backward pass of it: gradients, seconds, the
            largest table and its density are then measured here.
        machines: machines x GPUs, kind and network, such as "8x8 H100, 400 Gbit/s"; the path of a file that changes
            links of such machines; "measured", between the ranks of this job or the GPUs of this machine; or a
            `Topology`. `advisor.machines` says more.
        limits: also search the value of the input that decides, which takes seconds.
        project: where the records are; by default this checkout's.
        inputs: `batch` of a replica, `sequence`, `tp`, `pp`, `computation_s` of a replica on one GPU,
            `failures_per_machine_day`, `slow` (how many times as long a slow GPU takes) and `slow_share` (of its
            iterations; 1 for one GPU that is always slow), `density` (of the rows that a GPU's batch touches) and
            `embedding` (rows and width).

    Raises:
        ValueError: names the input that is wrong.
    """
    question, behind = ask(model, machines, **inputs), evidence(project)
    rows = [_advised(technique, question, behind, limits) for technique in PREDICTIONS]
    gains = {row.technique: row.prediction.gain if isinstance(row.prediction, Prediction) else 0.0 for row in rows}
    combined = []
    for pair, known in COMBINED.items():
        names = " with ".join(behind[technique].name for technique in pair)
        refused = [behind[technique].name for technique in pair if not gains[technique]]
        why = f"{known}; {UNMEASURED}"
        if refused:
            why = f"does not apply: {' and '.join(refused)} {'do' if refused[1:] else 'does'} not"
        combined.append(f"{names}: {why}")
    return Advice(
        question=question,
        rows=tuple(sorted(rows, key=lambda row: -gains[row.technique])),
        combined=tuple(combined),
        tested=tested(project),
    )


def _advised(technique: str, question: Question, behind: Mapping[str, Evidence], limits: bool) -> Advised:
    prediction, limit = predict(technique, question), ""
    decider = DECIDERS.get(technique)
    if limits and decider:
        place = break_even(technique, question, decider)
        if place is not None:
            limit = f"pays {'below' if place.pays_below else 'from'} {decider.words.format(place.value)}"
    return Advised(technique=technique, prediction=prediction, behind=behind[technique], limit=limit)


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.4g} ms" if seconds < 1 else f"{seconds:,.0f} s" if seconds > 1e3 else f"{seconds:.4g} s"
