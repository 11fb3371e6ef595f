"""What checkpoints cost: fair turns, rows worked by hand, predictions, and one short run on real ranks."""

import json
import os
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed import checkpoint
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.utils._pytree import tree_leaves, tree_map

from workbench import plots
from workbench.cluster import Link
from workbench.launch import Ranks, ShapedHosts
from workbench.study.timing import Timed, Turn, Turns
from workbench.techniques.gemini import plots as pictures
from workbench.techniques.gemini.measured.overhead import (
    AsyncSave,
    Facts,
    Watched,
    idle_s,
    is_installed,
    measure_overhead,
    overhead_rows,
    predict,
)
from workbench.techniques.gemini.measured.training import PoolContext, Size, Tokens
from workbench.techniques.gemini.method.interleaving import Scheme
from workbench.techniques.gemini.runtime.idle import Interleaving, measure_link
from workbench.techniques.gemini.runtime.transfer import Route
from workbench.timeline import Action

TINY = Size(hidden=16, layers=1, heads=2, vocab=32, sequence=8, batch=2, dropout=0.0)


def turn(scheme: str, iteration_s: float, notes: Watched | None = None) -> Turn:
    whole = Action(resource="rank", start_s=0.0, end_s=iteration_s, label="iteration")
    return Turn(name=scheme, length=1, actions=(whole,), cpu_s=iteration_s / 2, notes=notes)


def rows_by_hand(ratio: float) -> dict:
    """Two ranks, six rounds: iterations of 1.0 to 1.5 s, on the second rank 0.2 s longer, with Gemini times a ratio."""
    notes = Watched(idle_before_s=0.5, idle_s=0.4, checkpoint_s=0.2)
    plain_s = [(1.0 + 0.1 * number, 1.2 + 0.1 * number) for number in range(6)]
    rounds = {
        "Baseline": [tuple(turn("Baseline", seconds) for seconds in ranks) for ranks in plain_s],
        "Gemini": [tuple(turn("Gemini", ratio * seconds, notes) for seconds in ranks) for ranks in plain_s],
    }
    known = {"shard_bytes": 100, "buffer_bytes": 40, "num_chunks": 5, "network_s": 0.1}
    gemini = tuple(Facts(digest=digest, **known) for digest in ("a", "b"))
    rows = overhead_rows(Timed(rounds=rounds, facts={"Baseline": (Facts(digest="a"),) * 2, "Gemini": gemini}))
    return {(row["quantity"], row["scheme"]): row for row in rows}


def test_ratios_are_taken_within_rounds_of_the_ranks_means():
    rows = rows_by_hand(1.02)
    assert rows["iteration_s", "Baseline"]["value"] == pytest.approx(1.35)  # median of 1.1 to 1.6
    assert rows["over_baseline", "Gemini"]["value"] == pytest.approx(1.02)
    assert rows["over_baseline", "Gemini"]["low"] == pytest.approx(1.02), "the same ratio in every round has no spread"
    assert ("over_baseline", "Baseline") not in rows


def test_idle_time_is_what_training_leaves_less_what_the_checkpoint_takes():
    rows = rows_by_hand(1.0)
    assert rows["idle_s", "Baseline"]["value"] == pytest.approx(0.5)
    assert rows["idle_s", "Gemini"]["value"] == pytest.approx(0.4 - 0.1)
    assert rows["idle_used", "Gemini"]["value"] == pytest.approx(0.1 / 0.5)


def test_a_rank_that_ends_with_other_bits_is_counted():
    assert rows_by_hand(1.0)["different_ranks", "Gemini"]["value"] == 1


def test_idle_time_leaves_out_overlaps_and_what_lies_outside_the_iteration():
    # Iteration 10 to 20; messages 9 to 11, 12 to 14 and 13 to 15, 19 to 25: 1 + 3 + 1 under way, 5 idle.
    assert idle_s(10, 20, [(9, 11), (12, 14), (13, 15), (19, 25)]) == pytest.approx(5)
    assert idle_s(10, 20, []) == pytest.approx(10)
    assert idle_s(10, 20, [(1, 9), (21, 30)]) == pytest.approx(10)


def test_the_prediction_is_that_of_bytes_over_rates():
    # 2 / 2.9e9 + 1 / 6e9 + 2 / 2e9 = 1.8563e-9 s a byte; 1e6 bytes of 4 ranks on 2 cores: 3.7126 ms.
    known = {"shard_bytes": 1_000_000, "iteration_s": 1.0, "bandwidth_bytes_per_s": 1e7, "num_machines": 4}
    told = predict(num_cores=2, **known)
    assert told.work_s == pytest.approx(3.7126e-3, rel=1e-4)
    assert told.network_s == pytest.approx(0.1)
    assert told.over_baseline == pytest.approx(1.0037126)
    assert told.blocking_over_baseline == pytest.approx(1.1037126)
    more_cores = predict(num_cores=64, **known)
    assert more_cores.work_s == pytest.approx(1.8563e-3, rel=1e-4), "a rank's work is done by one core"


