"""What the simulated items record: rows against numbers worked by hand, and figures that say what they show."""

import math

import pytest
from matplotlib import pyplot

from workbench.plots import styled
from workbench.reproduction import load_catalogue
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.simulated import checkpoints

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


def test_what_is_idle_without_checkpoints_is_idle_or_carries_them():
    rows = checkpoints.predict_models("p3dn", ["GPT-2 10B"])
    without, left = (value(rows, "idle_s", scheme=scheme) for scheme in ("Baseline", "Gemini"))
    assert without - left == pytest.approx(value(rows, "network_s", what="needed by the checkpoint"))


def test_a_span_of_1_6_s_takes_2_03_gb():
    rows = checkpoints.predict_ablation("GPT-2 10B", ["Baseline", "Blocking"], 512, [400])
    # An eighth of 12.5 GB/s, of which 81.27 % are reached: 1.6 · 1.2698 = 2.032 GB.
    assert value(rows, "largest_span_buffer_gb", whose="the model") == pytest.approx(2.032, abs=0.001)
    assert value(rows, "largest_span_out_of_memory", scheme="Naive") == 1


def test_the_paper_s_3_5_percent_lie_on_either_side_of_the_rate_of_copying_that_they_ask_for():
    rows = checkpoints.predict_ablation("GPT-2 20B", ["Unpipelined"], 512, [400])
    asked = value(rows, "copy_rate_asked_gbit_per_s")
    again = checkpoints.predict_ablation("GPT-2 20B", ["Unpipelined"], 512, [400, 1.02 * asked, asked / 1.02])
    faster, slower = (
        value(again, "overhead_by_rate", scheme="Unpipelined", copy_gbit_per_s=rate)
        for rate in (1.02 * asked, asked / 1.02)
    )
    assert faster < 3.5 < slower


def test_fitted_cells_are_named_with_their_quantity():
    cells = checkpoints.calibration_of()["cells"]
    assert {"quantity": "overhead", "scheme": "Blocking"} in cells
    assert {cell["quantity"] for cell in cells} == {"reduction", "iteration_s", "overhead"}


def test_every_scheme_of_the_worked_example_has_its_own_timeline():
    with styled():
        figure = pictures.draw_schemes(checkpoints.example_iterations(SCHEMES))
    titles = [ax.get_title(loc="left") for ax in figure.axes]
    assert [title.split(":")[0] for title in titles] == SCHEMES
    assert "out of memory" in titles[2]
    pyplot.close(figure)


def test_every_item_names_parameters_that_the_rows_can_be_computed_with():
    items = {item.item: item for item in load_catalogue() if item.id.startswith("gemini/") and "schemes" in str(item)}
    assert set(items["fig-6-4"].parameters["laptop"]["schemes"]) <= set(SCHEMES)
    assert items["fig-6-16"].parameters["laptop"]["schemes"] == SCHEMES


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
