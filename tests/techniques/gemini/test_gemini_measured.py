"""Rows of the measured items worked by hand, drawn failure schedules, and short runs on real ranks."""

import os
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from cases import refusals
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils._pytree import tree_leaves, tree_map

from workbench.cluster import Link
from workbench.parallel.voting import is_installed
from workbench.study.timing import Timed, Turn, Turns, open_ranks
from workbench.techniques.gemini.control import Event, Fault, TrainingOutcome, Victim
from workbench.techniques.gemini.measured import overhead, reliability, schedules, tiers
from workbench.techniques.gemini.measured.recovery import RecoveryObserved, phases_of, recovery_rows
from workbench.techniques.gemini.measured.schedules import Flip, draw_schedule
from workbench.techniques.gemini.measured.training import Size, Tokens
from workbench.techniques.gemini.method import Tier, placement
from workbench.techniques.gemini.runtime import PRELOAD, CheckpointOptions, Interleaving, Route, measure_link
from workbench.timeline import Action, Kind

TINY = Size(hidden=16, layers=1, heads=2, vocab=32, sequence=8, batch=2, dropout=0.0)


def turn(scheme: str, iteration_s: float, notes: overhead.Watched | None = None) -> Turn:
    whole = Action(resource="rank", start_s=0.0, end_s=iteration_s, label="iteration")
    return Turn(name=scheme, length=1, actions=(whole,), cpu_s=iteration_s / 2, notes=notes)


def rows_by_hand(ratio: float) -> dict:
    """Two ranks, six rounds: iterations of 1.0 to 1.5 s, on the second rank 0.2 s longer, with Gemini times a ratio."""
    notes = overhead.Watched(idle_before_s=0.5, idle_s=0.4, checkpoint_s=0.2)
    plain_s = [(1.0 + 0.1 * number, 1.2 + 0.1 * number) for number in range(6)]
    schemes = {"Baseline": (1.0, None), "Gemini": (ratio, notes)}
    rounds = {
        name: [tuple(turn(name, factor * seconds, noted) for seconds in ranks) for ranks in plain_s]
        for name, (factor, noted) in schemes.items()
    }
    known = {"shard_bytes": 100, "buffer_bytes": 40, "num_chunks": 5, "network_s": 0.1}
    gemini = tuple(overhead.Facts(digest=digest, **known) for digest in ("a", "b"))
    facts = {"Baseline": (overhead.Facts(digest="a"),) * 2, "Gemini": gemini}
    return {(row["quantity"], row["scheme"]): row for row in overhead.overhead_rows(Timed(rounds=rounds, facts=facts))}


def test_ratios_are_taken_within_rounds_of_the_ranks_means():
    rows = rows_by_hand(1.02)
    values = {key: row["value"] for key, row in rows.items()}
    assert values["iteration_s", "Baseline"] == pytest.approx(1.35)  # median of 1.1 to 1.6
    assert values["over_baseline", "Gemini"] == pytest.approx(1.02)
    assert rows["over_baseline", "Gemini"]["low"] == pytest.approx(1.02), "the same ratio in every round has no spread"
    assert ("over_baseline", "Baseline") not in rows
    # Idle is the time that training leaves, less that of the checkpoint.
    assert values["idle_s", "Baseline"] == pytest.approx(0.5)
    assert values["idle_s", "Gemini"] == pytest.approx(0.4 - 0.1)
    assert values["idle_used", "Gemini"] == pytest.approx(0.1 / 0.5)
    assert values["different_ranks", "Gemini"] == 1, "a rank that ends with other bits is counted"


def test_a_cost_falls_under_a_share_at_a_length_between_those_measured():
    # Constant work of 0.01 s: 0.5 % of 2 s, 2 % of 0.5 s, and 1 % of 1 s.
    assert overhead.length_at([(0.5, 0.02), (2.0, 0.005)], 0.01) == pytest.approx(1.0)
    assert overhead.length_at([(0.5, 0.02), (2.0, 0.015)], 0.01) is None
    assert overhead.length_at([(0.5, 0.004), (2.0, 0.001)], 0.01) == 0.5


