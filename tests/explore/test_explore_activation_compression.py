import pytest
import torch

from workbench.compression import AutoEncoder, Identity, TopK
from workbench.explore import Standing, check
from workbench.explore import activation_compression as lesson
from workbench.explore.activation_compression import Approach
from workbench.launch import Ranks
from workbench.techniques.activation_compression.reconstruction import encode_text
from workbench.timeline import Kind

SHAPE = (16, 8)


def test_the_explorer_says_what_it_shows():
    explorer = lesson.explore_activation_compression()
    assert explorer.status.startswith("Auto-encoder: a message of 3.28 MB (10.2 times smaller), a layer of ")
    assert explorer.result.speedup > 1
    explorer.set(approach=Approach.NONE)
    assert explorer.status.startswith("Without compression a layer takes ")


def test_every_control_changes_the_figure():
    explorer = lesson.explore_activation_compression()
    seen = {explorer.png}
    for change in ({"bandwidth_bytes_per_s": 1.25e9}, {"code_size": 25}, {"approach": Approach.QUANTIZATION}):
        seen.add(explorer.set(**change).png)
    assert len(seen) == 4


def test_the_answers_worked_by_hand_are_right():
    assert check(lesson.code_bytes(), 32 * 512 * 100 * 2).standing is Standing.RIGHT
    assert check(lesson.sum_of_top_1(), [3, 4, 0, 0]).standing is Standing.RIGHT


def test_the_break_even_follows_from_bytes_saved_and_seconds_spent():
    # Both forward reductions save 1.5 * (h - c) * rows * 2 bytes; table 4 gives 3.12 and 4.56 ms for A2
    # in 12 layers, tp 2, whose two activations a layer are as large as here.
    saved_bytes = 2 * 1.5 * 32 * 512 * (1024 - 100) * 2
    spent_s = (3.12e-3 + 4.56e-3) / 12
    assert check(lesson.break_even(), saved_bytes / spent_s / 1e9).standing is Standing.RIGHT


def test_hints_do_not_hold_the_answer():
    for exercise, text in ((lesson.code_bytes(), "3276800"), (lesson.sum_of_top_1(), "[3, 4, 0, 0]")):
        for hint in (exercise.hint, *(mistake.hint for mistake in exercise.mistakes)):
            assert text not in hint.replace(" ", "").replace("_", "")


@pytest.mark.timeout(60)
def test_recorded_reductions_on_real_ranks_give_sums_bytes_and_their_order_of_actions():
    top, code = TopK(4), AutoEncoder(8, 2)
    with Ranks(2) as ranks:
        plain, coded, kept = (ranks.run(lesson.record_reduction, codec, SHAPE) for codec in (Identity(), code, top))
    parts = [lesson.partial_of(rank, SHAPE) for rank in range(2)]
    assert torch.allclose(plain[1].total, parts[0] + parts[1])
    assert torch.allclose(coded[1].total, code(parts[0] + parts[1]).detach(), atol=1e-6)
    assert torch.equal(kept[1].total, top(parts[0]) + top(parts[1]))
    assert [found[0].message_bytes for found in (plain, coded, kept)] == [16 * 8 * 4, 16 * 2 * 4, 4 * (4 + 8)]
    assert [action.kind for action in kept[0].actions] == [Kind.ENCODE, Kind.COMMUNICATE, Kind.DECODE]
    assert {action.resource for found in kept for action in found.actions} == {"rank 0", "rank 1"}


def test_the_answers_of_part_two_worked_by_hand_are_right():
    assert check(lesson.value_in_two_bits(), [0, 0, 0, 30]).standing is Standing.RIGHT
    assert check(lesson.share_kept_by_top_k(), (9 / 153) ** 0.5).standing is Standing.RIGHT
    assert check(lesson.loss_of_best_code(), (13 / 49) ** 0.5).standing is Standing.RIGHT


def test_the_error_path_says_which_layers_and_refuses_those_that_are_not_there():
    explorer = lesson.explore_error_path(encode_text(4, encoder="stand-in"))
    assert explorer.status.startswith("T4 in layer 1: the output of layer 1 is ")
    explorer.set(first_layer=2, num_compressed=2)
    assert explorer.status.startswith("Not possible: 2 layers from layer 2 on: the encoder has 2")
    explorer.set(first_layer=1)
    assert explorer.status.startswith("T4 in layers 1 to 2: the output of layer 2 is ")
    assert explorer.result.rows["is_compressed"].all()
