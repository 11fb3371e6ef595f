"""The iteration that all ranks resume from, the time that a failure wastes, and the best replicas and interval."""

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import pytest
from cases import refusals

from workbench.techniques.gemini import method
from workbench.techniques.gemini.cost import GPT2_100B, MT_NLG
from workbench.techniques.gemini.method import Held, Tier, placement, plan_recovery, waste
from workbench.techniques.gemini.method.recovery import plan_recovery_by_definition
from workbench.techniques.gemini.method.waste import gemini, high_frequency, strawman


def full(num_machines=4, num_replicas=2, iteration=9, kind="mixed", lost=()):
    """Every machine that is left holds iteration 9 of every shard that it should."""
    holders = placement(num_machines, num_replicas, kind).holders
    return {
        machine: {rank: [Held(iteration=iteration)] for rank, row in enumerate(holders) if machine in row}
        for machine in range(num_machines)
        if machine not in lost
    }


def tiers(plan):
    return [source.tier for source in plan.sources]


def peer_load(plan):
    return Counter(source.machine for source in plan.sources if source.tier is Tier.PEER)


@pytest.fixture(params=[plan_recovery, plan_recovery_by_definition], ids=["fast", "definition"])
def plan(request):
    return request.param


def test_after_a_software_failure_local_memory_serves_and_after_lost_machines_peers_as_in_figure_6_6c(plan):
    recovery = plan(full(), 4, stored=[5])
    assert (recovery.iteration, tiers(recovery)) == (9, [Tier.LOCAL] * 4)
    assert [(source.machine, source.passed_over) for source in recovery.sources] == [(rank, ()) for rank in range(4)]
    # Machines 2 and 4 of the figure are 1 and 3 here; 1 and 3 of the figure, 0 and 2 here, serve them.
    recovery = plan(full(lost=(1, 3)), 4, stored=[5])
    assert (recovery.iteration, tiers(recovery)) == (9, [Tier.LOCAL, Tier.PEER] * 2)
    assert [source.machine for source in recovery.sources] == [0, 0, 2, 2]
    assert recovery.sources[1].passed_over == ("local memory: nothing is held",)


def test_when_a_whole_group_is_lost_all_ranks_go_back_to_storage_so_that_they_agree(plan):
    recovery = plan(full(lost=(0, 1)), 4, stored=[2, 5])
    assert recovery.iteration == 5
    assert tiers(recovery) == [Tier.STORAGE] * 4
    assert recovery.sources[0].passed_over == ("local memory: nothing is held", "peers: no machine holds this shard")
    places, reason = ("local memory", "peers: machine 3"), "iteration 9: cannot be reached by every rank"
    assert recovery.sources[2].passed_over == tuple(f"{place}: {reason}" for place in places)
    # Storage of the newest iteration serves only the ranks that have lost it.
    recovery = plan(full(lost=(0, 1)), 4, stored=[9])
    assert (recovery.iteration, tiers(recovery)) == (9, [Tier.STORAGE, Tier.STORAGE, Tier.LOCAL, Tier.LOCAL])
    # With nothing anywhere, or nothing of rank 1, training starts from the beginning.
    recovery = plan({}, 2)
    assert (recovery.iteration, tiers(recovery)) == (0, [Tier.START] * 2)
    assert recovery.sources[1].passed_over[2] == "persistent storage: nothing is complete there"
    assert plan({0: {0: [Held(iteration=3)]}}, 2).iteration == 0


def test_replicas_one_iteration_behind_take_all_ranks_back_and_a_corrupt_one_is_passed_over_with_its_reason(plan):
    holdings = full()
    for shards in holdings.values():
        for rank, held in shards.items():
            held.append(Held(iteration=10, fault="incomplete" if rank == 2 else ""))
    recovery = plan(holdings, 4)
    assert (recovery.iteration, tiers(recovery)) == (9, [Tier.LOCAL] * 4)
    holdings = full()
    holdings[0][0] = [Held(iteration=9, fault="corrupt"), Held(iteration=8)]
    recovery = plan(holdings, 4)
    assert (recovery.iteration, recovery.sources[0].tier, recovery.sources[0].machine) == (9, Tier.PEER, 1)
    reason = "local memory: iteration 9: corrupt, iteration 8: older than what every rank can reach"
    assert recovery.sources[0].passed_over == (reason,)


