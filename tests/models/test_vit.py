"""The Vision Transformer against Hugging Face's own, in logits and in every gradient; its sizes."""

import re

import pytest
import torch
import transformers

from workbench.models import (
    VIT_1B,
    VIT_3B,
    VIT_TINY,
    ViTConfig,
    ViTEncoder,
    ViTForImageClassification,
    load_hugging_face,
    to_hugging_face,
)
from workbench.parallel import VirtualTensorGroup
from workbench.parallel.linear import ShardedLinear

pytestmark = pytest.mark.timeout(60)

NUM_LABELS = 3
SMALL = ViTConfig(hidden_size=16, num_layers=2, num_heads=4, mlp_size=32, image_size=8, patch_size=4)


def hugging_face_config() -> transformers.ViTConfig:
    return transformers.ViTConfig(
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        image_size=8,
        patch_size=4,
        num_labels=NUM_LABELS,
    )


def images() -> torch.Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def theirs() -> tuple[dict, torch.Tensor, dict]:
    """Run `transformers`: weights, logits, gradients."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = transformers.ViTForImageClassification(hugging_face_config())
    for parameter in model.parameters():  # biases and norms start at 0 and 1: move them
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    logits = model(images()).logits
    logits.square().mean().backward()
    return model.state_dict(), logits.detach(), {n.removeprefix("vit."): p.grad for n, p in model.named_parameters()}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_virtual_ranks_equal_transformers_in_logits_and_all_gradients(size):
    state, logits, gradients = theirs()
    config = ViTConfig.from_hugging_face(hugging_face_config().to_dict())
    model = ViTForImageClassification(config, VirtualTensorGroup(size), NUM_LABELS)
    loaded = load_hugging_face(model, state)
    assert (loaded.missing, loaded.unused) == ((), ())
    ours = model(images())
    ours.square().mean().backward()
    torch.testing.assert_close(ours.detach(), logits, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(to_hugging_face(model, gradients=True), gradients, rtol=1e-4, atol=1e-6)


def test_weights_survive_loading_and_collecting():
    state, *_ = theirs()
    model = ViTForImageClassification(SMALL, VirtualTensorGroup(4), NUM_LABELS)
    load_hugging_face(model, state)
    collected = to_hugging_face(model)
    assert collected.keys() == {name.removeprefix("vit.") for name in state}
    assert all(torch.equal(collected[name.removeprefix("vit.")], tensor) for name, tensor in state.items())


EARLIER_NAMES = {  # one of each kind, as files on the hub have them
    "vit.encoder.layer.1.attention.attention.query.weight": "layers.1.attention.q_proj.weight",
    "vit.encoder.layer.1.attention.attention.key.bias": "layers.1.attention.k_proj.bias",
    "vit.encoder.layer.0.attention.attention.value.weight": "layers.0.attention.v_proj.weight",
    "vit.encoder.layer.0.attention.output.dense.weight": "layers.0.attention.o_proj.weight",
    "vit.encoder.layer.1.intermediate.dense.weight": "layers.1.mlp.fc1.weight",
    "vit.encoder.layer.1.output.dense.bias": "layers.1.mlp.fc2.bias",
    "vit.encoder.layer.0.layernorm_before.weight": "layers.0.layernorm_before.weight",
    "vit.layernorm.weight": "layernorm.weight",
    "vit.embeddings.cls_token": "embeddings.cls_token",
}


def test_names_of_earlier_files_load_too():
    state = {name.removeprefix("vit."): tensor for name, tensor in theirs()[0].items()}
    for earlier, now in EARLIER_NAMES.items():
        state[earlier] = state.pop(now) + 1
    model = ViTForImageClassification(SMALL, num_labels=NUM_LABELS)
    assert load_hugging_face(model, state).unused == ()
    collected = to_hugging_face(model)
    for earlier, now in EARLIER_NAMES.items():
        assert torch.equal(collected[now], state[earlier]), earlier


def test_an_encoder_takes_all_but_the_head_and_refuses_a_checkpoint_without_a_layer():
    state, *_ = theirs()
    loaded = load_hugging_face(ViTEncoder(SMALL), state)
    assert loaded.unused == ("classifier.bias", "classifier.weight")
    lacking = {name: tensor for name, tensor in state.items() if "layers.1.mlp.fc1" not in name}
    with pytest.raises(ValueError, match=r"2 weights are missing, first 'layers.1.mlp.fc1.weight'"):
        load_hugging_face(ViTEncoder(SMALL), lacking)
    with pytest.raises(ValueError, match="model: Linear is of no family"):
        load_hugging_face(torch.nn.Linear(1, 1), state)


def test_every_cut_starts_from_the_same_weights_and_drops_the_same_units():
    config = ViTConfig(hidden_size=16, num_layers=2, num_heads=4, mlp_size=32, image_size=8, patch_size=4, dropout=0.1)
    whole, cut = (ViTForImageClassification(config, VirtualTensorGroup(size)) for size in (1, 4))
    weights = to_hugging_face(cut)
    assert all(torch.equal(weights[name], tensor) for name, tensor in to_hugging_face(whole).items())
    torch.testing.assert_close(cut(images()), whole(images()), rtol=1e-4, atol=1e-6)


def test_every_parallel_linear_has_a_site_of_its_own():
    model = ViTForImageClassification(SMALL)
    sites = [module.site for module in model.modules() if isinstance(module, ShardedLinear)]
    parts = ("attention.query_key_value", "attention.output", "mlp.input", "mlp.output")
    assert sites == [f"layers.{layer}.{part}" for layer in range(2) for part in parts]


def test_building_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    ViTForImageClassification(SMALL)(images())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize(("config", "billions"), [(VIT_1B, 1.21), (VIT_3B, 2.72), (VIT_TINY, 0.000_821)])
def test_named_sizes_count_the_published_parameters(config, billions):
    # A layer has 12 H^2 + 13 H; around them: patches, class token, positions, final norm, classifier of ten.
    hidden, around = config.hidden_size, 3 * config.patch_size**2 + 1 + 1 + config.sequence + 2 + 10
    count = config.num_layers * (12 * hidden**2 + 13 * hidden) + around * hidden + 10
    model = ViTForImageClassification(config, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert count / 1e9 == pytest.approx(billions, rel=5e-3)


def test_the_papers_models_can_be_cut_over_their_eight_gpus():
    for config in (VIT_1B, VIT_3B, VIT_TINY):
        model = ViTForImageClassification(config, VirtualTensorGroup(8), device="meta")
        assert model.encoder.layers[0].mlp.input.weights[7].shape == (config.mlp_size // 8, config.hidden_size)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"patch_size": 3}, "patch_size: 3 does not divide image_size 8"),
        ({"num_layers": 0}, "num_layers: 0 must be at least 1"),
        ({"num_heads": 3}, "num_heads: 3 does not divide hidden_size 16"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(changes, told):
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "mlp_size": 32, "image_size": 8, "patch_size": 4}
    with pytest.raises(ValueError, match=re.escape(told)):
        ViTConfig(**sizes | changes)


def test_models_and_images_that_are_not_covered_are_refused():
    config = hugging_face_config().to_dict()
    with pytest.raises(ValueError, match="hidden_act: 'relu' is not 'gelu'"):
        ViTConfig.from_hugging_face(config | {"hidden_act": "relu"})
    with pytest.raises(ValueError, match="qkv_bias: False is not True"):
        ViTConfig.from_hugging_face(config | {"qkv_bias": False})
    with pytest.raises(ValueError, match=re.escape("images: shape (1, 3, 16, 16) is not [B, *(3, 8, 8)]")):
        ViTEncoder(SMALL)(torch.zeros(1, 3, 16, 16))


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_logits_and_gradients_of_the_cpu():
    results = []
    for device in ("cpu", "cuda"):
        model = ViTForImageClassification(SMALL, VirtualTensorGroup(2), device=device)
        logits = model(images().to(device))
        logits.square().mean().backward()
        gradients = {name: gradient.cpu() for name, gradient in to_hugging_face(model, gradients=True).items()}
        results.append((logits.detach().cpu(), gradients))
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-5)
