"""The simulated training: by hand, against the literal simulation, its invariants, its speed."""

import random
from dataclasses import replace

import pytest

from workbench.techniques.gemini.cost import (
    GPT2_100B,
    PAPER_OVERHEADS,
    Cause,
    Overheads,
    Setting,
    advanced,
    advanced_by_definition,
    simulate_training,
    simulate_training_by_definition,
)
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.waste import (
    CheckpointPolicy,
    Job,
    Level,
    Tier,
    average_wasted_s,
    gemini,
    high_frequency,
    strawman,
)
from workbench.techniques.gemini.simulated.recoveries import training_timeline
from workbench.timeline import format_timeline
from workbench.timeline.faults import DAY_S, Fault, FaultKind, FaultScope, FaultTrace, poisson_faults, rack_faults

# 800 bytes: 40 s to storage; a shard of 200 bytes takes 2 s over a link.
JOB = Job(iteration_s=10, state_bytes=800, num_machines=4, storage_bytes_per_s=20, network_bytes_per_s=100)
COSTS = Overheads(detection_s=1, serialise_s=3, least_replacement_s=5, most_replacement_s=5, warm_up_s=4)
SETTING = Setting(
    job=JOB, policy=gemini(JOB, storage_interval_s=100), overheads=COSTS, placement=placement(4, 2, kind="group")
)
HIGH = replace(SETTING, policy=high_frequency(JOB))


def run(setting, grid, step_s=1.0):
    """Simulate a grid, as the definition does it, too."""
    trace = FaultTrace.from_grid(grid, step_s=step_s)
    result = simulate_training(setting, trace, keep_spans=True)
    assert result == simulate_training_by_definition(setting, trace, keep_spans=True)
    return result


def row(length, **words):
    cells = [words.get(f"at{column}", ".") for column in range(length)]
    return " ".join(cells)


def grid(length, *rows):
    padded = [*rows, *([{}] * (4 - len(rows)))]
    return "\n".join(f"machine {number} | {row(length, **words)}" for number, words in enumerate(padded))


def seconds(result, cause):
    return result.wasted_s[cause]


def test_without_failures_gemini_wastes_nothing_and_high_frequency_its_serialising():
    nothing = FaultTrace.none(4, 600)
    assert simulate_training(SETTING, nothing).effective_ratio == 1
    # Every 4 iterations 2 s: periods of 42 s; 600 s are 14 of them and 12 s.
    serialising = replace(HIGH, policy=high_frequency(replace(JOB, serialise_s=2)), job=replace(JOB, serialise_s=2))
    assert seconds(simulate_training(serialising, nothing), Cause.CHECKPOINTING) == pytest.approx(28)


def test_a_software_failure_goes_back_to_the_newest_complete_checkpoint_in_local_memory():
    # At 35 s three iterations are done; the third's checkpoint completes at 40, the second's did at 30.
    result = run(SETTING, grid(60, {"at35": "S"}))
    assert seconds(result, Cause.LOST) == 15
    assert (seconds(result, Cause.DETECTION), seconds(result, Cause.SERIALISING)) == (1, 3)
    assert (seconds(result, Cause.REPLACEMENT), seconds(result, Cause.RETRIEVAL)) == (0, 0)
    assert seconds(result, Cause.WARM_UP) == 4
    assert result.num_recoveries == {Tier.LOCAL: 1, Tier.PEER: 0, Tier.STORAGE: 0}
    # 20 s that stayed, and 60 - 35 - 8 after the recovery.
    assert result.productive_s == 20 + 17


def test_a_lost_machine_is_replaced_and_reads_its_shard_from_a_peer():
    result = run(SETTING, grid(60, {"at35": "H"}))
    assert (seconds(result, Cause.REPLACEMENT), seconds(result, Cause.RETRIEVAL)) == (5, 2)
    assert result.num_recoveries[Tier.PEER] == 1
    assert result.productive_s == 20 + 60 - 35 - (1 + 3 + 5 + 2 + 4)


def test_two_machines_of_different_groups_are_read_from_peers_and_a_whole_group_from_storage():
    apart = run(SETTING, grid(60, {"at35": "H"}, {}, {"at35": "H"}))
    assert apart.num_recoveries[Tier.PEER] == 1
    # Storage holds nothing but the initial states: all is lost, 40 s to read, nothing to serialise.
    group = run(SETTING, grid(120, {"at35": "H"}, {"at35": "H"}))
    assert group.num_recoveries[Tier.STORAGE] == 1
    assert (seconds(group, Cause.LOST), seconds(group, Cause.RETRIEVAL)) == (35, 40)
    assert (seconds(group, Cause.SERIALISING), group.productive_s) == (0, 120 - 35 - 50)


