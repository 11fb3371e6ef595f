"""Rows of the simulated items, worked by hand where the model is simple, and the verdicts they lead to."""

import pytest

from workbench.reproduction import load_catalogue, published_rows
from workbench.reproduction.judge import judge
from workbench.reproduction.project import Project
from workbench.study.rows import read_rows
from workbench.techniques.flextp import plots as pictures
from workbench.techniques.flextp import simulated
from workbench.techniques.flextp.cost import (
    VIT_1B,
    extraction_s,
    iteration_parts,
    migration_epoch_time_s,
    paper_machine,
)
from workbench.techniques.flextp.counted import count_setting

PARTS = iteration_parts(VIT_1B, paper_machine())
EXTRACTING_S = extraction_s(VIT_1B, paper_machine(), 0.5)
ITERATIONS = 782
BASELINE_8_S = ITERATIONS * (PARTS.other_s + 8 * PARTS.product_s)


def value(rows, quantity, **keys):
    fitting = [row for row in rows if row["quantity"] == quantity and all(row.get(k) == v for k, v in keys.items())]
    (row,) = fitting
    return row["value"]


def test_where_all_ranks_drop_a_quarter_an_epoch_lacks_a_quarter_of_the_products():
    rows = simulated.simulate_ratios("ViT-1B", [0.25], ["Baseline", "ZERO-Rd", "ZERO-Pri"])
    shorter_s = ITERATIONS * (PARTS.other_s + 0.75 * PARTS.product_s + EXTRACTING_S)
    assert value(rows, "epoch_s", solution="Baseline") == pytest.approx(373)
    for solution in ("ZERO-Rd", "ZERO-Pri"):
        assert value(rows, "epoch_s", solution=solution) == pytest.approx(shorter_s)
    assert value(rows, "epoch_saved", solution="ZERO-Pri") == pytest.approx(100 * (1 - shorter_s / 373))
    assert value(rows, "dropped_share", solution="ZERO-Pri") == 0.25
    # Where one rank straggles it alone drops, and still is the slowest.
    rows = simulated.simulate_ratios("ViT-1B", [0.25], ["Baseline", "ZERO-Pri"], skewness=8.0)
    assert value(rows, "epoch_s", solution="Baseline") == pytest.approx(BASELINE_8_S)
    epoch_s = ITERATIONS * (PARTS.other_s + 6 * PARTS.product_s + EXTRACTING_S)
    assert value(rows, "epoch_s", solution="ZERO-Pri") == pytest.approx(epoch_s)
    assert value(rows, "dropped_share", solution="ZERO-Pri") == 0.25 / 8


def test_along_skewness_baseline_is_a_line_and_the_one_shot_form_stays_below_its_bound():
    solutions = ["Baseline", "ZERO-Pri", "ZERO-Pri, one shot", "ZERO-PriDiffE"]
    rows = simulated.simulate_skewness("ViT-1B", [1.0, 4.0, 8.0], solutions, 0.5)
    assert value(rows, "epoch_s", solution="Baseline", skewness=8.0) == pytest.approx(BASELINE_8_S)
    assert value(rows, "off_straight_line", solution="Baseline") == pytest.approx(0, abs=1e-12)
    assert value(rows, "growth", solution="Baseline") == pytest.approx(BASELINE_8_S / 373)
    # Other time is 0.884 of the products: (0.884 + 8) / (0.884 + 15/8) = 3.22, on eight ranks.
    other = PARTS.other_s / PARTS.product_s
    bound = value(rows, "speedup_bound", skewness=8.0)
    assert bound == pytest.approx((other + 8) / (other + 15 / 8)) == pytest.approx(3.22, abs=0.01)
    assert 0.9 * bound < value(rows, "speedup", solution="ZERO-Pri, one shot", skewness=8.0) < bound
    assert value(rows, "speedup", solution="ZERO-Pri", skewness=8.0) > bound
    first, middle, last = (value(rows, "epoch_s", solution="ZERO-Pri", skewness=chi) for chi in (1.0, 4.0, 8.0))
    bend = abs(middle / (first + (last - first) * 3 / 7) - 1)
    assert value(rows, "off_straight_line", solution="ZERO-Pri") == pytest.approx(bend) and bend > 1e-4
    half_s = ITERATIONS * (PARTS.other_s + 4 * PARTS.product_s + EXTRACTING_S)
    assert value(rows, "epoch_s", solution="ZERO-PriDiffE", skewness=8.0) == pytest.approx(half_s)
    # Seven ranks and an eighth of one share eight shards: 64/57 of a product time each.
    ideal_s = ITERATIONS * (PARTS.other_s + 64 / 57 * PARTS.product_s)
    assert value(rows, "epoch_s", solution="ideal", skewness=8.0) == pytest.approx(ideal_s)
    assert value(rows, "speed_of_ideal", solution="Baseline", skewness=8.0) == pytest.approx(ideal_s / BASELINE_8_S)


