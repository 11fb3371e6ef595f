"""Three tasks with real data whose models are cut into stages: a ResNet on CIFAR-10, a BERT and a GPT-2 on WikiText-2.

Models are small enough for many ranks of a CPU, and start from random weights.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.datasets import cifar10, wikitext2
from workbench.models.bert import BertConfig, BertEncoder
from workbench.models.gpt2 import GPT2Block, GPT2Config
from workbench.models.resnet import resnet_stages
from workbench.parallel.pipeline import Stage
from workbench.rows import value_row
from workbench.study.images import Augmentation, ImageExamples

__all__ = ["MODELS", "Data", "naive_rows", "scores_of", "stages_of"]

MODELS = ("resnet", "bert", "gpt2")
NUM_TESTED = 1000  # images, or sequences of words
NUM_WORDS = 2000  # that BERT knows, the most frequent ones
UNKNOWN, MASK, FIRST_WORD = 0, 1, 2  # ids
IGNORED = -100  # label of a word that is not masked
NUM_CLASSES = 10  # of CIFAR-10
LINEAR_RATE = 0.002  # learning rate of the linear model, the most accurate of 0.0005 to 0.01 on seed 7
MASKED_SHARE = 0.15  # of words, Devlin et al., 2019, section 3.1
SEQUENCE = 32  # words
BERT = BertConfig(
    hidden_size=64, num_layers=4, num_heads=4, mlp_size=256, vocab_size=NUM_WORDS + FIRST_WORD, dropout=0.0
)
GPT2 = GPT2Config(hidden_size=64, num_layers=4, num_heads=4, vocab_size=NUM_WORDS + FIRST_WORD, dropout=0.0)


def _gpt2_stages(num_stages: int, config: GPT2Config) -> list[nn.Sequential]:
    """Build a GPT-2 whose last stage scores words with a weight of its own."""
    size = config.num_layers // num_stages
    blocks = [GPT2Block(config, index) for index in range(config.num_layers)]
    stages = [nn.Sequential(*blocks[start : start + size]) for start in range(0, len(blocks), size)]
    stages[0].insert(0, _Embeddings(config))
    stages[-1].extend([nn.LayerNorm(config.hidden_size), nn.Linear(config.hidden_size, config.vocab_size)])
    return stages


class _Embeddings(nn.Module):
    """Sum of word and position embeddings."""

    def __init__(self, config: GPT2Config):
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size)
        self.positions = nn.Parameter(torch.zeros(SEQUENCE, config.hidden_size))
        nn.init.normal_(self.words.weight, std=config.init_std)

    def forward(self, ids_BS: Tensor) -> Tensor:
        return self.words(ids_BS) + self.positions


class _BertStage(nn.Module):
    """A stage of BERT; the last one scores words with a weight of its own."""

    def __init__(self, stage: Stage):
        super().__init__()
        self.encoder = BertEncoder(BERT, stage=stage)
        self.head = nn.Linear(BERT.hidden_size, BERT.vocab_size) if stage.is_last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x))


def stages_of(model: str, num_stages: int, seed: int, width: int | None = None) -> Sequence[nn.Module]:
    """Build all stages, equal for equal seeds.

    Args:
        model: of MODELS.
        num_stages: M.
        seed: of the weights.
        width: GPT-2's hidden size, or the channels of the ResNet's first row, which then takes four pixels for one
            with four times the colours, so that it needs a quarter of the work; None for the sizes of the real ranks.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if model == "gpt2":
            return _gpt2_stages(num_stages, replace(GPT2, seed=seed, hidden_size=width or GPT2.hidden_size))
        if model == "bert":
            return [_BertStage(Stage(index=index, num_stages=num_stages)) for index in range(num_stages)]
        if width is None:
            return resnet_stages(num_stages, seed=seed)
        stages = resnet_stages(num_stages, width=width, seed=seed)
        coarse = nn.PixelUnshuffle(2)
        stages[0][0] = nn.Sequential(coarse, nn.Conv2d(3 * 4, width, 3, padding=1, bias=False))
        return stages


