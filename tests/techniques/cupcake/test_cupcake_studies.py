"""Costs, strategies and rows, by hand; what the paper's testbeds are calibrated on."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from workbench.cluster import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.datasets.places import DataError
from workbench.plots import rows_of
from workbench.study.data_parallel import ALONE
from workbench.study.timing import Timed, Turn
from workbench.techniques import cupcake
from workbench.techniques.cupcake import counted, measured, simulated
from workbench.techniques.cupcake.cost import (
    CUPCAKE,
    FP32_BUCKETS,
    GRACE,
    HIPRESS,
    Costs,
    costs_on,
    fitted,
    fitted_costs,
    is_worth_compressing,
    strategies,
)
from workbench.techniques.cupcake.method import FlatThenLinear, FusionProblem, Linear, iteration_time
from workbench.techniques.cupcake.plan import Plan, plan_of
from workbench.timeline import Action, Kind
from workbench.timeline.gradients import Gradients

COSTS = Costs(
    codec="test",
    compress=Linear(2.0, 0.0),
    communicate=Linear(1.0, 0.0),
    decode=Linear(0.0, 0.0),
    send_plain=Linear(0.0, 0.25),
)


def gradients(num_elements=(1, 1, 4), gap_s=(1.0, 1.0, 1.0)):
    names = tuple(f"t{number}" for number in range(len(num_elements)))
    order = {"tensors": names, "num_elements": tuple(num_elements), "gap_s": tuple(gap_s)}
    return Gradients(name="toy", forward_s=1.0, source="a test", **order)


def level(elements):
    return 1e-3 * np.maximum(1.0, np.asarray(elements) / 2**20)


CODEC = CodecTimes(
    name="toy", encode_s=dict.fromkeys(Processor, level), decode_s=dict.fromkeys(Processor, level), sent_bytes=0.08
)


def machines(num_machines, gpus_per_machine):
    slow = Link(bandwidth_bytes_per_s=1e9, latency_s=1e-4)
    fast = Link(bandwidth_bytes_per_s=1e10, latency_s=1e-5)
    intra = fast if num_machines > 1 else slow
    return Machines(num_machines=num_machines, gpus_per_machine=gpus_per_machine, intra=intra, inter=slow)


def test_every_rule_is_timed_by_hand():
    rules = strategies(gradients(), COSTS)
    # FP32: tensors of 4, 4 and 16 bytes are sent in 1, 1 and 4; computed at 2, 3 and 4.
    assert rules["FP32, each tensor"].iteration_s == 8.0 and rules[FP32_BUCKETS].iteration_s == 4.0 + 6.0
    # Each: encoded at 4, 7 and 10, sent by 11. One group: encoded at 6, sent by 7.
    assert rules[GRACE].iteration_s == 11.0 and rules[CUPCAKE].iteration_s == 7.0
    # HiPress compresses the last alone, 2 + 1 against 4: the others are sent by 3 and 4, it is encoded at 6.
    assert rules[HIPRESS].compressed == (False, False, True) and rules[HIPRESS].iteration_s == 7.0
    assert not is_worth_compressing(COSTS, 4) and is_worth_compressing(COSTS, 16)
    assert rules["FP16"].iteration_s == 4.0 + 3.0


def test_a_flat_time_and_a_line_are_fitted_exactly_and_the_line_alone_is_not():
    model = FlatThenLinear(1e-3, 4e6, 1e-9)
    line, both = fitted([(size, float(model(size))) for size in (1e3, 1e5, 4e6, 8e6, 3.2e7)])
    assert (both.flat_s, both.flat_bytes) == (pytest.approx(1e-3), 4e6) and both.s_per_byte == pytest.approx(1e-9)
    assert abs(line(4e6) / 1e-3 - 1) > 0.2


def test_what_a_cpu_works_while_it_sends_delays_the_backward_pass_and_leaves_the_link():
    sizes = (4e3, 4e5, 4e6)
    times = {  # 1 ms and 1 GB/s to encode; 3 ms and 0.5 GB/s to send, of which 2 ms and half the bytes' time are work
        "encode": [(size, 1e-3 + 1e-9 * size) for size in sizes],
        "send": [(size, 3e-3 + 2e-9 * size) for size in sizes],
        "work": [(size, 2e-3 + 1e-9 * size) for size in sizes],
        "decode": [(size, 1e-3) for size in sizes],
    }
    costs = fitted_costs("toy", times, times["send"])
    assert costs.compress(4e6) == pytest.approx(3e-3 + 8e-3) and costs.communicate(4e6) == pytest.approx(1e-3 + 4e-3)
    assert costs.decode(4e6) == pytest.approx(1e-3) and costs.send_plain(4e6) == pytest.approx(11e-3)
    assert max(costs.misses.values()) < 1e-6
    on_gpu = fitted_costs("toy", times | {"work": [(size, 0.0) for size in sizes]}, times["send"])
    assert on_gpu.compress(4e6) == pytest.approx(5e-3) and on_gpu.communicate(4e6) == pytest.approx(11e-3)
    measured = replace(costs, measured={FP32_BUCKETS: on_gpu})  # FP32 is predicted by what was measured of it
    first, buckets = strategies(gradients(), costs), strategies(gradients(), measured)
    assert measured.plain is on_gpu and buckets[CUPCAKE] == first[CUPCAKE]
    assert buckets[FP32_BUCKETS].iteration_s > first[FP32_BUCKETS].iteration_s


def test_costs_on_one_machine_are_an_all_gather_and_an_all_reduce():
    costs = costs_on(CODEC, machines(1, 8))
    assert costs.communicate(1e9) == pytest.approx(1e-4 + 7 * 0.02)  # 7 messages of 2 % at 1 GB/s
    assert costs.send_plain(1e9) == pytest.approx(2e-4 + 2 * 7 / 8)
    assert costs.compress(4.0) == pytest.approx(1e-3) and costs.decode(4.0) == pytest.approx(8e-3)
    at_once = replace(CODEC, decodes_at_once=True)
    assert costs_on(at_once, machines(1, 8)).decode(4.0) == pytest.approx(1e-3)


def test_on_several_machines_each_gpu_encodes_its_share_and_links_inside_come_after():
    costs = costs_on(CODEC, machines(4, 8))
    assert costs.communicate(1e9) == pytest.approx(1e-4 + 3 * 0.02)
    assert costs.send_plain(1e9) == pytest.approx(2e-4 + 2 * 3 / 4)
    assert costs.onward(1e9) == pytest.approx(2e-5 + 2 * 7 / 8 / 10)
    assert costs.compress(8 * 2**22) == pytest.approx(1e-3) and costs.decode(8.0) == pytest.approx(4e-3)
    assert costs.half.onward(1e9) == pytest.approx(2e-5 + 7 / 8 / 10)  # FP16 is sent as FP16 inside machines too
    assert FlatThenLinear(*costs.lines["compress"])(1e9) == costs.compress(1e9)


def test_headroom_compares_buckets_with_the_best_fusion():
    small = gradients((2**20,) * 8, (1e-3,) * 8)
    headroom = cupcake.headroom(small, machines(1, 8), codecs=["toy"], times={"toy": CODEC})
    problem = costs_on(CODEC, machines(1, 8)).problem(small)
    # 4 MiB close the first bucket, 28 the second.
    assert headroom.left["toy"].buckets_s == iteration_time(problem, (1, 8)) and headroom.left["toy"].gain >= 1.0
    assert headroom.left["FP16"].buckets_s < headroom.left["FP32"].buckets_s
    refused = {"codecs is empty": (small, []), "step is None": (nn.Linear(2, 2), ["dgc"])}
    refused["times has no 'dgc'; gradients without their model"] = (small, ["dgc"])
    for message, (model, codecs) in refused.items():
        with pytest.raises(ValueError, match=message):
            cupcake.headroom(model, machines(1, 8), codecs=codecs)


def test_the_examples_are_what_the_figures_show():
    slots = {row["scheme"]: row["value"] for row in counted.example_rows(counted.examples("5.1"))}
    assert slots == {"no overlap": 25.0, "WFBP": 17.0, "layer-wise": 17.0}
    slots = {row["scheme"]: row["value"] for row in counted.example_rows(counted.examples("5.3"))}
    assert slots == {"one group": 17.0, "layer-wise": 17.0, "fused best": 15.0}


def test_random_problems_say_who_misses():
    rows = counted.exactness_rows(num_problems=40, most_tensors=5, seed=4)
    misses = {(row["costs"], row["search"]): row["value"] for row in rows if row["quantity"] == "misses"}
    assert misses["α + β·x", "algorithm 5.1 as printed"] > 0 == misses["α + β·x", "algorithm 5.1"]
    assert [count for (_, search), count in misses.items() if search == "optimal_fusion"] == [0, 0, 0]
    smallest = rows_of(rows, "fewest_tensors", costs="flat, then linear", search="pruning 2 alone").iloc[0]
    assert smallest["value"] <= 5 and smallest["found"] != smallest["best"] and "backward" in smallest["tensors"]


def test_latencies_say_what_both_models_miss():
    rows = measured.latency_rows(codecs=["onebit"], log2_sizes=[8, 12, 16], runs=2)
    misses = rows_of(rows, "largest_miss", device="H100", operation="decode").set_index("model")["value"]
    assert misses["flat, then linear"] < misses["α + β·x"]


@pytest.fixture(scope="module")
def released():
    try:
        return simulated.gradients_of("resnet50")
    except DataError as error:
        pytest.skip(f"the authors' release is not here: {error}")


def test_the_server_is_calibrated_on_what_the_text_says(released):
    rules = strategies(released, simulated.costs_of("dgc", "server"))
    assert released.forward_s + released.backward_s == pytest.approx(48e-3)
    assert rules[FP32_BUCKETS].iteration_s == pytest.approx(104e-3, rel=1e-4)


def test_parts_of_an_iteration_add_up(released):
    rows = simulated.breakdown_rows(["dgc"])
    for scheme in (GRACE, CUPCAKE, FP32_BUCKETS):
        parts, whole = (rows_of(rows, quantity, scheme=scheme)["value"].sum() for quantity in ("part_s", "iteration_s"))
        assert parts == pytest.approx(whole)


def test_gains_are_those_of_the_iterations(released):
    rows = simulated.scaling_rows(models=["resnet50"], codecs=["dgc", "onebit"], testbed="server")
    factors = rows_of(rows, "scaling_factor", codec="dgc").set_index("scheme")["value"]
    (gain,) = rows_of(rows, "gain", codec="dgc", over=GRACE)["value"]
    assert gain == pytest.approx(factors[CUPCAKE] / factors[GRACE])
    (largest,) = rows_of(rows, "largest_gain", over=GRACE)["value"]
    assert largest == max(rows_of(rows, "gain", over=GRACE)["value"])
    (slower,) = rows_of(rows, "slower_cells", over="FP16")["value"]
    assert slower == sum(rows_of(rows, "gain", over="FP16")["value"] < 1) == 1  # OneBit


def test_a_search_that_is_stopped_says_so(released, monkeypatch):
    monkeypatch.setattr(measured, "gradients_of", lambda model: gradients((2**20, 2**18) * 12, (1e-3,) * 24))
    rows = measured.search_rows(models=["resnet50"], codec="dgc", num_runs=6, limit_s=0.01)
    how = rows_of(rows, "search_s").set_index(["way", "costs"])["how"]
    assert how["No Pruning", measured.LINE] == "stopped" and how["Dynamic programming", measured.FLAT] == "ended"
    growth = rows_of(measured.growth_rows(num_tensors=[10, 30], codec="dgc", num_runs=6), "growth")
    assert list(growth["costs"]) == [measured.LINE, measured.FLAT, measured.TWO_LINKS]


def test_predictions_stand_beside_what_was_measured_also_of_ddp_and_fp16():
    costs = replace(COSTS, misses={"compress": 0.1, "communicate": 0.2, "decode": 0.3, "send_plain": 0.4})
    rules = strategies(gradients(), costs)
    predicted_s = {name: strategy.iteration_s for name, strategy in rules.items()}
    plan = replace(plan_of(gradients(), rules[CUPCAKE], "dgc", 4, predicted_s), lines=costs.lines, misses=costs.misses)
    texts = {"DDP": "", "FP16": "", ALONE: "", CUPCAKE: plan.to_json()}
    seconds = {scheme: [(taken_in(14.0),)] * 6 for scheme in texts}
    timed = Timed(rounds=seconds, facts={scheme: ({"plan": text},) for scheme, text in texts.items()})
    rows = measured.iteration_rows(timed, measured.Setting(model="bert"))
    beside = rows_of(rows, "measured_over_predicted").set_index("scheme")["value"]
    assert dict(beside) == {"DDP": 1.4, "FP16": 2.0, CUPCAKE: 2.0}  # 10, 7 and 7 s were predicted
    assert list(rows_of(rows, "fitted_miss")["value"]) == [0.1, 0.2, 0.3, 0.4]


def test_a_prediction_follows_again_from_a_saved_plan():
    costs = replace(COSTS, compress=FlatThenLinear(2.0, 6.0, 0.5))
    best = strategies(gradients(), costs)[CUPCAKE]
    saved = plan_of(gradients(), best, "dgc", 4, {CUPCAKE: best.iteration_s})
    saved = Plan.from_json(replace(saved, lines=costs.lines).to_json())
    again = {name: FlatThenLinear(*numbers) for name, numbers in saved.lines.items()}
    sizes = [4 * num for num in saved.num_elements.values()]
    ends = np.cumsum([len(names) for names in saved.groups]).tolist()
    assert iteration_time(FusionProblem(saved.gap_s, sizes, saved.forward_s, **again), ends) == best.iteration_s


def taken_in(seconds):
    action = Action(resource="rank 0", start_s=0.0, end_s=seconds, kind=Kind.OTHER, label="iteration")
    return Turn(name="", length=1, actions=(action,), cpu_s=0.0)
