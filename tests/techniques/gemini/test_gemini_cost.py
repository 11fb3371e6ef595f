"""The cost model and the simulated training: by hand, against the literal simulation, limits and units."""

import math
import random
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from cases import refusals

from workbench.cluster import FittedMachine, Link
from workbench.techniques.gemini import cost
from workbench.techniques.gemini.cost import DAY_S, Cause, Fault, FaultKind, poisson_faults, simulate_training
from workbench.techniques.gemini.method import waste
from workbench.techniques.gemini.method.interleaving import Scheme, planning_spans_s
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.waste import Family, ModelSizes, Tier, checkpoint_bytes, gemini, high_frequency
from workbench.techniques.gemini.simulated import checkpoints
from workbench.techniques.gemini.simulated.failures import training_timeline
from workbench.timeline import Kind, format_timeline

# hidden 4, inner 16, one layer: 4·16 + 2·4·16 = 192 matrix parameters; batch 2 of 3 tokens.
SIZES = ModelSizes(
    family=Family.GPT_2, hidden_size=4, intermediate_size=16, num_layers=1, num_heads=1, vocab_size=10, max_positions=3
)
TINY = cost.workload_of(SIZES, "tiny", batch=2, sequence=3)
TINY_FLOPS = 4 * 2592 + 1440  # a layer forward, forward again and backward; the head
CHECKPOINT_BYTES = checkpoint_bytes(TINY.num_parameters)


def machine(**changes) -> FittedMachine:
    network, link = Link(bandwidth_bytes_per_s=96.0), Link(bandwidth_bytes_per_s=1.0)
    rates = {"copy_bytes_per_s": 200.0, "storage_bytes_per_s": 10.0, "memory_bytes_per_s": 100.0}
    flops = {"flops_per_s": 1000.0, "peak_flops_per_s": 2000.0}
    whole = {"num_hosts": 2, "devices_per_host": 2, "network": network, "host_memory_bytes": 1e6, **rates, **flops}
    return FittedMachine(name="small", source="test", link=link, **whole | changes)


def test_a_model_has_the_parameters_and_flops_of_the_textbook_and_a_layer_is_gathered_twice_and_scattered_once():
    # 24·b·s·h² + 4·b·s²·h = 24·2·3·16 + 4·2·9·4 = 2304 + 288.
    assert (TINY.layer_flops, TINY.head_flops) == (2592, 2 * 2 * 3 * 4 * 10)
    # Token and position embeddings 52, biases and norms of the layer 9·4 + 16, the last norm 8.
    assert TINY.num_parameters == 192 + 52 + 52 + 8
    # 192 parameters in half precision are 384 bytes, of which 3/4 pass a machine's link of 96 bytes/s: 3 s.
    forward, head, backward = cost.phases_of(TINY, machine())
    assert (forward.gather_s, forward.scatter_s, forward.compute_s, forward.kind) == (3, 0, 2.592, Kind.FORWARD)
    assert (backward.gather_s, backward.scatter_s, backward.compute_s) == (3, 3, pytest.approx(7.776))
    # The head has what the layer's matrices leave of the parameters.
    assert head.gather_s == head.scatter_s == 2 * (TINY.num_parameters - 192) * 0.75 / 96
    # The update reads and writes 28 bytes a parameter.
    [*_, update] = cost.iteration_of(TINY, machine(), Scheme.BASELINE).timeline.of("compute")
    assert update.duration_s == pytest.approx(28 * TINY.num_parameters / 4 / 100)


def test_without_a_network_worth_the_name_an_iteration_is_its_messages_and_with_an_infinite_one_its_flops():
    machines = [machine(network=Link(bandwidth_bytes_per_s=rate)) for rate in (1e-3, 1.0, 96.0, 1e12)]
    times_s = [cost.baseline_s(TINY, server) for server in machines]
    messages_s = (3 * 384 + 2 * 2 * (TINY.num_parameters - 192)) * 0.75 / 1e-3
    assert times_s[0] == pytest.approx(messages_s, rel=1e-3)
    update_s = 28 * TINY.num_parameters / 4 / 100
    assert times_s[-1] == pytest.approx(TINY_FLOPS / 1000 + update_s, rel=1e-6)
    assert times_s == sorted(times_s, reverse=True), "a faster network never makes an iteration longer"


