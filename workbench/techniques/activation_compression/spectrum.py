"""How the singular values of gradients, activations and messages are spread: is there a low rank to compress to?

One forward and backward pass of a classification loss, as at the start of fine-tuning, with a fresh head and without
dropout, gives each layer's output, the gradient of that output, the gradients of its four weight matrices, and one
rank's partial sums. Padding is left out, since its rows repeat each other. The curve is figure 2's.

Shapes: B = sentences of a micro-batch, S = longest sentence of it, N = rows such as tokens, H = columns or hidden size,
K = min(N, H).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from workbench.checks import require_counts
from workbench.datasets import Dataset, DataSource, glue
from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import ProcessTensorGroup, RowParallelLinear, TensorGroup, VirtualTensorGroup, generator_for
from workbench.parallel.linear import ShardedLinear
from workbench.rows import value_row

__all__ = ["Measurement", "Setting", "Spectrum", "area_above_diagonal", "cumulative_share", "dimension_share"]
__all__ += ["mean_curves", "measure", "measure_on_ranks", "singular_values", "summary_rows"]

MICRO_BATCH = 32  # sentences; the paper's micro-batch in fine-tuning
MAX_TOKENS = 128  # tokens a sentence; SST-2's longest has fewer
PRELOAD = (__name__, "transformers.models.bert.tokenization_bert")  # imported once for all ranks
LINEARS = ("attention.query_key_value", "attention.output", "mlp.input", "mlp.output")  # the weights of a layer
SUMMED = ("attention.output", "mlp.output")  # the linears whose partial sums are sent
ROUNDING = 1e-12  # relative; what a running sum of a few thousand float64 values may be off by


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """The singular values of one matrix."""

    matrix: str  # such as "activation"; matrices of one kind are averaged in summaries
    part: str  # the linear it belongs to, empty where a layer has only one such matrix
    depth: str  # "middle", "last", or "layer 1", "layer 2", ...
    sentences: int  # batch size
    seed: int  # draws the batch
    values: Tensor  # [K], float64, falling


def singular_values(matrix: Tensor) -> Tensor:
    """Compute the singular values [K] of a matrix [N, H], in float64 and falling."""
    return torch.linalg.svdvals(matrix.detach().double())


def cumulative_share(values: Tensor) -> Tensor:
    """Return the share of the sum that the first 1, 2, ..., K singular values hold: figure 2's vertical axis."""
    total = values.sum()
    if not total > 0:
        raise ValueError("values is all zero; it must hold at least one positive singular value")
    return values.cumsum(0) / total


def dimension_share(values: Tensor, share: float) -> float:
    """Return the smallest share of the dimension whose singular values hold `share`, in (0, 1], of the sum."""
    if not 0 < share <= 1:
        raise ValueError(f"share is {share}; it must be in (0, 1]")
    too_few = int((cumulative_share(values) < share - ROUNDING).sum())
    return (too_few + 1) / len(values)


def area_above_diagonal(values: Tensor) -> float:
    """Return the area between the cumulative curve and the diagonal: 0 for equal values, 1/2 - 1/(2K) for rank one.

    The trapezoid rule over the K + 1 points from (0, 0) to (1, 1), less the 1/2 below the diagonal.
    """
    curve = cumulative_share(values)
    return float((curve.sum() - curve[-1] / 2) / len(values)) - 0.5


SUMMARIES: Mapping[str, Callable[[Tensor], float]] = MappingProxyType(
    {
        "area_above_diagonal": area_above_diagonal,
        "dimension_share_for_50": partial(dimension_share, share=0.5),  # holds 50 % of the sum of singular values
        "dimension_share_for_90": partial(dimension_share, share=0.9),
    }
)
"""The numbers that a record holds for one spectrum."""


def summary_rows(spectra: Iterable[Spectrum]) -> list[dict[str, Any]]:
    """Sum up spectra as rows for a record: the mean over seeds (and parts), with the range over seeds."""
    rows = []
    for (matrix, depth, sentences), by_seed in _by_group(spectra).items():
        keys: dict[str, Any] = {"matrix": matrix, "depth": depth, "sentences": sentences}
        for quantity, summarise in SUMMARIES.items():
            means = [fmean(summarise(values) for values in parts) for parts in by_seed.values()]
            rows.append(value_row(quantity, fmean(means), "share", low=min(means), high=max(means), **keys))
    return rows


