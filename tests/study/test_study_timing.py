"""Variants timed in turns: turns and breakdowns worked by hand, and one run on two real ranks of which one is late."""

import time
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist

from tests.cases import refusals
from workbench.parallel.groups import RecordedTensorGroup
from workbench.rows import median_row, ratio_row
from workbench.study.breakdown import break_down, break_down_stages, timeline_of
from workbench.study.timing import Timed, Trial, Turn, Turns, dose_rows, take_turns, time_variants
from workbench.timeline import Action, Dose, Kind

KINDS = {
    "iteration": Kind.COMPUTE,
    "product": Kind.COMPUTE,
    "forward": Kind.FORWARD,
    "backward": Kind.BACKWARD,
    "optimizer": Kind.OTHER,
    "all_reduce": Kind.COMMUNICATE,
    "encode": Kind.ENCODE,
    "decode": Kind.DECODE,
}


def rank(text):
    """Make one rank's actions of words such as `forward.0:0-8`: label, start and end; its first part is the kind."""
    actions = []
    for word in text.split():
        label, _, times = word.partition(":")
        start_s, end_s = map(float, times.split("-"))
        kind = KINDS[label.partition(".")[0]]
        actions.append(
            Action(resource="rank", start_s=start_s, end_s=end_s, kind=kind, label=label.replace(".", " ", 1))
        )
    return tuple(actions)


# Rank 0 multiplies until 2 and enters the message there; rank 1 multiplies until 6. Both are in it until 7.
STRAGGLING = [rank("iteration:0-8 product:0-2 all_reduce:2-7"), rank("iteration:0-8 product:1-6 all_reduce:6-7")]


def test_a_rank_waits_while_another_one_computes_and_transfers_while_all_are_in_messages():
    parts = break_down(STRAGGLING)
    assert (parts.iteration_s, parts.transfer_s) == (8, 1)
    assert (parts.product_s, parts.waiting_s, parts.other_s) == ((2, 5), (4, 0), (1, 2))
    for number in range(2):
        assert parts.product_s[number] + parts.waiting_s[number] + parts.transfer_s + parts.other_s[number] == 8
    timeline = timeline_of(STRAGGLING, "SEMI")
    kinds = [(action.kind, action.start_s, action.end_s) for action in timeline.of("SEMI rank 0")]
    assert kinds == [(Kind.COMPUTE, 0, 2), (Kind.WAIT, 2, 6), (Kind.COMMUNICATE, 6, 7), (Kind.OTHER, 7, 8)]
    kinds = [action.kind for action in timeline.of("SEMI rank 1")]
    assert kinds == [Kind.OTHER, Kind.COMPUTE, Kind.COMMUNICATE, Kind.OTHER]


def test_two_tensor_ranks_wait_until_the_later_one_enters_and_transfer_from_then_on():
    ranks = [
        "iteration:0-20 forward.0:0-8 encode.mlp:1-2 all_reduce:2-7 decode.mlp:7-8"
        " backward.0:8-17 all_reduce:10-12 optimizer:17-19",
        "iteration:1-20 forward.0:1-8 encode.mlp:2-4 all_reduce:4-7 decode.mlp:7-8"
        " backward.0:8-16 all_reduce:9-12 optimizer:16-20",
    ]
    parts = break_down_stages([rank(text) for text in ranks], tp=2)
    assert (parts.iteration_s, parts.waiting_and_pipeline_s, parts.boundaries_s) == (20, 1, ())
    assert (parts.forward_s, parts.backward_s, parts.optimizer_s) == (7.5, 8.5, 3)  # 8 and 7, 9 and 8, 2 and 4
    assert (parts.encode_s, parts.decode_s) == (1.5, 1)  # 1 and 2
    assert parts.tensor_waiting_s == 1  # rank 0 enters at 2, rank 1 at 4: 2 and 0
    assert parts.tensor_s == 3  # from 4 to 7 on both
    assert parts.tensor_backward_s == 2  # from 10 to 12


def test_stages_that_work_one_after_another_add_up_and_the_boundary_has_its_own_encoding():
    stages = [
        "iteration:0-16 forward.0:0-3 encode.boundary.4:2-3 backward.0:11-15 optimizer:15-16",
        "iteration:0-11 forward.0:4-6 backward.0:6-9 optimizer:9-11",
    ]
    parts = break_down_stages([rank(text) for text in stages], tp=1)
    assert (parts.forward_s, parts.backward_s, parts.optimizer_s) == (5, 7, 2)
    assert parts.waiting_and_pipeline_s == 16 - 5 - 7 - 2
    assert parts.encode_s == 0
    assert parts.boundaries_s == (1 + 2,)  # from 3 to 4 forward, from 9 to 11 backward


def test_with_two_micro_batches_a_boundary_counts_from_when_the_receiver_was_free_and_stages_are_averaged():
    stages = [
        "iteration:0-20 forward.0:0-2 forward.1:2-4 backward.0:14-16 backward.1:17-19 optimizer:19-20",
        "iteration:0-20 forward.0:3-6 forward.1:8-10 backward.0:10-13 backward.1:13-16 optimizer:16-17",
    ]
    parts = break_down_stages([rank(text) for text in stages], tp=1, num_micro_batches=2)
    assert parts.forward_s == (4 + 5) / 2
    assert parts.backward_s == (4 + 6) / 2
    # Forward: 2 to 3; the second was sent at 4 but its receiver was busy until 6: 6 to 8.
    # Backward: 13 to 14; the second was sent at 16, when the receiver was free: 16 to 17.
    assert parts.boundaries_s == (1 + 2 + 1 + 1,)