def test_ranks_that_need_a_peer_are_spread_evenly_and_several_ranks_may_share_a_machine(plan):
    # One group of six with three machines lost: three are left, each can serve one. In rank order the first choice is
    # the first machine.
    recovery = plan(full(6, 6, lost=(1, 3, 5)), 6)
    assert [recovery.sources[rank].machine for rank in (1, 3, 5)] == [0, 2, 4]
    assert peer_load(recovery) == {0: 1, 2: 1, 4: 1}
    # A ring of five with m = 3: machine i's shard is on i, i + 1, i + 2. Without 0 and 1 rank 0 has only machine 2, so
    # rank 1, which could take 2 or 3, takes 3.
    recovery = plan(full(5, 3, kind="ring", lost=(0, 1)), 5)
    assert [recovery.sources[rank].machine for rank in (0, 1)] == [2, 3]
    # Of a thousand machines no peer serves two.
    recovery = plan_recovery(full(1000, 3, lost=set(range(0, 1000, 3))), 1000)
    assert (recovery.iteration, max(peer_load(recovery).values())) == (9, 1)
    recovery = plan({1: {rank: [Held(iteration=4)] for rank in range(4)}}, 4, machine_of=[0, 0, 1, 1])
    assert tiers(recovery) == [Tier.PEER, Tier.PEER, Tier.LOCAL, Tier.LOCAL] and peer_load(recovery) == {1: 2}


def test_the_fast_plan_is_the_one_of_the_definition_on_random_inventories():
    generator = random.Random(0)
    seen = set()
    for _ in range(500):
        num_machines = generator.randint(1, 6)
        kind, num_replicas = generator.choice(["mixed", "ring"]), generator.randint(1, num_machines)
        holders = placement(num_machines, num_replicas, kind).holders
        holdings = {}
        for rank, machine in ((rank, machine) for rank, row in enumerate(holders) for machine in row):
            if generator.random() < 0.7:
                drawn = [(generator.choice([4, 5, 5, 5]), generator.choice(4 * [""] + ["corrupt"])) for _ in range(2)]
                held = [Held(iteration=iteration, fault=fault) for iteration, fault in drawn]
                holdings.setdefault(machine, {})[rank] = held[: generator.randint(0, 2)]
        stored = generator.choice([(), (), (3,), (5,)])
        recovery = plan_recovery(holdings, num_machines, stored)
        assert recovery == plan_recovery_by_definition(holdings, num_machines, stored)
        seen |= set(tiers(recovery))
        assert all(source.passed_over == () for source in recovery.sources if source.tier is Tier.LOCAL)
    assert seen == set(Tier)


EASY = waste.Job(iteration_s=10, state_bytes=800, num_machines=4, storage_bytes_per_s=20, network_bytes_per_s=100)


@pytest.mark.parametrize(("checkpoint_s", "interval_s", "retrieval_s"), [(4, 20, 3), (20, 20, 0), (0.5, 7, 2)])
def test_the_equation_is_the_average_over_the_moments_of_failure(checkpoint_s, interval_s, retrieval_s):
    times = {"checkpoint_s": checkpoint_s, "interval_s": interval_s, "retrieval_s": retrieval_s}
    by_definition = waste.wasted_time_s_by_definition(**times, num_moments=1000)
    assert by_definition == pytest.approx(waste.wasted_time_s(**times), rel=2e-3)
    assert waste.wasted_time_s(**times) == checkpoint_s + interval_s / 2 + retrieval_s