def test_a_checkpoint_passes_each_link_once_a_replica_and_tiers_are_slower_in_the_order_of_trying_them():
    shard = CHECKPOINT_BYTES / 2
    assert cost.checkpoint_s(TINY, machine()) == pytest.approx(shard / 96)
    assert cost.checkpoint_s(TINY, machine(num_hosts=4), num_replicas=3) == pytest.approx(2 * shard / 2 / 96)
    assert cost.checkpoint_s(TINY, machine(), num_replicas=1) == 0
    # Copying slower than the network limits it.
    assert cost.checkpoint_s(TINY, machine(copy_bytes_per_s=48.0)) == pytest.approx(shard / 48)
    assert cost.storage_s(TINY, machine()) == cost.storage_s(TINY, machine(num_hosts=16)) == CHECKPOINT_BYTES / 10
    # An agent keeps two buffers for each of two replicas.
    assert cost.agent_memory_bytes(TINY, machine()) == 2 * 2 * shard
    late = machine(network=Link(bandwidth_bytes_per_s=96.0, latency_s=0.5))
    job = cost.job_of(TINY, late)
    assert job.retrieval_s(Tier.LOCAL) == 0
    assert job.retrieval_s(Tier.PEER) == 0.5 + CHECKPOINT_BYTES / 2 / 96
    assert job.retrieval_s(Tier.STORAGE) == cost.storage_s(TINY, late)
    assert job.iteration_s == cost.baseline_s(TINY, late)


def test_the_model_meets_the_three_numbers_that_it_is_fitted_to_and_idle_spans_carry_a_device_s_9_4_gb():
    fitted, large, small = cost.calibrated(), cost.workload_named("GPT-2 100B"), cost.workload_named("GPT-2 40B")
    assert cost.baseline_s(large, fitted.p4d) == pytest.approx(62, rel=1e-6)
    slow = fitted.p4d.with_network(100)
    assert cost.storage_s(large, slow) / cost.checkpoint_s(large, slow) == pytest.approx(65, rel=1e-9)
    blocking_s = cost.iteration_of(small, fitted.p3dn, Scheme.BLOCKING).iteration_s
    assert blocking_s / cost.baseline_s(small, fitted.p3dn) == pytest.approx(1.101, rel=1e-6)
    # The network's nominal rate gives 16 · 100 / 20 = 80 times; 65 of these are 81 %.
    assert fitted.p4d.network_share == fitted.p3dn.network_share == pytest.approx(65 / 80, rel=1e-3)
    assert 7 < cost.storage_s(large, fitted.p4d) / 62 < 8, "every eight iterations"
    assert fitted.p3dn.copy_bytes_per_s == 12.5e9, "the network's nominal rate"
    large_share, small_share = (server.flops_per_s / server.peak_flops_per_s for server in (fitted.p4d, fitted.p3dn))
    assert 0 < large_share < 1 and 0 < small_share < 1
    assert fitted.transferred.flops_per_s == large_share * fitted.p3dn.peak_flops_per_s
    traffic = cost.traffic_of(large, fitted.p4d)
    assert traffic.checkpoint_bytes == pytest.approx(9.4e9, rel=0.005)  # section 6.5.2
    assert (traffic.reserved_bytes, traffic.num_buffers) == (128 * 2**20, 4)  # section 6.7.1 and 6.7.4
    spans_s = planning_spans_s(cost.phases_of(large, fitted.p4d))
    assert len(spans_s) == 3 * 124 + 2 + 1  # layers gathered twice, scattered once; the head; the end
    assert math.fsum(spans_s) > cost.checkpoint_s(large, fitted.p4d)


# 800 bytes: 40 s to storage; a shard of 200 bytes takes 2 s over a link.
JOB = waste.Job(iteration_s=10, state_bytes=800, num_machines=4, storage_bytes_per_s=20, network_bytes_per_s=100)
COSTS = cost.Overheads(detection_s=1, serialise_s=3, least_replacement_s=5, most_replacement_s=5, warm_up_s=4)
SETTING = cost.Setting(
    job=JOB, policy=gemini(JOB, storage_interval_s=100), overheads=COSTS, placement=placement(4, 2, kind="group")
)
HIGH = replace(SETTING, policy=high_frequency(JOB))


