"""Rows of counted, simulated and measured items, against the paper's tables and by hand."""

import math
from types import SimpleNamespace

import pytest

from tests.cases import refusals, tidy, values
from workbench.study.published import published_value
from workbench.study.timing import Turns
from workbench.techniques.atp import counted, measured, simulated
from workbench.techniques.atp.cost import layer_flops
from workbench.techniques.atp.method.equations import Workload


def test_the_cells_that_calibrate_are_met_exactly():
    for interconnect, model in (*simulated.COMPUTE_CELLS, *simulated.LINK_CELLS):
        rows = simulated.chunk_rows(interconnects=[interconnect], models=[model])
        (ours,) = values(rows, "tflops_per_s", scheme="Baseline")
        keys = {"interconnect": interconnect, "model": model, "scheme": "Baseline"}
        assert ours == pytest.approx(published_value("atp", "table-3", "tflops_per_s", **keys))


def test_more_chunks_and_overlap_are_never_slower_and_never_faster_than_the_longer_of_both():
    for interconnect in ("IC1", "IC2", "IC3", "IC4"):
        whole, two, four = (simulated.layer_s("M3", interconnect, (8, 1), chunks=chunks) for chunks in (1, 2, 4))
        assert four <= two <= whole
        assert simulated.layer_s("M3", interconnect, (8, 1), overlap=True) <= whole
        assert four >= whole / 2


def test_sizes_are_those_of_table_2():
    rows = counted.size_rows()
    for quantity in ("hidden", "heads", "billion_parameters", "tflop"):
        for model in simulated.GPTS:
            (ours,) = values(rows, quantity, model=model)
            assert ours == pytest.approx(published_value("atp", "table-2", quantity, model=model))


def test_figure_12_by_hand():
    rows = counted.scaling_rows(num_devices=[8])
    # (14 d2 + 4 d1 - 18) / 8 for (8, 1), (4, 2) and (2, 4); divided: 2 * 14 / 8 = 3.5 for (8, 1)
    times = {mesh: values(rows, "time", mesh=mesh)[0] for mesh in ("ATP-1", "ATP-2", "ATP-4", "ATP-OPT")}
    assert times == {"ATP-1": 3.5, "ATP-2": 3.25, "ATP-4": 5.75, "ATP-OPT": 3.25}
    assert values(rows, "time_by_equation_3", mesh="ATP-OPT") == pytest.approx([3.5])


def test_what_the_text_calls_best_is_judged_by_both_formulas():
    rows = counted.winner_rows()
    assert values(rows, "behind", interconnect="IC4", devices=16, way="section 5.4") == [0.0]
    assert values(rows, "best_mesh", interconnect="IC3", way="section 5.4") == [2]
    assert values(rows, "behind", interconnect="IC3", way="equations 2 to 4") == [0.0]


def test_the_text_and_figure_7a_against_the_formulas_by_hand():
    rows = counted.winner_rows()
    assert values(rows, "behind", interconnect="IC2", way="section 5.3") == [0.0]
    # rings of 16 on 25 GB/s, beside two rings of 8 on 12.5 GB/s and pairs on 200 GB/s
    wanted = (2 / (16 / 30 * 25)) / (2 / (2 * 8 / 14 * 12.5) + 7 / (8 * 200))
    assert values(rows, "over_atp_1", way="figure 7a") == pytest.approx([wanted])
    assert values(rows, "shared_bytes_per_s") == [12.5e9, 200e9]
    # (2, 8) and (8, 2): 14 d2 + 4 d1 - 18
    assert values(rows, "google_over_best", way="section 5.4") == pytest.approx([102 / 42, 1.0])


def test_the_calibrated_bandwidths_of_ic1_do_not_fit_table_3():
    rows = counted.saving_rows()
    sent_s = 2 * 4 * 2048 * 8192 * 2 * (7 / (2 * 4.95e9) + 2 / (4 * 1.20e9))
    layer_s, on_ic3_s = (37.5 / 8 / rate for rate in (6.68, 151.98))
    ratios = values(rows, "equation_2_over_table_3", model="M3", reading="as printed")
    assert ratios == pytest.approx([(sent_s + on_ic3_s) / layer_s])
    megatron_s = 2 * 4 * 2048 * 8192 * 2 * 2 / 0.97e9
    gains = values(rows, "gain", model="M3", reading="as printed")
    assert gains == pytest.approx([(layer_s - sent_s + megatron_s) / layer_s])