def test_gpt2_100b_and_mt_nlg_of_the_paper():
    # 1,203.4 GB at 2.5 GB/s: 481.4 s, 7.8 iterations of 62 s, so 8; 10,800 s are 174.2 iterations, "more than 170".
    stored_s = GPT2_100B.storage_s
    assert stored_s == pytest.approx(481.38, abs=0.005)
    assert high_frequency(GPT2_100B).storage.interval_iterations == 8
    assert strawman(GPT2_100B).storage.interval_iterations == gemini(GPT2_100B).storage.interval_iterations == 174
    assert gemini(GPT2_100B).memory.interval_iterations == 1
    # "1.5 x the iteration time", and a shard of 75.2 GB over 50 GB/s: "less than three seconds".
    assert waste.average_wasted_s(gemini(GPT2_100B), GPT2_100B, Tier.LOCAL) == 1.5 * 62
    assert GPT2_100B.retrieval_s(Tier.PEER) == pytest.approx(1.504, abs=0.0005)
    # 481.4 + 8 x 62 / 2 + 481.4; without peers Gemini degrades to Strawman.
    policies = (high_frequency, gemini, strawman)
    wasted_s = [waste.average_wasted_s(policy(GPT2_100B), GPT2_100B, Tier.STORAGE) for policy in policies]
    assert wasted_s == pytest.approx([2 * stored_s + interval * 62 / 2 for interval in (8, 174, 174)])
    # Section 6.2.2: 42 minutes a checkpoint; as often as possible 2.5 times that are wasted, "105 minutes".
    assert MT_NLG.storage_s / 60 == pytest.approx(42.4)
    times = dict.fromkeys(("checkpoint_s", "interval_s", "retrieval_s"), MT_NLG.storage_s)
    assert waste.wasted_time_s(**times) / 60 == pytest.approx(106)


JOB = waste.Job(iteration_s=10, state_bytes=800, num_machines=4, storage_bytes_per_s=20, network_bytes_per_s=20)
# A shard is 200 bytes, 10 s over the link; four replicas in two buffers each need 1,600 bytes.
NEEDS = method.CheckpointingNeeds(
    job=JOB, idle_s=4, memory_bytes=1600, failures_per_machine_day=1.0, hardware_share=0.0, most_iterations=200
)


def test_the_waste_of_one_choice_by_hand_where_the_tiers_share_the_failures():
    # m = 2, n = 1: 10 s to send, 4 s idle, so 6 s block: interval 16 s, t_ckpt = 6 + 10; 4 failures a day.
    by_hand = 6 / 16 + 4 / 86_400 * (16 + 16 / 2)
    assert method.expected_waste(NEEDS, 2, 1) == pytest.approx(by_hand, rel=1e-12)
    # n = 3: 12 idle seconds suffice; t_ckpt = 3 iterations, interval 30 s.
    assert method.expected_waste(NEEDS, 2, 3) == pytest.approx(4 / 86_400 * (30 + 30 / 2), rel=1e-12)
    # 3 replicas need 20 s; in 2 iterations 8 s are idle.
    assert [waste.memory_level(NEEDS, 3, interval).blocking_s for interval in (2, 5)] == [12, 0]
    assert waste.memory_level(NEEDS, 3, 7).transfer_s == 50
    # Memory bounds the replicas by two buffers each.
    assert [replace(NEEDS, memory_bytes=size).most_replicas for size in (400, 799, 800, 1e9)] == [1, 1, 2, 4]
    # Three other machines at 1 a day, window 600 s: mean 3 x 600 / 86,400 more losses. Two groups of 2 of 4 machines:
    # 2 lost are a group in 2 of 6 cases, 3 and 4 always hold one.
    needs, mean = replace(NEEDS, hardware_share=1.0), 3 * 600 / 86_400
    weights = [math.exp(-mean) * mean**more / math.factorial(more) for more in range(3)]
    lost = weights[1] / 3 + (1 - weights[0] - weights[1])
    assert waste.storage_share(needs, 2) == pytest.approx(lost, rel=1e-4)  # beyond 4 machines there are no more to lose
    from_storage = 40 + 1080 * 10 / 2 + 40
    mean_s = (1 - lost) * (45 + 10) + lost * from_storage
    assert method.expected_waste(needs, 2, 3) == pytest.approx(4 / 86_400 * mean_s, rel=1e-4)


