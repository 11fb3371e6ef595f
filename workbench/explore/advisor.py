"""The advisor with controls: what each technique gains for a training, and how that changes with the network."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from workbench.advisor import Advice
from workbench.advisor import advise as ask
from workbench.advisor.predictions import DECIDERS, PAYS, Prediction, predict
from workbench.explore.explorer import Explorer, choice, steps
from workbench.plots import aside, figure
from workbench.plots.style import BLUE, GREY, log_scale, looks_of
from workbench.timeline.queues import IS_COMPILED

__all__ = ["Shown", "advise", "compute"]

MODELS = ("BERT base", "GPT-2", "GPT-2 medium", "ResNet-101", "VGG16", "DeepFM")
MACHINES = ("1x8 H100", "4x1 V100, 25 Gbit/s", "8x8 H100, 400 Gbit/s", "8x8 V100, 100 Gbit/s", "16x8 A100, 100 Gbit/s")
RATES = (1, 3, 10, 30, 100, 300)  # Gbit/s between machines


@dataclass(frozen=True, kw_only=True, slots=True)
class Shown:
    """An advice, and gains over slower and faster networks."""

    advice: Advice
    gains: Mapping[str, Sequence[float]]  # at RATES, by technique; of those for which the network decides

    @property
    def table(self) -> dict[str, tuple[float, str]]:
        """The gain of each technique that applies, the best first, and how sure it is."""
        rows = [(row.behind.name, row.prediction, row.word) for row in self.advice.rows]
        return {name: (prediction.gain, word) for name, prediction, word in rows if isinstance(prediction, Prediction)}


def compute(*, model: str, machines: str, batch: int, density: float) -> Shown:
    """Ask the advisor, also at other rates of the network unless that takes minutes, as in a browser."""
    advice, gains = ask(model, machines, batch=batch, density=density, limits=False), {}
    for row in advice.rows:
        decider = DECIDERS.get(row.technique)
        if IS_COMPILED and decider and decider.name == "network" and advice.question.machines.network is not None:
            predictions = [predict(row.technique, advice.question.changed("network", rate)) for rate in RATES]
            applying = [prediction.gain for prediction in predictions if isinstance(prediction, Prediction)]
            if len(applying) == len(RATES):
                gains[row.behind.name] = applying
    return Shown(advice=advice, gains=gains)


def _draw(shown: Shown) -> Figure:
    drawn, axes = figure(1, 2 if shown.gains else 1, figsize=(11, 3.4), squeeze=False)
    left, *others = axes.flat
    names = list(shown.table)[::-1]
    left.barh(names, [shown.table[name][0] for name in names], color=BLUE)
    for place, name in enumerate(names):
        gain, word = shown.table[name]
        left.text(gain, place, f" {gain:.2f}, {word}", va="center")
    left.margins(x=0.35)
    left.set(xlabel="times as fast as the best plain setting")
    for right in others:
        for (name, gains), look in zip(shown.gains.items(), looks_of(right, shown.gains), strict=True):
            right.plot(RATES, gains, color=look.color, marker=look.marker, linestyle=look.line_style, label=name)
        right.axhline(PAYS, color=GREY, label="pays")
        log_scale(right, x=True)
        right.set(xlabel="Gbit/s between machines", ylabel="gain")
        aside(drawn)
    return drawn


def _describe(shown: Shown) -> str:
    best = ", ".join(shown.advice.best) or "none of them"
    away = [row.behind.name for row in shown.advice.rows if not isinstance(row.prediction, Prediction)]
    left_out = "" if IS_COMPILED else " Other rates of the network need compiled code: open this in JupyterLab."
    return f"Advice: {best}. Do not apply: {', '.join(away)}.{left_out} {shown.advice.tested}"


def advise() -> Explorer[Shown]:
    """Return the control: model, machines, batch, and density of an embedding's rows."""
    return Explorer(
        compute,
        _draw,
        describe=_describe,
        model=choice("model", MODELS, value="GPT-2", help="What is trained."),
        machines=choice("machines", MACHINES, value="8x8 V100, 100 Gbit/s", help="Machines x GPUs and their network."),
        batch=steps("batch", (1, 2, 4, 8, 16, 32), value=8, help="Sequences or examples of a replica."),
        density=steps(
            "density",
            (0.001, 0.01, 0.1, 0.5, 1.0),
            value=1.0,
            help="Share of an embedding's rows that a batch touches.",
        ),
    )
