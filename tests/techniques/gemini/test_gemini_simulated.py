"""Rows and pictures of the simulated and counted items: worked by hand, or the paper's own numbers."""

import json
import math
from collections import Counter
from datetime import date
from functools import partial

import pandas as pd
import pytest
from matplotlib.colors import to_rgba
from matplotlib.container import BarContainer
from matplotlib.patches import Rectangle

from workbench.datasets.source import DataSource, SourceKind
from workbench.datasets.training_logbooks import Logbook, LoggedEvent
from workbench.plots import figure
from workbench.plots.style import PALE, VERMILION
from workbench.reproduction import Project, published
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.method import Placement, placement
from workbench.techniques.gemini.method.best import best_checkpointing
from workbench.techniques.gemini.simulated import checkpoints, failures, recoveries, replay
from workbench.timeline.faults import DAY_S, FaultKind

SCHEMES = ["Baseline", "Blocking", "Naive", "Unpipelined", "Gemini"]


def value(rows: list[dict], quantity: str, **keys: object) -> float:
    (found,) = [row["value"] for row in rows if row["quantity"] == quantity and keys.items() <= row.items()]
    return found


def test_the_worked_example_by_hand():
    rows = checkpoints.predict_schemes(SCHEMES)
    # 19 steps without; blocking adds 8; unpipelined has room for 4 · 1.5 of 8 buffers' worth and adds the other 2.
    steps = {scheme: value(rows, "iteration_s", scheme=scheme) / checkpoints.STEP_S for scheme in SCHEMES}
    assert steps == {"Baseline": 19, "Blocking": 27, "Naive": 19, "Unpipelined": 21, "Gemini": 19}
    out = {scheme: value(rows, "out_of_memory", scheme=scheme) for scheme in SCHEMES}
    assert out == {"Baseline": 0, "Blocking": 0, "Naive": 1, "Unpipelined": 0, "Gemini": 0}
    assert value(rows, "idle_s", scheme="Gemini") / checkpoints.STEP_S == 13 - 8
    assert value(rows, "overhead", scheme="Blocking") == pytest.approx(100 * 8 / 19)


def test_reductions_grow_with_machines_and_network_as_their_product():
    rows = checkpoints.predict_reductions("GPT-2 100B", [100, 400], [4, 16])
    assert value(rows, "reduction", network_gbit_per_s=100, num_machines=16) == pytest.approx(65)
    assert value(rows, "reduction", network_gbit_per_s=400, num_machines=16) == pytest.approx(4 * 65, rel=1e-3)
    assert value(rows, "reduction", network_gbit_per_s=400, num_machines=4) == pytest.approx(65, rel=1e-3)
    assert value(rows, "storage_s", num_machines=4) == value(rows, "storage_s", num_machines=16)
    # 16 machines of 400 Gbit/s.
    assert value(rows, "matching_storage_tbit_per_s", rate="nominal") == pytest.approx(6.4)


def test_frequencies_are_counts_of_whole_iterations():
    rows = checkpoints.predict_frequencies("GPT-2 100B")
    # 100.3 billion parameters of 12 bytes at 2.5 GB/s are 481 s: 7.8 iterations of 62 s. Three hours are 174.2.
    assert value(rows, "interval_iterations", policy="HighFreq") == math.ceil(481 / 62) == 8
    assert value(rows, "interval_iterations", policy="Strawman") == math.floor(10_800 / 62) == 174
    assert value(rows, "frequency_gain", policy="HighFreq") == pytest.approx(8)
    assert value(rows, "interval_iterations", policy="Gemini") == 1


def test_rows_of_models_and_ablation_add_up_and_name_the_fitted_cells():
    rows = checkpoints.predict_models("p3dn", ["GPT-2 10B"])
    without, left = (value(rows, "idle_s", scheme=scheme) for scheme in ("Baseline", "Gemini"))
    assert without - left == pytest.approx(value(rows, "network_s", what="needed by the checkpoint"))
    rows = checkpoints.predict_ablation("GPT-2 10B", ["Baseline", "Blocking"], 512, [400])
    # An eighth of 12.5 GB/s, of which 81.27 % are reached: 1.6 · 1.2698 = 2.032 GB.
    assert value(rows, "largest_span_buffer_gb", whose="the model") == pytest.approx(2.032, abs=0.001)
    assert value(rows, "largest_span_out_of_memory", scheme="Naive") == 1
    cells = checkpoints.calibration_of()["cells"]
    assert {"quantity": "overhead", "scheme": "Blocking"} in cells
    assert {cell["quantity"] for cell in cells} == {"reduction", "iteration_s", "overhead"}


