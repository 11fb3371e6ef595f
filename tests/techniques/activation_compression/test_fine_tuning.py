"""Fine-tuning under compression: its cells, its bytes by hand, masked words, and virtual ranks beside real ones."""

from functools import partial
from itertools import product

import pytest
import torch
from cases import refusals

from workbench.models.hugging_face import to_hugging_face
from workbench.models.pretrained import stand_in_encoder
from workbench.parallel import VirtualTensorGroup
from workbench.parallel.pipeline import open_mesh
from workbench.study.loop import Recipe
from workbench.study.precision import PRECISIONS, computing_in
from workbench.techniques.activation_compression import measured
from workbench.techniques.activation_compression.measured import fine_tuning

FOX = "the quick brown fox jumps over the lazy dog"
STAND_IN = {"encoder": "stand-in"}


def test_a_limit_that_cuts_nothing_and_the_last_half_or_none_of_the_layers_give_the_same_cells():
    long, short = (measured.fine_tuning_cells(["rte"], ["A1"], [0], max_tokens=most, **STAND_IN) for most in (512, 256))
    assert long == short and long[0]["max_tokens"] == measured.longest_sequence("rte", "stand-in") < 256
    assert measured.fine_tuning_cells(["rte"], ["A1"], [0], max_tokens=8, **STAND_IN)[0]["max_tokens"] == 8
    options = {"max_tokens": 64, **STAND_IN}
    none, half, both = measured.cells_by_layers(["rte"], "A2", [[], [1], [0, 1]], [0], **options)
    assert [none, half] == measured.fine_tuning_cells(["rte"], ["w/o", "A2"], [0], **options)
    assert both["layers"] == [0, 1]


def test_methods_of_a_seed_come_before_the_next_a_smaller_limit_wins_and_epochs_are_of_the_task_they_name():
    cells = measured.fine_tuning_cells(["rte", "cola"], ["w/o", "A1"], [0, 1], max_tokens=64, **STAND_IN)
    order = [(cell["seed"], cell["task"], cell["method"]) for cell in cells]
    assert order == [(seed, task, name) for seed in (0, 1) for task in ("rte", "cola") for name in ("w/o", "A1")]
    for task, limit, expected in (("sst2", 100, 100), ("sst2", 10**6, 8_000), ("rte", 100, 100), ("rte", None, None)):
        (cell,) = measured.fine_tuning_cells([task], ["w/o"], [0], max_tokens=64, limit=limit, **STAND_IN)
        assert cell["limit"] == expected
    cells = measured.fine_tuning_cells(["rte", "cola"], ["w/o"], [0], max_tokens=64, epochs={"cola": 6}, **STAND_IN)
    assert [cell["epochs"] for cell in cells] == [3, 6]
    cells = measured.fine_tuning_cells(
        ["rte", "cola"], ["w/o"], [0, 1], max_tokens=64, seeds_of={"cola": [1, 2]}, **STAND_IN
    )
    assert [(cell["task"], cell["seed"]) for cell in cells] == [("rte", 0), ("rte", 1), ("cola", 1), ("cola", 2)]


def test_two_tables_share_the_trainings_of_tasks_with_few_long_examples_but_not_those_of_a_large_encoder(monkeypatch):
    monkeypatch.setattr(fine_tuning, "longest_sequence", lambda *_: 250)

    def most(task, max_tokens, encoder="stand-in"):
        (cell,) = measured.fine_tuning_cells([task], ["w/o"], [0], max_tokens=max_tokens, encoder=encoder)
        return cell["max_tokens"]

    assert [most("mnli", size) for size in (512, 128, 32)] == [128, 128, 32]
    assert [most("qqp", size) for size in (512, 128, 32)] == [160, 160, 32]
    assert [most("rte", size) for size in (512, 128, 32)] == [250, 128, 32]
    assert [most("qqp", size, "bert-large-uncased") for size in (512, 128)] == [250, 128]


test_what_cannot_be_run_is_named_before_anything_is = refusals(
    ({"methods": ["A9"]}, "method='A9'"),
    ({"tasks": ["wnli"]}, "tasks has 'wnli'"),
    ({"epochs": {"cola": 2}}, "epochs has 'cola': 2"),
    ({"epochs": {"rte": 0}}, "epochs has 'rte': 0"),
    ({"seeds_of": {"cola": [0]}}, "seeds_of has 'cola'"),
    of=partial(measured.fine_tuning_cells, tasks=["rte"], methods=["w/o"], seeds=[0], max_tokens=64, **STAND_IN),
)


