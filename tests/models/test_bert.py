"""BERT against Hugging Face's own, in logits and in every gradient."""

import pytest
import torch
import transformers

from workbench.models import (
    BertConfig,
    BertEncoder,
    BertForMaskedLM,
    BertForSequenceClassification,
    load_hugging_face,
    to_hugging_face,
)
from workbench.parallel import VirtualTensorGroup
from workbench.parallel.pipeline import Stage

NUM_LABELS = 3


def hugging_face_config() -> transformers.BertConfig:
    return transformers.BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=32,
        num_labels=NUM_LABELS,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


def batch() -> dict[str, torch.Tensor]:
    """Three sequences of 7 tokens, two of them padded, each with two segments."""
    ids = torch.randint(1, 64, (3, 7), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 7, dtype=torch.long)
    mask[1, 5:] = mask[2, 2:] = 0
    return {"ids": ids * mask, "mask": mask, "types": (torch.arange(7) > 3).long().expand(3, 7)}


def theirs(model_class: type, inputs: dict):
    """Run `transformers`: weights, logits, gradients."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = model_class(hugging_face_config())
    for parameter in model.parameters():  # biases and norms start at 0 and 1: move them
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    logits = model(inputs["ids"], inputs["mask"], inputs["types"]).logits
    logits.square().mean().backward()
    plain = {name.removeprefix("bert."): p.grad for name, p in model.named_parameters()}
    return model.state_dict(), logits, plain


def ours(model_class: type, group, inputs: dict, state: dict, **options):
    """Run our model with the same weights: logits, full gradients."""
    config = BertConfig.from_hugging_face(hugging_face_config().to_dict())
    model = model_class(config, group, **options)
    assert load_hugging_face(model, state).missing == ()
    logits = model(inputs["ids"], inputs["mask"], inputs["types"])
    logits.square().mean().backward()
    return logits.detach(), to_hugging_face(model, gradients=True)


def assert_same_gradients(actual: dict, expected: dict):
    assert actual.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(actual[name], gradient, rtol=1e-4, atol=1e-6, msg=name)


CASES = [
    pytest.param(transformers.BertForMaskedLM, BertForMaskedLM, {}, id="masked-lm"),
    pytest.param(
        transformers.BertForSequenceClassification,
        BertForSequenceClassification,
        {"num_labels": NUM_LABELS},
        id="classification",
    ),
]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize(("their_class", "our_class", "options"), CASES)
def test_virtual_ranks_equal_transformers_in_logits_and_all_gradients(their_class, our_class, options, size):
    state, logits, gradients = theirs(their_class, batch())
    result = ours(our_class, VirtualTensorGroup(size), batch(), state, **options)
    torch.testing.assert_close(result[0], logits, rtol=1e-4, atol=1e-6)
    assert_same_gradients(result[1], gradients)


def test_weights_survive_loading_and_collecting():
    state, *_ = theirs(transformers.BertForSequenceClassification, batch())
    config = BertConfig.from_hugging_face(hugging_face_config().to_dict())
    model = BertForSequenceClassification(config, VirtualTensorGroup(4), NUM_LABELS)
    load_hugging_face(model, state)
    collected = to_hugging_face(model)
    for name, tensor in state.items():
        assert torch.equal(collected[name.removeprefix("bert.")], tensor), name


def test_old_names_of_layer_norms_load_too():
    state, *_ = theirs(transformers.BertForMaskedLM, batch())
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t
        for name, t in state.items()
    }
    model = BertEncoder(BertConfig.from_hugging_face(hugging_face_config().to_dict()))
    loaded = load_hugging_face(model, old)
    assert loaded.missing == ()
    assert all(name.startswith("cls.") for name in loaded.unused)
    norm = state["bert.encoder.layer.1.output.LayerNorm.weight"]
    assert torch.equal(model.layers[1].mlp_norm.weight, norm)


def test_a_checkpoint_without_a_head_says_so_and_one_without_a_layer_is_refused():
    state, *_ = theirs(transformers.BertForMaskedLM, batch())
    config = BertConfig.from_hugging_face(hugging_face_config().to_dict())
    model = BertForSequenceClassification(config, num_labels=NUM_LABELS)
    assert load_hugging_face(model, state).missing == (
        "pooler.dense.weight",
        "pooler.dense.bias",
        "classifier.weight",
        "classifier.bias",
    )
    cut = {name: t for name, t in state.items() if "layer.1.intermediate" not in name}
    with pytest.raises(ValueError, match="2 weights are missing, first 'encoder.layer.1.interm"):
        load_hugging_face(model, cut)
    state["bert.embeddings.word_embeddings.weight"] = torch.zeros(65, 16)
    with pytest.raises(ValueError, match=r"word_embeddings.weight: shape \(65, 16\)"):
        load_hugging_face(model, state)


def test_every_cut_starts_from_the_same_weights_whatever_a_rank_holds():
    config = BertConfig.tiny()
    whole = to_hugging_face(BertForMaskedLM(config, VirtualTensorGroup(1)))
    pieces = {}
    for index in range(2):
        stage = Stage(index=index, num_stages=2)
        pieces |= to_hugging_face(BertForMaskedLM(config, VirtualTensorGroup(4), stage))
    assert pieces.keys() == whole.keys()
    assert all(torch.equal(pieces[name], tensor) for name, tensor in whole.items())


def test_building_a_model_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    BertForSequenceClassification(BertConfig.tiny(dropout=0.1))(batch()["ids"])
    assert torch.equal(torch.get_rng_state(), before)


def test_published_sizes_count_the_published_parameters():
    # Devlin et al. give 110M and 340M (with heads); these are the encoders' exact counts:
    # (V + P + T) H + 2H embeddings, 12 H^2 + 13 H a layer.
    expected = {
        "bert_base": (30522 + 512 + 2) * 768 + 2 * 768 + 12 * (12 * 768**2 + 13 * 768),
        "bert_large": (30522 + 512 + 2) * 1024 + 2 * 1024 + 24 * (12 * 1024**2 + 13 * 1024),
        "mini_lm": (30522 + 512 + 2) * 384 + 2 * 384 + 6 * (12 * 384**2 + 13 * 384),
    }
    for name, count in expected.items():
        encoder = BertEncoder(getattr(BertConfig, name)(), device="meta")
        assert sum(parameter.numel() for parameter in encoder.parameters()) == count


def test_configs_that_are_not_covered_are_refused():
    config = hugging_face_config().to_dict()
    with pytest.raises(ValueError, match="hidden_act: 'relu'"):
        BertConfig.from_hugging_face(config | {"hidden_act": "relu"})
    with pytest.raises(ValueError, match="position_embedding_type: 'relative_key'"):
        BertConfig.from_hugging_face(config | {"position_embedding_type": "relative_key"})
    with pytest.raises(ValueError, match="num_layers: 0"):
        BertConfig.tiny(num_layers=0)
    with pytest.raises(ValueError, match="33 tokens are more than max_positions 32"):
        BertEncoder(BertConfig.tiny())(torch.ones(1, 33, dtype=torch.long))