def mean_curves(spectra: Iterable[Spectrum], depth: str, sentences: int) -> Mapping[str, Tensor]:
    """Return the cumulative curves [seeds, K] of one depth and batch size, by kind of matrix, each the mean over parts.

    Where a kind's matrices differ in K (fewer tokens than columns), the smallest K, by linear interpolation.
    """
    curves = {}
    for (matrix, at, count), by_seed in _by_group(spectra).items():
        if (at, count) == (depth, sentences):
            num_points = min(len(values) for parts in by_seed.values() for values in parts)
            means = [torch.stack([_resampled(values, num_points) for values in parts]) for parts in by_seed.values()]
            curves[matrix] = torch.stack([mean.mean(0) for mean in means])
    return curves


def _by_group(spectra: Iterable[Spectrum]) -> dict[tuple[str, str, int], dict[int, list[Tensor]]]:
    """Group values by (matrix, depth, sentences), then by seed."""
    groups: dict[tuple[str, str, int], dict[int, list[Tensor]]] = {}
    for spectrum in spectra:
        by_seed = groups.setdefault((spectrum.matrix, spectrum.depth, spectrum.sentences), {})
        by_seed.setdefault(spectrum.seed, []).append(spectrum.values)
    return groups


def _resampled(values: Tensor, num_points: int) -> Tensor:
    """Return a cumulative curve at num_points even dimension shares; straight lines join its points and (0, 0)."""
    share, even = (np.linspace(0, 1, count + 1) for count in (len(values), num_points))
    return torch.from_numpy(np.interp(even[1:], share, np.concatenate([[0.0], cumulative_share(values).numpy()])))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The encoder, its batches and its ranks."""

    encoder: str = DEFAULT_ENCODER  # a pretrained model's name, or "stand-in"
    task: str = "sst2"  # the GLUE task whose loss gives the gradients
    sentences: Sequence[int] = (32, 480)  # batch sizes, each measured by itself
    tensor_ranks: int = 2  # tensor-parallel ranks
    seeds: Sequence[int] = (0, 1, 2)  # draw sentences and classification head; one measurement each
    in_full: bool = False  # every layer and weight matrix by itself too, not only the middle and last layer

    def __post_init__(self) -> None:
        for name in ("sentences", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; it must hold at least one number")
        require_counts(1, sentences=min(self.sentences), tensor_ranks=self.tensor_ranks)
        if self.task not in glue.TASKS or glue.TASKS[self.task].is_regression:
            raise ValueError(f"task is {self.task!r}; it must be a GLUE task with classes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """All spectra of a setting, and the data they were measured on."""

    spectra: tuple[Spectrum, ...]  # one a matrix, depth, batch size and seed
    data: tuple[DataSource, ...]  # sources of the text and of the weights
    configuration: Mapping[str, Any]  # setting and sizes, as a record holds them


def measure_on_ranks(setting: Setting, *, timeout_s: float = 600) -> Measurement:
    """Measure on real ranks of this machine, by rank 0; other ranks' measurements differ in their messages alone."""
    from workbench.launch import run_on_ranks

    return run_on_ranks(
        lambda: measure(setting, ProcessTensorGroup()), setting.tensor_ranks, timeout_s=timeout_s, preload=PRELOAD
    )[0]


def measure(setting: Setting, group: TensorGroup | None = None) -> Measurement:
    """Measure the spectra of gradients, activations and messages of an encoder."""
    group = VirtualTensorGroup(setting.tensor_ranks) if group is None else group
    if group.size != setting.tensor_ranks:
        raise ValueError(f"tensor_ranks is {setting.tensor_ranks}; it must be the group's size, {group.size}")
    encoder = load_encoder(setting.encoder, or_stand_in=True)
    spectra: list[Spectrum] = []
    for seed in setting.seeds:
        for count in setting.sentences:
            text = glue.load(setting.task, "train", limit=count, seed=seed)
            spectra += _spectra(setting, text, encoder, group, sentences=count, seed=seed)
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
    configuration = {
        **asdict(setting),
        "ranks": "real" if isinstance(group, ProcessTensorGroup) else "virtual",
        "encoder_found": encoder.source.kind.value,
        **{name: encoder.config[name] for name in sizes},
    }
    return Measurement(spectra=tuple(spectra), data=(text.source, encoder.source), configuration=configuration)