class Data:
    """Batches of every pipeline, drawn by seed alike on all ranks, and a test set.

    Args:
        model: of MODELS.
        seed: of the batches.
        examples: of a mini-batch.
        is_varied: mirrors and shifts training images at random.
    """

    def __init__(self, model: str, seed: int, examples: int, *, is_varied: bool = False):
        self._model, self._seed, self._num_examples = model, seed, examples
        self._vary = Augmentation(seed=seed) if is_varied else None
        train_set, test_set = (self._load(split, model) for split in ("train", "test"))
        self._examples, self.source = train_set
        self._tested, _ = test_set
        self.loss: Callable[..., Tensor] = functional.cross_entropy if model == "resnet" else _masked_loss

    def _load(self, split: str, model: str) -> tuple[Any, dict[str, Any]]:
        if model == "resnet":
            images = cifar10.load(split, None if split == "train" else NUM_TESTED)
            return ImageExamples.of(images), images.source.as_record()
        dataset = wikitext2.load(split)
        known = [word for word, _ in Counter(_words(wikitext2.load("train"))).most_common(NUM_WORDS)]
        ids_of = {word: number for number, word in enumerate(known, FIRST_WORD)}
        ids = torch.tensor([ids_of.get(word, UNKNOWN) for word in _words(dataset)])
        return ids[: len(ids) // SEQUENCE * SEQUENCE].view(-1, SEQUENCE), dataset.source.as_record()

    @property
    def words(self) -> Tensor:
        """All words of BERT's training text, int64 [words]."""
        return self._examples.flatten()

    def batch(self, pipeline: int, iteration: int) -> tuple[Tensor, Tensor]:
        """Draw a pipeline's mini-batch."""
        step = (self._seed * 1009 + pipeline) * 100_003 + iteration
        draw = torch.Generator().manual_seed(step)
        rows = torch.randint(len(self._examples), (self._num_examples,), generator=draw)
        return self._of_rows(self._examples, rows, draw, step if self._vary else None)

    def tested(self) -> tuple[Tensor, Tensor]:
        """Return the test set."""
        rows = torch.arange(min(len(self._tested), NUM_TESTED))
        return self._of_rows(self._tested, rows, torch.Generator().manual_seed(0))

    def _of_rows(
        self, examples: Any, rows: Tensor, draw: torch.Generator, step: int | None = None
    ) -> tuple[Tensor, Tensor]:
        if self._model == "resnet":
            batch = examples.batch(rows)
            batch = batch if self._vary is None or step is None else self._vary(batch, step)
            return batch.inputs, batch.labels
        words_BS = examples[rows]
        if self._model == "gpt2":
            nothing = torch.full((len(rows), 1), IGNORED)
            return words_BS, torch.cat([words_BS[:, 1:], nothing], dim=1)
        is_masked_BS = torch.rand(words_BS.shape, generator=draw) < MASKED_SHARE
        is_masked_BS[:, 0] = True  # each sequence has at least one
        return words_BS.masked_fill(is_masked_BS, MASK), words_BS.masked_fill(~is_masked_BS, IGNORED)


def naive_rows(data: Data, num_pipelines: int, iterations: int) -> list[dict[str, Any]]:
    """Return the loss on the test set of a model that has learned next to nothing, to stand beside a training's.

    For BERT it is how often each word occurs in the training text; for the ResNet a linear model, with its accuracy,
    that SGD trains on the same batches.
    """
    inputs, targets = data.tested()
    if inputs.ndim == 2:
        log_shares = torch.bincount(data.words, minlength=NUM_WORDS + FIRST_WORD).double().add(1.0).log()
        log_shares -= log_shares.logsumexp(0)
        return [value_row("naive_loss", -log_shares[targets[targets != IGNORED]].mean().item())]
    linear = nn.Linear(inputs[0].numel(), NUM_CLASSES)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    optimizer = torch.optim.SGD(linear.parameters(), lr=LINEAR_RATE)
    for iteration in range(iterations):
        optimizer.zero_grad()
        for pipeline in range(num_pipelines):
            images, labels = data.batch(pipeline, iteration)
            (data.loss(linear(images.flatten(1)), labels) / num_pipelines).backward()
        optimizer.step()
    scores = scores_of([nn.Flatten(), linear], data)
    return [value_row("naive_loss", scores["test_loss"]), value_row("naive_accuracy", scores["accuracy"], "%")]


def _words(dataset: Any) -> list[str]:
    return [word for line in dataset.columns["text"] for word in line.split()]


def _masked_loss(logits_BSV: Tensor, words_BS: Tensor) -> Tensor:
    return functional.cross_entropy(logits_BSV.flatten(0, 1), words_BS.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def scores_of(parts: Sequence[nn.Module], data: Data) -> dict[str, float]:
    """Test a model given as stages."""
    outputs, targets = data.tested()
    for part in parts:
        outputs = part(outputs)
    scores = {"test_loss": data.loss(outputs, targets).item()}
    if outputs.ndim == 2:
        scores["accuracy"] = 100 * (outputs.argmax(1) == targets).double().mean().item()
    return scores
