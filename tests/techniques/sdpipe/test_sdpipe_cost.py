"""Simulated iterations against worked values, the general event simulation, and definitions."""

import math
import random

import numpy as np
import pytest

from tests.cases import refusals, value, values
from workbench.techniques.sdpipe.cost import Cluster, Scheme, Workload, backward_ends, drawn_delays_s, pairs, simulate
from workbench.techniques.sdpipe.counted import learning_rate_rows
from workbench.techniques.sdpipe.method import Settings, condition, largest_learning_rate, synchronization_matrix
from workbench.timeline import simulate as simulate_tasks
from workbench.timeline.schedule import one_forward_one_backward, pipeline_tasks

WORKLOAD = Workload(num_stages=2, num_micro_batches=2, forward_s=1.0, backward_s=2.0)
SIZES = {"num_pipelines": 2, "num_stages": 1, "history": 1, "n1": 2, "n2": 2, "smoothness": 3.0}  # of theorem 1
FREE = Cluster(startup_s=0.0, card_bytes_per_s=1e9, server_bytes_per_s=1e9)


def delays(num_iterations, *places, num_stages=2, num_pipelines=2):
    delays_s = np.zeros((num_iterations, num_stages, num_pipelines))
    for iteration, stage, pipeline, seconds in places:
        delays_s[iteration, stage, pipeline] = seconds
    return delays_s


def test_a_mini_batch_of_two_stages_by_hand():
    # stage 1: 1F0 at 1..2, 1B0 2..4, 1F1 4..5, 1B1 5..7; stage 0: 0B1 waits for 1B1 and takes 2
    assert backward_ends(WORKLOAD, [0.0, 0.0], [0.0, 0.0]) == [9.0, 7.0]
    assert backward_ends(WORKLOAD, [0.0, 0.0], [0.5, 0.0]) == [9.5, 7.5]
    assert backward_ends(WORKLOAD, [0.0, 0.0], [0.0, 0.5]) == [9.5, 7.5]  # 1F0 at 1..2.5: late after its input is there
    assert WORKLOAD.iteration_s == 9.0
    together = backward_ends(WORKLOAD, [np.zeros(2), np.zeros(2)], [np.array([0.5, 0.0]), np.array([0.0, 0.5])])
    assert np.array_equal(together, [[9.5, 9.5], [7.5, 7.5]])  # two pipelines at once


@pytest.mark.parametrize("seed", range(25))
def test_a_mini_batch_ends_as_in_the_event_simulation_of_its_schedule(seed):
    draw = random.Random(seed)
    stages, micro = draw.randint(1, 4), draw.randint(1, 6)
    forward_s, backward_s = draw.uniform(0.1, 2.0), draw.uniform(0.1, 2.0)
    workload = Workload(num_stages=stages, num_micro_batches=micro, forward_s=forward_s, backward_s=backward_s)
    seconds = {"F": forward_s, "B": backward_s}
    tasks = pipeline_tasks(
        one_forward_one_backward(stages, micro),
        duration_s=lambda cell: seconds["F" if cell.kind.value == "forward" else "B"],
        transfer_s=lambda cell: 0.0,
    )
    timeline = simulate_tasks(tasks)
    expected = [max(action.end_s for action in timeline.of(f"rank {stage}")) for stage in range(stages)]
    assert backward_ends(workload, [0.0] * stages, [0.0] * stages) == pytest.approx(expected)


def test_a_straggler_delays_all_with_all_reduce_and_its_own_pipeline_with_sdpipe():
    late = delays(2, (0, 0, 1, 5.0))
    assert simulate("All-Reduce+Pipe", WORKLOAD, FREE, late).ends_s.tolist() == [[14.0, 14.0], [23.0, 23.0]]
    run = simulate("SDPipe", WORKLOAD, FREE, late, window_s=0.0)
    assert run.ends_s.tolist() == [[9.0, 14.0], [18.0, 23.0]]
    assert {len(group.members) for group in run.groups} == {1}


def test_without_a_flush_mini_batches_follow_each_other_as_worked_by_hand():
    # A pass of a mini-batch takes 2 and 4. Stage 1: F0 2..4, B0 4..8, F1 8..10, B1 10..14, F2 14..16, B2 16..20;
    # stage 0: F0 0..2, F1 2..4, B0 8..12, F2 12..14, B1 14..18, B2 20..24.
    run = simulate("All-Reduce+Pipe", WORKLOAD, FREE, delays(3), flush=False)
    assert run.ends_s.tolist() == [[12.0, 12.0], [18.0, 18.0], [24.0, 24.0]]
    # F1 of pipeline 1's stage 0 ends at 9 in place of 4, B0 so at 13; the other pipeline does not wait.
    late = delays(3, (1, 0, 1, 5.0))
    run = simulate("SDPipe", WORKLOAD, FREE, late, window_s=0.0, flush=False)
    assert run.ends_s.tolist() == [[12.0, 13.0], [18.0, 19.0], [24.0, 25.0]]
    assert len(run.groups) == 12
    run = simulate("All-Reduce+Pipe", WORKLOAD, FREE, late, flush=False)
    assert run.ends_s.tolist() == [[13.0, 13.0], [19.0, 19.0], [25.0, 25.0]]


