"""The best number of replicas and interval: by hand, against the search of everything, beside Young and Daly."""

import itertools
import math
from dataclasses import replace

import pytest

from workbench.techniques.gemini.method.best import (
    CheckpointingNeeds,
    best_checkpointing,
    best_checkpointing_by_definition,
    daly_interval_s,
    expected_waste,
    memory_level,
    storage_share,
    young_interval_s,
)
from workbench.techniques.gemini.method.waste import Job

JOB = Job(iteration_s=10, state_bytes=800, num_machines=4, storage_bytes_per_s=20, network_bytes_per_s=20)
# A shard is 200 bytes, 10 s over the link; four replicas in two buffers each need 1,600 bytes.
NEEDS = CheckpointingNeeds(
    job=JOB, idle_s=4, memory_bytes=1600, failures_per_machine_day=1.0, hardware_share=0.0, most_iterations=200
)


def test_the_waste_of_one_choice_by_hand():
    # m = 2, n = 1: 10 s to send, 4 s idle, so 6 s block: interval 16 s, t_ckpt = 6 + 10; 4 failures a day.
    by_hand = 6 / 16 + 4 / 86_400 * (16 + 16 / 2)
    assert expected_waste(NEEDS, 2, 1) == pytest.approx(by_hand, rel=1e-12)
    # n = 3: 12 idle seconds suffice; t_ckpt = 3 iterations, interval 30 s.
    assert expected_waste(NEEDS, 2, 3) == pytest.approx(4 / 86_400 * (30 + 30 / 2), rel=1e-12)


def test_where_machines_are_lost_the_tiers_share_the_failures():
    # Three other machines at 1 a day, window 600 s: mean 3 x 600 / 86,400 more losses. Two groups of 2 of 4 machines:
    # 2 lost are a group in 2 of 6 cases, 3 and 4 always hold one.
    needs, mean = replace(NEEDS, hardware_share=1.0), 3 * 600 / 86_400
    weights = [math.exp(-mean) * mean**more / math.factorial(more) for more in range(3)]
    lost = weights[1] / 3 + (1 - weights[0] - weights[1])
    assert storage_share(needs, 2) == pytest.approx(lost, rel=1e-4)  # beyond 4 machines there are no more to lose
    from_storage = 40 + 1080 * 10 / 2 + 40
    mean_s = (1 - lost) * (45 + 10) + lost * from_storage
    assert expected_waste(needs, 2, 3) == pytest.approx(4 / 86_400 * mean_s, rel=1e-4)


def test_software_failures_alone_need_one_replica_and_no_traffic():
    best = best_checkpointing(NEEDS)
    assert (best.num_replicas, best.interval_iterations) == (1, 1)
    assert best.storage_share == 1  # of hardware failures, of which there are none
    assert best.waste == pytest.approx(4 / 86_400 * 15)


RATES, IDLE_S, BLOCKING_S = (1e-3, 1.0, 30.0), (0.0, 1.0, 7.0, 10.0), (0.0, 0.2, 30.0)
CASES = list(itertools.product(RATES, IDLE_S, BLOCKING_S, (0.0, 0.5, 1.0), (2.0, 50.0)))


@pytest.mark.parametrize(("rate", "idle_s", "blocking_s", "hardware_share", "bandwidth"), CASES)
def test_the_best_choice_is_that_of_the_search_of_everything(rate, idle_s, blocking_s, hardware_share, bandwidth):
    needs = replace(
        NEEDS,
        failures_per_machine_day=rate,
        idle_s=idle_s,
        blocking_s=blocking_s,
        hardware_share=hardware_share,
        job=replace(JOB, network_bytes_per_s=bandwidth),
    )
    assert best_checkpointing(needs) == best_checkpointing_by_definition(needs)


def test_where_only_blocking_costs_the_best_interval_is_young_s():
    # 0.5 s of blocking, 4 failures a day of 10 s iterations: sqrt(2 x 0.5 x 21,600) = 147 s.
    needs = replace(NEEDS, blocking_s=0.5, hardware_share=0.0)
    best = best_checkpointing(needs)
    assert best.young_s == pytest.approx(146.97, abs=0.01)
    assert abs(best.interval_iterations * 10 + 0.5 - best.young_s) <= 10


def test_young_and_daly_by_hand():
    # sqrt(2 x 2 x 100) = 20; half = 0.01: 20 x (1 + 0.1 / 3 + 0.01 / 9) - 2.
    assert young_interval_s(2, 100) == 20
    assert daly_interval_s(2, 100) == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert daly_interval_s(200, 100) == 100
    with pytest.raises(ValueError, match="mean_time_between_failures_s is 0"):
        young_interval_s(1, 0)


def test_more_failures_never_make_checkpoints_rarer():
    intervals = [
        best_checkpointing(replace(NEEDS, failures_per_machine_day=rate, blocking_s=2.0)).interval_iterations
        for rate in (0.01, 0.1, 1.0, 10.0, 100.0)
    ]
    assert intervals == sorted(intervals, reverse=True)
    assert intervals[0] > intervals[-1]


def test_memory_bounds_the_replicas_by_two_buffers_each():
    assert [replace(NEEDS, memory_bytes=size).most_replicas for size in (400, 799, 800, 1e9)] == [1, 1, 2, 4]
    with pytest.raises(ValueError, match="memory_bytes is 399"):
        replace(NEEDS, memory_bytes=399)
    with pytest.raises(ValueError, match="num_replicas is 5; it must be in 1..4"):
        expected_waste(NEEDS, 5, 1)


def test_what_does_not_fit_the_idle_time_blocks():
    # 3 replicas need 20 s; in 2 iterations 8 s are idle.
    assert memory_level(NEEDS, 3, 2).blocking_s == 12
    assert memory_level(NEEDS, 3, 5).blocking_s == 0
    assert memory_level(NEEDS, 3, 7).transfer_s == 50


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"idle_s": 11}, "idle_s is 11"),
        ({"hardware_share": 2}, "hardware_share is 2"),
        ({"failures_per_machine_day": 0}, "failures_per_machine_day is 0"),
        ({"window_s": -1}, "window_s is -1"),
        ({"most_iterations": 0}, "most_iterations is 0"),
    ],
)
def test_needs_that_cannot_be_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        replace(NEEDS, **change)
