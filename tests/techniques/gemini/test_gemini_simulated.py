"""Rows and pictures of the simulated and counted items: by hand, or the paper's own numbers."""

from fractions import Fraction
from functools import partial
from math import comb

import pytest
from cases import value, values
from matplotlib.colors import to_rgba
from matplotlib.patches import Rectangle

from workbench.plots import figure
from workbench.plots.style import PALE, VERMILION
from workbench.reproduction import published
from workbench.techniques.gemini import counted, method
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.cost import DAY_S
from workbench.techniques.gemini.method import Placement, placement, recovery_probability, union_bound, waste
from workbench.techniques.gemini.simulated import checkpoints, failures

SCHEMES = ["Baseline", "Blocking", "Naive", "Unpipelined", "Gemini"]

GIGABYTES = 12e-9 * waste.num_parameters(waste.TABLE_6_2["GPT-2 100B"])  # of the checkpoint of GPT-2 100B: 1,203.4


def test_the_worked_example_by_hand():
    rows = checkpoints.predict_schemes(SCHEMES)
    # 19 steps without; blocking adds 8; unpipelined has room for 4 · 1.5 of 8 buffers' worth and adds the other 2.
    steps = {scheme: value(rows, "iteration_s", scheme=scheme) / checkpoints.STEP_S for scheme in SCHEMES}
    assert steps == {"Baseline": 19, "Blocking": 27, "Naive": 19, "Unpipelined": 21, "Gemini": 19}
    out = {scheme: value(rows, "out_of_memory", scheme=scheme) for scheme in SCHEMES}
    assert out == {"Baseline": 0, "Blocking": 0, "Naive": 1, "Unpipelined": 0, "Gemini": 0}
    assert value(rows, "idle_s", scheme="Gemini") / checkpoints.STEP_S == 13 - 8
    assert value(rows, "overhead", scheme="Blocking") == pytest.approx(100 * 8 / 19)
    titles = [ax.get_title(loc="left") for ax in pictures.draw_schemes(checkpoints.example_iterations(SCHEMES)).axes]
    assert [title.split(":")[0] for title in titles] == SCHEMES and "out of memory" in titles[2]


def test_reductions_grow_with_machines_and_network_as_their_product():
    rows = checkpoints.predict_reductions("GPT-2 100B", [100, 400], [4, 16])
    assert value(rows, "reduction", network_gbit_per_s=100, num_machines=16) == pytest.approx(65)
    assert value(rows, "reduction", network_gbit_per_s=400, num_machines=16) == pytest.approx(4 * 65, rel=1e-3)
    assert value(rows, "reduction", network_gbit_per_s=400, num_machines=4) == pytest.approx(65, rel=1e-3)
    # Frequencies: 100.3 billion parameters of 12 bytes at 2.5 GB/s are 481.4 s, 7.76 iterations of 62 s, so 8.
    assert value(checkpoints.predict_frequencies("GPT-2 100B"), "frequency_gain", policy="HighFreq") == pytest.approx(8)
    # 16 machines of 400 Gbit/s.
    assert value(rows, "matching_storage_tbit_per_s", rate="nominal") == pytest.approx(6.4)


def test_rows_of_models_and_ablation_add_up_and_3_5_percent_ask_for_a_rate_of_copying_on_either_side():
    rows = checkpoints.predict_models("p3dn", ["GPT-2 10B"])
    without, left = (value(rows, "idle_s", scheme=scheme) for scheme in ("Baseline", "Gemini"))
    assert without - left == pytest.approx(value(rows, "network_s", what="needed by the checkpoint"))
    rows = checkpoints.predict_ablation("GPT-2 10B", ["Baseline", "Blocking"], 512, [400])
    # An eighth of 12.5 GB/s, of which 81.26 % are reached: 1.6 · 1.2697 = 2.032 GB, and 1.65 · 1.2697 = 2.095.
    assert value(rows, "largest_span_buffer_gb", whose="the model") == pytest.approx(2.032, abs=0.001)
    assert next(row["high"] for row in rows if row.get("whose") == "the model") == pytest.approx(2.095, abs=0.001)
    assert value(rows, "largest_span_out_of_memory", scheme="Naive") == 1
    cells = checkpoints.calibration_of()["cells"]
    assert {"quantity": "overhead", "scheme": "Blocking"} in cells
    assert {cell["quantity"] for cell in cells} == {"reduction", "iteration_s", "overhead"}
    rows = checkpoints.predict_ablation("GPT-2 20B", ["Unpipelined"], 512, [400])
    asked = value(rows, "copy_rate_asked_gbit_per_s")
    rates = (1.02 * asked, asked / 1.02)
    rows = checkpoints.predict_ablation("GPT-2 20B", ["Unpipelined"], 512, [400, *rates])
    faster, slower = (value(rows, "overhead_by_rate", scheme="Unpipelined", copy_gbit_per_s=rate) for rate in rates)
    assert faster < 3.5 < slower


