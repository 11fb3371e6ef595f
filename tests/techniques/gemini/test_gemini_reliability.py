"""Drawn failure schedules: what they are, what damage does, and that trainings survive them."""

import os

import pytest

from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.measured import reliability
from workbench.techniques.gemini.measured.reliability import (
    Failure,
    Flip,
    Schedule,
    Undisturbed,
    draw_schedule,
    reliability_cells,
    reliability_rows,
    run_schedule,
)
from workbench.techniques.gemini.method.placement import placement
from workbench.techniques.gemini.method.recovery import Tier
from workbench.techniques.gemini.runtime.control.events import Fault, Victim

ITERATIONS = 6  # of the short trainings


def schedule(*faults: Fault, flip: Flip | None = None, **more) -> Schedule:
    usual = {"seed": 0, "num_machines": 3, "num_replicas": 2, "sharded": False, "standbys": 0, "storage_every": 0}
    return Schedule(**usual | more, kinds=(), faults=faults, flip=flip)


def machine(*numbers: int, at: int, **more) -> Fault:
    return Fault(kills=Victim.MACHINE, numbers=numbers, at_iteration=at, **more)


@pytest.fixture(scope="module")
def warm(fleet):
    return fleet, Undisturbed(fleet, ITERATIONS)


@pytest.fixture
def survive(warm):
    """Trains under a schedule, and checks what must hold whatever befell it."""

    def trained(planned: Schedule) -> dict:
        machines, undisturbed = warm
        row = run_schedule(planned, undisturbed.digests(planned), machines, iterations=ITERATIONS)
        assert (row["is_finished"], row["error"], row["different_ranks"]) == (True, "", 0)
        assert (row["num_orphans"], row["leaked_bytes"]) == (0, 0)
        return row

    return trained


def test_a_seed_gives_the_same_schedule_every_time_and_nine_in_a_row_have_all_kinds():
    assert draw_schedule(3) == draw_schedule(3)
    found = [draw_schedule(seed) for seed in range(200)]
    assert {kind for each in found[:9] for kind in each.kinds} == set(Failure)
    assert {each.num_machines for each in found} == {3, 4, 5} and {each.num_replicas for each in found} == {2, 3}
    assert len({each.words for each in found}) == 200
    for each in found:
        for fault in each.faults:
            fault.check_fits(each.num_machines, each.num_machines, has_store=True)


def test_two_groups_leave_a_replica_of_every_shard_and_a_whole_group_takes_one_away():
    seen = set()
    for each in (draw_schedule(seed) for seed in range(200)):
        holders = placement(each.num_machines, each.num_replicas).holders
        for fault in (fault for fault in each.faults if fault.kills is Victim.MACHINE and len(fault.numbers) > 1):
            is_group = fault.numbers in holders
            loses = any(set(kept) <= set(fault.numbers) for kept in holders)
            assert loses == is_group
            seen.add(is_group)
    assert seen == {True, False}


def test_a_schedule_says_itself_in_one_line():
    faults = (machine(2, at=3), Fault(kills=Victim.ROOT, after_event="joined", occurrence=4, delay_s=0.02))
    planned = schedule(*faults, flip=Flip(machine=1, shard=0, at_iteration=2, place=0.5), storage_every=3)
    assert planned.words == (
        "seed 0: 3 machines, m = 2, DDP, storage every 3: a bit of shard 0 on machine 1 at iteration 2; "
        "machine 2 at iteration 3; root after 'joined' number 4 + 20 ms"
    )


def test_cells_divide_the_seeds_without_leaving_one_out():
    assert reliability_cells(5, 2, first=7) == [{"seeds": [7, 8]}, {"seeds": [9, 10]}, {"seeds": [11]}]
    with pytest.raises(ValueError, match="each is 0; it must be at least 1"):
        reliability_cells(5, 0)


def test_what_stays_open_of_a_machines_memory_is_counted_as_leaked():
    before = reliability._Left.now()
    leaked = os.memfd_create("workbench-shard of rank 0, 8192 bytes")
    os.truncate(leaked, 8192)
    try:
        assert reliability._left_behind(before, patience_s=0) == (0, 8192)
    finally:
        os.close(leaked)
    assert reliability._left_behind(before) == (0, 0)


@pytest.mark.timeout(100)
def test_a_machine_lost_while_another_ones_loss_is_recovered_from_and_the_store_between(survive):
    faults = (
        machine(1, at=2),
        Fault(kills=Victim.STORE, at_iteration=2, down_s=0.3),
        Fault(kills=Victim.ROOT, after_event="generation ordered", occurrence=2),
    )
    assert survive(schedule(*faults, num_replicas=3))["num_generations"] >= 3


@pytest.mark.timeout(100)
def test_a_flipped_bit_in_the_local_replica_makes_the_peers_serve_and_the_report_says_why(survive):
    flip = Flip(machine=0, shard=0, at_iteration=3, place=0.9)
    row = survive(schedule(Fault(kills=Victim.RANK, numbers=(2,), after_event="bit flipped"), flip=flip))
    assert row["tiers"] == [Tier.PEER] and row["resumed"] == [0, 3]
    local, examined = row["reasons"]
    assert local.startswith("local memory: iteration 3: the checksum of bytes") and "is wrong" in local
    assert examined.startswith("shard of rank 0, iteration 3: the checksum of bytes")


@pytest.mark.timeout(100)
def test_a_flipped_bit_in_the_only_replica_that_is_left_makes_all_go_back_one_iteration(survive):
    flip = Flip(machine=1, shard=0, at_iteration=3, place=0.1)
    lost = Fault(kills=Victim.MACHINE, numbers=(0,), after_event="bit flipped")
    row = survive(schedule(lost, flip=flip))
    assert row["tiers"] == [Tier.PEER] and row["resumed"] == [0, 2]
    [examined] = row["reasons"]
    assert examined.startswith("shard of rank 0, iteration 3: the checksum of bytes") and row["flips_passed_over"]


@pytest.mark.timeout(100)
def test_a_whole_group_during_a_checkpoint_is_served_by_storage_with_sharded_state(survive):
    row = survive(schedule(machine(0, 1, at=4, delay_s=0.01), sharded=True, storage_every=3, standbys=1))
    assert row["tiers"] == [Tier.STORAGE] and row["resumed"][-1] == 3


def test_the_rows_count_recoveries_by_tier_and_the_picture_has_a_bar_a_generation():
    bars = [
        {"generation": 1, "start_s": 0.0, "end_s": 1.0, "tier": "the start", "iteration": 0},
        {"generation": 2, "start_s": 2.0, "end_s": 3.0, "tier": "peer memory", "iteration": 4},
    ]
    row = {
        "seed": 4,
        "is_finished": True,
        "different_ranks": 0,
        "num_orphans": 0,
        "leaked_bytes": 0,
        "seconds": 3.0,
        "generations": bars,
        "strikes": [{"at_s": 1.0, "what": "machine"}],
    }
    values = {(each["quantity"], each.get("tier")): each["value"] for each in reliability_rows([row])}
    assert values["num_recoveries", "peer memory"] == 1.0 and values["num_recoveries", "the start"] == 0.0
    [ax] = pictures.draw_schedules([row]).axes
    assert [patch.get_width() for patch in ax.patches] == [1.0, 1.0]
    assert ax.get_title() == "1 of 1 trainings ended with the bits of an undisturbed one"
