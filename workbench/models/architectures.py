"""The architectures of the thesis that Espresso was evaluated on (table 4.4), on the meta device: shapes, no weights.

UGATIT is left out: transformers lacks it, and it is six networks with two backward passes a step, not one module. Its
recorded gradients are in `workbench.datasets.gradient_traces`.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from workbench.checks import require_one_of

__all__ = ["ARCHITECTURES", "WordLSTM", "architecture", "vgg16"]

VGG16_CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))
IMAGENET_LABELS = 1000
IMAGENET_CELLS = 7 * 7  # places that five poolings leave of 224 x 224
PADDED_BERT_VOCABULARY = 30528  # the artifact's: 30522 words, padded to a multiple of 8
WIKITEXT2_WORDS = 33278
LSTM_WIDTH = 1500


def vgg16(
    *, width: int = 64, cells: int = IMAGENET_CELLS, hidden: int = 4096, labels: int = IMAGENET_LABELS
) -> nn.Sequential:
    """Build VGG16 (Simonyan and Zisserman), its parameters named as in torchvision.

    Args:
        width: channels of the first row.
        cells: places that five poolings leave of an image: 49 of 224 x 224 pixels, 1 of 32 x 32.
        hidden: width of the classifier.
        labels: classes.
    """
    features, channels = [], 3
    for row in VGG16_CHANNELS:
        for full in row:
            out_channels = full * width // VGG16_CHANNELS[0][0]
            features += [nn.Conv2d(channels, out_channels, 3, padding=1), nn.ReLU()]
            channels = out_channels
        features.append(nn.MaxPool2d(2))
    sizes = (channels * cells, hidden, hidden)
    classifier = [
        part for k, n in zip(sizes, sizes[1:], strict=False) for part in (nn.Linear(k, n), nn.ReLU(), nn.Dropout())
    ]
    classifier.append(nn.Linear(sizes[-1], labels))
    parts = {"features": nn.Sequential(*features), "flatten": nn.Flatten(), "classifier": nn.Sequential(*classifier)}
    return nn.Sequential(OrderedDict(parts))


class WordLSTM(nn.Module):
    """A language model of two LSTM layers whose decoder is tied to the embedding (Merity et al.), without dropout."""

    def __init__(self, num_words: int = WIKITEXT2_WORDS, width: int = LSTM_WIDTH):
        super().__init__()
        self.encoder = nn.Embedding(num_words, width)
        self.rnns = nn.ModuleList(nn.LSTM(width, width) for _ in range(2))
        self.decoder = nn.Linear(width, num_words)
        self.decoder.weight = self.encoder.weight

    def forward(self, ids_SB: Tensor) -> Tensor:
        """Score the next word at every position: ids [S, B] -> logits [S, B, V]."""
        x_SBH = self.encoder(ids_SB)
        for rnn in self.rnns:
            x_SBH, _ = rnn(x_SBH)
        return self.decoder(x_SBH)


def _of_transformers(model: str, config: str, **sizes: Any) -> nn.Module:
    import transformers  # half a second, which only a model of it waits for

    return getattr(transformers, model)(getattr(transformers, config)(**sizes))


_resnet = partial(_of_transformers, "ResNetForImageClassification", "ResNetConfig", num_labels=IMAGENET_LABELS)
ARCHITECTURES: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "vgg16": vgg16,
        "resnet50": partial(_resnet, depths=[3, 4, 6, 3]),
        "resnet101": partial(_resnet, depths=[3, 4, 23, 3]),
        "bert_base": partial(
            _of_transformers, "BertForQuestionAnswering", "BertConfig", vocab_size=PADDED_BERT_VOCABULARY
        ),
        "gpt2": partial(_of_transformers, "GPT2LMHeadModel", "GPT2Config"),
        "lstm": WordLSTM,
    }
)
"""The builders, under the names of the artifact; call one outside of `architecture` for a model with weights."""


def architecture(name: str) -> nn.Module:
    """Build one of `ARCHITECTURES` on the meta device; ValueError for another name."""
    require_one_of(ARCHITECTURES, name=name)
    with torch.device("meta"):
        return ARCHITECTURES[name]()