def run(setting, trace):
    """Simulate failures, as the definition does it, too."""
    result = simulate_training(setting, trace)
    assert result == cost.simulate_training_by_definition(setting, trace)
    return result


def trace_of(length, *rows, step_s=1):
    """Read a row a machine, by step: S is a software failure; all H of a step are machines lost at once."""
    faults = []
    for step in range(length):
        hits = {word: [number for number, row in enumerate(rows) if row.get(step) == word] for word in "SH"}
        for machine in hits["S"]:
            faults.append(Fault(time_s=step * step_s, kind=FaultKind.SOFTWARE, machines=(machine,)))
        if hits["H"]:
            faults.append(Fault(time_s=step * step_s, kind=FaultKind.HARDWARE, machines=tuple(hits["H"])))
    return cost.FaultTrace(num_machines=4, duration_s=length * step_s, faults=tuple(faults))


def replaced_s(setting, *rows):
    return run(setting, trace_of(200, *rows)).wasted_s[Cause.REPLACEMENT]


def test_without_failures_gemini_wastes_nothing_and_high_frequency_its_serialising():
    nothing = trace_of(600)
    assert simulate_training(SETTING, nothing).effective_ratio == 1
    # Every 4 iterations 2 s: periods of 42 s; 600 s are 14 of them and 12 s.
    serialising = replace(HIGH, policy=high_frequency(replace(JOB, serialise_s=2)), job=replace(JOB, serialise_s=2))
    assert simulate_training(serialising, nothing).wasted_s[Cause.CHECKPOINTING] == pytest.approx(28)


HARD = {35: "H"}
HISTORIES = [
    # At 35 s three iterations are done; the third's checkpoint completes at 40, the second's did at 30.
    (60, [{35: "S"}], {"LOST": 15, "DETECTION": 1, "SERIALISING": 3, "REPLACEMENT": 0, "WARM_UP": 4}, (1, 0, 0)),
    # A lost machine is replaced and reads its shard from a peer; so are two machines of different groups.
    (60, [HARD], {"LOST": 15, "REPLACEMENT": 5, "RETRIEVAL": 2, "WARM_UP": 4}, (0, 1, 0)),
    (60, [HARD, {}, HARD], {}, (0, 1, 0)),
    # A whole group: storage holds nothing but the initial states: all is lost, 40 s to read, nothing to serialise.
    (120, [HARD, HARD], {"LOST": 35, "RETRIEVAL": 40, "SERIALISING": 0}, (0, 0, 1)),
    # Machine 0 is back at 50 s (35 + 15) and holds its peer's replica again from 70: machine 1 fails before, and after.
    (200, [HARD, {65: "H"}], {}, (0, 1, 1)),
    (200, [HARD, {75: "H"}], {}, (0, 2, 0)),
    # Its own shard is there at once: a software failure reads local memory.
    (200, [HARD, {65: "S"}], {}, (1, 1, 0)),
    # Lost at 35, detected 36, serialised 39; at 41, waiting for the machine until 44, another group's fails:
    # detection 1 + 1, serialising 3 + 3, replacement 2, and 5 for the second, requested at 45.
    (100, [HARD, {}, {41: "H"}], {"DETECTION": 2, "SERIALISING": 6, "REPLACEMENT": 2 + 5}, (0, 1, 0)),
    # The partner lost within a recovery sends all to storage.
    (300, [HARD, {41: "H"}], {"LOST": 35}, (0, 0, 1)),
    # Storage every 10 iterations: that of 100 s is complete at 140. A group lost at 145 goes back to iteration 10,
    # at 195 s memory holds it, and at 200 s the 5 s after it are lost.
    (300, [{145: "H"}, {145: "H", 200: "S"}], {"LOST": 45 + 5}, (1, 0, 1)),
    # The end comes within the recovery: progress counts as rolled back.
    (38, [{35: "S"}], {"LOST": 15, "SERIALISING": 2}, (0, 0, 0)),
]


