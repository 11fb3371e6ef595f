"""Which cells a table asks for; masked words; a pre-training that leaves its codecs behind."""

import pytest
import torch

from workbench.models.pretrained import stand_in_encoder
from workbench.techniques.activation_compression import measured
from workbench.techniques.activation_compression.measured import PreTraining, longest_sequence, masked_blocks
from workbench.training.loop import Recipe

FOX = "the quick brown fox jumps over the lazy dog"
STAND_IN = {"encoder": "stand-in"}


@pytest.fixture(autouse=True)
def generated_text(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)
    longest_sequence.cache_clear()


def test_a_limit_on_tokens_that_cuts_nothing_gives_the_same_cells():
    long, short = (measured.fine_tuning_cells(["rte"], ["A1"], [0], max_tokens=most, **STAND_IN) for most in (512, 256))
    assert long == short and long[0]["max_tokens"] == longest_sequence("rte", "stand-in") < 256
    assert measured.fine_tuning_cells(["rte"], ["A1"], [0], max_tokens=8, **STAND_IN)[0]["max_tokens"] == 8


def test_all_methods_of_a_seed_come_before_the_next_seed():
    cells = measured.fine_tuning_cells(["rte", "cola"], ["w/o", "A1"], [0, 1], max_tokens=64, **STAND_IN)
    told = [(cell["seed"], cell["task"], cell["method"]) for cell in cells]
    assert told[:4] == [(0, "rte", "w/o"), (0, "rte", "A1"), (0, "cola", "w/o"), (0, "cola", "A1")] and told[4][0] == 1


def test_a_smaller_limit_wins_over_the_recipes_and_epochs_are_of_the_task_that_they_name():
    limits = [
        measured.fine_tuning_cells([task], ["w/o"], [0], max_tokens=64, limit=limit, **STAND_IN)[0]["limit"]
        for task, limit in (("sst2", 100), ("sst2", 10**6), ("rte", 100), ("rte", None))
    ]
    assert limits == [100, 8_000, 100, None]
    cells = measured.fine_tuning_cells(["rte", "cola"], ["w/o"], [0], max_tokens=64, epochs={"cola": 6}, **STAND_IN)
    assert [cell["epochs"] for cell in cells] == [3, 6]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"methods": ["A9"]}, "method='A9'"),
        ({"tasks": ["wnli"]}, "tasks has 'wnli'"),
        ({"epochs": {"cola": 2}}, "epochs has 'cola': 2"),
        ({"epochs": {"rte": 0}}, "epochs has 'rte': 0"),
    ],
)
def test_what_cannot_be_run_is_named_before_anything_is(changed, named):
    asked = {"tasks": ["rte"], "methods": ["w/o"], "seeds": [0], "max_tokens": 64} | STAND_IN
    with pytest.raises(ValueError, match=named):
        measured.fine_tuning_cells(**asked | changed)


def test_berts_recipe_takes_the_place_of_every_tasks_and_all_others_keep_theirs(monkeypatch):
    monkeypatch.setattr(measured.cells, "longest_sequence", lambda *_: 128)
    large, small = (
        measured.fine_tuning_cells(["sst2", "rte"], ["A1"], [0], max_tokens=512, encoder=encoder, device=device)
        for encoder, device in (("bert-large-uncased", "cuda"), ("all-MiniLM-L6-v2", "cpu"))
    )
    # Devlin et al., BERT, appendix A.3: 5e-5, 3e-5 or 2e-5; 2, 3 or 4 epochs.
    assert [(cell["learning_rate"], cell["epochs"], cell["limit"]) for cell in large] == [(2e-5, 3, None)] * 2
    # To the letter, since cells that are there already are found by their arguments.
    common = {"method": "A1", "seed": 0, "batch": 32, "max_tokens": 128, "precision": "bf16", "learning_rate": 1e-4}
    common |= {"encoder": "all-MiniLM-L6-v2"}
    assert small == [
        common | {"task": "sst2", "epochs": 1, "limit": 8_000},
        common | {"task": "rte", "epochs": 3, "limit": None},
    ]