def test_the_paper_s_3_5_percent_lie_on_either_side_of_the_rate_of_copying_that_they_ask_for():
    rows = checkpoints.predict_ablation("GPT-2 20B", ["Unpipelined"], 512, [400])
    asked = value(rows, "copy_rate_asked_gbit_per_s")
    rates = (1.02 * asked, asked / 1.02)
    rows = checkpoints.predict_ablation("GPT-2 20B", ["Unpipelined"], 512, [400, *rates])
    faster, slower = (value(rows, "overhead_by_rate", scheme="Unpipelined", copy_gbit_per_s=rate) for rate in rates)
    assert faster < 3.5 < slower


def test_every_scheme_of_the_worked_example_has_its_own_timeline():
    titles = [ax.get_title(loc="left") for ax in pictures.draw_schemes(checkpoints.example_iterations(SCHEMES)).axes]
    assert [title.split(":")[0] for title in titles] == SCHEMES
    assert "out of memory" in titles[2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: checkpoints.predict_models("p5", ["GPT-2 10B"]), "machine is 'p5'"),
        (lambda: checkpoints.predict_models("p4d", ["GPT-9"]), "model is 'GPT-9'"),
        (lambda: checkpoints.predict_schemes(["clever"]), "scheme is 'clever'"),
    ],
)
def test_bad_input_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Failures


def test_a_failure_at_310_goes_back_to_200_if_the_third_checkpoint_is_incomplete():
    rows = recoveries.worked_example_rows([10, 11, 100])
    back = {each: value(rows, "back_to", checkpoint_iterations=each) for each in (10, 11, 100)}
    assert back == {10: pytest.approx(300), 11: pytest.approx(200), 100: pytest.approx(200)}
    assert value(rows, "lost_iterations", checkpoint_iterations=11) == pytest.approx(110)


def test_the_minutes_of_one_failure_add_up():
    rows = recoveries.overhead_rows()
    software_s, hardware_s = 15 + 162 + 240, 15 + 162 + 330 + 1.5 + 240
    assert value(rows, "total_min", failure="software") == pytest.approx(software_s / 60)
    assert value(rows, "total_min", failure="hardware") == pytest.approx(hardware_s / 60)
    assert value(rows, "resumes_with", failure="hardware") == 3
    assert recoveries.overhead_timelines()["hardware"].total_s(resource="recovery") == pytest.approx(hardware_s)


def test_the_wasted_time_of_figure_6_10():
    rows = failures.wasted_rows(300, [0])
    assert value(rows, "iterations_wasted") == 1.5
    assert value(rows, "reduction", highfreq="HighFreq", replaced="none") == pytest.approx(1208 / 93)
    assert value(rows, "reduction", highfreq="HighFreq, every 9", replaced="one") == pytest.approx(1239 / 94.5)
    # 8 of 120 pairs are groups: of 300 failures 20, with a standard deviation of 4.3.
    assert value(rows, "storage_share") == pytest.approx(100 * 8 / 120, abs=4)


def test_serialising_is_14_5_per_cent_of_training_every_nine_iterations():
    rows = failures.serialising_rows()
    of_training = value(rows, "serialising_share", solution="HighFreq, every 9", of="training time")
    assert of_training == pytest.approx(100 * 81 / (9 * 62))
    of_all = value(rows, "serialising_share", solution="HighFreq", of="all time")
    assert of_all == pytest.approx(100 * 81 / (8 * 62 + 81))


def test_added_losses_leave_the_ratios_of_the_text():
    rows = failures.rows_by_machines([1000], num_days=2, seeds=[0])
    # 15 failures a day: Gemini 417 + 93 s each; HighFreq 81 / 558 and 255 + 1,239 s each.
    ours, high = 1 - 15 * 510 / DAY_S, 1 - 81 / 558 - 15 * 1494 / DAY_S
    assert value(rows, "effective_ratio_added", solution="Gemini") == pytest.approx(ours)
    assert value(rows, "gain_added", highfreq="HighFreq, every 9") == pytest.approx(100 * (ours / high - 1))
    shares = [row["value"] for row in rows if row["quantity"] == "time_share" and row["solution"] == "Gemini"]
    assert sum(shares) == pytest.approx(1)