def test_berts_recipe_takes_the_place_of_every_tasks_and_all_others_keep_theirs(monkeypatch):
    monkeypatch.setattr(fine_tuning, "longest_sequence", lambda *_: 128)
    large, small = (
        measured.fine_tuning_cells(["sst2", "rte"], ["A1"], [0], max_tokens=512, encoder=encoder, device=device)
        for encoder, device in (("bert-large-uncased", "cuda"), ("all-MiniLM-L6-v2", "cpu"))
    )
    # Devlin et al., BERT, appendix A.3: 5e-5, 3e-5 or 2e-5; 2, 3 or 4 epochs.
    assert [(cell["learning_rate"], cell["epochs"], cell["limit"]) for cell in large] == [(2e-5, 3, None)] * 2
    # To the letter, since cells that are there already are found by their arguments.
    common = {"method": "A1", "seed": 0, "batch": 32, "max_tokens": 128, "precision": "bf16", "learning_rate": 1e-4}
    common |= {"encoder": "all-MiniLM-L6-v2"}
    recipes = ({"task": "sst2", "epochs": 1, "limit": 8_000}, {"task": "rte", "epochs": 3, "limit": None})
    assert small == [common | recipe for recipe in recipes]


def pieces(seed: int, num_blocks: int = 200, text: str = FOX):
    recipe = Recipe(epochs=1, batch=8, learning_rate=1e-3, seed=seed)
    sizes = {"num_blocks": num_blocks, "max_tokens": 32}
    setting = measured.PreTraining(method="w/o", recipe=recipe, encoder="stand-in", **sizes)
    return measured.masked_blocks([text] * 400, stand_in_encoder(), setting)


def test_about_fifteen_per_cent_of_the_words_are_asked_for_and_most_of_them_masked():
    encoder, examples = stand_in_encoder(), pieces(0)
    ids_BS, labels_BS = torch.stack(list(examples.ids)), examples.labels
    asked_BS = labels_BS != -100
    # 200 pieces of 30 words: 15 % with a standard error of 0.5 %, and of these 80 % with one of 1.3 %.
    assert abs(asked_BS[:, 1:-1].float().mean() - 0.15) < 0.02
    assert abs((ids_BS[asked_BS] == encoder.tokenizer.mask_token_id).float().mean() - 0.8) < 0.05
    assert not asked_BS[:, 0].any() and not asked_BS[:, -1].any()
    first, last = encoder.tokenizer.cls_token_id, encoder.tokenizer.sep_token_id
    assert (ids_BS[:, 0] == first).all() and (ids_BS[:, -1] == last).all()
    plain = encoder.tokenizer(FOX, add_special_tokens=False)["input_ids"] * 400
    restored_BS = torch.where(asked_BS, labels_BS, ids_BS)[:, 1:-1]
    assert restored_BS.flatten().tolist() == plain[: restored_BS.numel()]
    assert not torch.equal(labels_BS, pieces(1).labels)


test_a_text_that_fills_no_batch_is_refused = refusals(
    (lambda: pieces(0, text=""), "it must leave a batch of 8 pieces of the text, which gives 0"),
    (lambda: pieces(0, num_blocks=4), "num_blocks is 4; it must be at least the batch, 8"),
)


def test_after_pretraining_each_task_is_fine_tuned_without_a_codec():
    small = {"num_blocks": 16, "max_tokens": 16, "batch": 8, "limit": 32, **STAND_IN}
    compressed = measured.pretrain_then_fine_tune(method="T2", seed=0, tasks=["mrpc", "stsb"], **small)
    plain = measured.pretrain_then_fine_tune(method="w/o", seed=0, tasks=["mrpc"], **small)
    assert [cell["task"] for cell in compressed["cells"]] == ["mrpc", "stsb"]
    assert {cell["method"] for cell in compressed["cells"]} == {"T2"}
    # Uncompressed fine-tuning: the same bytes, from other weights.
    assert compressed["cells"][0]["compressed_site_bytes"] == plain["cells"][0]["compressed_site_bytes"]
    assert compressed["pretraining_loss"] != plain["pretraining_loss"]
    assert compressed["cells"][0]["train_loss"] != plain["cells"][0]["train_loss"]


def test_what_fine_tuning_refuses_is_refused_before_pretraining(monkeypatch):
    monkeypatch.setattr(fine_tuning.wikitext2, "load", lambda *_, **__: pytest.fail("work has begun"))
    with pytest.raises(ValueError, match="limit is 0; it must be at least the batch"):
        measured.pretrain_then_fine_tune(method="w/o", seed=0, tasks=["mrpc"], limit=0)