def test_the_last_half_and_no_layers_are_the_tables_own_cells():
    options = {"max_tokens": 64, **STAND_IN}
    none, half, both = measured.cells_by_layers(["rte"], "A2", [[], [1], [0, 1]], [0], **options)
    assert [none, half] == measured.fine_tuning_cells(["rte"], ["w/o", "A2"], [0], **options)
    assert both["layers"] == [0, 1]


def pieces(seed: int, num_blocks: int = 200):
    recipe = Recipe(epochs=1, batch=8, learning_rate=1e-3, seed=seed)
    setting = PreTraining(method="w/o", recipe=recipe, num_blocks=num_blocks, max_tokens=32, encoder="stand-in")
    return masked_blocks([FOX] * 400, stand_in_encoder(), setting)


def test_about_fifteen_per_cent_of_the_words_are_asked_for_and_most_of_them_masked():
    encoder, found = stand_in_encoder(), pieces(0)
    ids_BS, labels_BS = torch.stack(list(found.ids)), found.labels
    asked_BS = labels_BS != -100
    # 200 pieces of 30 words: 15 % with a standard error of 0.5 %, and of these 80 % with one of 1.3 %.
    assert abs(asked_BS[:, 1:-1].float().mean() - 0.15) < 0.02
    assert abs((ids_BS[asked_BS] == encoder.tokenizer.mask_token_id).float().mean() - 0.8) < 0.05
    assert not asked_BS[:, 0].any() and not asked_BS[:, -1].any()
    assert (ids_BS[:, 0] == encoder.tokenizer.cls_token_id).all() and (
        ids_BS[:, -1] == encoder.tokenizer.sep_token_id
    ).all()
    plain = encoder.tokenizer(FOX, add_special_tokens=False)["input_ids"] * 400
    restored_BS = torch.where(asked_BS, labels_BS, ids_BS)[:, 1:-1]
    assert restored_BS.flatten().tolist() == plain[: restored_BS.numel()]
    assert not torch.equal(labels_BS, pieces(1).labels)


def test_a_text_that_fills_no_batch_is_refused():
    recipe = Recipe(epochs=1, batch=8, learning_rate=1e-3)
    setting = PreTraining(method="w/o", recipe=recipe, num_blocks=8, max_tokens=32, encoder="stand-in")
    with pytest.raises(ValueError, match="it must leave a batch of 8 pieces of the text, which gives 0"):
        masked_blocks(["short"], stand_in_encoder(), setting)
    with pytest.raises(ValueError, match="num_blocks is 4; it must be at least the batch, 8"):
        PreTraining(method="w/o", recipe=recipe, num_blocks=4, encoder="stand-in")


def test_after_pretraining_each_task_is_fine_tuned_without_a_codec():
    small = {"num_blocks": 16, "max_tokens": 16, "batch": 8, "limit": 32, **STAND_IN}
    found = measured.pretrain_then_fine_tune(method="T2", seed=0, tasks=["mrpc", "stsb"], **small)
    plain = measured.pretrain_then_fine_tune(method="w/o", seed=0, tasks=["mrpc"], **small)
    assert [cell["task"] for cell in found["cells"]] == ["mrpc", "stsb"]
    assert {cell["method"] for cell in found["cells"]} == {"T2"}
    # Uncompressed fine-tuning: the same bytes, from other weights.
    assert found["cells"][0]["compressed_site_bytes"] == plain["cells"][0]["compressed_site_bytes"]
    assert found["pretraining_loss"] != plain["pretraining_loss"]
    assert found["cells"][0]["train_loss"] != plain["cells"][0]["train_loss"]


def test_what_fine_tuning_refuses_is_refused_before_pretraining(monkeypatch):
    monkeypatch.setattr(measured.fine_tuning, "load_encoder", lambda *_, **__: pytest.fail("work has begun"))
    with pytest.raises(ValueError, match="limit is 0; it must be at least the batch"):
        measured.pretrain_then_fine_tune(method="w/o", seed=0, tasks=["mrpc"], limit=0)
