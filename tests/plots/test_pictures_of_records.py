"""Pictures drawn from recorded rows: every series has its name in a legend, and no two of a picture look alike."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from matplotlib.container import BarContainer

from workbench import plots
from workbench.plots.style import COLORS, PALETTE, color_of, looks_of
from workbench.reproduction import ItemRun, Project, load_catalogue
from workbench.reproduction.notebook_cells import read_notebook
from workbench.reproduction.records import record_of
from workbench.reproduction.redraw import draw

PROJECT = Project(Path(__file__).parents[2])
CATALOGUE = load_catalogue(PROJECT)
FEWEST = 8  # pictures of a technique that are drawn from the record alone


def drawn(item):
    """The figure of an item's recorded run, drawn anew from its values, if that needs nothing but them."""
    record = record_of(ItemRun(PROJECT, item, "laptop"), promoted=True)
    try:
        return record and draw(read_notebook(PROJECT.notebook(item)), record)
    except ValueError:
        return None


def series_of(figure):
    """Labels and looks of the bars and lines of each axes that stand for rows; lines across are none."""
    for ax in figure.axes:
        for bars in ax.containers:
            if isinstance(bars, BarContainer):
                yield ax, bars.get_label(), ("bars", bars[0].get_facecolor(), bars[0].get_hatch())
        for line in ax.lines:
            if line.get_transform() == ax.transData and line.get_linestyle() != "None":
                yield ax, line.get_label(), (line.get_color(), line.get_linestyle(), line.get_marker())


def problems_of(figure):
    """What is wrong with the legends of a figure."""
    names, looks, problems = {}, {}, []
    legends = {ax: [*figure.legends, *([ax.get_legend()] if ax.get_legend() else [])] for ax in figure.axes}
    series = list(series_of(figure))
    for ax, label, look in series:
        if sum(other is ax for other, *_ in series) == 1 and label.startswith("_"):
            continue  # the only one of its axes needs no name
        if label not in [text.get_text() for legend in legends[ax] for text in legend.get_texts()]:
            problems.append(f"{label} is in no legend")
        if names.setdefault(look, label) != label:
            problems.append(f"{label} looks like {names[look]}")
        if looks.setdefault(label, look) != look:
            problems.append(f"{label} has two looks")
    texts = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    return problems + [f"{text} is in the legend twice" for text in set(texts) if texts.count(text) > 1]


TECHNIQUES = ("atp", "cupcake", "espresso", "flextp", "gemini", "sdpipe", "zen")


@pytest.mark.parametrize("technique", TECHNIQUES)
def test_each_series_of_a_picture_has_a_name_and_a_look_of_its_own(technique):
    problems, number = {}, 0
    for item in (item for item in CATALOGUE if item.technique == technique):
        if figure := drawn(item):
            number += 1
            problems[item.id] = problems_of(figure)
        plt.close("all")
    assert {name: wrong for name, wrong in problems.items() if wrong} == {}
    assert number >= FEWEST


def panels(*names_of_panels):
    figure, axes = plots.figure(1, len(names_of_panels), squeeze=False)
    for ax, names in zip(axes[0], names_of_panels, strict=True):
        plots.bars([{"x": 0, "value": 1, "of": name} for name in names], ax=ax, x="x", by="of")
    plots.aside(figure)
    return figure


def test_what_is_wrong_with_a_picture_is_found():
    assert problems_of(panels("ab", "bc")) == []
    without = panels("ab", "bc")
    without.legends[0].remove()
    assert problems_of(without) == ["a is in no legend", "b is in no legend", "b is in no legend", "c is in no legend"]
    figure = panels("ab", "bc")
    for bar in figure.axes[1].containers[0]:  # b, in the colours of c
        bar.set_facecolor(figure.axes[1].containers[1][0].get_facecolor())
    assert problems_of(figure) == ["b has two looks", "c looks like b"]


def test_a_scheme_has_its_colour_whatever_stands_beside_it_and_its_variants_differ_by_hatch_and_line():
    ax = plots.figure()[1]
    looks = dict(zip("abc", looks_of(ax, ["Zen, COO", "another", "Zen"]), strict=True))
    assert looks["a"].color == looks["c"].color == COLORS["Zen"] != looks["b"].color
    assert (looks["c"].hatch, looks["c"].line_style) == ("", "-")
    assert looks["a"].hatch != "" and looks["a"].line_style != "-"
    assert looks_of(ax, ["Zen"]) == [looks["c"]]  # also in another panel
    names = {
        "SEMI refined": "SEMI",
        "MIG(x)": "MIG",
        "Strawman, 1 % lost": "Strawman",
        "ZERO-PriDiffR": "ZERO-PriDiffR",
    }
    assert all(color_of(name) == COLORS[known] for name, known in names.items())
    assert color_of("Zenith") is color_of("ATP-12") is None


def test_thirty_series_of_a_figure_all_look_different():
    looks = looks_of(plots.figure()[1], range(4 * len(PALETTE)))
    assert len({(look.color, look.line_style) for look in looks}) == len(looks)
    assert len({(look.color, look.hatch) for look in looks}) == len(looks)
