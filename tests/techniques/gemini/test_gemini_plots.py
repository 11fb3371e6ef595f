"""The pictures of Gemini, as far as its items' tests do not look at them."""

import json

import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer
from matplotlib.patches import Rectangle

from workbench.plots import figure
from workbench.plots.style import PALE, VERMILION
from workbench.reproduction import Project, published
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.method import Placement, placement


def _boxes(placed, failed=()):
    ax = pictures.draw_placement(placed, ax=figure()[1], failed=failed)
    return ax, [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def _shards(ax, boxes):
    """Return the number written in each box, by machine from left to right, lowest first."""
    numbers = {text.get_position(): text.get_text() for text in ax.texts if text.get_text().isdigit()}
    columns = sorted({round(x, 6) for x, _ in numbers})
    return [[int(numbers[place]) for place in sorted(numbers) if round(place[0], 6) == x] for x in columns]


def test_the_picture_has_a_column_a_machine_with_its_own_shard_lowest():
    ax, boxes = _boxes(placement(5, 2))
    assert len(boxes) == 10
    assert _shards(ax, boxes) == [[0, 1], [1, 0], [2, 4], [3, 2], [4, 3]]
    assert [text.get_text() for text in ax.texts if text.get_text().isalpha()] == ["group", "ring"]


def test_machines_that_share_replicas_stand_together_whatever_their_numbers():
    ax, _ = _boxes(Placement.own([(0, 2), (1, 3), (2, 0), (3, 1)]))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]


def test_boxes_of_failed_machines_are_faded_and_those_of_lost_shards_have_a_red_edge():
    _, boxes = _boxes(placement(4, 2), failed={0, 1, 2})
    faded = [box for box in boxes if box.get_facecolor() == to_rgba(PALE)]
    lost = [box for box in boxes if box.get_edgecolor() == to_rgba(VERMILION)]
    assert len(faded) == 6  # three machines with two boxes
    assert len(lost) == 4  # shards 0 and 1, both replicas; shards 2 and 3 live on machine 3


def recorded(item):
    """Return the rows of the recorded laptop run of an item."""
    path = Project().reproductions / "gemini" / "recorded" / "laptop" / f"{item}.json"
    return json.loads(path.read_text(encoding="utf-8"))["values"]


def said(item, quantity):
    return published(f"gemini/{item}", quantity)


def heights(ax):
    return [bar.get_height() for bars in ax.containers if isinstance(bars, BarContainer) for bar in bars]


def legend(figure):
    boxes = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
    return {text.get_text() for box in boxes for text in box.get_texts()}


def test_wasted_time_stands_beside_the_papers_iterations():
    rows = recorded("fig-6-10/simulated")
    figure = pictures.draw_wasted(rows, said("fig-6-10/simulated", "iterations_wasted"), iteration_s=62.0)
    (ax,) = figure.axes
    assert heights(ax) == pytest.approx([row["value"] / 60 for row in rows if row["quantity"] == "wasted_s"])
    assert ax.lines[-1].get_ydata()[0] == pytest.approx(1.5 * 62 / 60)
    assert {"Strawman", "HighFreq", "Gemini", "Gemini, the paper:\n1.5 iterations"} <= legend(figure)


def test_effective_ratios_are_lines_with_the_papers_crosses():
    by_failures = pictures.draw_by_failures(
        recorded("fig-6-15a/simulated"), said("fig-6-15a/simulated", "serialising_share")
    )
    assert by_failures.axes[0].lines[-1].get_xydata().tolist() == [[0, pytest.approx(1 - 0.145)]]
    rows = recorded("fig-6-15b/simulated")
    by_machines = pictures.draw_by_machines(rows, said("fig-6-15b/simulated", "effective_ratio"))
    solutions = {row["solution"] for row in rows if row["quantity"] == "effective_ratio"}
    assert legend(by_machines) == solutions | {"Gemini, the paper", "the paper's largest"}
    shares = pictures.draw_time(rows, 1000)
    tops = {}
    for bar in shares.patches:
        tops[bar.get_x()] = tops.get(bar.get_x(), 0) + bar.get_height()
    assert list(tops.values()) == pytest.approx([100] * len(solutions))


def test_replayed_trainings_and_mt_nlg_stand_beside_the_papers_hours_and_minutes():
    replay = pictures.draw_replay(
        recorded("failure-replay/simulated"), said("failure-replay/simulated", "wasted_gpu_hours")
    )
    assert [len(heights(ax)) for ax in replay.axes] == [6, 6]
    assert legend(replay) == {"Strawman", "HighFreq", "Gemini", "OPT-175B, the paper: 178"}
    rows, item = recorded("section-6-2-2/simulated"), "section-6-2-2/simulated"
    both = pictures.draw_mt_nlg(rows, pd.concat([said(item, row["quantity"]) for row in rows]))
    assert heights(both.axes[0])[2:] == pytest.approx([row["value"] for row in rows])


def test_predicted_iterations_checkpoints_and_overheads_stand_beside_the_papers():
    models = pictures.draw_models(recorded("fig-6-7/simulated"), said("fig-6-7/simulated", "iteration_s"))
    assert [len(heights(ax)) for ax in models.axes] == [6, 6] and "the paper's 62 s (fitted)" in legend(models)
    item = "fig-6-12/simulated"
    frequencies = pictures.draw_frequencies(recorded(item), said(item, "frequency_gain"))
    assert [ax.get_yscale() for ax in frequencies.axes] == ["log", "log"]
    reductions = pictures.draw_reductions(recorded("fig-6-11/simulated"), said("fig-6-11/simulated", "reduction"))
    assert {"100 Gbit/s", "400 Gbit/s", "the paper (at 400: more than)"} <= legend(reductions)
    item = "fig-6-16/simulated"
    ablation = pictures.draw_ablation(recorded(item), said(item, "overhead"), free_mb=512)
    assert ablation.axes[2].lines[-1].get_ydata()[0] == 512 and "published" in legend(ablation)


def test_the_map_of_the_best_checkpointing_says_replicas_interval_and_waste_in_every_cell():
    rows = recorded("best-checkpointing/simulated")
    texts = [text.get_text() for text in pictures.draw_best(rows).axes[0].texts]
    cells = [row for row in rows if row["quantity"] == "best_replicas"]
    assert len(texts) == len(cells)
    assert all(text.startswith("m = ") and text.endswith(" %") for text in texts)


def test_odds_of_placements_are_drawn_a_panel_a_number_of_failures_or_a_cluster():
    rows = [row for row in recorded("fig-6-9/counted") if row.get("k", 0) > 1]
    item = "fig-6-9/counted"
    figure = pictures.draw_probabilities(rows, said(item, "recovery_probability"), said(item, "ring_lower"))
    assert [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes] == [
        f"k = {k} lost at once" for k in (2, 3, 4)
    ]
    assert "published: ring, relatively lower" in legend(figure)
    racks = pictures.draw_rack_recovery(recorded("racks/counted"))
    assert legend(racks) == {"group", "ring", "group across racks", "ring across racks"}
    assert len(racks.axes) == 3
