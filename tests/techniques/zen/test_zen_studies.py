"""Rows of Zen's studies by hand, and what they refuse."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.cases import refusals, value, values
from workbench.cluster import Link
from workbench.datasets.places import DataError
from workbench.reproduction.findings import recorded_values
from workbench.rows import value_row
from workbench.study.timing import Turns
from workbench.techniques import zen
from workbench.techniques.zen import advice, cost, counted, measured, simulated


@pytest.fixture
def release():
    try:
        return counted.lstm_sets(2)
    except DataError as error:
        pytest.skip(str(error))


def test_the_papers_lstm_touches_the_softmax_rows_that_it_samples(release):
    sets, num_rows = release
    assert num_rows == 2 * 793_471
    assert all(1134 <= np.sum(indices < 793_471) <= 1240 for indices in sets)  # distinct words of a batch
    assert all(8192 <= np.sum(indices >= 793_471) <= 8192 + 1240 for indices in sets)
    rows = counted.lm1b_rows()
    assert value(rows, "density", table="softmax") == pytest.approx(0.01105, abs=2e-5)
    assert value(rows, "skewness", table="input", partitions=128) > value(rows, "skewness", table="softmax") > 1
    assert value(rows, "share", table="softmax", range=0) == pytest.approx(0.7165, abs=1e-3)


def test_losses_follow_the_formula():
    size = {"domain_size": 100_000, "num_partitions": 4, "seed": 0}
    rows = counted.loss_rows(densities=[0.2], memories=[1], **size)
    assert value(rows, "lost_by_formula") == pytest.approx(1 - 5 * (1 - np.exp(-0.2)))
    assert value(rows, "lost") == pytest.approx(value(rows, "lost_by_formula"), abs=0.01)
    left = [value(rows, "without_slot", hashes=hashes, slots=2) for hashes in (3, 4)]
    assert 0 < left[1] < left[0] < 0.06
    assert value(rows, "without_slot", hashes=4, slots=4) < left[1] / 4


def test_speedups_of_printed_densities_by_hand():
    rows = simulated._printed_rows("BERT")
    assert value(rows, "speedup_of_printed_densities", scheme="Zen, COO", gpus=1) == pytest.approx(1 / 0.4186)
    assert value(rows, "speedup_of_printed_densities", scheme="Zen", gpus=1) == pytest.approx(2 / 0.46045)
    assert value(rows, "bitmap_gain_of_printed_densities", gpus=1) == pytest.approx(2 * 0.4186 / 0.46045 - 1)
    assert simulated._printed_rows("DeepFM") == []


def test_the_bitmap_gains_least_where_a_machines_gradient_is_as_dense_as_the_sum():
    def gain(share):  # of the density that gives 2.39 with COO, sent by a machine; the rest is the sum's
        return 2 / (2 * share + (1 - share) + 2.39 / 32) - 1

    least = value(simulated._printed_rows("BERT"), "bitmap_gain_of_least_densities")
    assert least == pytest.approx(gain(0.5)) == pytest.approx(0.2701, abs=1e-4)
    assert least < gain(0.49) < gain(0.1)
    nmt = simulated._printed_rows("NMT")
    assert value(nmt, "speedup_of_least_densities", scheme="Zen") == pytest.approx(2 / 0.99125)


def test_formats_are_sized_by_hand():
    rows = counted.format_rows(domain_size=64 * 256, densities=[0.5, 0.75], num_partitions=16, seed=0)
    sizes = {row["format"]: row["value"] for row in rows if row.get("density") == 0.5}
    assert sizes["hash bitmap"] == pytest.approx(0.5 + 1 / 32, rel=1e-3)  # but for what fills the last bytes
    assert sizes["bitmap"] == 0.5 + 16 / 32
    assert sizes["COO"] == 1.0
    assert sizes["tensor blocks, scattered"] == pytest.approx(1 + 1 / 256)


def test_theorem_3_1_needs_more_than_some_overlap(release, monkeypatch):
    rows = counted.space_rows(num_ranks=[4], seed=0)
    balanced = {"scheme": "Point-to-point, One-shot, Parallelism, Balanced", "overlap": "partial"}
    assert value(rows, "behind_best", ranks=4, **balanced) > 0.05  # SparCML sends less
    monkeypatch.setattr(counted, "OVERLAPS", ["partial"])
    assert value(counted.space_rows(num_ranks=[16], seed=0), "behind_best", ranks=16, **balanced) == 0
    assert value(rows, "schemes") == 15


def test_tables_of_a_task_are_counted_one_by_one():
    task = measured.EmbeddingTask("nmt", batch=2, seed=0, size="tiny")
    tables = simulated.task_sets(task, 1)
    assert [num_rows for _, num_rows in tables] == list(task.embeddings.values())
    for ((rows,), _), touched in zip(tables, task.touched(0, 0).values(), strict=True):
        assert rows.tolist() == touched.tolist()


def test_computation_is_what_the_calibrated_gain_needs(monkeypatch):
    times = {"Dense": 1.0, "Zen": 0.25}
    monkeypatch.setattr(simulated, "_communication_s", lambda name, scheme, *_: times[scheme])
    gain = simulated.MODELS["LSTM"].gain
    computation_s = simulated.computation_s("LSTM")
    assert (computation_s + 1.0) / (computation_s + 0.25) == pytest.approx(gain)


def test_the_modelled_ranks_are_as_dense_as_asked_and_overlap():
    of = advice.modelled(0.05, 8)
    assert of.density[1] == pytest.approx(0.05, rel=1e-3)
    assert 0.05 < of.density[8] < 8 * 0.05
    assert of.push["ranges"] > of.pull["ranges"] > 1


test_wrong_arguments_are_refused = refusals(
    (lambda: advice.modelled(1.0, 8), "density is 1.0"),
    (lambda: advice.modelled(0.1, 6), "num_ranks is 6; it must be a power of two"),
    (lambda: measured.Setting(num_ranks=1), "num_ranks is 1"),
    (lambda: measured.Setting(gigabits_per_s=0), "gigabits_per_s is 0"),
)


def advised(shares, is_summed=False):
    tensor = torch.zeros(40_000)
    tensor[: round(shares[dist.get_rank()] * 40_000)] = 1.0 + dist.get_rank()
    if is_summed:
        dist.all_reduce(tensor)
    return zen.advise(tensor, Link(bandwidth_bytes_per_s=1e9, source="a test"))


def refused(*args):
    with pytest.raises(ValueError, match="gradient is the same on all ranks"):
        advised(*args)


def test_advice_is_the_same_on_all_ranks_and_turns_dense_with_density(pools):
    few, many = pools(2).run(advised, [0.01, 0.01]), pools(2).run(advised, [0.9, 0.9])
    pools(2).run(refused, [0.01, 0.01], True)
    assert str(few[0]) == str(few[1])
    assert few[0].sparsity.density == {1: 0.01, 2: 0.01}
    assert few[0].best != "Dense"
    assert many[0].best in ("Dense", "Zen")
    assert "1.00% in the sum" in str(few[0])
    assert few[0].point == (0.01, 2)
    assert {row["gigabits_per_s"] for row in few[0].map_rows()} == {8.0}


def test_times_are_said_in_a_sentence():
    times = {"Dense": 0.11, "AGsparse": 0.0444, "Zen, COO": 0.05, "Zen": 0.021}
    values = [{"quantity": "seconds", "scheme": name, "density": 0.01, "value": s} for name, s in times.items()]
    said = measured.in_words(values, measured.Setting(), 0.01)
    assert said == "4 ranks at 1 Gbit/s sum gradients of 1% density by Zen in 21 ms; Dense 110 ms, AGsparse 44 ms."


def test_schemes_take_turns_and_their_bytes_are_counted(pools, monkeypatch):
    monkeypatch.setattr(measured, "open_ranks", lambda num_ranks, **more: nullcontext(pools(num_ranks)))
    setting = measured.Setting(num_ranks=2, gigabits_per_s=1.0)
    timed = measured.time_densities(setting, [0.05], 4000, Turns(rounds=6))
    rows = measured.scheme_rows(timed, "density", measured.predicted_s(setting, [0.05], 4000))
    assert value(rows, "busiest_bytes", scheme="Dense") == 4000 * 4
    assert value(rows, "predicted_s", scheme="Dense") == pytest.approx(4000 * 4 / 125e6)
    assert {row["over"] for row in rows if row["quantity"] == "gain"} == set(measured.SCHEMES)


def test_dense_takes_over_between_two_densities():
    rows = [value_row("gain", gain, over="Dense", density=at) for at, gain in ((0.01, 4.0), (0.1, 2.0), (1.0, 0.5))]
    assert values(measured._crossover_rows(rows), "dense_takes_over") == [pytest.approx(10**-0.5)]


def test_the_map_has_the_schemes_that_were_the_fastest_on_real_ranks():
    times = {("Dense", 0.01): 3.0, ("Zen", 0.01): 2.0, ("torch, sparse", 0.01): 1.0, ("Dense", 0.5): 1.0}
    rows = [value_row("seconds", took, "s", scheme=scheme, density=at) for (scheme, at), took in times.items()]
    fastest = advice.fastest_rows(rows, num_ranks=4, gigabits_per_s=1.0)
    assert [(row["density"], row["scheme"], row["value"]) for row in fastest] == [
        (0.01, "Zen", 2.0),
        (0.5, "Dense", 1.0),
    ]
    setting, recorded = measured.Setting(), recorded_values("zen/crossover/measured")
    drawn = [row for row in recorded_values("zen/map/simulated") if row["quantity"] == "fastest_s"]
    assert drawn == advice.fastest_rows(recorded, setting.num_ranks, setting.gigabits_per_s)


def test_thresholds_cut_what_was_known_into_even_parts_and_nothing_else():
    home = measured.threshold_homes(np.array([0, 1, 2, 9]), 12, 2)
    assert home.tolist() == [0, 0] + 10 * [1]


def test_a_broadcast_by_hand():
    # lemma 3.4 with s = 3, gamma = 2, four ranks and a tree of two rounds: (3 + 4/3 * 2 * 2) / (1 + 2)
    assert cost.broadcast_over_balanced(3.0, 2.0, 2, 4) == pytest.approx(25 / 9)