def test_divisions_are_beside_the_one_that_semi_takes():
    rows = simulated.simulate_divisions("ViT-1B", [8.0, 4.0])
    epochs_s = [value(rows, "epoch_s", num_senders=x) for x in range(3)]
    taken = value(rows, "planned_senders", solution="SEMI")
    assert value(rows, "planned_epoch_s", solution="SEMI") == pytest.approx(epochs_s[taken])
    assert value(rows, "planned_over_fastest", solution="SEMI") == pytest.approx(epochs_s[taken] / min(epochs_s))
    # 7/8 and 3/4 of a rank's columns among eight ranks; then the second alone; then nothing.
    dropped = [value(rows, "dropped_share", num_senders=x) for x in range(3)]
    assert dropped == pytest.approx([(7 / 8 + 3 / 4) / 8, 3 / 4 / 8, 0])
    better = [x for x in range(3) if epochs_s[x] < epochs_s[taken] and dropped[x] < dropped[taken]]
    assert value(rows, "better_divisions", solution="SEMI") == len(better)


def test_efficiency_is_a_share_of_time_or_of_throughput_and_the_ratio_that_it_asks_for_gives_it():
    for meaning, saved in (("time saved", 0.2), ("throughput gained", 1 - 1 / 1.2)):
        ratio = simulated.ratio_needed("ViT-1B", 20.0, meaning)
        # The dropped columns' time, less the time to take them out, over the epoch's.
        assert (ratio * PARTS.product_s - EXTRACTING_S) / PARTS.own_s == pytest.approx(saved, rel=1e-6)
    assert simulated.ratio_needed("ViT-1B", 60.0, "time saved") == 1.0  # products are 53 % of an epoch
    rows = simulated.efficiency_rows(["ViT-1B"], [0.5], 8.0, ["MIG"])
    for place in ("homogeneous", "heterogeneous"):
        saved = value(rows, "efficiency_gain", environment=place, meaning="time saved")
        gained = value(rows, "efficiency_gain", environment=place, meaning="throughput gained")
        assert gained / 100 == pytest.approx(1 / (1 - saved / 100) - 1)  # half the time is twice the throughput


def test_table_1_has_every_cell_the_lead_and_errors_of_cells_that_do_not_calibrate():
    rows = simulated.simulate_migration([1, 4], [0.0, 0.5])
    both_s = [migration_epoch_time_s(scheme, 4, 0.5) for scheme in ("broadcast-reduce", "scatter-gather")]
    place = {"num_senders": 4, "migrated_share": 0.5}
    assert [value(rows, "epoch_s", scheme=s, **place) for s in ("broadcast-reduce", "scatter-gather")] == both_s
    assert value(rows, "lead_s", **place) == pytest.approx(both_s[1] - both_s[0])
    errors = [row for row in rows if row["quantity"] == "relative_error"]
    assert len(errors) == 4  # of ten cells three are fitted, and on three the form was chosen
    ours_s = migration_epoch_time_s("broadcast-reduce", 1, 0.5)
    cell = {"scheme": "broadcast-reduce", "num_senders": 1, "migrated_share": 0.5}
    assert value(rows, "relative_error", **cell) == pytest.approx(ours_s / 451 - 1)
    assert value(rows, "largest_error") == max(abs(row["value"]) for row in errors)


def test_shares_of_the_map_add_up_along_every_axis():
    places = {"skewnesses": [2.0, 8.0], "nums_stragglers": [1, 4], "bandwidths_gb_per_s": [1.0, 100.0]}
    points = simulated.simulate_map("ViT-1B", **places, refine=False)
    rows = simulated.map_rows(points)
    assert points[0].bandwidth_bytes_per_s == 1e9
    for axis, marks in (("skewness", (2.0, 8.0)), ("num_stragglers", (1, 4)), ("bandwidth_gb_per_s", (1.0, 100.0))):
        for mark in marks:
            there = [row["value"] for row in rows if row["quantity"] == f"won_by_{axis}" and row[axis] == mark]
            assert len(there) == 4 and sum(there) == pytest.approx(1)
    slow = {"skewness": 8.0, "num_stragglers": 1, "bandwidth_gb_per_s": 1.0}
    assert value(rows, "migration_over_resizing", **slow, means="resizing") > 1
    # What wins there drops and does not migrate; over the fast link it is the other way round.
    assert value(rows, "leaning", **slow) == 1
    assert value(rows, "leaning", **slow | {"bandwidth_gb_per_s": 100.0}) == -1


def test_what_does_not_exist_is_named():
    for model, solution, message in (("ViT-2B", "Baseline", "model is 'ViT-2B'"), ("ViT-1B", "SDP", "has 'SDP'")):
        with pytest.raises(ValueError, match=message):
            simulated.simulate_ratios(model, [0.5], [solution])
    with pytest.raises(ValueError, match="meaning is 'luck'; it must be one of"):
        simulated.ratio_needed("ViT-1B", 20, "luck")


def declared(id):
    (item,) = [item for item in load_catalogue() if item.id == id]
    return item


def verdict(id, claim, rows, **more):
    item = declared(id)
    verdicts = judge(item.claims, read_rows(rows, "ours"), published_rows(Project(), item), **more)
    (claimed,) = [each for each in verdicts if each.claim.startswith(claim)]
    return str(claimed.verdict)