def test_a_replaced_machine_has_no_replicas_for_its_peers_until_the_next_checkpoint_completes():
    # Machine 0 is back at 50 s (35 + 15); the next checkpoint is complete at 70. Machine 1 fails before, then after.
    early = run(SETTING, grid(200, {"at35": "H"}, {"at65": "H"}))
    assert early.num_recoveries == {Tier.LOCAL: 0, Tier.PEER: 1, Tier.STORAGE: 1}
    late = run(SETTING, grid(200, {"at35": "H"}, {"at75": "H"}))
    assert late.num_recoveries == {Tier.LOCAL: 0, Tier.PEER: 2, Tier.STORAGE: 0}
    # Its own shard is there at once: a software failure reads local memory.
    assert run(SETTING, grid(200, {"at35": "H"}, {"at65": "S"})).num_recoveries[Tier.LOCAL] == 1


def test_a_failure_within_a_recovery_starts_it_anew():
    # Lost at 35, detected 36, serialised 39; at 41, waiting for the machine until 44, another group's fails.
    result = run(SETTING, grid(100, {"at35": "H"}, {}, {"at41": "H"}))
    assert (result.num_failures, result.num_interrupted) == (2, 1)
    assert result.num_recoveries[Tier.PEER] == 1
    # Detection 1 + 1, serialising 3 + 3, replacement 2, and 5 for the second, requested at 45.
    assert (seconds(result, Cause.DETECTION), seconds(result, Cause.SERIALISING)) == (2, 6)
    assert seconds(result, Cause.REPLACEMENT) == 2 + 5


def test_the_partner_lost_within_a_recovery_sends_all_to_storage():
    result = run(SETTING, grid(300, {"at35": "H"}, {"at41": "H"}))
    assert result.num_recoveries == {Tier.LOCAL: 0, Tier.PEER: 0, Tier.STORAGE: 1}
    assert seconds(result, Cause.LOST) == 35


def test_a_machine_that_is_away_cannot_fail_again():
    # Lost at 35, replaced at 44: at 41 nobody is there to fail, at 46 the new one is.
    assert run(SETTING, grid(100, {"at35": "H", "at41": "H"})).num_failures == 1
    assert run(SETTING, grid(100, {"at35": "H", "at45": "H"})).num_failures == 2


def test_a_standby_machine_takes_the_place_at_once_and_is_requested_again():
    slow = replace(COSTS, least_replacement_s=9, most_replacement_s=9)
    ready = replace(SETTING, num_standbys=1, overheads=slow)
    assert seconds(run(ready, grid(100, {"at35": "H"})), Cause.REPLACEMENT) == 0
    # The next standby is there at 39 + 9: too late for a failure at 40, requested at 44; in time for one at 90.
    assert seconds(run(ready, grid(100, {"at35": "H"}, {}, {"at40": "H"})), Cause.REPLACEMENT) == 9
    assert seconds(run(ready, grid(200, {"at35": "H"}, {}, {"at90": "H"})), Cause.REPLACEMENT) == 0
    assert seconds(run(ready, grid(100, {"at35": "H"}, {}, {"at35": "H"})), Cause.REPLACEMENT) == 9


def test_after_storage_memory_holds_what_was_read():
    # Storage every 10 iterations: that of 100 s is complete at 140. A group lost at 145 goes back to iteration 10.
    result = run(SETTING, grid(300, {"at145": "H"}, {"at145": "H", "at200": "S"}))
    assert seconds(result, Cause.LOST) == 45 + 5  # then 195 s is resumed from 10, and the 5 s after it are lost
    assert result.num_recoveries == {Tier.LOCAL: 1, Tier.PEER: 0, Tier.STORAGE: 1}


def test_an_incomplete_checkpoint_is_not_gone_back_to():
    # HighFreq: snapshots at 40 and 80 s, complete at 80 and 120.
    lost = {at: seconds(run(HIGH, grid(200, {f"at{at}": "S"})), Cause.LOST) for at in (79, 80, 81, 119, 121)}
    assert lost == {79: 79, 80: 40, 81: 41, 119: 79, 121: 41}