def test_the_prediction_is_that_of_bytes_over_rates():
    # 1 / 5.8e9 + 2 / 11e9 + 2 / 2e9 = 1.3542e-9 s a byte; 1e6 bytes of 4 ranks on 2 cores: 2.7085 ms.
    known = {"shard_bytes": 1_000_000, "iteration_s": 1.0, "bandwidth_bytes_per_s": 1e7, "num_machines": 4}
    predicted = overhead.predict(num_cores=2, **known)
    assert list(predicted.values()) == pytest.approx([1.0027085, 1.1027085, 2.7085, 100], rel=1e-4)
    more_cores = overhead.predict(num_cores=64, **known)
    assert more_cores["processors' work (ms)"] == pytest.approx(1.3542, rel=1e-4), "a rank's work is done by one core"
    # Naive has one buffer as large as its largest chunk.
    options = CheckpointOptions(reserved_bytes=400)
    assert Interleaving(replace(options, scheme="Naive")).num_buffers == 1
    assert Interleaving(replace(options, scheme="Unpipelined")).chunk_bytes == 400
    assert Interleaving(options).chunk_bytes == 100


def saved_and_live(folder: str) -> list[bool]:
    """Train and save two iterations, change weights, and say of every tensor whether it was saved as before that."""
    model = TINY.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    saving, tokens = overhead.AsyncSave(model, optimizer, folder), Tokens(TINY, dist.get_rank())
    for _ in range(2):
        tokens.loss(model).backward()
        optimizer.step()
        saving.step()
    now = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    live = tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, now)
    for weight in model.parameters():
        weight.data.fill_(1.0)  # some versions of torch would save this
    saving.close()
    loaded = tree_map(lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, torch.Tensor) else leaf, live)
    checkpoint.load(loaded, checkpoint_id=folder)
    pairs = zip(tree_leaves(loaded), tree_leaves(live), strict=True)
    return [bool((a == b).all()) for a, b in pairs if isinstance(a, torch.Tensor)]


def test_async_save_saves_the_iteration_just_done_whatever_changes_after_it(pools, tmp_path):
    for same in pools(2).run(saved_and_live, str(tmp_path)):
        assert len(same) > 20 and all(same)


def compared(**changes):
    usual = {"schemes": ["Baseline", "Gemini"], "size": TINY, "num_machines": 2, "bandwidth_bytes_per_s": 50e6}
    usual |= {"turns": Turns(rounds=6), "num_profiled": 1, "reserved_bytes": 8192}
    return overhead.measure_overhead(**usual | changes)


def tiers_of(**changes):
    usual = {"nums_machines": [2], "bandwidths_bytes_per_s": [50e6], "storage_bytes_per_s": 1e5, "size": TINY}
    return tiers.measure_tiers(**usual | {"repeats": 2, "storage_repeats": 1} | changes)


test_what_cannot_be_measured_is_refused_before_any_rank_starts = refusals(
    (lambda: compared(schemes=["Gemini"]), "schemes is"),
    (lambda: compared(schemes=["Baseline"]), "schemes is"),
    (lambda: compared(turns=Turns(rounds=5)), "rounds is 5"),
    (lambda: compared(schemes=["Baseline", "torchft"]), "size.sharded is True; torchft needs a model that is not"),
    (lambda: tiers_of(repeats=0), "repeats is 0"),
    (lambda: tiers_of(storage_repeats=0), "storage_repeats is 0"),
    (lambda: tiers_of(nums_machines=[3]), "num_machines is 3; it must be even"),
    (lambda: tiers.hidden_from(Tier.PEER, 7, 3), "num_machines is 3; it must be even"),
    (lambda: reliability.reliability_cells(5, 0), "per_cell is 0"),
)


