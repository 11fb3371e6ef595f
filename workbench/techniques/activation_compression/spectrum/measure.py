"""Take gradients, activations and messages from a pretrained encoder on tensor-parallel ranks, and their spectra.

What: one forward and backward pass of a classification loss, as at the start of fine-tuning, with a fresh head. Of
each layer it takes the output (the activation), the gradient of that output, the gradients of its four weight
matrices, and one rank's partial sums: the messages that tensor parallelism sends and that this technique compresses.
Source: "Does compressing activations help model parallel training?", figure 2 (the activation is the output of
layer 12 of 24, so "middle" here is the layer at half the depth).
Simplified: no dropout, fp32. Padding is left out, since its rows repeat each other. Sentences are sorted by length
and run in micro-batches whose gradients add up to the whole batch's.
Left out: spectra later in training.

Shapes: B = sentences of a micro-batch, S = longest sentence of it, N = tokens, H = hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from workbench.datasets import Dataset, DataSource, glue
from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import ProcessTensorGroup, TensorGroup, TransformerLayer, VirtualTensorGroup, generator_for
from workbench.techniques.activation_compression.spectrum.curves import Spectrum, singular_values

__all__ = ["Measurement", "Setting", "measure", "measure_on_ranks"]

MICRO_BATCH = 32  # sentences; the paper's micro-batch in fine-tuning
MAX_TOKENS = 128  # tokens a sentence; SST-2's longest has fewer
PRELOAD = (__name__, "transformers.models.bert.tokenization_bert")  # imported once for all ranks
LINEARS = ("attention.query_key_value", "attention.output", "mlp.input", "mlp.output")  # the weights of a layer
SUMMED = ("attention.output", "mlp.output")  # the linears whose partial sums are sent


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """What is measured.

    Attributes:
        encoder: a pretrained model's name, or "stand-in".
        task: the GLUE task whose loss gives the gradients.
        sentences: batch sizes, each measured by itself.
        tensor_ranks: number of tensor-parallel ranks.
        seeds: of the drawn sentences and of the classification head, one measurement each.
        in_full: every layer, and every weight matrix by itself too, instead of the middle and the last layer.
    """

    encoder: str = DEFAULT_ENCODER
    task: str = "sst2"
    sentences: Sequence[int] = (32, 480)
    tensor_ranks: int = 2
    seeds: Sequence[int] = (0, 1, 2)
    in_full: bool = False

    def __post_init__(self) -> None:
        for name in ("sentences", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty, must hold at least one number")
        if min(self.sentences) < 1:
            raise ValueError(f"sentences is {list(self.sentences)}, must hold numbers of at least 1")
        if self.tensor_ranks < 1:
            raise ValueError(f"tensor_ranks is {self.tensor_ranks}, must be at least 1")
        if self.task not in glue.TASKS or glue.TASKS[self.task].is_regression:
            raise ValueError(f"task is {self.task!r}, must be a GLUE task with classes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """All spectra of a setting, and what they were measured on.

    Attributes:
        spectra: one a matrix, depth, batch size and seed.
        data: sources of the text and of the weights.
        configuration: setting and sizes, as a record holds them.
    """

    spectra: tuple[Spectrum, ...]
    data: tuple[DataSource, ...]
    configuration: Mapping[str, Any]


def measure_on_ranks(setting: Setting, *, timeout_s: float = 600) -> Measurement:
    """Measure on real ranks of this machine, as many as the setting says.

    Args:
        setting: what to measure.
        timeout_s: seconds after which the ranks are stopped.
    Returns:
        Rank 0's measurement; the others differ from it in the messages alone, which are each rank's own.
    """
    from workbench.launch import run_on_ranks

    return run_on_ranks(_measure_here, setting.tensor_ranks, setting, timeout_s=timeout_s, preload=PRELOAD)[0]


def _measure_here(setting: Setting) -> Measurement:
    """Measure as one of the real ranks."""
    return measure(setting, ProcessTensorGroup())


def measure(setting: Setting, group: TensorGroup | None = None) -> Measurement:
    """Measure the spectra of gradients, activations and messages of an encoder.

    Args:
        setting: what to measure.
        group: the ranks; None is virtual ranks in this process, as many as the setting says.
    Returns:
        The spectra; messages are those of the first local rank.
    Raises:
        ValueError: the group has another size than the setting says.
    """
    group = VirtualTensorGroup(setting.tensor_ranks) if group is None else group
    if group.size != setting.tensor_ranks:
        raise ValueError(f"tensor_ranks is {setting.tensor_ranks}, must be the group's size {group.size}")
    encoder = load_encoder(setting.encoder, or_stand_in=True)
    spectra: list[Spectrum] = []
    for seed in setting.seeds:
        for count in setting.sentences:
            text = glue.load(setting.task, "train", limit=count, seed=seed)
            matrices = _matrices(setting, text, encoder, group, seed)
            keys = {"sentences": count, "seed": seed}
            spectra += [Spectrum(**names, **keys, values=singular_values(matrix)) for names, matrix in matrices]
    return Measurement(
        spectra=tuple(spectra),
        data=(text.source, encoder.source),
        configuration=_configuration(setting, encoder, group),
    )


def _configuration(setting: Setting, encoder: PretrainedEncoder, group: TensorGroup) -> dict[str, Any]:
    """Say what was measured, as a record holds it."""
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    ranks = "real" if isinstance(group, ProcessTensorGroup) else "virtual"
    found = {name: encoder.config[name] for name in sizes}
    return {**asdict(setting), "ranks": ranks, "encoder_found": encoder.source.kind.value, **found}


def _matrices(
    setting: Setting, text: Dataset, encoder: PretrainedEncoder, group: TensorGroup, seed: int
) -> Iterator[tuple[dict[str, str], Tensor]]:
    """Run one batch and yield its matrices, each with the names that say which it is."""
    config = BertConfig.from_hugging_face(encoder.config, dropout=0.0, attention_dropout=0.0, seed=seed)
    model = BertForSequenceClassification(config, group, glue.TASKS[setting.task].num_outputs)
    load_hugging_face(model, encoder.state_dict)
    depths = _depths(config.num_layers, setting.in_full)
    watches = {depth: _Watch(model.encoder.layers[index]) for depth, index in depths.items()}
    _run(model, text, encoder, watches.values())
    for depth, watch in watches.items():
        for kind, part, matrix in watch.matrices():
            yield {"matrix": kind, "part": part, "depth": depth}, matrix
            if setting.in_full and part:
                yield {"matrix": f"{kind}: {part}", "part": part, "depth": depth}, matrix
        noise = torch.randn(watch.shape, generator=generator_for(seed, "spectrum.reference"))
        yield {"matrix": "random reference", "part": "", "depth": depth}, noise


def _depths(num_layers: int, in_full: bool) -> dict[str, int]:
    """Name the layers to look at: the middle one, the last one, and in full all others by their number."""
    named = {"middle": max(0, num_layers // 2 - 1), "last": num_layers - 1}
    others = {f"layer {index + 1}": index for index in range(num_layers) if index not in named.values()}
    return {**named, **(others if in_full else {})}


def _run(
    model: BertForSequenceClassification, text: Dataset, encoder: PretrainedEncoder, watches: Iterable[_Watch]
) -> None:
    """Run the batch forward and backward in micro-batches of sentences of about the same length."""
    longest_first = sorted(
        range(len(text)), key=lambda row: sum(len(column[row]) for column in text.texts), reverse=True
    )
    for start in range(0, len(text), MICRO_BATCH):
        part = text.rows(longest_first[start : start + MICRO_BATCH])
        tokens = encoder.encode(*part.texts, max_tokens=MAX_TOKENS)
        logits = model(tokens["input_ids"], tokens["attention_mask"], tokens["token_type_ids"])
        loss = functional.cross_entropy(logits, torch.tensor(part.labels), reduction="sum") / len(text)
        loss.backward()
        for watch in watches:
            watch.collect_(tokens["attention_mask"].bool())


class _Watch:
    """Keeps what one layer of a model shows; the model is changed for good, so it must be the caller's own.

    Args:
        layer: whose output and messages are kept.
    """

    def __init__(self, layer: TransformerLayer) -> None:
        self.layer = layer
        self.passing: dict[tuple[str, str], Tensor] = {}  # of the micro-batch under way
        self.kept: dict[tuple[str, str], list[Tensor]] = {}  # tokens only, one [N, H] a micro-batch
        layer.register_forward_hook(self._see_output)
        for part in SUMMED:
            linear = layer.get_submodule(part)
            linear.reduction = self._seeing(part, linear.group)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of tokens and hidden size of the whole batch."""
        activations = self.kept["activation", ""]
        return sum(len(part) for part in activations), activations[0].shape[1]

    def _see_output(self, layer: TransformerLayer, inputs: tuple[Tensor, ...], output_BSH: Tensor) -> None:
        output_BSH.retain_grad()
        self.passing["activation", ""] = output_BSH

    def _seeing(self, part: str, group: TensorGroup) -> Callable[[Sequence[Tensor]], Tensor]:
        """Wrap the group's sum so that the first local rank's message is kept."""

        def reduction(partials: Sequence[Tensor]) -> Tensor:
            self.passing["message", part] = partials[0]
            return group.sum(partials)

        return reduction

    def collect_(self, is_token_BS: Tensor) -> None:
        """Keep the tokens' rows of what passed, after the backward pass.

        Args:
            is_token_BS: false for padding.
        """
        self.passing["activation gradient", ""] = self.passing["activation", ""].grad
        for name, tensor_BSH in self.passing.items():
            self.kept.setdefault(name, []).append(tensor_BSH.detach()[is_token_BS])
        self.passing = {}

    def matrices(self) -> Iterator[tuple[str, str, Tensor]]:
        """Yield (kind, part, matrix): what was kept of the whole batch, and the weights' gradients."""
        yield "activation", "", torch.cat(self.kept["activation", ""])
        for part in LINEARS:
            yield "weight gradient", part, self.layer.get_submodule(part).full_weight(gradient=True)
        yield "activation gradient", "", torch.cat(self.kept["activation gradient", ""])
        for part in SUMMED:
            yield "message", part, torch.cat(self.kept["message", part])