@pytest.mark.parametrize("scheme", ["All-Reduce+Pipe", "SDPipe"])
def test_without_a_limit_of_time_the_scheduler_is_all_reduce_as_defined(scheme):
    draw = drawn_delays_s(30, 3, 4, delay_s=0.7, seed=1)
    workload = Workload(num_stages=3, num_micro_batches=4, forward_s=0.1, backward_s=0.2, stage_bytes=1e7)
    run = simulate(scheme, workload, Cluster(), draw, window_s=math.inf)
    ready_s, ends_s = np.zeros((3, 4)), []
    for delay_s in draw:  # all workers of a stage go on together
        done_s = np.array(backward_ends(workload, ready_s, delay_s)).max(axis=1, keepdims=True)
        ready_s = np.repeat(done_s + Cluster().average_s(workload, range(4)), 4, axis=1)
        ends_s.append(ready_s.max(axis=0))
    assert np.allclose(run.ends_s, ends_s)


def test_a_server_is_one_queue_and_staleness_bounds_who_runs_ahead():
    workload = Workload(num_stages=1, num_micro_batches=1, forward_s=1.0, backward_s=1.0, stage_bytes=5e8)
    none = np.zeros((3, 1, 2))
    # computed at 2, then pushes and pulls of 0.5 s each, one pipeline after the other
    run = simulate("HetPipe", workload, FREE, none, staleness=0)
    assert run.ends_s.tolist() == [[3.0, 4.0], [7.0, 8.0], [11.0, 12.0]]
    run = simulate("HetPipe", workload, FREE, none, staleness=2)
    assert run.ends_s.tolist() == [[3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]  # the server is never idle
    late = delays(3, (0, 0, 1, 10.0), num_stages=1)
    run = simulate("HetPipe", workload, FREE, late, staleness=1)
    assert run.ends_s[:, 0].tolist() == [3.0, 5.0, 16.0]  # it begins its third when the other's first is in, at 13
    # computed at 2, 4, 6 and 8, pushed at 4 and 8
    run = simulate("HetPipe", workload, FREE, np.zeros((4, 1, 2)), staleness=1, push_every=2)
    assert run.ends_s.tolist() == [[2.0, 2.0], [5.0, 6.0], [6.0, 6.0], [9.0, 10.0]]


def test_pairs_are_drawn_alike_everywhere_and_cover_everyone():
    assert pairs(5, 3, seed=1) == pairs(5, 3, seed=1) != pairs(5, 4, seed=1)
    assert sorted(worker for pair in pairs(5, 3) for worker in pair) == [0, 1, 2, 3, 4]
    assert [len(pair) for pair in pairs(5, 0)] == [2, 2, 1]


def test_every_scheme_takes_longer_with_more_delay_and_equal_time_without_any():
    seconds = {}
    for scheme in Scheme:
        runs = [simulate(scheme, WORKLOAD, FREE, drawn_delays_s(60, 2, 4, delay_s=d)) for d in (0.0, 30.0)]
        seconds[scheme] = [run.iteration_s for run in runs]
        assert seconds[scheme][0] == pytest.approx(9.0)
        assert seconds[scheme][1] > seconds[scheme][0]
    assert seconds["SDPipe"][1] < seconds["All-Reduce+Pipe"][1]


def test_a_group_averages_across_the_machines_of_its_members_alone():
    workload = Workload(num_stages=2, num_micro_batches=1, forward_s=1.0, backward_s=1.0, stage_bytes=1e9)
    cluster = Cluster(gpus_per_machine=4, card_bytes_per_s=1e9, startup_s=0.5)  # pipelines 0 and 1, 2 and 3, ...
    groups = ([5], [0, 1], [1, 2], [0, 1, 2, 3], [0, 2, 4, 6])
    # Each card carries 2 (h - 1) / h times both stages of 1 GB.
    assert [cluster.average_s(workload, group) for group in groups] == [0.0, 0.5, 0.5 + 2.0, 0.5 + 2.0, 0.5 + 3.0]


@pytest.mark.parametrize(("num_stages", "machines"), [(2, 1), (4, 1), (8, 2), (16, 2)])
def test_two_pipelines_share_a_machine_of_eight_gpus_if_both_fit_whatever_the_scheme(num_stages, machines):
    workload = Workload(num_stages=num_stages, num_micro_batches=1, forward_s=1.0, backward_s=1.0, stage_bytes=1e8)
    for scheme in ("All-Reduce+Pipe", "AD-PSGD+Pipe", "SDPipe"):
        run = simulate(scheme, workload, Cluster(startup_s=0.0), np.zeros((1, num_stages, 2)), window_s=math.inf)
        sent_s = (machines - 1) * 1e8 * num_stages / Cluster().card_bytes_per_s
        assert run.ends_s.max() == pytest.approx(workload.iteration_s + sent_s)


def test_settings_bring_their_own_window_where_none_is_given():
    late = drawn_delays_s(40, 2, 4, delay_s=5.0)
    released, with_window, paper = (
        simulate("SDPipe", WORKLOAD, FREE, late, settings=settings, window_s=window_s).ends_s.tolist()
        for settings, window_s in ((Settings.released(), None), (Settings.released(), 0.001), (None, None))
    )
    assert released == with_window != paper


def test_the_synchronisation_matrix_averages_members_and_keeps_the_others():
    averaged = np.array([[1.0, 2.0, 6.0]]) @ synchronization_matrix(3, {0, 2})
    assert averaged.tolist() == [[3.5, 2.0, 3.5]]


def test_the_admissible_learning_rate_solves_the_condition_and_single_workers_admit_none():
    rate = largest_learning_rate(**SIZES)
    assert condition(rate, **SIZES) == pytest.approx(1.0)
    # by hand: n1^(NP) = 4, t1 = 8 (5/3)^2, t2 = 3/4, x + 2 * 8/4 t1 (4 + 2 / (1 - sqrt(3)/2)^2) x^2 = 1, x = L gamma
    error = 4 * 8 * (5 / 3) ** 2 * (4 + 2 / (1 - math.sqrt(0.75)) ** 2)
    assert rate == pytest.approx((math.sqrt(1 + 4 * error) - 1) / (2 * error) / 3.0)
    assert largest_learning_rate(**SIZES | {"n1": 1}) == 0.0
    assert condition(1e-9, **SIZES | {"n1": 1}) == math.inf
    # The names of n1 and n2 the other way round: x + 2 * 8/1 t1 ... x^2 = 1 with x = L gamma / 2.
    other = SIZES | {"n1": 2, "n2": 1}
    assert condition(largest_learning_rate(**other), **other) == pytest.approx(1.0)
    # t2 = 0 by hand: x + 2 * 8/4 t1 (1 + 2) x^2 = 1
    error = 4 * 8 * (5 / 3) ** 2 * 3
    mixed = largest_learning_rate(**SIZES, mixes=True)
    assert mixed == pytest.approx((math.sqrt(1 + 4 * error) - 1) / (2 * error) / 3.0)


def test_neither_reading_of_the_theorems_sizes_admits_the_papers_learning_rate_but_equal_models_after_each_group_do():
    rows = learning_rate_rows(num_pipelines=[4], num_stages=4, history=10, smallest_groups=[1, 2, 4], smoothness=1.0)
    by_order, by_name = (values(rows, quantity) for quantity in ("learning_rate", "learning_rate_by_name"))
    assert by_order[0] == 0.0 and by_order[1] == pytest.approx(7e-16, rel=0.05)
    assert by_name == pytest.approx([6e-28] * 3, rel=0.1, abs=0.0) and by_order[2] == by_name[2]
    assert 0.01 < value(rows, "learning_rate_mixed") < 0.03


test_bad_settings_are_refused = refusals(
    (lambda: simulate("Gossip", WORKLOAD, FREE, delays(1)), "'Gossip' is not a valid Scheme"),
    (lambda: simulate("SDPipe", WORKLOAD, FREE, delays(1, num_stages=3)), "delays_s is of 3 stages"),
    (lambda: simulate("HetPipe", WORKLOAD, FREE, delays(1), flush=False), "flush is False for HetPipe"),
    (lambda: drawn_delays_s(1, 1, 2, delay_s=1.0, share=2.0), "share is 2.0"),
    (lambda: Workload(num_stages=1, num_micro_batches=0, forward_s=1, backward_s=1), "num_micro_batches is 0"),
    (lambda: largest_learning_rate(**SIZES | {"n2": 3}), "n1, n2 are 2, 3"),
    (lambda: Cluster(gpus_per_machine=0), "gpus_per_machine is 0"),
)