def test_the_62_s_are_divided_by_the_rate_of_messages_and_a_checkpoint_costs_more_where_little_is_left():
    rows = checkpoints.predict_splits("GPT-2 100B", [1.0, 0.2])
    # 9.4 GB at 50 Gbit/s are 1.50 s; at a fifth of it 7.5 s, when the network is idle for 3 s.
    seconds = [value(rows, "checkpoint_by_split_s", network_share=share) for share in (1.0, 0.2)]
    assert seconds == pytest.approx([1.505, 7.52], abs=0.01)
    costs = [
        [value(rows, "overhead_by_split", network_share=share, scheme=name) for name in SCHEMES[1::2] + ["Gemini"]]
        for share in (1.0, 0.2)
    ]
    assert costs[0] == pytest.approx([100 * seconds[0] / 62, 0, 0], abs=0.01)
    assert costs[1][2] < costs[1][1] < costs[1][0] == pytest.approx(100 * seconds[1] / 62, abs=0.01)
    p3dn = {
        row["scheme"]: row["value"]
        for row in checkpoints.predict_models("p3dn", ["GPT-2 40B"])
        if row["quantity"] == "overhead"
    }
    assert p3dn["Gemini"] < 0.8 < p3dn["Unpipelined"] < 1 < p3dn["Blocking"]


def test_a_failure_at_310_goes_back_to_the_last_complete_checkpoint_and_the_minutes_of_one_failure_add_up():
    rows = failures.worked_example_rows([10, 11, 100])
    back = {interval: value(rows, "back_to", checkpoint_iterations=interval) for interval in (10, 11, 100)}
    assert back == {10: pytest.approx(300), 11: pytest.approx(200), 100: pytest.approx(200)}
    assert value(rows, "lost_iterations", checkpoint_iterations=11) == pytest.approx(110)
    rows = failures.overhead_rows()
    software_s, hardware_s = 15 + 162 + 240, 15 + 162 + 330 + GIGABYTES / 16 / 50 + 240
    assert value(rows, "total_min", failure="software") == pytest.approx(software_s / 60)
    assert value(rows, "total_min", failure="hardware") == pytest.approx(hardware_s / 60)
    assert value(rows, "resumes_with", failure="hardware") == 3
    assert failures.overhead_timelines()["hardware"].total_s(resource="recovery") == pytest.approx(hardware_s)


def test_the_wasted_time_of_figure_6_10_and_the_share_of_serialising_every_nine_iterations():
    rows = failures.wasted_rows(300, [0])
    assert value(rows, "iterations_wasted") == 1.5
    # 1,203.4 GB to storage: 2.5 GB/s, every 8 or every 9 iterations; a sixteenth at 50 GB/s from a peer
    peer_s = GIGABYTES / 16 / 50
    eight, nine = (2 * GIGABYTES / 2.5 + every * 62 / 2 for every in (8, 9))
    assert value(rows, "reduction", highfreq=failures.EIGHT, replaced="none") == pytest.approx(eight / 93)
    assert value(rows, "reduction", highfreq="HighFreq", replaced="one") == pytest.approx(nine / (93 + peer_s))
    assert [value(rows, "interval_iterations", storage_gbit_per_s=rate) for rate in (20, 19.5, 19.4)] == [8, 8, 9]
    # 8 of 120 pairs are groups: of 300 failures 20, with a standard deviation of 4.3.
    assert value(rows, "storage_share") == pytest.approx(100 * 8 / 120, abs=4)
    share = partial(value, failures.rows_by_failures([1], num_days=1, seeds=[0]), "serialising_share")
    assert share(solution="HighFreq", of="training time") == pytest.approx(100 * 81 / (9 * 62))
    assert share(solution=failures.EIGHT, of="all time") == pytest.approx(100 * 81 / (8 * 62 + 81))


def test_added_losses_leave_the_ratios_of_the_text():
    rows = failures.rows_by_machines([1000], num_days=2, seeds=[0])
    # 15 failures a day: Gemini 417 + 93 s each; HighFreq 81 / 558 and 255 + 279 s and two transfers each.
    ours, high = 1 - 15 * 510 / DAY_S, 1 - 81 / 558 - 15 * (534 + 2 * GIGABYTES / 2.5) / DAY_S
    assert value(rows, "effective_ratio_added", solution="Gemini") == pytest.approx(ours)
    assert value(rows, "gain_added", highfreq="HighFreq") == pytest.approx(100 * (ours / high - 1))
    assert sum(values(rows, "time_share", solution="Gemini")) == pytest.approx(1)
    # A failure every 96 minutes, a checkpoint every three hours: of 30 stretches only the last one stays.
    assert 0 < value(rows, "effective_ratio_even", solution="Strawman") < 1 / 30
    # 15 failures of at least half of three hours each are 22.5 h, and recovering takes the rest.
    assert value(rows, "effective_ratio_added", solution="Strawman") < 0