def test_real_ranks_train_the_same_bits_with_every_scheme_and_pay_for_their_own_checkpoints_only():
    voting = ["torchft"] if is_installed() else []
    schemes = ["Baseline", "Blocking", "Gemini", "async_save", *voting]
    rows = overhead.overhead_rows(compared(schemes=schemes, size=replace(TINY, sharded=False)))
    by_name = {(row["quantity"], row["scheme"]): row["value"] for row in rows}
    assert [by_name["different_ranks", scheme] for scheme in schemes[1:4]] == [0, 0, 0]
    assert all(by_name["over_baseline", scheme] > 0 for scheme in schemes[1:])
    assert by_name["buffer_bytes", "Gemini"] == 2 * 8192, "four sub-buffers of 2 KiB to send and four to receive"
    assert by_name["shard_bytes", "Gemini"] == by_name["shard_bytes", "Blocking"] > 0
    assert by_name["checkpoint_s", "Gemini"] > 0 and ("network_s", "Blocking") not in by_name


@pytest.mark.parametrize(("body_s", "sleeps_s"), [(0.5, [1.5]), (2.5, [0.0])])
def test_pacing_adds_the_missing_time_and_nothing_to_a_slower_body(body_s, sleeps_s, monkeypatch):
    times_s, slept_s = iter([10.0, 10.0 + body_s]), []
    clock = SimpleNamespace(monotonic=lambda: next(times_s), sleep=slept_s.append)
    monkeypatch.setattr(tiers, "time", clock)
    with tiers.paced(100, 50.0):  # 100 bytes at 50 bytes/s
        pass
    assert slept_s == pytest.approx(sleeps_s)
    with pytest.raises(ValueError, match="bytes_per_s is 0"), tiers.paced(1, 0):
        pass


def test_a_machine_passes_over_nothing_its_own_shard_or_all_that_it_keeps():
    assert [tiers.hidden_from(Tier.LOCAL, rank, 4) for rank in range(4)] == [()] * 4
    assert [tiers.hidden_from(Tier.PEER, rank, 4) for rank in range(4)] == [(0,), (1,), (2,), (3,)]
    assert [tiers.hidden_from(Tier.STORAGE, rank, 4) for rank in range(4)] == [(0, 1), (1, 0), (2, 3), (3, 2)]


def test_rows_hold_reductions_their_share_of_the_rates_and_the_worst_retrieval_from_a_peer():
    retrieved = {Tier.LOCAL: (0.1,), Tier.PEER: (0.2, 0.4), Tier.STORAGE: (8.0, 10.0)}
    known = {"num_machines": 4, "total_bytes": 80, "retrieved_s": retrieved}
    known |= {"checkpoint_s": (4.0, 1.0, 2.0), "stored_s": (20.0,)}
    measured = [tiers.TierTimes(bandwidth_bytes_per_s=rate, **known) for rate in (12.5e6, 50e6)]
    all_rows = tiers.tier_rows(measured, storage_bytes_per_s=2.5e6)
    rows = {(row["quantity"], row["link_mbit_per_s"], row.get("tier")): row for row in all_rows}
    assert rows["reduction", 100, None]["value"] == 10, "20 s over the median of 4, 1 and 2"
    assert (rows["reduction", 100, None]["low"], rows["reduction", 100, None]["high"]) == (5, 20)
    assert rows["reduction_of_rates", 100, None]["value"] == 20, "4 machines of 100 Mbit/s over 20 Mbit/s"
    assert rows["reduction_of_rates", 400, None]["value"] == 80
    assert rows["share_of_rates", 400, None]["value"] == pytest.approx(10 / 80)
    assert rows["peer_over_storage", 100, None]["value"] == pytest.approx(0.4 / 8)
    assert rows["retrieval_s", 100, "peer memory"]["value"] == pytest.approx(0.3)


STORAGE_BYTES_PER_S = 1e6  # 0.2 s a checkpoint; without pacing it takes some milliseconds


def speed_and_tiers(folder: str, chunk_bytes: int) -> tuple[float, tiers.TierTimes]:
    peer = 1 - dist.get_rank()
    link = measure_link([Route(target=peer, source=peer)], dist.new_group(), chunk_bytes)
    return link.bandwidth_bytes_per_s, tiers.record_tiers(folder, 25e6, TINY, STORAGE_BYTES_PER_S, 2, 1)