def _spectra(
    setting: Setting, text: Dataset, encoder: PretrainedEncoder, group: TensorGroup, *, sentences: int, seed: int
) -> Iterator[Spectrum]:
    """Run one batch forward and backward, and yield the spectra of its matrices.

    Micro-batches hold sentences of about the same length. In full all layers are looked at, else the middle one and the
    last one.
    """
    config = BertConfig.from_hugging_face(encoder.config, dropout=0.0, attention_dropout=0.0, seed=seed)
    model = BertForSequenceClassification(config, group, glue.TASKS[setting.task].num_outputs)
    load_hugging_face(model, encoder.state_dict)
    depths = {"middle": max(0, config.num_layers // 2 - 1), "last": config.num_layers - 1}
    if setting.in_full:
        others = [index for index in range(config.num_layers) if index not in depths.values()]
        depths |= {f"layer {index + 1}": index for index in others}
    layers = {depth: model.encoder.layers[index] for depth, index in depths.items()}
    passing: dict[tuple[str, str, str], Tensor] = {}  # by depth, kind and part: of the micro-batch under way
    kept: dict[tuple[str, str, str], list[Tensor]] = {}  # likewise, tokens only: one [N, H] a micro-batch

    def see_output(depth: str, layer: nn.Module, inputs: tuple[Tensor, ...], output_BSH: Tensor) -> None:
        output_BSH.retain_grad()
        passing[depth, "activation", ""] = output_BSH

    def see_message(depth: str, part: str, partials: Sequence[Tensor]) -> Tensor:
        passing[depth, "message", part] = partials[0]  # the first local rank's
        return group.sum(partials)

    for depth, layer in layers.items():
        layer.register_forward_hook(partial(see_output, depth))
        for part in SUMMED:
            linear = layer.get_submodule(part)
            assert isinstance(linear, RowParallelLinear)
            linear.reduction = partial(see_message, depth, part)
    lengths = [sum(len(column[row]) for column in text.texts) for row in range(len(text))]
    longest_first = sorted(range(len(text)), key=lengths.__getitem__, reverse=True)
    for start in range(0, len(text), MICRO_BATCH):
        rows = text.rows(longest_first[start : start + MICRO_BATCH])
        tokens = encoder.encode(*rows.texts, max_tokens=MAX_TOKENS)
        logits = model(tokens["input_ids"], tokens["attention_mask"], tokens["token_type_ids"])
        loss = functional.cross_entropy(logits, torch.tensor(rows.labels), reduction="sum") / len(text)
        loss.backward()
        for depth in layers:
            gradient = passing[depth, "activation", ""].grad
            assert gradient is not None
            passing[depth, "activation gradient", ""] = gradient
        for name, tensor_BSH in passing.items():
            kept.setdefault(name, []).append(tensor_BSH.detach()[tokens["attention_mask"].bool()])
        passing.clear()

    parts = {"activation": ("",), "weight gradient": LINEARS, "activation gradient": ("",), "message": SUMMED}
    for depth, layer in layers.items():
        for part in LINEARS:
            linear = layer.get_submodule(part)
            assert isinstance(linear, ShardedLinear)
            kept[depth, "weight gradient", part] = [linear.full_weight(gradient=True)]
        for kind, part in ((kind, part) for kind, names in parts.items() for part in names):
            values = singular_values(torch.cat(kept[depth, kind, part]))
            spectrum = Spectrum(matrix=kind, part=part, depth=depth, sentences=sentences, seed=seed, values=values)
            yield spectrum
            if setting.in_full and part:
                yield replace(spectrum, matrix=f"{kind}: {part}")
        shape = torch.cat(kept[depth, "activation", ""]).shape
        noise = torch.randn(shape, generator=generator_for(seed, "spectrum.reference"))
        yield replace(spectrum, matrix="random reference", part="", values=singular_values(noise))