def test_the_best_choice_is_that_of_the_search_of_everything():
    choices = {
        "failures_per_machine_day": (1e-3, 1.0, 30.0),
        "idle_s": (0.0, 1.0, 7.0, 10.0),
        "blocking_s": (0.0, 0.2, 30.0),
        "hardware_share": (0.0, 0.5, 1.0),
        "job": [replace(JOB, network_bytes_per_s=rate) for rate in (2.0, 50.0)],
    }
    for chosen in random.Random(0).sample(list(itertools.product(*choices.values())), 60):
        needs = replace(NEEDS, **dict(zip(choices, chosen, strict=True)))
        assert method.best_checkpointing(needs) == waste.best_checkpointing_by_definition(needs), needs


def test_the_best_interval_is_young_s_where_only_blocking_costs_and_shorter_with_more_failures():
    # sqrt(2 x 2 x 100) = 20; half = 0.01: 20 x (1 + 0.1 / 3 + 0.01 / 9) - 2.
    assert waste.young_interval_s(2, 100) == 20
    assert waste.daly_interval_s(2, 100) == pytest.approx(20 * (1 + 0.1 / 3 + 0.01 / 9) - 2)
    assert waste.daly_interval_s(200, 100) == 100
    # 0.5 s of blocking, 4 failures a day of 10 s iterations: sqrt(2 x 0.5 x 21,600) = 147 s.
    chosen = method.best_checkpointing(replace(NEEDS, blocking_s=0.5))
    assert chosen.young_s == pytest.approx(146.97, abs=0.01)
    assert abs(chosen.interval_iterations * 10 + 0.5 - chosen.young_s) <= 10
    rates = [replace(NEEDS, failures_per_machine_day=rate, blocking_s=2.0) for rate in (0.01, 0.1, 1.0, 10.0, 100.0)]
    intervals = [method.best_checkpointing(needs).interval_iterations for needs in rates]
    assert intervals == sorted(intervals, reverse=True) and intervals[0] > intervals[-1]
    # Software failures alone need one replica and no traffic.
    chosen = method.best_checkpointing(NEEDS)
    assert (chosen.num_replicas, chosen.interval_iterations) == (1, 1)
    assert chosen.waste == pytest.approx(4 / 86_400 * 15)


LEVEL = waste.Level(interval_iterations=1)

test_impossible_inventories_times_jobs_levels_and_needs_are_refused = refusals(
    (lambda: waste.wasted_time_s(checkpoint_s=6, interval_s=5, retrieval_s=0), "Eq. 6.2 asks for at least 6"),
    (lambda: waste.wasted_time_s(checkpoint_s=1, interval_s=5, retrieval_s=0, iteration_s=10), "at least 10"),
    (lambda: high_frequency(EASY, interval_iterations=3), "Eq. 6.2 asks for at least transfer_s, 40 s"),
    (lambda: waste.average_wasted_s(strawman(EASY), EASY, Tier.PEER), "Strawman keeps .* in persistent storage"),
    (lambda: plan_recovery({}, 0), "num_ranks is 0"),
    (lambda: plan_recovery({1: {4: [Held(iteration=1)]}}, 4), "holdings has rank 4 on machine 1; ranks are 0 to 3"),
    (lambda: replace(EASY, iteration_s=0), "iteration_s is 0"),
    (lambda: replace(LEVEL, interval_iterations=0), "interval_iterations is 0"),
    (lambda: replace(LEVEL, blocking_s=-1), "blocking_s is -1"),
    (lambda: waste.young_interval_s(1, 0), "mean_time_between_failures_s is 0"),
    (lambda: method.expected_waste(NEEDS, 5, 1), "num_replicas is 5; it must be in 1..4"),
    (lambda: replace(NEEDS, memory_bytes=399), "memory_bytes is 399"),
    (lambda: replace(NEEDS, idle_s=11), "idle_s is 11"),
    (lambda: replace(NEEDS, hardware_share=2), "hardware_share is 2"),
    (lambda: replace(NEEDS, failures_per_machine_day=0), "failures_per_machine_day is 0"),
    (lambda: replace(NEEDS, window_s=-1), "window_s is -1"),
    (lambda: replace(NEEDS, most_iterations=0), "most_iterations is 0"),
)