def test_chunks_by_four_readings_and_the_median_inside_a_node():
    rows = simulated.chunk_rows(interconnects=["IC2", "IC4"], models=["M2", "M3"])
    keys = {"interconnect": "IC4", "model": "M3", "scheme": "Chunk=4"}
    joined, both, hidden = values(rows, "gain_by_reading", **keys)
    assert 1 < joined < values(rows, "gain", **keys)[0] < both < hidden
    fitted = simulated.calibrated()
    compute_s = layer_flops(simulated.GPTS["M3"]) / 8 / fitted.flops_per_s + fitted.fixed_s
    whole_s = simulated.layer_s("M3", "IC4", (8, 1))
    assert hidden == pytest.approx(1 / (1 - compute_s / whole_s))
    # Two linear layers send, with 1/12 and 4/12 of the forward third; 3 of their 4 chunks hide behind longer messages.
    assert joined == pytest.approx(whole_s / (whole_s - 3 / 4 * 5 / 12 * compute_s / 3))
    saved = 97.45 / 15.31 - 97.45 / 18.62
    assert values(rows, "saved_over_ic3", **{**keys, "model": "M2"}) == pytest.approx([saved])
    # IC2 alone is inside a node: 1.018, 1.021, 1.023 and 1.032 in table 3
    assert values(rows, "median_gain", of="table 3") == pytest.approx([(43.73 / 42.82 + 75.27 / 73.61) / 2])
    gains = sorted(values(rows, "gain", interconnect="IC2"))[2:]  # without the two of one chunk
    assert values(rows, "median_gain", of="model") == pytest.approx([(gains[1] + gains[2]) / 2])


def test_weights_are_cut_over_all_devices_and_activations_as_said():
    rows = counted.memory_rows(models=["M1"], num_devices=8)
    value = 4 * 2048 * 2048 * 2  # bytes of b s h
    assert values(rows, "weight_bytes", mesh="ATP-4") == [12 * 2048**2 * 2 / 8]
    # (2, 4): 4 / 4 + 4 / 8 + 1 / 2 + 8 / 2 = 6
    assert values(rows, "activation_bytes", mesh="ATP-4") == [6 * value]
    # (8, 1), sequence parallel: 2 / 8 + 2 + 4 / 8 + 8 / 8 = 3.75
    assert values(rows, "activation_bytes", mesh="ATP-1, sequence parallel") == [3.75 * value]


def test_real_ranks_send_what_is_counted_and_dtensor_cuts_as_table_1(pools):
    work = Workload(batch=2, sequence=8, hidden=32, heads=4, value_bytes=4)
    on_ranks = {shape: pools(4).run(tidy, counted.sent_on_ranks, work, shape)[0] for shape in ((4, 1), (2, 2), (1, 4))}
    rows = counted.byte_rows(work=work, on_ranks=on_ranks)
    assert values(rows, "ranks_over_exact") == pytest.approx([1.0] * 4)
    assert values(rows, "all_reduces_over_equation_2", axis=2) == pytest.approx([12 / 14] * 2)
    shares = pools(4).run(tidy, counted.sharding_rows)[0]
    assert values(shares, "share", parallelism="Column-first") == [0.5, 0.25, 0.5]
    assert values(shares, "is_partial", parallelism="Row-first") == [1]


def test_random_topologies_are_the_same_for_a_seed_and_their_links_in_range():
    settings = measured.random_settings(20, 3)
    assert settings == measured.random_settings(20, 3) != measured.random_settings(20, 4)
    assert all(0.05 <= setting.gigabits_per_s <= 1 for setting in settings)