def test_real_ranks_store_no_faster_than_the_stated_rate_fetch_from_every_tier_and_know_the_speed_of_their_link(
    tmp_path,
):
    rate = 25e6  # an idle link lets 12.5 KB through at once: a chunk of 16 KiB alone would seem four times as fast
    preload = (*PRELOAD, tiers.__name__)
    with open_ranks(2, link=Link(bandwidth_bytes_per_s=rate), num_hosts=2, preload=preload, timeout_s=60) as ranks:
        (first, measured), (second, _) = ranks.run(speed_and_tiers, str(tmp_path), 16_384)
    assert max(first, second) < 1.5 * rate
    assert measured.total_bytes > 12 * 3000, "weights and two moments of more than 3000 parameters, 4 bytes each"
    assert min(*measured.stored_s, *measured.retrieved_s[Tier.STORAGE]) >= measured.total_bytes / STORAGE_BYTES_PER_S
    times_s = (measured.checkpoint_s, measured.retrieved_s[Tier.PEER], measured.retrieved_s[Tier.LOCAL])
    assert [len(some_s) for some_s in times_s] == [2, 2, 2]


ITERATIONS = 6  # of the short trainings


def schedule(*faults: Fault, flip: Flip | None = None, **more) -> schedules.Schedule:
    usual = {"seed": 0, "num_machines": 3, "num_replicas": 2, "sharded": False, "standbys": 0, "storage_every": 0}
    return schedules.Schedule(**usual | more, kinds=(), faults=faults, flip=flip)


def machine(*numbers: int, at: int, **more) -> Fault:
    return Fault(kills=Victim.MACHINE, numbers=numbers, at_iteration=at, **more)


@pytest.fixture(scope="module")
def survive(fleet):
    """Trains under a schedule, and checks what must hold whatever befell it."""
    undisturbed = reliability.undisturbed_by(fleet, ITERATIONS)

    def trained(planned: schedules.Schedule) -> dict:
        row = reliability.run_schedule(planned, undisturbed(planned), fleet, iterations=ITERATIONS)
        assert (row["ends_rightly"], row["error"], row["different_ranks"]) == (True, "", 0)
        assert (row["num_orphans"], row["leaked_bytes"]) == (0, 0)
        return row

    return trained


def test_a_seed_gives_one_schedule_sixteen_in_a_row_have_all_kinds_and_each_says_itself_in_one_line():
    assert draw_schedule(3) == draw_schedule(3)
    drawn, seen = [draw_schedule(seed) for seed in range(200)], set()
    assert {kind for planned in drawn[:16] for kind in planned.kinds} == set(schedules.Failure)
    assert {planned.num_machines for planned in drawn} == {3, 4, 5} and {p.num_replicas for p in drawn} == {2, 3}
    assert len({planned.words for planned in drawn}) == 200
    for planned, fault in [(schedule, fault) for schedule in drawn for fault in schedule.faults]:
        fault.check_fits(planned.num_machines, planned.num_machines, has_store=True)
        if fault.kills is Victim.MACHINE and len(fault.numbers) > 1:
            # Machines of two groups leave a replica of every shard; a whole group takes one away.
            holders = placement(planned.num_machines, planned.num_replicas).holders
            is_group = fault.numbers in holders
            assert any(set(kept) <= set(fault.numbers) for kept in holders) == is_group
            seen.add(is_group)
    assert seen == {True, False}
    assert drawn[9].words == "seed 9: 3 machines, m = 2, FSDP2, storage every 3: in a recovery, rank"
    assert reliability.reliability_cells(5, 2, first=7) == [{"seeds": [7, 8]}, {"seeds": [9, 10]}, {"seeds": [11]}]


def test_what_stays_open_of_a_machines_memory_is_counted_as_leaked():
    before = reliability._processes_and_memory()
    leaked = os.memfd_create("workbench-shard of rank 0, 8192 bytes")
    os.truncate(leaked, 8192)
    counted = reliability._left_behind(before, patience_s=0)
    os.close(leaked)
    assert (counted, reliability._left_behind(before)) == ((0, 8192), (0, 0))


