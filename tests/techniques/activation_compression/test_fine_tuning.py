"""One cell of the accuracy tables: repeatable, counted by hand, refused before work, the same on real ranks."""

import pytest
import torch

from workbench.models.pretrained import stand_in_encoder
from workbench.parallel import VirtualTensorGroup
from workbench.techniques.activation_compression.accuracy import (
    FineTuning,
    Ledger,
    classifier,
    fine_tune,
    fine_tune_on_ranks,
    on_virtual_ranks,
)
from workbench.training.loop import Recipe

TINY = {
    "task": "mrpc",
    "encoder": "stand-in",
    "limit": 32,
    "epochs": 1,
    "batch": 8,
    "learning_rate": 1e-3,
    "max_tokens": 16,
}
TIMES = ("seconds", "training_s", "examples_per_s")


@pytest.fixture(autouse=True)
def generated_text(monkeypatch):
    monkeypatch.delenv("WORKBENCH_DATA", raising=False)


def without_times(cell: dict) -> dict:
    return {name: value for name, value in cell.items() if name not in TIMES}


@pytest.mark.parametrize(("method", "precision"), [("A1", "fp32"), ("R2", "bf16")])
def test_equal_seeds_give_equal_bits_and_others_do_not(method, precision):
    torch.manual_seed(7)
    state = torch.get_rng_state()
    first = fine_tune(**TINY, method=method, seed=0, precision=precision)
    assert without_times(first) == without_times(fine_tune(**TINY, method=method, seed=0, precision=precision))
    assert first["train_loss"] != fine_tune(**TINY, method=method, seed=1, precision=precision)["train_loss"]
    assert torch.equal(torch.get_rng_state(), state), "a global generator was touched"


def bytes_of_a_step(method: str, precision: str = "fp32") -> dict[str, float]:
    """Count one step of 4 x 6 tokens on a stand-in of 2 layers of 64, TP 2, PP 2; its second layer is compressed."""
    recipe = Recipe(epochs=1, batch=4, learning_rate=1e-3, precision=precision)
    setting = FineTuning(task="mrpc", method=method, recipe=recipe, encoder="stand-in")
    group = VirtualTensorGroup(2)
    pipeline = on_virtual_ranks(setting, stand_in_encoder(), classifier(setting.glue_task), group)
    ledger = Ledger(group.traffic, setting.compressed_layers(2), setting.compressed_boundaries(2))
    group.traffic.clear()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bf16"):
        pipeline.step(torch.ones(4, 6, dtype=torch.int64), torch.tensor([0, 1, 0, 1]), attention_mask=torch.ones(4, 6))
    ledger.close_step()
    return ledger.per_step()


def test_bytes_without_compression():
    # One activation is 4·6·64 fp32 values = 6,144 bytes: 2 reductions in each of 2 layers; the boundary there and back.
    assert bytes_of_a_step("w/o") == {
        "tensor_bytes": 4 * 6144,
        "boundary_bytes": 2 * 6144,
        "compressed_site_bytes": 2 * 6144 + 2 * 6144,
        "encoder_gradient_bytes": 0,
    }


def test_bytes_in_bfloat16_are_half_as_many():
    assert bytes_of_a_step("w/o", "bf16")["tensor_bytes"] == 4 * 3072
    assert bytes_of_a_step("w/o", "bf16")["boundary_bytes"] == 2 * 3072


def test_bytes_of_a_learned_code():
    # c = 100·64/1024 = 6 (6.25 rounded): codes of 4·6·6 fp32 values = 576 bytes; encoders' gradients of 64·6 values.
    assert bytes_of_a_step("A2") == {
        "tensor_bytes": 2 * 6144 + 2 * 576,
        "boundary_bytes": 2 * 576,
        "compressed_site_bytes": 4 * 576,
        "encoder_gradient_bytes": 2 * 64 * 6 * 4,
    }


def test_bytes_of_quantised_messages():
    # 4 bits a value and 4 bytes a row: 24·(32 + 4) = 864; the boundary's gradient travels at full size.
    assert bytes_of_a_step("Q2")["compressed_site_bytes"] == 2 * 864 + 864 + 6144
    assert bytes_of_a_step("Q2", "bf16")["boundary_bytes"] == 864 + 3072


def test_bytes_of_the_largest_elements():
    # T4 keeps 6/64 of 1,536 = 144 elements, each 2 + 8 bytes; of the boundary's gradient, the values alone.
    assert bytes_of_a_step("T4", "bf16")["compressed_site_bytes"] == 3 * 144 * 10 + 144 * 2


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"task": "wnli"}, "task is 'wnli'; it must be one of cola"),
        ({"method": "A9"}, "method='A9': one of"),
        ({"precision": "fp8"}, "precision is 'fp8'; it must be one of fp32, bf16"),
        ({"epochs": 0}, "epochs is 0; it must be at least 1"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0; it must be above 0"),
        ({"limit": 4}, "limit is 4; it must be at least the batch, 8"),
        ({"error_feedback": True}, "error_feedback is True; it must be False without fixed_length"),
        ({"layers": 3}, "layers is 3; it must be 1 to 2"),
        ({"layers": [0, 2]}, r"layers is \[0, 2\]; it must be different indices in 0..1"),
        ({"tp": 0}, "tp is 0; it must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused_by_name(wrong, told):
    with pytest.raises(ValueError, match=told):
        fine_tune(**{**TINY, "method": "A1", "seed": 0, **wrong})


def test_error_feedback_runs_on_batches_of_one_shape():
    plain, fed_back = (
        fine_tune(**TINY, method="T1", seed=0, fixed_length=True, error_feedback=feedback) for feedback in (False, True)
    )
    assert plain["compressed_site_bytes"] == fed_back["compressed_site_bytes"]
    assert plain["train_loss"] != fed_back["train_loss"]


def test_a_window_of_layers_is_compressed_and_the_boundary_in_front_of_it():
    first, last = (fine_tune(**TINY, method="A1", seed=0, layers=[layer]) for layer in (0, 1))
    assert first["layers"] == [0] and last["layers"] == [1]
    assert first["boundary_bytes"] > last["boundary_bytes"]


@pytest.mark.timeout(90)
def test_a_whole_run_on_real_ranks_scores_as_on_virtual_ones():
    here = fine_tune(**TINY, method="A1", seed=0)
    there = fine_tune_on_ranks(**TINY, method="A1", seed=0, timeout_s=80)
    assert there["ranks"] == "real" and there["scores"] == here["scores"]
    assert there["train_loss"] == pytest.approx(here["train_loss"], rel=1e-3)
    for quantity in ("tensor_bytes", "boundary_bytes", "compressed_site_bytes", "encoder_gradient_bytes"):
        assert there[quantity] == here[quantity]


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("method", ["w/o", "A1", "T1", "R1", "Q1"])
def test_a_gpu_counts_the_same_bytes_and_ends_near_the_same_loss(method):
    here, there = (fine_tune(**TINY, method=method, seed=0, device=device) for device in ("cpu", "cuda"))
    assert there["compressed_site_bytes"] == here["compressed_site_bytes"]
    assert there["train_loss"] == pytest.approx(here["train_loss"], rel=0.1)