def test_without_the_diary_a_stand_in_says_that_it_is_one(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    traces, source = replay.diary_or_stand_in("bloom-176b", [0, 1])
    assert not source.is_real and len(traces) == 2
    rows = replay.replay_rows("bloom-176b", traces, num_standbys=1)
    assert value(rows, "effective_ratio", solution="Gemini") > value(rows, "effective_ratio", solution="Strawman")


def event(first, last, category, text="x", count=None):
    return LoggedEvent(first_day=first, last_day=last, category=category, text=text, count=count)


def test_the_lines_of_a_diary_become_failures_on_their_days():
    events = (
        event(date(2021, 11, 12), date(2021, 11, 12), "hardware", "hosts down at the same time", 5),
        event(date(2021, 11, 17), date(2021, 12, 3), "restarts", count=40),
        event(date(2021, 12, 21), date(2021, 12, 21), "infrastructure", "deleted the entire cluster", 16),
        event(date(2021, 11, 11), date(2022, 1, 6), "restarts", count=90),
        event(date(2021, 12, 3), date(2021, 12, 3), "milestone"),
    )
    source = DataSource(name="opt-175b", kind=SourceKind.STAND_IN, detail="", sha256="")
    trace = replay.diary_trace("opt-175b", Logbook(name="opt-175b", events=events, source=source), seed=0)
    days = {len(fault.machines): fault.time_s / DAY_S for fault in trace.faults if len(fault.machines) > 1}
    assert len(trace.faults) == 90 and trace.num_of(FaultKind.SOFTWARE) == 0
    assert days.keys() == {5, 124} and 1 <= days[5] < 2 and 40 <= days[124] < 41


def test_the_map_has_the_best_choice_at_every_place():
    rows = failures.best_rows([0.015], [10, 400], idle_s=10, blocking_s=0, window_s=600, num_failures=200, seeds=[0])
    assert value(rows, "gap_to_search", link_gbps=10) == 0
    # A shard of 75 GB takes 60 s over 10 Gbps: six idle spans of 10 s; over 400 Gbps 1.5 s.
    assert value(rows, "best_interval", link_gbps=10) == 6
    assert value(rows, "best_interval", link_gbps=400) == 1
    assert best_checkpointing(failures.paper_needs(0.015, 10, idle_s=10)).interval_iterations == 6


# Pictures


def boxes_of(placed, failed=()):
    ax = pictures.draw_placement(placed, ax=figure()[1], failed=failed)
    return ax, [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def test_the_picture_has_a_column_a_machine_with_its_own_shard_lowest():
    ax, boxes = boxes_of(placement(5, 2))
    numbers = {text.get_position(): int(text.get_text()) for text in ax.texts if text.get_text().isdigit()}
    columns = sorted({round(x, 6) for x, _ in numbers})
    shards = [[numbers[place] for place in sorted(numbers) if round(place[0], 6) == x] for x in columns]
    assert len(boxes) == 10 and shards == [[0, 1], [1, 0], [2, 4], [3, 2], [4, 3]]
    assert [text.get_text() for text in ax.texts if text.get_text().isalpha()] == ["group", "ring"]
    # Machines that share replicas stand together, whatever their numbers.
    ax, _ = boxes_of(Placement.own([(0, 2), (1, 3), (2, 0), (3, 1)]))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]


def test_boxes_of_failed_machines_are_faded_and_those_of_lost_shards_have_a_red_edge():
    _, boxes = boxes_of(placement(4, 2), failed={0, 1, 2})
    faded = [box for box in boxes if box.get_facecolor() == to_rgba(PALE)]
    lost = [box for box in boxes if box.get_edgecolor() == to_rgba(VERMILION)]
    assert len(faded) == 6  # three machines with two boxes
    assert len(lost) == 4  # shards 0 and 1, both replicas; shards 2 and 3 live on machine 3


def recorded(item):
    """Return the rows of the recorded laptop run of an item, and the function of its published quantities."""
    path = Project().reproductions / "gemini" / "recorded" / "laptop" / f"{item}.json"
    return json.loads(path.read_text(encoding="utf-8"))["values"], partial(published, f"gemini/{item}")


def heights(ax):
    return [bar.get_height() for bars in ax.containers if isinstance(bars, BarContainer) for bar in bars]


def legend(figure):
    boxes = [*figure.legends, *(ax.get_legend() for ax in figure.axes if ax.get_legend())]
    return {text.get_text() for box in boxes for text in box.get_texts()}


def beside_the_paper(item, quantity, draw, **more):
    rows, paper = recorded(item)
    return draw(rows, paper(quantity), **more)


def test_predicted_iterations_checkpoints_and_overheads_stand_beside_the_papers():
    models = beside_the_paper("fig-6-7/simulated", "iteration_s", pictures.draw_models)
    assert [len(heights(ax)) for ax in models.axes] == [6, 6] and "the paper's 62 s (fitted)" in legend(models)
    frequencies = beside_the_paper("fig-6-12/simulated", "frequency_gain", pictures.draw_frequencies)
    assert [ax.get_yscale() for ax in frequencies.axes] == ["log", "log"]
    reductions = beside_the_paper("fig-6-11/simulated", "reduction", pictures.draw_reductions)
    assert {"100 Gbit/s", "400 Gbit/s", "the paper (at 400: more than)"} <= legend(reductions)
    ablation = beside_the_paper("fig-6-16/simulated", "overhead", pictures.draw_ablation, free_mb=512)
    assert ablation.axes[2].lines[-1].get_ydata()[0] == 512 and "published" in legend(ablation)


def test_wasted_time_stands_beside_the_papers_iterations():
    rows, paper = recorded("fig-6-10/simulated")
    figure = pictures.draw_wasted(rows, paper("iterations_wasted"), iteration_s=62.0)
    (ax,) = figure.axes
    assert heights(ax) == pytest.approx([row["value"] / 60 for row in rows if row["quantity"] == "wasted_s"])
    assert ax.lines[-1].get_ydata()[0] == pytest.approx(1.5 * 62 / 60)
    assert {"Strawman", "HighFreq", "Gemini", "Gemini, the paper:\n1.5 iterations"} <= legend(figure)


def test_effective_ratios_are_lines_with_the_papers_crosses():
    rows, paper = recorded("fig-6-15a/simulated")
    by_failures = pictures.draw_by_failures(rows, paper("serialising_share"))
    assert by_failures.axes[0].lines[-1].get_xydata().tolist() == [[0, pytest.approx(1 - 0.145)]]
    rows, paper = recorded("fig-6-15b/simulated")
    by_machines = pictures.draw_by_machines(rows, paper("effective_ratio"))
    solutions = {row["solution"] for row in rows if row["quantity"] == "effective_ratio"}
    assert legend(by_machines) == solutions | {"Gemini, the paper", "the paper's largest"}
    tops = Counter()
    for bar in pictures.draw_time(rows, 1000).patches:
        tops[bar.get_x()] += bar.get_height()
    assert list(tops.values()) == pytest.approx([100] * len(solutions))


def test_replayed_trainings_and_mt_nlg_stand_beside_the_papers_hours_and_minutes():
    rows, paper = recorded("failure-replay/simulated")
    replay = pictures.draw_replay(rows, paper("wasted_gpu_hours"))
    assert [len(heights(ax)) for ax in replay.axes] == [6, 6]
    assert legend(replay) == {"Strawman", "HighFreq", "Gemini", "OPT-175B, the paper: 178"}
    rows, paper = recorded("section-6-2-2/simulated")
    both = pictures.draw_mt_nlg(rows, pd.concat([paper(row["quantity"]) for row in rows]))
    assert heights(both.axes[0])[2:] == pytest.approx([row["value"] for row in rows])


def test_the_map_of_the_best_checkpointing_says_replicas_interval_and_waste_in_every_cell():
    rows, _ = recorded("best-checkpointing/simulated")
    texts = [text.get_text() for text in pictures.draw_best(rows).axes[0].texts]
    assert len(texts) == len([row for row in rows if row["quantity"] == "best_replicas"])
    assert all(text.startswith("m = ") and text.endswith(" %") for text in texts)


def test_odds_of_placements_are_drawn_a_panel_a_number_of_failures_or_a_cluster():
    rows, paper = recorded("fig-6-9/counted")
    rows = [row for row in rows if row.get("k", 0) > 1]
    figure = pictures.draw_probabilities(rows, paper("recovery_probability"), paper("ring_lower"))
    titles = [ax.get_title(loc="left") or ax.get_title() for ax in figure.axes]
    assert titles == [f"k = {k} lost at once" for k in (2, 3, 4)]
    assert "published: ring, relatively lower" in legend(figure)
    racks = pictures.draw_rack_recovery(recorded("racks/counted")[0])
    assert legend(racks) == {"group", "ring", "group across racks", "ring across racks"}
    assert len(racks.axes) == 3
