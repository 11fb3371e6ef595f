"""Two tasks with real data, small enough for ranks of a CPU: a ResNet from scratch, and a pretrained encoder."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.datasets import SourceKind, cifar10, glue
from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.models.resnet import resnet_stages
from workbench.study.batches import Examples
from workbench.study.images import ImageExamples
from workbench.study.loop import LabelledExamples
from workbench.study.metrics import METRICS

__all__ = ["Task"]

GLUE_TASK, MAX_TOKENS = "qqp", 48  # the first measure of QQP is F1
TESTED, TRAINED = 1000, 20_000  # test examples, and training examples of text
MOMENTUM = 0.9  # momentum of SGD for the images


class Task:
    """Model, data and loss on one rank: "resnet" on CIFAR-10 from scratch, or "minilm", pretrained, on GLUE's QQP."""

    module: nn.Module
    _examples: LabelledExamples
    _tested: Examples | ImageExamples

    def __init__(self, model: str, *, batch: int, seed: int, encoder: str = DEFAULT_ENCODER):
        if model not in ("resnet", "minilm"):
            raise ValueError(f"model is {model!r}; it must be resnet or minilm")
        self._batch, self._seed, self._is_text = batch, seed, model == "minilm"
        self.momentum = 0.0 if self._is_text else MOMENTUM
        if self._is_text:
            pretrained = load_encoder(encoder, or_stand_in=True)
            config = BertConfig.from_hugging_face(pretrained.config, dropout=0.0, attention_dropout=0.0, seed=seed)
            self.module = classifier = BertForSequenceClassification(config)
            load_hugging_face(classifier.encoder, pretrained.state_dict)
            learns = pretrained.source.kind is not SourceKind.STAND_IN
            self._examples, source = _texts("train", TRAINED if learns else TESTED, pretrained)
            self._tested, tested = _texts(glue.TASKS[GLUE_TASK].validation_split, TESTED, pretrained)
            self.sources = [pretrained.source.as_record(), source, tested]
        else:
            self.module = nn.Sequential(*resnet_stages(1, blocks=3, width=16, seed=seed))
            datasets = [cifar10.load("train"), cifar10.load("test", TESTED)]
            self._examples, self._tested = map(ImageExamples.of, datasets)
            self.sources = [dataset.source.as_record() for dataset in datasets]

    def draw(self, rank: int, step: int) -> Any:
        """Draw a rank's batch of a step, the same for equal seeds."""
        place = (self._seed * 1009 + rank) * 100_003 + step
        rows = np.random.default_rng(place).integers(len(self._examples), size=self._batch)
        return self._examples.batch(rows)

    @staticmethod
    def loss(model: nn.Module, batch: Any) -> Tensor:
        """Return the mean loss of a batch."""
        return functional.cross_entropy(model(batch.inputs, **batch.context), batch.labels)

    def optimizer(self, parameters: Any, learning_rate: float, momentum: float) -> torch.optim.Optimizer:
        """Return SGD for the images, AdamW for the text."""
        if self._is_text:
            return torch.optim.AdamW(parameters, lr=learning_rate)
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)

    @torch.no_grad()
    def scores(self, model: nn.Module) -> dict[str, float]:
        """Return scores in per cent on the test examples."""
        model.eval()
        classes = []
        for rows in np.array_split(np.arange(len(self._tested)), max(1, len(self._tested) // 50)):
            batch = self._tested.batch(rows)
            classes.append(model(batch.inputs, **batch.context).argmax(dim=-1))
        predictions, labels = torch.cat(classes).tolist(), self._tested.labels.tolist()
        metrics = glue.TASKS[GLUE_TASK].metrics if self._is_text else ("accuracy",)
        return {name: 100 * float(METRICS[name](labels, predictions)) for name in metrics}


def _texts(split: str, limit: int, encoder: PretrainedEncoder) -> tuple[Examples, dict[str, Any]]:
    """Tokenise a split of the GLUE task."""
    dataset = glue.load(GLUE_TASK, split, limit)
    tokens = encoder.tokenizer(*dataset.texts, truncation=True, max_length=MAX_TOKENS)
    ids, types = ([torch.tensor(row) for row in tokens[name]] for name in ("input_ids", "token_type_ids"))
    return Examples(ids=ids, types=types, labels=torch.tensor(dataset.labels)), dataset.source.as_record()