def test_a_machine_lost_while_another_ones_loss_is_recovered_from_and_the_store_between(survive):
    store = Fault(kills=Victim.STORE, at_iteration=2, down_s=0.3)
    root = Fault(kills=Victim.ROOT, after_event="generation ordered", occurrence=2)
    assert survive(schedule(machine(1, at=2), store, root, num_replicas=3))["num_generations"] >= 3


def test_a_flipped_bit_in_the_only_replica_that_is_left_takes_all_back_one_iteration_and_the_report_says_why(survive):
    flip = Flip(machine=1, shard=0, at_iteration=3, place=0.1)
    row = survive(schedule(Fault(kills=Victim.MACHINE, numbers=(0,), after_event="bit flipped"), flip=flip))
    assert row["tiers"] == [Tier.PEER] and row["resumed"] == [0, 2]
    (examined,) = row["reasons"]
    assert examined.startswith("shard of rank 0, iteration 3: the checksum of its data")
    assert row["flips_passed_over"]


def test_a_whole_group_during_a_checkpoint_is_served_by_storage_with_sharded_state(survive):
    row = survive(schedule(machine(0, 1, at=4, delay_s=0.01), sharded=True, storage_every=3, standbys=1))
    assert row["tiers"] == [Tier.STORAGE] and row["resumed"][-1] == 3


def on_both(name: str, time_s: float, generation: int, **details) -> list[Event]:
    place = {"time_s": time_s, "generation": generation, "details": details}
    return [Event(name=name, number=number, rank=number, **place) for number in (0, 1)]


def observed() -> RecoveryObserved:
    """Machine 1 dies after iteration 3, whose checkpoint is not complete: both resume from iteration 2."""
    events = [*on_both("resumed", 10, 1), *on_both("resumed", 19.2, 2), *on_both("joined", 17, 2)]
    for generation, time_s, iteration in ((1, 11, 1), (1, 12, 2), (1, 13, 3), (2, 21.2, 3), (2, 22.2, 4)):
        events += on_both("iteration", time_s, generation, iteration=iteration)
    events += on_both("checkpoint", 12, 1, iteration=1, began_s=11, sent_s=0.5, received_s=0.7)
    for name, time_s in (("killed", 13.5), ("failure detected", 14.5), ("generation ordered", 15)):
        events.append(Event(name=name, time_s=time_s))
    for rank, time_s, duration_s, tier in ((0, 18, 0.5, "local memory"), (1, 18.2, 1.0, "peer memory")):
        place = {"time_s": time_s, "duration_s": duration_s, "number": rank, "rank": rank, "generation": 2}
        events.append(Event(name="retrieve", details={"tier": tier, "iteration": 2}, **place))
    outcome = TrainingOutcome(results=(), events=tuple(events), hosts=None)
    return RecoveryObserved(kind="hardware", outcome=outcome, phases=phases_of(outcome), different_ranks=0)


def test_phases_add_up_to_the_time_of_the_recovery_and_its_timeline_names_iterations_and_every_ranks_tier():
    phases = observed().phases
    # Ordered 0.5 s after the detection, joined 2 s later; the last rank asks at 18.2 s and has its state at 19.2 s.
    # The first iteration takes 2 s, an iteration as usual 1 s.
    assert list(phases.seconds.values()) == pytest.approx([1, 0.5, 2, 1.2, 1, 1])
    assert (phases.total_s, phases.lost_iterations, phases.lost_s) == (pytest.approx(6.7), 1, pytest.approx(1))
    rows = {row["quantity"]: row["value"] for row in recovery_rows([observed()])}
    assert (rows["from_memory"], rows["different_ranks"]) == (1, 0)
    timeline = observed().timeline
    assert timeline.resources[:3] == ("recovery", "machine 0", "machine 0, checkpoints")
    labels = [(action.label, action.kind) for action in timeline.of("machine 1")]
    progress = [("1", Kind.COMPUTE), ("2", Kind.COMPUTE), ("3", Kind.OTHER)]
    assert labels == [*progress, ("peer memory", Kind.DECODE), ("3", Kind.COMPUTE), ("4", Kind.COMPUTE)]
    assert timeline.of("machine 0, checkpoints")[0].duration_s == pytest.approx(0.7)
