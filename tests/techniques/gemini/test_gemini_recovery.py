"""Which iteration all ranks resume from, and who serves whom: hand-worked, and fast against the definition."""

import random
from collections import Counter

import pytest

from workbench.techniques.gemini.method import Held, Tier, placement, plan_recovery
from workbench.techniques.gemini.method.recovery import plan_recovery_by_definition


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


def test_after_a_software_failure_every_rank_is_served_by_local_memory(plan):
    found = plan(full(), 4, stored=[5])
    assert found.iteration == 9
    assert tiers(found) == [Tier.LOCAL] * 4
    assert [source.machine for source in found.sources] == [0, 1, 2, 3]
    assert all(source.passed_over == () for source in found.sources)


def test_lost_machines_of_different_groups_are_served_by_their_peers_as_in_figure_6_6c(plan):
    # Machines 2 and 4 of the figure are 1 and 3 here; 1 and 3 of the figure, 0 and 2 here, serve them.
    found = plan(full(lost=(1, 3)), 4, stored=[5])
    assert found.iteration == 9
    assert [(source.tier, source.machine) for source in found.sources] == [
        (Tier.LOCAL, 0),
        (Tier.PEER, 0),
        (Tier.LOCAL, 2),
        (Tier.PEER, 2),
    ]
    assert found.sources[1].passed_over == ("local memory: nothing is held",)


def test_when_a_whole_group_is_lost_all_ranks_go_back_to_storage_so_that_they_agree(plan):
    found = plan(full(lost=(0, 1)), 4, stored=[2, 5])
    assert found.iteration == 5
    assert tiers(found) == [Tier.STORAGE] * 4
    assert found.sources[0].passed_over == ("local memory: nothing is held", "peers: no machine holds this shard")
    assert found.sources[2].passed_over == (
        "local memory: iteration 9: cannot be reached by every rank",
        "peers: machine 3: iteration 9: cannot be reached by every rank",
    )


def test_a_rank_whose_replicas_are_one_iteration_behind_takes_all_ranks_back_by_one(plan):
    holdings = full()
    for machine, shards in holdings.items():
        for rank in shards:
            newest = Held(iteration=10, fault="incomplete" if rank == 2 else "")
            holdings[machine][rank] = [Held(iteration=9), newest]
    found = plan(holdings, 4)
    assert found.iteration == 9
    assert tiers(found) == [Tier.LOCAL] * 4


def test_a_corrupt_local_replica_is_passed_over_for_the_peers_and_the_reason_is_told(plan):
    holdings = full()
    holdings[0][0] = [Held(iteration=9, fault="corrupt"), Held(iteration=8)]
    found = plan(holdings, 4)
    assert (found.iteration, found.sources[0].tier, found.sources[0].machine) == (9, Tier.PEER, 1)
    reason = "local memory: iteration 9: corrupt, iteration 8: older than what every rank can reach"
    assert found.sources[0].passed_over == (reason,)


def test_with_nothing_anywhere_training_starts_from_the_beginning(plan):
    found = plan({}, 2)
    assert found.iteration == 0
    assert tiers(found) == [Tier.START] * 2
    assert found.sources[1].passed_over[2] == "persistent storage: nothing is complete there"
    assert plan({0: {0: [Held(iteration=3)]}}, 2).iteration == 0  # rank 1 has nothing


def test_storage_that_is_of_the_newest_iteration_serves_only_those_that_have_lost_it(plan):
    found = plan(full(lost=(0, 1)), 4, stored=[9])
    assert found.iteration == 9
    assert tiers(found) == [Tier.STORAGE, Tier.STORAGE, Tier.LOCAL, Tier.LOCAL]


def test_ranks_that_need_a_peer_are_spread_so_that_the_busiest_serves_as_few_as_can_be(plan):
    # One group of six with three machines lost: three are left, each can serve one. In rank order the first choice is
    # the first machine.
    found = plan(full(6, 6, lost=(1, 3, 5)), 6)
    assert [found.sources[rank].machine for rank in (1, 3, 5)] == [0, 2, 4]
    assert peer_load(found) == {0: 1, 2: 1, 4: 1}
    # A ring of five with m = 3: machine i's shard is on i, i + 1, i + 2. Without 0 and 1 rank 0 has only machine 2, so
    # rank 1, which could take 2 or 3, takes 3.
    found = plan(full(5, 3, kind="ring", lost=(0, 1)), 5)
    assert [found.sources[rank].machine for rank in (0, 1)] == [2, 3]


def test_several_ranks_may_share_a_machine(plan):
    holdings = {1: {rank: [Held(iteration=4)] for rank in range(4)}}
    found = plan(holdings, 4, machine_of=[0, 0, 1, 1])
    assert tiers(found) == [Tier.PEER, Tier.PEER, Tier.LOCAL, Tier.LOCAL]
    assert peer_load(found) == {1: 2}


def test_the_fast_plan_is_the_one_of_the_definition_on_two_thousand_random_inventories():
    generator = random.Random(0)
    seen = set()
    for _ in range(2000):
        num_machines = generator.randint(1, 6)
        kind, num_replicas = generator.choice(["mixed", "ring"]), generator.randint(1, num_machines)
        holders = placement(num_machines, num_replicas, kind).holders
        holdings = {}
        for rank, row in enumerate(holders):
            for machine in row:
                if generator.random() < 0.7:
                    held = [
                        Held(iteration=generator.choice([4, 5, 5, 5]), fault=generator.choice(4 * [""] + ["corrupt"]))
                        for _ in range(generator.randint(0, 2))
                    ]
                    holdings.setdefault(machine, {})[rank] = held
        stored = generator.choice([(), (), (3,), (5,)])
        found = plan_recovery(holdings, num_machines, stored)
        assert found == plan_recovery_by_definition(holdings, num_machines, stored)
        seen |= set(tiers(found))
        assert all(source.passed_over == () for source in found.sources if source.tier is Tier.LOCAL)
    assert seen == set(Tier)


def test_of_a_thousand_machines_no_peer_serves_two():
    found = plan_recovery(full(1000, 3, lost=set(range(0, 1000, 3))), 1000)
    assert found.iteration == 9
    assert max(peer_load(found).values()) == 1


def test_bad_inventories_are_refused():
    with pytest.raises(ValueError, match="num_ranks is 0; it must be a whole number of at least 1"):
        plan_recovery({}, 0)
    with pytest.raises(ValueError, match="holdings has rank 4 on machine 1; ranks are 0 to 3"):
        plan_recovery({1: {4: [Held(iteration=1)]}}, 4)
    with pytest.raises(ValueError, match="machine_of has 1 entries; it must have num_ranks, 2"):
        plan_recovery({}, 2, machine_of=[0])
    with pytest.raises(ValueError, match="stored is -1; it must be at least 0"):
        plan_recovery({}, 2, stored=[-1])
