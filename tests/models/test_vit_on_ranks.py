"""The Vision Transformer on two real gloo ranks, against `transformers`."""

import pytest
import torch
from torch.nn import functional

from workbench.launch import Ranks
from workbench.models import ViTConfig, ViTForImageClassification, load_hugging_face, to_hugging_face
from workbench.parallel import ProcessTensorGroup

pytestmark = pytest.mark.timeout(90)

CONFIG = ViTConfig(hidden_size=16, num_layers=2, num_heads=4, mlp_size=32, image_size=8, patch_size=4)


def images() -> torch.Tensor:
    return torch.randn(5, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def labels() -> torch.Tensor:
    return torch.tensor([0, 1, 2, 3, 9])


def on_a_rank(state: dict) -> tuple[torch.Tensor, dict, list]:
    group = ProcessTensorGroup()
    model = ViTForImageClassification(CONFIG, group)
    load_hugging_face(model, state)
    logits = model(images())
    functional.cross_entropy(logits, labels()).backward()
    sent = [(message.site, message.what.value, message.message_bytes) for message in group.traffic]
    return logits.detach(), to_hugging_face(model, gradients=True), sent


def transformers_model():
    import transformers  # here, so that ranks, which import this file, need not

    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.ViTForImageClassification(
            transformers.ViTConfig(
                hidden_size=16,
                num_hidden_layers=2,
                num_attention_heads=4,
                intermediate_size=32,
                image_size=8,
                patch_size=4,
                num_labels=10,
            )
        )


def test_two_real_ranks_equal_transformers_in_logits_and_all_gradients():
    model = transformers_model()
    logits = model(images()).logits
    functional.cross_entropy(logits, labels()).backward()
    gradients = {name.removeprefix("vit."): parameter.grad for name, parameter in model.named_parameters()}
    with Ranks(2, preload=("workbench.models",)) as ranks:
        results = ranks.run(on_a_rank, model.state_dict())
    for found, their_gradients, sent in results:
        torch.testing.assert_close(found, logits.detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(their_gradients, gradients, rtol=1e-4, atol=1e-6)
        # 5 images of 5 tokens of 16 numbers in fp32; of a layer two sums forward and two back.
        assert [size for *_, size in sent] == [5 * 5 * 16 * 4] * 8
        assert sent[:2] == [("layers.0.attention.output", "sum", 1600), ("layers.0.mlp.output", "sum", 1600)]
