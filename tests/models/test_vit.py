"""The Vision Transformer in one process and on two real ranks, against `transformers`; its sizes."""

import pytest
import torch
from small_models import LAYER_SIZES, small_model
from torch.nn import functional

from tests.cases import refusals
from workbench import models
from workbench.parallel import ProcessTensorGroup, VirtualTensorGroup

NUM_LABELS = 3
SIZES = {"hidden_size": 16, "num_layers": 2, "num_heads": 4, "mlp_size": 32, "image_size": 8, "patch_size": 4}
SMALL = models.ViTConfig(**SIZES)


def images() -> torch.Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def plain_model(num_labels: int = NUM_LABELS):
    sizes = {"image_size": 8, "patch_size": 4, "num_labels": num_labels}
    return small_model("ViTForImageClassification", "ViTConfig", **LAYER_SIZES, **sizes)


def gradients_of(model) -> dict:
    return {name.removeprefix("vit."): parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("size", [1, 4])
def test_virtual_ranks_equal_transformers_in_weights_logits_and_all_gradients(size):
    plain = plain_model()
    before = torch.get_rng_state()
    config = models.ViTConfig.from_hugging_face(plain.config.to_dict())
    model = models.ViTForImageClassification(config, VirtualTensorGroup(size), NUM_LABELS)
    loaded = models.load_hugging_face(model, plain.state_dict())
    assert (loaded.missing, loaded.unused) == ((), ())
    weights = {name.removeprefix("vit."): tensor for name, tensor in plain.state_dict().items()}
    torch.testing.assert_close(models.to_hugging_face(model), weights, rtol=0, atol=0)
    logits, expected = model(images()), plain(images()).logits
    assert torch.equal(torch.get_rng_state(), before)
    logits.square().mean().backward()
    expected.square().mean().backward()
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(models.to_hugging_face(model, gradients=True), gradients_of(plain), rtol=1e-4, atol=1e-6)


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
    state = {name.removeprefix("vit."): tensor for name, tensor in plain_model().state_dict().items()}
    for earlier, now in EARLIER_NAMES.items():
        state[earlier] = state.pop(now) + 1
    model = models.ViTForImageClassification(SMALL, num_labels=NUM_LABELS)
    assert models.load_hugging_face(model, state).unused == ()
    collected = models.to_hugging_face(model)
    for earlier, now in EARLIER_NAMES.items():
        assert torch.equal(collected[now], state[earlier]), earlier


def test_an_encoder_takes_all_but_the_head_and_refuses_a_checkpoint_without_a_layer():
    state = plain_model().state_dict()
    loaded = models.load_hugging_face(models.ViTEncoder(SMALL), state)
    assert loaded.unused == ("classifier.bias", "classifier.weight")
    lacking = {name: tensor for name, tensor in state.items() if "layers.1.mlp.fc1" not in name}
    with pytest.raises(ValueError, match=r"2 weights are missing, first 'layers.1.mlp.fc1.weight'"):
        models.load_hugging_face(models.ViTEncoder(SMALL), lacking)


def test_every_cut_starts_from_the_same_weights_and_drops_the_same_units():
    config = models.ViTConfig(**SIZES, dropout=0.1)
    whole, cut = (models.ViTForImageClassification(config, VirtualTensorGroup(size)) for size in (1, 4))
    weights = models.to_hugging_face(cut)
    assert all(torch.equal(weights[name], tensor) for name, tensor in models.to_hugging_face(whole).items())
    torch.testing.assert_close(cut(images()), whole(images()), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("name", "billions"), [("VIT_1B", 1.21), ("VIT_3B", 2.72), ("VIT_TINY", 0.000_821)])
def test_named_sizes_count_the_published_parameters(name, billions):
    config = getattr(models, name)
    # A layer has 12 H^2 + 13 H; around them: patches, class token, positions, final norm, classifier of ten.
    hidden, around = config.hidden_size, 3 * config.patch_size**2 + 1 + 1 + config.sequence + 2 + 10
    count = config.num_layers * (12 * hidden**2 + 13 * hidden) + around * hidden + 10
    model = models.ViTForImageClassification(config, device="meta")
    assert sum(parameter.numel() for parameter in model.parameters()) == count
    assert count / 1e9 == pytest.approx(billions, rel=5e-3)
    cut = models.ViTForImageClassification(config, VirtualTensorGroup(8), device="meta")  # over the paper's eight GPUs
    assert cut.encoder.layers[0].mlp.input.weights[7].shape == (config.mlp_size // 8, config.hidden_size)


def config_with(**changes):
    return models.ViTConfig.from_hugging_face(plain_model().config.to_dict() | changes)


test_sizes_models_and_images_that_are_not_covered_are_refused = refusals(
    (lambda: models.ViTConfig(**SIZES | {"patch_size": 3}), "patch_size: 3 does not divide image_size 8"),
    (lambda: models.ViTConfig(**SIZES | {"num_layers": 0}), "num_layers: 0 must be at least 1"),
    (lambda: models.ViTConfig(**SIZES | {"num_heads": 3}), "num_heads: 3 does not divide hidden_size 16"),
    (lambda: config_with(hidden_act="relu"), "hidden_act: 'relu' is not 'gelu'"),
    (lambda: config_with(qkv_bias=False), "qkv_bias: False is not True"),
    (lambda: models.ViTEncoder(SMALL)(torch.zeros(1, 3, 16, 16)), "images: shape"),
    (lambda: models.load_hugging_face(torch.nn.Linear(1, 1), {}), "model: Linear is of no family"),
)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_gives_the_logits_and_gradients_of_the_cpu():
    results = []
    for device in ("cpu", "cuda"):
        model = models.ViTForImageClassification(SMALL, VirtualTensorGroup(2), device=device)
        logits = model(images().to(device))
        logits.square().mean().backward()
        gradients = {name: gradient.cpu() for name, gradient in models.to_hugging_face(model, gradients=True).items()}
        results.append((logits.detach().cpu(), gradients))
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-5)


def labels() -> torch.Tensor:
    return torch.tensor([0, 1, 2, 3, 9])


def on_a_rank(state: dict) -> tuple[torch.Tensor, dict, list]:
    group = ProcessTensorGroup()
    model = models.ViTForImageClassification(SMALL, group)
    models.load_hugging_face(model, state)
    logits = model(images())
    functional.cross_entropy(logits, labels()).backward()
    sent = [(message.site, message.what.value, message.message_bytes) for message in group.traffic]
    return logits.detach(), models.to_hugging_face(model, gradients=True), sent


def test_two_real_ranks_equal_transformers_in_logits_and_all_gradients(pools):
    plain = plain_model(num_labels=10)
    expected = plain(images()).logits
    functional.cross_entropy(expected, labels()).backward()
    for logits, gradients, sent in pools(2).run(on_a_rank, plain.state_dict()):
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(gradients, gradients_of(plain), rtol=1e-4, atol=1e-6)
        # 5 images of 5 tokens of 16 numbers in fp32; of a layer two sums forward and two back.
        assert [size for *_, size in sent] == [5 * 5 * 16 * 4] * 8
        assert sent[:2] == [("layers.0.attention.output", "sum", 1600), ("layers.0.mlp.output", "sum", 1600)]