TINY = {"task": "mrpc", "encoder": "stand-in", "limit": 16, "epochs": 1, "batch": 8, "learning_rate": 1e-3}
TINY |= {"max_tokens": 16}


@pytest.fixture(autouse=True, scope="module")
def _lengths_of_generated_text(generated_data):
    measured.longest_sequence.cache_clear()


def test_equal_seeds_give_equal_bits_and_others_do_not():
    torch.manual_seed(7)
    state = torch.get_rng_state()
    cells = [measured.fine_tune(**TINY, method="R2", seed=seed, precision="bf16") for seed in (0, 0, 1)]
    first, again, other = (cell | {"seconds": 0.0} for cell in cells)
    assert first == again and first["train_loss"] != other["train_loss"]
    assert torch.equal(torch.get_rng_state(), state), "a global generator was touched"


def bytes_of_a_step(method: str, precision: str = "fp32") -> dict[str, float]:
    """Count one step of 4 x 6 tokens on a stand-in of 2 layers of 64, TP 2, PP 2; its second layer is compressed."""
    recipe = Recipe(epochs=1, batch=4, learning_rate=1e-3, precision=precision)
    setting = measured.FineTuning(task="mrpc", method=method, recipe=recipe, encoder="stand-in")
    group = VirtualTensorGroup(2)
    pipeline = measured.on_virtual_ranks(setting, stand_in_encoder(), group)
    ledger = measured.Ledger(group.traffic, setting.compressed_layers(2), setting.compressed_boundaries(2))
    group.traffic.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        pipeline.step(torch.ones(4, 6, dtype=torch.int64), torch.tensor([0, 1, 0, 1]), attention_mask=torch.ones(4, 6))
    ledger.close_step()
    return ledger.per_step()


@pytest.mark.parametrize(
    ("method", "precision", "expected"),
    [
        # One activation is 4·6·64 fp32 values = 6,144 bytes: 2 reductions in each of 2 layers; the boundary both ways.
        ("w/o", "fp32", (4 * 6144, 2 * 6144, 2 * 6144 + 2 * 6144, 0)),
        ("w/o", "bf16", (4 * 3072, 2 * 3072, 4 * 3072, 0)),
        # c = 100·64/1024 = 6 (6.25 rounded): codes of 4·6·6 fp32 values = 576 bytes; gradients of encoders of 64·6.
        ("A2", "fp32", (2 * 6144 + 2 * 576, 2 * 576, 4 * 576, 2 * 64 * 6 * 4)),
        # 4 bits a value and 4 bytes a row: 24·(32 + 4) = 864; the boundary's gradient travels at full size.
        ("Q2", "fp32", (2 * 6144 + 2 * 864, 864 + 6144, 2 * 864 + 864 + 6144, 0)),
        # T4 keeps 6/64 of 1,536 = 144 elements, each 2 + 8 bytes; of the boundary's gradient, the values alone.
        ("T4", "bf16", (2 * 3072 + 2 * 1440, 1440 + 288, 3 * 1440 + 288, 0)),
    ],
)
def test_bytes_of_a_step_are_those_counted_by_hand(method, precision, expected):
    names = ("tensor_bytes", "boundary_bytes", "compressed_site_bytes", "encoder_gradient_bytes")
    assert bytes_of_a_step(method, precision) == dict(zip(names, expected, strict=True))


test_wrong_arguments_are_refused_by_name = refusals(
    ({"task": "wnli"}, "task is 'wnli'; it must be one of cola"),
    ({"method": "A9"}, "method='A9': one of"),
    ({"precision": "fp8"}, "precision is 'fp8'; it must be one of fp32, bf16"),
    ({"epochs": 0}, "epochs is 0; it must be at least 1"),
    ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be above 0"),
    ({"limit": 4}, "limit is 4; it must be at least the batch, 8"),
    ({"error_feedback": True}, "error_feedback is True; it must be False without fixed_length"),
    ({"layers": [0, 2]}, r"layers is \[0, 2\]; it must be different indices in 0..1"),
    ({"tp": 0}, "tp is 0; it must be a whole number of at least 1"),
    of=partial(measured.fine_tune, **TINY, method="A1", seed=0),
)


def test_error_feedback_runs_on_batches_of_one_shape():
    same = {**TINY, "method": "T1", "seed": 0, "fixed_length": True}
    plain, fed_back = (measured.fine_tune(**same, error_feedback=feedback) for feedback in (False, True))
    assert plain["compressed_site_bytes"] == fed_back["compressed_site_bytes"]
    assert plain["train_loss"] != fed_back["train_loss"]