def test_the_end_within_a_recovery_counts_progress_as_rolled_back():
    result = run(SETTING, grid(38, {"at35": "S"}))
    assert result.productive_s == 20
    assert (seconds(result, Cause.LOST), seconds(result, Cause.SERIALISING)) == (15, 2)
    assert sum(result.num_recoveries.values()) == result.num_interrupted == 0


POLICIES = (
    gemini(JOB),
    gemini(JOB, interval_iterations=3, blocking_s=1.7, storage_interval_s=170),
    high_frequency(replace(JOB, serialise_s=8.3)),
    strawman(replace(JOB, serialise_s=8.3), interval_s=300),
)


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
def test_progress_in_closed_form_is_that_of_counting_iterations(policy):
    draws = random.Random(1)
    for _ in range(300):
        start, elapsed_s = draws.randrange(40), draws.uniform(0, 900)
        fast, literal = (way(policy, start, elapsed_s) for way in (advanced, advanced_by_definition))
        assert fast.position == pytest.approx(literal.position, rel=1e-9)
        assert (fast.memory, fast.storage) == (literal.memory, literal.storage)


@pytest.mark.parametrize("seed", range(24))
def test_the_simulation_from_failure_to_failure_is_that_of_every_iteration(seed):
    draws = random.Random(seed)
    num_machines, num_replicas = draws.choice((4, 5, 6, 16)), draws.choice((1, 2, 3))
    rates = {"failures_per_machine_day": draws.choice((5, 20, 100)), "hardware_share": draws.random()}
    traces = [
        poisson_faults(num_machines, duration_s=DAY_S / 4, seed=seed, **rates),
        rack_faults(num_machines, machines_per_rack=2, duration_s=DAY_S / 4, failures_per_rack_day=5, seed=seed),
    ]
    setting = Setting(
        job=JOB,
        policy=POLICIES[seed % 4],
        overheads=COSTS,
        placement=placement(num_machines, num_replicas),
        num_standbys=draws.choice((0, 1, 3)),
        seed=seed,
    )
    fast, literal = (
        way(setting, FaultTrace.merged(traces)) for way in (simulate_training, simulate_training_by_definition)
    )
    assert fast.productive_s == pytest.approx(literal.productive_s, rel=1e-9)
    assert dict(fast.wasted_s) == pytest.approx(dict(literal.wasted_s), rel=1e-9, abs=1e-6)
    assert (fast.num_recoveries, fast.num_interrupted) == (literal.num_recoveries, literal.num_interrupted)
    assert fast.productive_s + sum(fast.wasted_s.values()) == pytest.approx(DAY_S / 4)


BY_EQUATION = [(gemini(GPT2_100B), Tier.LOCAL), (high_frequency(GPT2_100B), Tier.STORAGE)]


@pytest.mark.parametrize(("policy", "tier"), BY_EQUATION)
def test_the_mean_waste_of_many_failures_is_equation_6_1(policy, tier):
    # Two failures a day, far enough apart not to meet; HighFreq without serialising, which the equation leaves out.
    job = replace(GPT2_100B, serialise_s=0.0)
    policy = high_frequency(job) if tier is Tier.STORAGE else policy
    trace = poisson_faults(16, duration_s=2000 * DAY_S, failures_per_machine_day=1 / 8, hardware_share=0.0, seed=2)
    result = simulate_training(Setting(job=job, policy=policy), trace)
    wasted_s = (result.wasted_s[Cause.LOST] + result.wasted_s[Cause.RETRIEVAL]) / sum(result.num_recoveries.values())
    assert wasted_s == pytest.approx(average_wasted_s(policy, job, tier), rel=0.03)


def test_more_failures_and_fewer_replicas_never_help():
    def ratio(rate, num_replicas):
        placed = placement(16, num_replicas)
        trace = poisson_faults(16, duration_s=30 * DAY_S, failures_per_machine_day=rate, seed=3)
        setting = Setting(job=GPT2_100B, policy=gemini(GPT2_100B), placement=placed)
        return simulate_training(setting, trace).effective_ratio

    assert ratio(0.01, 2) > ratio(0.1, 2) > ratio(1.0, 2)
    assert ratio(0.5, 1) < ratio(0.5, 2) <= ratio(0.5, 3)