@pytest.mark.parametrize(("length", "rows", "wasted_s", "recoveries"), HISTORIES)
def test_a_drawn_history_wastes_and_recovers_as_by_hand(length, rows, wasted_s, recoveries):
    result = run(SETTING, trace_of(length, *rows))
    assert {cause: result.wasted_s[Cause[cause]] for cause in wasted_s} == wasted_s
    assert tuple(result.num_recoveries[tier] for tier in (Tier.LOCAL, Tier.PEER, Tier.STORAGE)) == recoveries
    assert result.productive_s + sum(result.wasted_s.values()) == pytest.approx(length)


def test_a_machine_that_is_away_cannot_fail_again_and_a_standby_takes_its_place_and_is_requested_again():
    # Lost at 35, replaced at 44: at 41 nobody is there to fail, at 46 the new one is; another one interrupts.
    assert run(SETTING, trace_of(100, {35: "H", 41: "H"})).num_failures == 1
    assert run(SETTING, trace_of(100, {35: "H", 45: "H"})).num_failures == 2
    assert run(SETTING, trace_of(100, HARD, {}, {41: "H"})).num_interrupted == 1
    slow = replace(COSTS, least_replacement_s=9, most_replacement_s=9)
    ready = replace(SETTING, num_standbys=1, overheads=slow)
    assert replaced_s(ready, HARD) == 0
    # The next standby is there at 39 + 9: too late for a failure at 40, requested at 44; in time for one at 90.
    assert replaced_s(ready, HARD, {}, {40: "H"}) == replaced_s(ready, HARD, {}, HARD) == 9
    assert replaced_s(ready, HARD, {}, {90: "H"}) == 0


def test_an_incomplete_checkpoint_is_not_gone_back_to():
    # HighFreq: snapshots at 40 and 80 s, complete at 80 and 120.
    lost = {at: run(HIGH, trace_of(200, {at: "S"})).wasted_s[Cause.LOST] for at in (79, 80, 81, 119, 121)}
    assert lost == {79: 79, 80: 40, 81: 41, 119: 79, 121: 41}


POLICIES = (
    gemini(JOB),
    replace(
        gemini(JOB, storage_interval_s=170), memory=waste.Level(interval_iterations=3, blocking_s=1.7, transfer_s=10)
    ),
    high_frequency(replace(JOB, serialise_s=8.3)),
    waste.strawman(replace(JOB, serialise_s=8.3), interval_s=300),
)


def test_a_machine_fails_at_exponential_gaps_by_its_rate_and_in_the_kinds_asked_for():
    # 2,000 machines x 30 days x 0.05 a day = 3,000 faults with standard deviation 55; a quarter of them hardware.
    rates = {"failures_per_machine_day": 0.05, "hardware_share": 0.25}
    trace = poisson_faults(2000, duration_s=30 * DAY_S, **rates, seed=1)
    assert abs(len(trace.faults) - 3000) < 4 * math.sqrt(3000)
    hard = sum(fault.kind is FaultKind.HARDWARE for fault in trace.faults)
    assert abs(hard - len(trace.faults) / 4) < 4 * math.sqrt(3000 * 0.25 * 0.75)
    # The mean gap is 1/10 of a day; of exponential gaps a share of 1/e is longer than the mean.
    trace = poisson_faults(1, duration_s=500 * DAY_S, failures_per_machine_day=10, seed=5)
    gaps = [after.time_s - before.time_s for before, after in pairwise(trace.faults)]
    assert fmean(gaps) == pytest.approx(DAY_S / 10, rel=0.05)
    assert sum(gap > DAY_S / 10 for gap in gaps) / len(gaps) == pytest.approx(math.exp(-1), abs=0.03)
    more = poisson_faults(40, duration_s=60 * DAY_S, failures_per_machine_day=0.1, seed=7)
    fewer = poisson_faults(20, duration_s=30 * DAY_S, failures_per_machine_day=0.1, seed=7)
    same = tuple(fault for fault in more.faults if fault.machines[0] < 20 and fault.time_s < 30 * DAY_S)
    assert (
        fewer.faults == same != poisson_faults(20, duration_s=30 * DAY_S, failures_per_machine_day=0.1, seed=8).faults
    )