def test_a_whole_run_on_real_ranks_scores_as_on_virtual_ones(run_on_open_ranks, monkeypatch):
    monkeypatch.setattr(fine_tuning, "run_on_ranks", run_on_open_ranks)
    here = measured.fine_tune(**TINY, method="A1", seed=0)
    there = measured.fine_tune_on_ranks(**TINY, method="A1", seed=0)
    assert there["ranks"] == "real" and there["scores"] == here["scores"]
    assert there["train_loss"] == pytest.approx(here["train_loss"], rel=1e-3)
    for quantity in ("tensor_bytes", "boundary_bytes", "compressed_site_bytes", "encoder_gradient_bytes"):
        assert there[quantity] == here[quantity]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["w/o", "A1", "T1", "R1", "Q1"])
def test_a_gpu_counts_the_same_bytes_and_ends_near_the_same_loss(method):
    here, there = (measured.fine_tune(**TINY, method=method, seed=0, device=device) for device in ("cpu", "cuda"))
    assert there["compressed_site_bytes"] == here["compressed_site_bytes"]
    assert there["train_loss"] == pytest.approx(here["train_loss"], rel=0.1)


RECIPE = Recipe(epochs=1, batch=4, learning_rate=1e-3, seed=3)
IDS = torch.arange(4 * 7).reshape(4, 7) % 50 + 5
LABELS = torch.tensor([0, 1, 1, 0])
MASK = torch.ones(4, 7, dtype=torch.int64)
MASK[2, 5:] = 0


def setting(method: str, **changes) -> measured.FineTuning:
    return measured.FineTuning(task="mrpc", method=method, recipe=RECIPE, encoder="stand-in", **changes)


def codec_gradients(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return gradients of learned codes by site and kind, whatever modules hold them."""
    weights = ((name, weight) for name, weight in module.named_parameters() if name.endswith((".encoder", ".decoder")))
    return {name.split("layers.")[-1]: weight.grad for name, weight in weights if weight.grad is not None}


def gradients_of_a_step(pipeline, precision: str, parts, boundaries) -> dict:
    with computing_in(precision):
        result = pipeline.step(IDS, LABELS, attention_mask=MASK)
    gradients = {name: grad for part in parts for name, grad in to_hugging_face(part, gradients=True).items()}
    return {
        "loss": result.loss,
        "output": result.output,
        "gradients": gradients,
        "codecs": codec_gradients(torch.nn.ModuleList(parts)),
        "boundary": [weight.grad for end in boundaries for weight in end.parameters()],
    }


def on_a_rank(cases) -> list[dict]:
    mesh, by_case = open_mesh(tensor=2, pipeline=2), []
    for method, precision in cases:
        pipeline = measured.on_real_ranks(setting(method), stand_in_encoder(), mesh)
        ends = [end for end in (pipeline.before, pipeline.after) if end is not None]
        by_case.append(gradients_of_a_step(pipeline, precision, [pipeline.module.part], ends))
    return by_case


def in_this_process(method: str, precision: str) -> dict:
    pipeline = measured.on_virtual_ranks(setting(method), stand_in_encoder(), VirtualTensorGroup(2))
    return gradients_of_a_step(pipeline, precision, pipeline.parts, pipeline.boundaries)


def test_virtual_ranks_equal_real_ranks_in_loss_and_gradients(pools):
    cases = [*product(("w/o", "A1"), PRECISIONS), ("T1", "fp32"), ("R4", "bf16"), ("Q1", "bf16")]
    for (method, precision), *there in zip(cases, *pools(4).run(on_a_rank, cases), strict=True):
        here = in_this_process(method, precision)
        assert bool(here["codecs"]) == bool(here["boundary"]) == (method == "A1")
        for rank in (2, 3):  # the second stage's
            torch.testing.assert_close(there[rank]["loss"], here["loss"])
            torch.testing.assert_close(there[rank]["output"], here["output"])
        for first, second in ((0, 2), (1, 3)):
            torch.testing.assert_close(there[first]["gradients"] | there[second]["gradients"], here["gradients"])
            torch.testing.assert_close(there[second]["codecs"], here["codecs"])
            # The sender trains the encoding half of the boundary's codec, the receiver the decoding half.
            ends = zip(there[first]["boundary"], there[second]["boundary"], strict=True)
            torch.testing.assert_close([b if a is None else a for a, b in ends], here["boundary"])