def test_the_timeline_of_a_failure_reads_as_a_grid():
    trace = FaultTrace.from_grid(grid(6, {}, {"at3": "S"}), step_s=10)
    tens = Overheads(detection_s=10, serialise_s=0, least_replacement_s=0, most_replacement_s=0, warm_up_s=0)
    setting = replace(SETTING, overheads=tens)
    timeline = training_timeline(setting, simulate_training(setting, trace, keep_spans=True))
    # At 30 s the second iteration's checkpoint is complete, the third's has not begun: the third is done again.
    assert format_timeline(timeline, step_s=10).splitlines() == [
        "training              | 1 2 3 .         3 4",
        "checkpoint in memory  | . 1 2 .         . 3",
        "checkpoint in storage | . . . .         . .",
        "recovery              | . . . detection . .",
    ]
    kinds = [(each.label, each.kind.value) for each in timeline.of("training")]
    assert kinds == [("1", "compute"), ("2", "compute"), ("3", "other"), ("3", "compute"), ("4", "compute")]


def test_a_timeline_of_joined_iterations_shows_what_is_lost():
    timeline = training_timeline(SETTING, run(SETTING, grid(60, {"at35": "S"})), every_iteration=False)
    assert [each.label for each in timeline.of("training")] == ["1 to 2", "3 to 4", "3 to 4"]
    memory = [(each.label, each.start_s, each.end_s) for each in timeline.of("checkpoint in memory")]
    assert memory == [("1", 10, 20), ("2", 20, 30), ("lost", 30, 35), ("lost", 53, 60)]
    with pytest.raises(ValueError, match="spans is empty"):
        training_timeline(SETTING, simulate_training(SETTING, FaultTrace.none(4, 10)))


def test_the_paper_s_overheads_make_seven_and_twelve_minutes():
    # 15 + 162 + 240, and 330 s on average for a machine: "around 7" and "12 minutes".
    software_s = PAPER_OVERHEADS.detection_s + PAPER_OVERHEADS.serialise_s + PAPER_OVERHEADS.warm_up_s
    assert software_s / 60 == pytest.approx(6.95)


def test_what_cannot_be_simulated_is_refused():
    lost = FaultTrace.from_grid(grid(60, {"at35": "H"}), step_s=1)
    with pytest.raises(ValueError, match="placement is None; Gemini must know"):
        simulate_training(replace(SETTING, placement=None), lost)
    with pytest.raises(ValueError, match="num_machines of the placement is 6"):
        simulate_training(replace(SETTING, placement=placement(6, 2)), lost)
    with pytest.raises(ValueError, match="iteration_s of the policy is 62"):
        replace(SETTING, policy=gemini(GPT2_100B))
    with pytest.raises(ValueError, match="num_standbys is -1"):
        replace(SETTING, num_standbys=-1)
    with pytest.raises(ValueError, match="most_replacement_s is 4"):
        replace(COSTS, most_replacement_s=4)
    root = Fault(time_s=1, kind=FaultKind.HARDWARE, scope=FaultScope.ROOT)
    with pytest.raises(ValueError, match="must say which machine is lost"):
        simulate_training(SETTING, FaultTrace(num_machines=4, duration_s=9, faults=(root,)))


def test_faults_of_the_store_and_of_replicas_stop_no_training():
    drawn = "\n".join([grid(60, {"at20": "b"}), "store | " + row(60, at35="X")])
    assert run(SETTING, drawn).effective_ratio == 1


def test_a_thousand_machines_are_effective_for_nine_tenths_of_thirty_days():
    trace = poisson_faults(1000, duration_s=30 * DAY_S, hardware_share=0.5, seed=0)
    setting = Setting(job=GPT2_100B, policy=gemini(GPT2_100B), placement=placement(1000, 2))
    assert 0.85 < simulate_training(setting, trace).effective_ratio < 0.95


def test_levels_that_block_do_so_memory_first():
    memory = Level(in_memory=True, interval_iterations=2, blocking_s=3, transfer_s=5)
    storage = Level(in_memory=False, interval_iterations=2, blocking_s=4, transfer_s=6)
    policy = CheckpointPolicy(name="both", iteration_s=10, storage=storage, memory=memory)
    # Iteration 2 ends at 20, memory blocks until 23 and is complete at 28, storage until 27 and at 33.
    stretches = [advanced(policy, 0, elapsed_s) for elapsed_s in (27.9, 28, 32.9, 33)]
    assert [(each.memory, each.storage) for each in stretches] == [(None, None), (2, None), (2, None), (2, 2)]
    assert [each.position for each in stretches] == pytest.approx([2.09, 2.1, 2.59, 2.6])