@pytest.mark.parametrize("seed", range(4))
def test_the_simulation_from_failure_to_failure_is_that_of_every_iteration(seed):
    draws = random.Random(seed)
    placed = placement(draws.choice((4, 5, 6, 16)), draws.choice((1, 2, 3)))
    drawn = {"failures_per_machine_day": draws.choice((5, 20, 100)), "hardware_share": draws.random(), "seed": seed}
    single = poisson_faults(placed.num_machines, duration_s=DAY_S / 4, **drawn)
    pairs = poisson_faults(placed.num_machines - 1, duration_s=DAY_S / 4, failures_per_machine_day=3, seed=seed + 100)
    both = (replace(pair, machines=(pair.machines[0], pair.machines[0] + 1)) for pair in pairs.faults)
    trace = replace(single, faults=(*single.faults, *both))
    changes = {"policy": POLICIES[seed % 4], "placement": placed, "num_standbys": draws.choice((0, 1, 3)), "seed": seed}
    setting = replace(SETTING, **changes)
    fast, literal = (way(setting, trace) for way in (simulate_training, cost.simulate_training_by_definition))
    assert fast.productive_s == pytest.approx(literal.productive_s, rel=1e-9)
    assert dict(fast.wasted_s) == pytest.approx(dict(literal.wasted_s), rel=1e-9, abs=1e-6)
    assert (fast.num_recoveries, fast.num_interrupted) == (literal.num_recoveries, literal.num_interrupted)
    assert fast.productive_s + sum(fast.wasted_s.values()) == pytest.approx(DAY_S / 4)


@pytest.mark.parametrize(("policy", "tier"), [(gemini, Tier.LOCAL), (high_frequency, Tier.STORAGE)])
def test_the_mean_waste_of_many_failures_is_equation_6_1(policy, tier):
    # Two failures a day, far enough apart not to meet; HighFreq without serialising, which the equation leaves out.
    job = replace(cost.GPT2_100B, serialise_s=0.0)
    policy = policy(job)
    trace = poisson_faults(16, duration_s=2000 * DAY_S, failures_per_machine_day=1 / 8, hardware_share=0.0, seed=2)
    result = simulate_training(cost.Setting(job=job, policy=policy), trace)
    wasted_s = (result.wasted_s[Cause.LOST] + result.wasted_s[Cause.RETRIEVAL]) / sum(result.num_recoveries.values())
    assert wasted_s == pytest.approx(waste.average_wasted_s(policy, job, tier), rel=0.03)


def ratio(rate, num_replicas, num_machines=16, **more):
    placed = placement(num_machines, num_replicas)
    trace = poisson_faults(num_machines, duration_s=30 * DAY_S, failures_per_machine_day=rate, seed=3, **more)
    setting = cost.Setting(job=cost.GPT2_100B, policy=gemini(cost.GPT2_100B), placement=placed)
    return simulate_training(setting, trace).effective_ratio


def test_more_failures_and_fewer_replicas_never_help_and_a_thousand_machines_are_effective_for_nine_tenths():
    assert ratio(0.01, 2) > ratio(0.1, 2) > ratio(1.0, 2)
    assert ratio(0.5, 1) < ratio(0.5, 2) <= ratio(0.5, 3)
    assert 0.85 < ratio(0.015, 2, num_machines=1000, hardware_share=0.5) < 0.95


