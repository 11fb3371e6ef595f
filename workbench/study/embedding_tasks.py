"""Four trainings with sparse embedding gradients on real data, with the kinds of models of the thesis's table 3.1.

A language model and a translator of words, a predictor of clicks, and a pretrained encoder. A batch says which rows of
which tables it looks up, so that the non-zero rows of a gradient are known without a backward pass.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from workbench.checks import require_counts
from workbench.datasets import Dataset, criteo, glue, multi30k, wikitext2
from workbench.datasets.vocabulary import UNKNOWN, Vocabulary, split_words
from workbench.models.bert import PADDING_TOKEN, BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.language import LogUniform, SampledLSTM
from workbench.models.pretrained import DEFAULT_ENCODER, STAND_IN, load_encoder
from workbench.models.recommender import DeepFM
from workbench.models.translation import PADDING, Translator

__all__ = ["EMBEDDING_TASKS", "SIZES", "EmbeddingBatch", "EmbeddingTask", "Size"]

SEQUENCE = 20  # words that the language model reads, as in the One Billion Word training
SAMPLED_SHARE = 8192 / 793_471  # share of the words in a sampled softmax, as in the same training
LEAST_SAMPLED = 8  # least number of sampled words
END = "<eos>"  # end of a line
SPECIAL = ("<pad>", "<s>", "</s>", UNKNOWN)  # special words of the translator; PADDING is the first
START, STOP = 1, 2  # ids of "<s>" and "</s>"
LEAST_COUNT = 2  # rarer words of the target are unknown, so that the translator learns the unknown word
GLUE_TASK, TRAINED = "sst2", 20_000  # sentences
MAX_TOKENS = MappingProxyType({"train": 24, "validation": 64})  # longest sentences; most are shorter
TESTED = 1000  # examples
TEST_BATCH = 50
IGNORED = -100  # the label behind a sentence's end


@dataclass(frozen=True, kw_only=True, slots=True)
class Size:
    """Widths of the models."""

    width: int  # width of the embeddings
    hidden: int  # hidden width of translator and perceptron; the language model has twice as many cells
    encoder: str  # name of the encoder, which has its own widths
    layers: int  # number of the encoder's lowest layers that are used


SIZES: Mapping[str, Size] = MappingProxyType(
    {
        "tiny": Size(width=8, hidden=8, encoder=STAND_IN, layers=1),
        "small": Size(width=128, hidden=64, encoder=DEFAULT_ENCODER, layers=3),
    }
)


@dataclass(frozen=True, kw_only=True, slots=True)
class EmbeddingBatch:
    """Examples, and the rows of tables that they look up."""

    inputs: tuple[Any, ...]  # the model's arguments
    labels: Tensor  # int64 classes, `IGNORED` behind a sentence's end; or float32, 1 for a click
    rows: Mapping[str, Tensor]  # parameter name of a table -> rows, padding left out; they may repeat


class EmbeddingTask:
    """Model, data and loss on one rank.

    "lstm" predicts words of WikiText-2, "deepfm" clicks of Criteo, "nmt" translates Multi30k from German, and "bert"
    fine-tunes a pretrained encoder on GLUE's SST-2.

    Args:
        name: One of `EMBEDDING_TASKS`.
        batch: Examples of a rank and step.
        seed: Seed of weights and data.
        sparse: Whether the gradients of `embeddings` are stored as sparse tensors.
        size: One of `SIZES`.
    """

    def __init__(self, name: str, *, batch: int, seed: int, sparse: bool = False, size: str = "small"):
        for argument, value, known in (("name", name, EMBEDDING_TASKS), ("size", size, SIZES)):
            if value not in known:
                raise ValueError(f"{argument} is {value!r}; it must be one of {', '.join(known)}")
        require_counts(1, batch=batch)
        require_counts(0, seed=seed)
        self._batch, self._seed, self.momentum = batch, seed, 0.0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self._work = _WORKS[name](SIZES[size], seed, sparse)
        self.module, self.sources = self._work.module, self._work.sources
        self.learning_rate = self._work.learning_rate  # for Adagrad: the loss falls within 100 steps
        weights = dict(self.module.named_parameters())
        self.embeddings = {table: len(weights[table]) for table in self._work.tables}

    def draw(self, rank: int, step: int) -> EmbeddingBatch:
        """Draw a rank's batch of a step, the same for equal seeds; ranks share an example only once all are taken."""
        places, num = np.arange(rank * self._batch, (rank + 1) * self._batch), self._work.num_train
        rounds = {turn: self._order(step, turn) for turn in range(places[0] // num, places[-1] // num + 1)}
        rows = np.array([rounds[place // num][place % num] for place in places])
        return self._work.batch(rows, np.random.default_rng([self._seed, step, rank, 1]))

    def _order(self, step: int, turn: int) -> np.ndarray:
        return np.random.default_rng([self._seed, step, turn, 0]).permutation(self._work.num_train)

    @staticmethod
    def loss(model: nn.Module, batch: EmbeddingBatch) -> Tensor:
        """Return the mean loss of a batch."""
        logits = model(*batch.inputs)
        if batch.labels.is_floating_point():
            return functional.binary_cross_entropy_with_logits(logits, batch.labels)
        return functional.cross_entropy(logits.flatten(0, -2), batch.labels.flatten(), ignore_index=IGNORED)

    @staticmethod
    def optimizer(parameters: Iterable[nn.Parameter], learning_rate: float, momentum: float) -> torch.optim.Optimizer:
        """Return Adagrad, which leaves rows without gradient alone: sparse and dense gradients train alike."""
        if momentum:
            raise ValueError(f"momentum is {momentum}; it must be 0, for Adagrad has none")
        return _Adagrad(parameters, lr=learning_rate)

    def touched(self, rank: int, step: int) -> dict[str, np.ndarray]:
        """Return the distinct rows of each table whose gradient is not zero in a rank's step, ascending."""
        return {table: rows.unique().numpy() for table, rows in self.draw(rank, step).rows.items()}

    @torch.no_grad()
    def scores(self, model: nn.Module) -> dict[str, float]:
        """Return test scores: perplexities, and others in per cent."""
        model.eval()
        return self._work.scores(model)


class _Adagrad(torch.optim.Adagrad):
    """Adagrad that switches the checks of its sparse tensors off explicitly, where torch's Adagrad warns."""

    def step(self, closure: Any = None) -> Any:
        with torch.sparse.check_sparse_tensor_invariants(enable=False):
            return super().step(closure)


class _Language:
    """Words of WikiText-2, predicted from those before them in windows of `SEQUENCE` words."""

    tables, learning_rate = ("encoder.weight", "decoder.weight"), 0.1

    def __init__(self, size: Size, seed: int, sparse: bool):
        datasets = [wikitext2.load(split) for split in ("train", "test")]
        self.sources = [dataset.source.as_record() for dataset in datasets]
        lines = [[[*line.split(), END] for line in dataset.columns["text"]] for dataset in datasets]
        known = Vocabulary(lines[0])
        self._train, self._test = (_windows(known.encode(chain.from_iterable(text))) for text in lines)
        self.num_train = len(self._train)
        num_sampled = max(min(LEAST_SAMPLED, len(known)), round(SAMPLED_SHARE * len(known)))
        self._sampler = LogUniform(num_words=len(known), num_sampled=num_sampled)
        self.module = SampledLSTM(len(known), width=size.width, hidden=2 * size.hidden, sparse=sparse)

    def batch(self, rows: np.ndarray, draw: np.random.Generator) -> EmbeddingBatch:
        ids, targets = self._train[rows, :-1], self._train[rows, 1:]
        drawn, num_tries = self._sampler.draw(draw)
        sampled = torch.from_numpy(drawn)
        return EmbeddingBatch(
            inputs=(ids, targets, sampled, num_tries),
            labels=torch.zeros_like(targets),  # the true word's logit is the first
            rows={"encoder.weight": ids, "decoder.weight": torch.cat([targets.flatten(), sampled])},
        )

    def scores(self, model: nn.Module) -> dict[str, float]:
        windows = self._test[:TESTED].split(TEST_BATCH)
        loss, _ = _tested(model, [((ids[:, :-1],), ids[:, 1:]) for ids in windows])
        return {"perplexity": float(np.exp(loss))}


class _Clicks:
    """Advertisements of Criteo, clicked or not."""

    tables, learning_rate = ("embedding.weight", "first_order.weight"), 0.01

    def __init__(self, size: Size, seed: int, sparse: bool):
        datasets = [criteo.load(split) for split in ("train", "test")]
        self.sources = [dataset.source.as_record() for dataset in datasets]
        table = criteo.FieldRows.of(datasets[0].categories)
        self._train, self._test = (
            tuple(map(torch.from_numpy, (table.rows(d.categories), d.numbers, d.labels))) for d in datasets
        )
        self.num_train = len(datasets[0])
        hidden = (size.hidden, size.hidden)
        self.module = DeepFM(table.num_rows, width=size.width, hidden=hidden, sparse=sparse)

    def batch(self, rows: np.ndarray, draw: np.random.Generator) -> EmbeddingBatch:
        categories, numbers, labels = (column[rows] for column in self._train)
        looked_up = dict.fromkeys(self.tables, categories)
        return EmbeddingBatch(inputs=(categories, numbers), labels=labels.float(), rows=looked_up)

    def scores(self, model: nn.Module) -> dict[str, float]:
        *inputs, labels = self._test
        logits = model(*inputs)
        correct = ((logits > 0) == labels).double().mean()
        return {"auc": 100 * float(roc_auc_score(labels, logits)), "accuracy": 100 * float(correct)}


class _Pairs:
    """Captions of Multi30k, translated from German into English."""

    tables, learning_rate = ("source.weight", "target.weight"), 0.1

    def __init__(self, size: Size, seed: int, sparse: bool):
        datasets = [multi30k.load(split) for split in ("train", "test_2016_flickr")]
        self.sources = [dataset.source.as_record() for dataset in datasets]
        words = [[[split_words(text) for text in column] for column in dataset.texts] for dataset in datasets]
        german = Vocabulary(words[0][0], special=SPECIAL)
        english = Vocabulary(words[0][1], special=SPECIAL, least=LEAST_COUNT)
        self._vocabularies = german, english
        self._train, self._test = ([*zip(*pairs, strict=True)] for pairs in words)
        self.num_train = len(self._train)
        self.module = Translator(len(german), len(english), width=size.width, hidden=size.hidden, sparse=sparse)

    def _padded(self, pairs: Sequence[tuple[list[str], list[str]]]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return the ids of sources and started targets, padded, and the labels: the targets with their ends."""
        start, stop = torch.tensor([START]), torch.tensor([STOP])
        sources, targets = (
            [torch.from_numpy(known.encode(words)) for words in column]
            for known, column in zip(self._vocabularies, zip(*pairs, strict=True), strict=True)
        )
        started = pad_sequence([torch.cat([start, target]) for target in targets], True, PADDING)
        labels = pad_sequence([torch.cat([target, stop]) for target in targets], True, IGNORED)
        return (pad_sequence(sources, True, PADDING), started), labels

    def batch(self, rows: np.ndarray, draw: np.random.Generator) -> EmbeddingBatch:
        inputs, labels = self._padded([self._train[row] for row in rows])
        looked_up = {table: ids[ids != PADDING] for table, ids in zip(self.tables, inputs, strict=True)}
        return EmbeddingBatch(inputs=inputs, labels=labels, rows=looked_up)

    def scores(self, model: nn.Module) -> dict[str, float]:
        parts = [self._test[start : start + TEST_BATCH] for start in range(0, TESTED, TEST_BATCH)]
        loss, correct = _tested(model, [self._padded(part) for part in parts if part])
        return {"perplexity": float(np.exp(loss)), "accuracy": 100 * correct}


class _Sentences:
    """Sentences of SST-2, classified by a pretrained encoder; only its word embedding is large."""

    tables, learning_rate = ("encoder.embeddings.word.weight",), 0.001

    def __init__(self, size: Size, seed: int, sparse: bool):
        encoder = load_encoder(size.encoder, or_stand_in=True)
        changes = {"num_layers": size.layers, "dropout": 0.0, "attention_dropout": 0.0, "seed": seed}
        config = BertConfig.from_hugging_face(encoder.config, **changes)
        self.module = BertForSequenceClassification(config)
        load_hugging_face(self.module.encoder, encoder.state_dict)
        embeddings = self.module.encoder.embeddings
        assert embeddings is not None  # a whole encoder has them
        embeddings.word.sparse = sparse
        self._train, self._test = glue.load(GLUE_TASK, "train", TRAINED), glue.load(GLUE_TASK, "validation", TESTED)
        self.sources = [source.as_record() for source in (encoder.source, self._train.source, self._test.source)]
        self.num_train = len(self._train)
        self._tokenizer = encoder.tokenizer

    def _padded(self, dataset: Dataset, rows: Sequence[int]) -> tuple[tuple[Tensor, Tensor], Tensor]:
        """Return padded ids of sentences and their mask, and the labels."""
        sentences = dataset.rows(rows)
        ids = self._tokenizer(*sentences.texts, truncation=True, max_length=MAX_TOKENS[dataset.split])["input_ids"]
        ids_BS = pad_sequence([torch.tensor(row) for row in ids], True, PADDING_TOKEN)
        return (ids_BS, (ids_BS != PADDING_TOKEN).long()), torch.tensor(sentences.labels)

    def batch(self, rows: np.ndarray, draw: np.random.Generator) -> EmbeddingBatch:
        inputs, labels = self._padded(self._train, rows.tolist())
        return EmbeddingBatch(inputs=inputs, labels=labels, rows={self.tables[0]: inputs[0][inputs[1] > 0]})

    def scores(self, model: nn.Module) -> dict[str, float]:
        num_tested = len(self._test)
        parts = [range(start, min(start + TEST_BATCH, num_tested)) for start in range(0, num_tested, TEST_BATCH)]
        return {"accuracy": 100 * _tested(model, [self._padded(self._test, rows) for rows in parts])[1]}


_WORKS: Mapping[str, Callable[[Size, int, bool], Any]] = MappingProxyType(
    {"lstm": _Language, "deepfm": _Clicks, "nmt": _Pairs, "bert": _Sentences}
)
EMBEDDING_TASKS = tuple(_WORKS)


def _windows(ids: np.ndarray) -> Tensor:
    """Cut running text into windows of `SEQUENCE` words and the next word, with which the next window begins."""
    num_windows = (len(ids) - 1) // SEQUENCE
    starts = SEQUENCE * np.arange(num_windows)
    return torch.from_numpy(ids[starts[:, None] + np.arange(SEQUENCE + 1)])


def _tested(model: nn.Module, batches: Iterable[tuple[tuple[Tensor, ...], Tensor]]) -> tuple[float, float]:
    """Return the mean loss over all labels that are not ignored, and the share of labels with the highest score."""
    loss, num_correct, num_labels = 0.0, 0, 0
    for inputs, labels in batches:
        logits, labels = model(*inputs).flatten(0, -2), labels.flatten()
        loss += float(functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum"))
        num_correct += int((logits.argmax(-1) == labels).sum())
        num_labels += int((labels != IGNORED).sum())
    return loss / num_labels, num_correct / num_labels