def turn(name, start_s, end_s):
    actions = rank(f"iteration:{start_s}-{end_s}")
    return Turn(name=name, length=2, actions=actions, cpu_s=(end_s - start_s) / 4)


def test_turns_are_put_together_by_variant_and_round_and_last_from_the_first_start_to_the_last_end():
    first = [turn("slow", 0, 4), turn("fast", 4, 6), turn("fast", 6, 7), turn("slow", 8, 10)]
    second = [turn("slow", 1, 6), turn("fast", 4, 6), turn("fast", 6, 8), turn("slow", 8, 12)]
    timed = Timed.of([(first, {"slow": "a", "fast": "b"}), (second, {"slow": "c", "fast": "d"})])
    assert timed.iterations_s("slow") == [6 / 2, 4 / 2]
    assert timed.iterations_s("fast") == [2 / 2, 2 / 2]
    assert timed.cpu_s("slow") == [1 + 1.25, 0.5 + 1]
    assert timed.facts == {"slow": ("a", "c"), "fast": ("b", "d")}
    assert [actions[0].start_s for actions in timed.median_turn("slow")] == [0, 1]  # the longer of two


def test_injected_delays_are_means_over_rounds_and_their_error_is_of_the_sum():
    asked, late = Dose(intended_s=2.0, delivered_s=2.0), Dose(intended_s=2.0, delivered_s=2.2)
    rows = dose_rows([[asked, Dose()], [late, Dose()]], variant="x")
    values = {(row["quantity"], row["rank"]): row["value"] for row in rows}
    assert values["dose_intended_s", 0] == 2.0 and values["dose_delivered_s", 0] == pytest.approx(2.1)
    assert values["dose_error", 0] == pytest.approx(4.2 / 4 - 1) and values["dose_error", 1] == 0
    assert {row["variant"] for row in rows} == {"x"}


test_turns_that_cannot_be_or_give_no_interval_are_refused = refusals(
    ({"rounds": 0}, "rounds is 0; it must be at least 1"),
    ({"repeats": 0}, "repeats is 0; it must be at least 1"),
    ({"rounds": 5}, "rounds is 5; it must be at least 6 for an interval"),
    ({"rounds": 2, "repeats": 2}, "rounds is 2; it must be at least 3 for an interval"),
    of=lambda **wrong: Turns(**{"rounds": 6} | wrong).check_interval(),
)


LATE_S = 0.1


def build(recorder, pauses_s):
    """Sum with a late last rank; note what was called around each turn."""
    group, calls = RecordedTensorGroup(recorder=recorder), []

    def trial(pause_s):
        def step():
            calls.append("step")
            with recorder.during("forward", Kind.FORWARD):
                time.sleep(pause_s * dist.get_rank())
                group.sum([torch.ones(8)])

        def end():
            noted = list(calls)
            calls.clear()
            return noted

        return Trial(step=step, settling=3, begin=lambda: calls.append("begin"), end=end, close=dist.get_rank)

    return {f"{pause_s:g} s": trial(pause_s) for pause_s in pauses_s}


@pytest.fixture(scope="module")
def pair(pools):
    return pools(2)


def test_variants_take_turns_on_real_ranks_and_a_late_rank_makes_the_other_one_wait(pair):
    timed = time_variants(pair, build, [0.0, LATE_S], turns=Turns(rounds=6, length=2))
    late, punctual = f"{LATE_S:g} s", "0 s"
    assert {name: len(rounds) for name, rounds in timed.rounds.items()} == {punctual: 6, late: 6}
    assert timed.facts == {punctual: (0, 1), late: (0, 1)}
    assert all(turn.notes == ["begin", "step", "step"] for turns in timed.rounds[late] for turn in turns)
    parts = [break_down_stages([turn.actions for turn in turns], tp=2) for turns in timed.rounds[late]]
    assert median_row("waiting_s", [part.tensor_waiting_s for part in parts])["value"] > 0.7 * LATE_S  # mean of 2 and 0
    assert median_row("transfer_s", [part.tensor_s for part in parts])["value"] < LATE_S / 2
    assert ratio_row("ratio", timed.iterations_s(late), timed.iterations_s(punctual))["low"] > 1
    assert all(seconds >= LATE_S for seconds in timed.iterations_s(late))
    assert [part.iteration_s / 2 for part in parts] == timed.iterations_s(late)


def orders(turns):
    kept, _ = take_turns(build, [[0.0, 1e-4, 2e-4, 3e-4]], turns)
    return [turn.name for turn in kept]


def test_the_order_is_drawn_anew_for_each_round_alike_on_all_ranks_and_warm_up_is_not_kept(pair):
    turns = Turns(rounds=3, warmup=1, repeats=2)
    first, second = pair.run(orders, turns)
    assert first == second
    rounds = [first[start : start + 4] for start in range(0, 24, 4)]
    assert all(len(set(names)) == 4 for names in rounds) and len(first) == 24
    assert len({tuple(names) for names in rounds}) > 1
    assert pair.run(orders, turns)[0] == first != pair.run(orders, replace(turns, seed=1))[0]