def test_the_timeline_of_a_failure_reads_as_a_grid_and_one_of_joined_iterations_shows_what_is_lost():
    trace = trace_of(6, {}, {3: "S"}, step_s=10)
    tens = cost.Overheads(detection_s=10, serialise_s=0, least_replacement_s=0, most_replacement_s=0, warm_up_s=0)
    setting = replace(SETTING, overheads=tens)
    timeline = training_timeline(setting, simulate_training(setting, trace))
    # At 30 s the second iteration's checkpoint is complete, the third's has not begun: the third is done again.
    assert format_timeline(timeline, step_s=10).splitlines() == [
        "training              | 1 2 3 .         3 4",
        "checkpoint in memory  | . 1 2 .         . 3",
        "checkpoint in storage | . . . .         . .",
        "recovery              | . . . detection . .",
    ]
    kinds = [(action.label, action.kind.value) for action in timeline.of("training")]
    assert kinds == [("1", "compute"), ("2", "compute"), ("3", "other"), ("3", "compute"), ("4", "compute")]
    timeline = training_timeline(SETTING, run(SETTING, trace_of(60, {35: "S"})), every_iteration=False)
    assert [action.label for action in timeline.of("training")] == ["1 to 2", "3 to 4", "3 to 4"]
    memory = [(action.label, action.start_s, action.end_s) for action in timeline.of("checkpoint in memory")]
    assert memory == [("1", 10, 20), ("2", 20, 30), ("lost", 30, 35), ("lost", 53, 60)]


LOST = trace_of(60, HARD)


def fault(**changes):
    return Fault(**({"time_s": 1.0, "kind": FaultKind.HARDWARE, "machines": (0,)} | changes))


test_bad_input_is_refused_by_name = refusals(
    (lambda: cost.paper_machine("zen/16x-v100-25gbps"), "storage_bytes_per_s of machine .* is None; it must be"),
    (lambda: cost.workload_named("GPT-5"), "model is 'GPT-5'; it must be one of 'GPT-2 10B'"),
    (lambda: cost.traffic_of(TINY, machine(), num_replicas=3), r"num_replicas is 3; it must be in 1..2"),
    (lambda: cost.agent_memory_bytes(TINY, machine(), num_replicas=0), "num_replicas is 0"),
    (lambda: cost.network_share_of(TINY, machine(), 1e9), "reduction is 1000000000.0; the whole bandwidth"),
    (lambda: cost.network_share_of(TINY, machine(), 0.0), "reduction is 0.0"),
    (lambda: simulate_training(replace(SETTING, placement=None), LOST), "placement is None"),
    (lambda: simulate_training(replace(SETTING, placement=placement(6, 2)), LOST), "num_machines of .* is 6"),
    (lambda: replace(SETTING, policy=gemini(cost.GPT2_100B)), "iteration_s of the policy is 62"),
    (lambda: replace(SETTING, num_standbys=-1), "num_standbys is -1"),
    (lambda: replace(COSTS, most_replacement_s=4), "most_replacement_s is 4"),
    (lambda: fault(time_s=-1.0), "time_s is -1.0"),
    (lambda: fault(machines=()), r"machines is \(\); it must name at least 1"),
    (lambda: fault(machines=(1, 1)), "different ones"),
    (lambda: replace(trace_of(60), num_machines=0), "num_machines is 0"),
    (lambda: replace(LOST, faults=(fault(machines=(4,)),)), r"machines is \(4,\); it must be in 0..3"),
    (lambda: replace(LOST, duration_s=35), "time_s is 35; it must be below duration_s, 35"),
    (lambda: poisson_faults(2, duration_s=9, hardware_share=1.5, seed=0), "hardware_share is 1.5"),
    (lambda: poisson_faults(2, duration_s=9, failures_per_machine_day=-1, seed=0), "per_machine_day is -1"),
    (lambda: checkpoint_bytes(-1), "parameters is -1"),
    (lambda: checkpoints.predict_models("p5", ["GPT-2 10B"]), "machine is 'p5'"),
)


def test_levels_that_block_do_so_memory_first():
    memory = waste.Level(interval_iterations=2, blocking_s=3, transfer_s=5)
    storage = waste.Level(interval_iterations=2, blocking_s=4, transfer_s=6)
    policy = waste.CheckpointPolicy(name="both", iteration_s=10, storage=storage, memory=memory)
    # Iteration 2 ends at 20, memory blocks until 23 and is complete at 28, storage until 27 and at 33.
    stretches = [cost.advanced(policy, 0, elapsed_s) for elapsed_s in (27.9, 28, 32.9, 33)]
    assert [(stretch.memory, stretch.storage) for stretch in stretches] == [(None, None), (2, None), (2, None), (2, 2)]
    assert [stretch.position for stretch in stretches] == pytest.approx([2.09, 2.1, 2.59, 2.6])