def changed(rows, factor, **keys):
    return [
        row | {"value": row["value"] * factor} if all(row.get(k) == v for k, v in keys.items()) else row for row in rows
    ]


def test_table_1_turns_red_where_a_cell_that_does_not_calibrate_is_off_and_only_there():
    rows = simulated.simulate_migration([1, 2, 3, 4], [0.0, 0.25, 0.5, 0.75, 1.0])
    id, cell, more = "flextp/table-1/simulated", "Each cell", {"calibrated_on": simulated.calibration_cells()}
    assert verdict(id, cell, rows, **more) == "agrees"
    fitted = {"quantity": "epoch_s", "scheme": "scatter-gather", "num_senders": 1, "migrated_share": 1.0}
    assert verdict(id, cell, changed(rows, 2.0, **fitted), **more) == "agrees"
    assert verdict(id, cell, changed(rows, 2.0, **fitted | {"migrated_share": 0.5}), **more) == "agrees"
    predicted = fitted | {"scheme": "broadcast-reduce", "migrated_share": 0.5}
    assert verdict(id, cell, changed(rows, 1.15, **predicted), **more) == "disagrees"
    for_two = predicted | {"num_senders": 2}
    assert verdict(id, "Broadcast-reduce is ahead", changed(rows, 3.0, **for_two), **more) == "disagrees"
    lead = {"quantity": "lead_s", "num_senders": 4, "migrated_share": 0.5}
    assert verdict(id, "Its lead narrows", rows, **more) == "agrees"
    assert verdict(id, "Its lead narrows", changed(rows, 3.0, **lead), **more) == "disagrees"


def test_figure_9_turns_red_where_baseline_bends_or_resizing_does_not_keep_up():
    item = declared("flextp/fig-9b/simulated")
    rows = simulated.simulate_skewness("ViT-1B", [1.0, 8.0], item.parameters["laptop"]["solutions"], 0.5)
    bent = [
        row | {"value": 0.02} if (row["quantity"], row["solution"]) == ("off_straight_line", "Baseline") else row
        for row in (row for row in rows if "solution" in row)
    ]
    assert verdict(item.id, "Baseline's epochs", rows) == "agrees"
    assert verdict(item.id, "Baseline's epochs", bent) == "disagrees"
    steady = {"quantity": "growth", "solution": "ZERO-Pri"}
    assert verdict(item.id, "Pri keeps epochs steady", rows) == "agrees"
    assert verdict(item.id, "Pri keeps epochs steady", changed(rows, 1.2, **steady)) == "disagrees"
    claim, speedup = "Pri's speedup", {"quantity": "speedup", "solution": "ZERO-Pri", "skewness": 8.0}
    ours = value(rows, **speedup)
    outcomes = [verdict(item.id, claim, changed(rows, aim / ours, **speedup)) for aim in (3.5, 3.2, 3.1)]
    assert outcomes == ["agrees", "agrees", "disagrees"]


def test_the_setting_turns_red_where_a_count_is_off_by_one():
    rows, item, claim = count_setting(150, 10_000), "flextp/setting/counted", "48 all-reduces in the forward pass"
    assert verdict(item, claim, rows) == "agrees"
    counted = {"counted": "forward", "quantity": "all_reduces_per_iteration"}
    assert verdict(item, claim, changed(rows, 49 / 48, **counted)) == "disagrees"


def test_every_simulated_figure_is_drawn_with_its_lines_and_bars():
    ratios = pictures.draw_ratios(simulated.simulate_ratios("ViT-3B", [0.25, 0.5], ["Baseline", "ZERO-Pri"]))
    assert len(ratios.axes[0].patches) == 4
    rows = simulated.simulate_skewness("ViT-1B", [1.0, 8.0], ["Baseline", "SEMI"], 0.5)
    assert [len(ax.lines) for ax in pictures.draw_skewness(rows).axes] == [3, 3]
    divisions = simulated.simulate_divisions("ViT-1B", [8.0, 4.0])
    drawn = pictures.draw_divisions(divisions).axes[0].lines
    assert list(drawn[0].get_xdata()) == [0, 1, 2]
    assert drawn[1].get_xdata()[0] == value(divisions, "planned_senders", solution="SEMI")
    links = {"skewnesses": [2.0, 8.0], "nums_stragglers": [1, 2, 3], "bandwidths_gb_per_s": [1.0, 16.0]}
    rows = simulated.map_rows(simulated.simulate_map("ViT-1B", **links, refine=False))
    slow, fast = pictures.draw_map(rows).axes
    assert [ax.get_title(loc="left") or ax.get_title() for ax in (slow, fast)] == ["1 GB/s", "16 GB/s"]
    place = {"quantity": "speed_of_ideal", "skewness": 8.0, "num_stragglers": 3, "bandwidth_gb_per_s": 16.0}
    (means,) = [row["means"] for row in rows if place.items() <= row.items()]
    letters = {text.get_position(): text.get_text() for text in fast.texts}
    assert letters[1, 2] == {"resizing": "R", "migration": "M", "both": "B", "nothing": "–"}[means]
    assert len(letters) == 2 * 3