def test_schemes_on_real_ranks_have_iterations_gains_and_a_choice():
    setting = measured.Setting(num_ranks=4, num_hosts=1, hidden=32, heads=4, batch=4, sequence=8)
    schemes = [measured.MEGATRON, measured.SUMMA, "ATP-1", "ATP-2, 2 chunks", "ATP-2, sequence parallel"]
    timed = measured.time_schemes(setting, schemes, Turns(rounds=6))
    rows = measured.mesh_rows(timed, setting, place="here")
    assert len(values(rows, "iteration_s")) == 5 and all(value > 0 for value in values(rows, "iteration_s"))
    assert len(values(rows, "gain")) == 4  # of the others over Megatron-LM
    assert {row["search"] for row in rows if row["quantity"] == "behind_best"} == {
        "equations 2 to 4",
        "with start-ups",
        "torch's model",
        "always ATP-1",
    }
    (fit,) = {row["layer"] for row in measured.fit_rows(timed) if row["quantity"] == "r_squared"}
    assert fit == 1 and all(math.isfinite(row["value"]) for row in rows)


def test_places_stand_for_interconnects():
    assert [measured.place(name, 8).num_hosts for name in ("IC1", "IC2", "IC3", "IC4")] == [2, 4, 1, 8]
    with pytest.raises(ValueError, match="interconnect is 'IC5'; it must be one of IC1, IC2, IC3, IC4"):
        measured.place("IC5", 8)


def test_the_bytes_that_leave_a_host_are_those_of_the_rings_that_do():
    halves, single = measured.place("IC1", 8), measured.place("IC4", 8)
    value = halves.batch * halves.sequence * halves.hidden * 4  # bytes of an activation
    # (8, 1): four messages on one ring, 2 * 7 / 8 of each; (2, 4): four rings, a quarter of each message, 2 * 1 / 2
    assert measured.link_bytes(halves, 8, 1) == measured.link_bytes(single, 8, 1) == 7 * value
    assert measured.link_bytes(halves, 2, 4) == 4 * value


def test_links_are_as_slow_as_the_share_of_communication_asks():
    # 2 s without links are half of 4 s; 1 s of the iteration is not the links' time, so 30 bytes take 3 s
    assert measured.rate_at_share(30, 1.0, 2.0, 0.5) == 10
    fastest = measured.rate_at_share(30, 4.0, 2.0, 0.5)  # no link is fast enough
    assert fastest == pytest.approx(measured.FASTEST_BYTES_PER_S)


def test_the_choice_of_links_sees_megatron_alone_and_reaches_the_share_of_table_3(monkeypatch):
    asked = []

    def time(setting, schemes, turns, *, links):
        asked.append((*schemes, links))
        is_slow = setting.num_hosts > 1
        sent_s = is_slow and measured.link_bytes(setting, 8, 1) / (setting.gigabits_per_s * 1e9 / 8)
        seconds = 0.1 + sent_s if is_slow else 0.3  # two thirds of an iteration overlap with the links
        return SimpleNamespace(iterations_s=lambda name: [seconds] * 6)

    monkeypatch.setattr(measured, "time_schemes", time)
    setting, rows = measured.place_at_share("IC2", 8, Turns(rounds=6))
    assert asked == [(measured.MEGATRON, False)] * 2
    # table 3, M3: 73.61 TFLOP/s on IC2, 151.98 on IC3
    (rate,) = values(rows, "rate_bytes_per_s", choice="corrected")
    assert 0.1 + measured.link_bytes(setting, 8, 1) / rate == pytest.approx(0.3 * 151.98 / 73.61)
    assert setting.gigabits_per_s == pytest.approx(rate * 8 / 1e9)
    assert measured.place_at_share("IC3", 8, Turns(rounds=6)) == (measured.place("IC3", 8), [])


def test_a_mesh_that_is_not_of_all_ranks_is_named_before_ranks_start():
    with pytest.raises(ValueError, match="schemes has 'ATP-3'; i of ATP-i must divide the 8 ranks"):
        measured.time_schemes(measured.Setting(), ["ATP-3"], Turns(rounds=6))


test_settings_that_cannot_be_are_named = refusals(
    ({"num_ranks": 1}, "num_ranks is 1"),
    ({"num_hosts": 3}, "num_hosts is 3; it must divide the 8 ranks"),
    ({"gigabits_per_s": 0.0}, "gigabits_per_s is 0.0"),
    ({"heads": 4}, "num_heads: 4 is not divisible by 8"),
    of=measured.Setting,
)