def test_the_memory_of_a_pool_rank_is_found_again_by_name_and_keeps_its_size():
    context = PoolContext(1, 4)
    first, again = context.memory("shard", 8), context.memory("shard", 8)
    os.pwrite(first, b"12345678", 0)
    assert os.pread(again, 8, 0) == b"12345678" and context.memory_names() == {"shard": 8}
    with pytest.raises(ValueError, match="num_bytes is 9; it must be 8"):
        context.memory("shard", 9)
    os.close(first), os.close(again)
    context.close()
    assert context.memory_names() == {}


@pytest.mark.parametrize(
    ("schemes", "rounds", "told"),
    [(["Gemini"], 6, "schemes is"), (["Baseline"], 6, "schemes is"), (["Baseline", "Gemini"], 5, "rounds is 5")],
)
def test_what_cannot_be_compared_is_refused_before_any_rank_starts(schemes, rounds, told):
    with pytest.raises(ValueError, match=told):
        measure_overhead(schemes, size=TINY, num_machines=2, bandwidth_bytes_per_s=1e7, turns=Turns(rounds=rounds))


def test_naive_has_one_buffer_as_large_as_its_largest_chunk():
    options = {"num_replicas": 2, "reserved_bytes": 400, "num_buffers": 4, "num_profiled": 1}
    assert Interleaving(Scheme.NAIVE, **options).num_buffers == 1
    assert Interleaving(Scheme.UNPIPELINED, **options).chunk_bytes == 400
    assert Interleaving(Scheme.GEMINI, **options).chunk_bytes == 100


def speed_of_link(chunk_bytes: int) -> float:
    peer = 1 - dist.get_rank()
    return measure_link([Route(target=peer, source=peer)], dist.new_group(), chunk_bytes).bandwidth_bytes_per_s


def test_the_speed_of_a_link_is_not_that_of_what_an_idle_one_lets_through_at_once():
    rate = 25e6  # an idle one lets 12.5 KB through at once: a chunk of 16 KiB alone would seem four times as fast
    with Ranks(2, hosts=ShapedHosts(2, Link(bandwidth_bytes_per_s=rate)), timeout_s=60) as ranks:
        assert all(speed < 1.5 * rate for speed in ranks.run(speed_of_link, 16_384))


def saved_and_live(folder: str) -> list[bool]:
    """Train and save two iterations, and say of every tensor that was saved whether it is as it is now."""
    model = TINY.model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    saving, tokens = AsyncSave(model, optimizer, folder), Tokens(TINY, dist.get_rank())
    for _ in range(2):
        ids_BS = tokens.batch()
        model(ids_BS, ids_BS).backward()
        optimizer.step()
        saving.step()
    saving.close()
    live = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    found = tree_map(lambda each: torch.zeros_like(each) if isinstance(each, torch.Tensor) else each, live)
    checkpoint.load(found, checkpoint_id=folder)
    pairs = zip(tree_leaves(found), tree_leaves(live), strict=True)
    return [bool((a == b).all()) for a, b in pairs if isinstance(a, torch.Tensor)]


def test_what_async_save_is_asked_to_save_is_the_iteration_just_done(pools, tmp_path):
    for same in pools(2).run(saved_and_live, str(tmp_path)):
        assert len(same) > 20 and all(same)


def test_replicas_that_vote_are_compared_only_where_they_can_run():
    turns = Turns(rounds=6)
    options = {"num_profiled": 1, "reserved_bytes": 8192}
    ask = {"num_machines": 2, "bandwidth_bytes_per_s": 50e6, "turns": turns, **options}
    with pytest.raises(ValueError, match="size.sharded is True; torchft needs a model that is not sharded"):
        measure_overhead(["Baseline", "torchft"], size=TINY, **ask)
    if not is_installed():
        pytest.skip("torchft is not installed: pip install torchft")
    found = measure_overhead(["Baseline", "torchft"], size=replace(TINY, sharded=False), **ask)
    assert {row["scheme"] for row in found.rows if row["quantity"] == "over_baseline"} == {"torchft"}


def test_real_ranks_train_the_same_bits_with_every_scheme_and_pay_for_their_own_checkpoints_only():
    options = {"turns": Turns(rounds=6), "num_profiled": 1, "reserved_bytes": 8192}
    schemes = ["Baseline", "Blocking", "Gemini", "async_save"]
    found = measure_overhead(schemes, size=TINY, num_machines=2, bandwidth_bytes_per_s=50e6, **options)
    by_name = {(row["quantity"], row["scheme"]): row["value"] for row in found.rows}
    assert [by_name["different_ranks", scheme] for scheme in schemes[1:]] == [0, 0, 0]
    assert by_name["buffer_bytes", "Gemini"] == 2 * 8192, "four sub-buffers of 2 KiB to send and four to receive"
    assert by_name["shard_bytes", "Gemini"] == by_name["shard_bytes", "Blocking"] > 0
    assert by_name["checkpoint_s", "Gemini"] > 0 and ("network_s", "Blocking") not in by_name
    figure = pictures.draw_overhead(found.rows)
    assert [ax.get_ylabel() for ax in figure.axes] == [
        "seconds",
        "idle network (s)",
        "longer than without (%)",
        "MiB a rank",
    ]
    assert "Gemini" in str(plots.with_intervals(found.rows).T.columns) and json.dumps(found.rows)