def test_the_map_has_the_best_choice_at_every_place():
    rows = failures.best_rows([0.015], [10, 400], idle_s=10, blocking_s=0, window_s=600, num_failures=200, seeds=[0])
    assert value(rows, "gap_to_search", link_gbps=10) == 0
    # A shard of 75.2 GB takes 60.2 s over 10 Gbps: seven idle spans of 10 s; over 400 Gbps 1.5 s.
    assert value(rows, "best_interval", link_gbps=10) == 7
    assert value(rows, "best_interval", link_gbps=400) == 1
    assert method.best_checkpointing(failures.paper_needs(0.015, 10, idle_s=10)).interval_iterations == 7


def boxes_of(placed, failed=()):
    ax = pictures.draw_placement(placed, ax=figure()[1], failed=failed)
    return ax, [patch for patch in ax.patches if isinstance(patch, Rectangle)]


def test_the_picture_has_a_column_a_machine_and_fades_failed_machines_and_edges_lost_shards_in_red():
    ax, boxes = boxes_of(placement(5, 2))
    numbers = {text.get_position(): int(text.get_text()) for text in ax.texts if text.get_text().isdigit()}
    columns = sorted({round(x, 6) for x, _ in numbers})
    shards = [[numbers[place] for place in sorted(numbers) if round(place[0], 6) == x] for x in columns]
    assert len(boxes) == 10 and shards == [[0, 1], [1, 0], [2, 4], [3, 2], [4, 3]]
    assert [text.get_text() for text in ax.texts if text.get_text().isalpha()] == ["group", "ring"]
    # Machines that share replicas stand together, whatever their numbers.
    ax, _ = boxes_of(Placement.own([(0, 2), (1, 3), (2, 0), (3, 1)]))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["0", "2", "1", "3"]
    _, boxes = boxes_of(placement(4, 2), failed={0, 1, 2})
    faded = [box for box in boxes if box.get_facecolor() == to_rgba(PALE)]
    lost = [box for box in boxes if box.get_edgecolor() == to_rgba(VERMILION)]
    assert len(faded) == 6  # three machines with two boxes
    assert len(lost) == 4  # shards 0 and 1, both replicas; shards 2 and 3 live on machine 3


def test_parameters_and_bytes_are_counted_as_by_hand_and_the_tables_in_the_code_are_those_published():
    # 124 (12·8192² + 13·8192) + (50265 + 512)·8192 + 2·8192
    assert waste.num_parameters(waste.TABLE_6_2["GPT-2 100B"]) == 124 * 805_412_864 + 415_965_184 + 16_384
    # a layer: 12·2560² + 13·2560 = 78,643,200 + 33,280: less than four billion in all
    assert waste.num_parameters(waste.TABLE_6_2["GPT-2 10B"]) == 46 * 78_676_480 + 50_777 * 2560 + 2 * 2560
    assert waste.checkpoint_bytes(100e9) == 1200e9
    printed = published("gemini/table-6-1/counted", "memory")
    rows = counted.count_memory(16, 2)
    ours = {(row["machine"], row["memory"]): row["value"] for row in rows if row["quantity"] == "memory"}
    assert ours == {(row.machine, row.memory): row.value for row in printed.itertuples()}
    assert list(published("gemini/table-2-1/counted", "checkpoint_size")["model"]) == list(counted.PARAMETERS)
    assert list(published("gemini/table-6-2/counted", "parameters")["model"]) == list(waste.TABLE_6_2)


def test_buffers_are_two_for_each_replica_of_the_shard_and_mt_nlg_s_checkpoint_takes_42_minutes():
    rows = counted.count_memory(16, 2)
    # 2·2·12 bytes · 100.287 10⁹ / 16
    assert value(rows, "buffers", machine="p4d.24xlarge", memory="needed") == pytest.approx(300.86, abs=0.01)
    # full GPUs: 4 · 12/16 of 8·40 GB
    assert value(rows, "fullest_buffers", machine="a2-highgpu-8g", memory="needed") == 960
    assert value(rows, "memory_ratio", machine="a2-highgpu-8g") == 2
    rows = counted.count_checkpoints()
    assert value(rows, "time_to_storage") == pytest.approx(530e9 * 12 * 8 / 20e9 / 60)
    assert value(rows, "recovery_overhead") == pytest.approx(2.5 * 42.4 / 60)
    assert value(rows, "growth", of="checkpoint") == pytest.approx(530 / 17.2)
    assert value(rows, "growth_elsewhere") == 360


