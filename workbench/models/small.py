"""Small models, for training on a CPU, of the families used for gradient compression, with random inputs."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn

from workbench.models.architectures import WordLSTM, vgg16
from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.models.resnet import resnet_stages

__all__ = ["SMALL_MODELS", "random_inputs"]

# The embedding has a fifth of BERT's and GPT-2's elements, as in BERT-base and GPT-2.
WORDS, SENTENCE = 4000, 32
IMAGE = 3, 32, 32

SMALL_MODELS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "bert": lambda: BertForSequenceClassification(
            BertConfig.tiny(hidden_size=192, num_layers=6, num_heads=4, mlp_size=768, vocab_size=WORDS, dropout=0.0)
        ),
        "gpt2": lambda: GPT2(
            GPT2Config.tiny(hidden_size=192, num_layers=6, vocab_size=WORDS, max_positions=SENTENCE, dropout=0.0)
        ),
        "vgg": lambda: vgg16(width=16, cells=1, hidden=1024, labels=10),
        "lstm": lambda: WordLSTM(WORDS, 256),
        "resnet": lambda: nn.Sequential(*resnet_stages(1, blocks=3, width=16)),
    }
)
"""Builders by name."""


def random_inputs(model: str, batch: int, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw inputs and labels for one of `SMALL_MODELS`: the time of an iteration does not depend on them."""
    if model in ("vgg", "resnet"):
        labels = torch.randint(10, (batch,), generator=draw)
        return torch.randn(batch, *IMAGE, generator=draw), labels
    ids = torch.randint(WORDS, (batch, SENTENCE), generator=draw)
    if model == "bert":
        return ids, torch.randint(2, (batch,), generator=draw)
    return (ids.T, ids.T) if model == "lstm" else (ids, ids)