def test_rows_of_figure_6_3_and_of_the_layers_that_a_name_would_take():
    rows = counted.count_parameters(128)
    # 46 layers of 4 h² + 2 h i with h = 5120 and i = 10240 are 9.65 billion, embeddings 0.26.
    assert value(rows, "parameters_of_wide_heads", model="GPT-2 10B") == pytest.approx(9.91e9, rel=1e-3)
    assert value(rows, "parameters_of_wide_heads", model="GPT-2 100B") == value(rows, "parameters", model="GPT-2 100B")
    assert value(rows, "checkpoint_per_gpu") == pytest.approx(9.402, abs=1e-3)
    rows = counted.count_placements()
    assert [value(rows, "fatal", placement=kind) for kind in ("group", "ring", "mixed")] == [2, 4, 4]
    assert value(rows, "of", placement="mixed") == 10
    assert [value(rows, "part_size", placement="mixed", part=part) for part in (1, 2)] == [2, 3]
    assert value(rows, "fallback_saved") == 50


def test_the_union_bound_of_groups_is_corollary_6_1_and_that_of_the_ring_is_25_percent_behind():
    for k in range(13):
        by_hand = 1 - Fraction(4 * comb(9, k - 3), comb(12, k)) if k >= 3 else 1
        assert union_bound(placement(12, 3), k) == method.group_bound(12, 3, k) == max(0, by_hand)
        for kind in ("group", "ring"):
            assert union_bound(placement(12, 3, kind), k) <= recovery_probability(placement(12, 3, kind), k)
    rows = counted.count_bounds(16, 2, [3])
    assert value(rows, "ring_lower", reading="bound, relative") == 25
    # 22/35 beside 28/35
    assert value(rows, "ring_lower", reading="exact, relative") == pytest.approx(600 / 28)
    assert value(rows, "ring_lower", reading="exact, points") == pytest.approx(600 / 35)
    # A reading relative to nothing is left out.
    rows = counted.count_bounds(4, 2, [4])
    assert {row["reading"] for row in rows if row["quantity"] == "ring_lower"} == {"exact, points", "bound, points"}
    rows = counted.count_probabilities([16], [2])
    exact = value(rows, "recovery_probability", placement="group", way="exact")
    assert exact + value(rows, "fallback", placement="group") == pytest.approx(100)
    assert exact == pytest.approx(1400 / 15)


def test_rows_of_the_theorem_say_by_how_much_algorithm_6_1_is_missed():
    rows = counted.count_theorem([[4, 2, 2], [4, 2, 3]])
    # of k = 3: 1 of 4, and none
    assert [value(rows, "missed", among="all", k=k) for k in (2, 3)] == [0, 25]
    assert value(rows, "upper_bound_missed", k=2) == 0
    # Gaps are shares of the bound. q = 1: m + q - 2 = 2 of 2m - 3 = 3; q = 2: all of it; 3 and 6 have none.
    rows = counted.count_gaps(7, [3])
    assert {row["num_machines"]: row["value"] for row in rows} == pytest.approx({4: 2 / 3, 5: 1, 7: 2 / 3})


def test_recorded_spans_that_all_iterations_have_take_the_checkpoint_and_those_that_come_and_go_do_not():
    gather, scatter = ("all_gather", 0), ("reduce_scatter", 0)
    spans = [{gather: 9.0, scatter: 9.0}, {gather: 0.0, scatter: 1.0}, {gather: 2.0, scatter: 3.0}]
    usual = {"left_out": 1, "threshold_s": 0.1, "bandwidth_bytes_per_s": 100, "reserved_bytes": 20, "num_buffers": 2}
    rows = counted.count_idle_spans(spans, checkpoint_bytes=100, safety=1.0, **usual)
    # Of the last two iterations only the scatter's span is above 0.1 s in both: at least 1 s, 100 bytes.
    assert [(row["span"], row["value"]) for row in rows if row["quantity"] == "span"] == [("reduce_scatter 0", 1.0)]
    assert value(rows, "deviation", of="a used span") == 0.5, "1 and 3: a mean of 2, a deviation of 1"
    assert value(rows, "deviation", of="all idle time") == pytest.approx(2 / 3), "1 and 5"
    assert (value(rows, "num_chunks"), value(rows, "share_in_spans")) == (10, 1.0)
    rows = counted.count_idle_spans(spans, checkpoint_bytes=200, safety=0.5, **usual)
    assert value(rows, "share_in_spans") == 0.25, "half of a second's 100 bytes"
    assert len(pictures.draw_idle_spans(rows).axes[0].patches) == 2
