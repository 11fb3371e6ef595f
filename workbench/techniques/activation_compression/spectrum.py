"""How the singular values of gradients, activations and messages are spread: is there a low rank to compress to?

One forward and backward pass of a classification loss, as at the start of fine-tuning, with a fresh head and without
dropout, gives each layer's output, the gradient of that output, the gradients of its four weight matrices, and one
rank's partial sums. Padding is left out, since its rows repeat each other. The curve is figure 2's.

Shapes: B = sentences of a micro-batch, S = longest sentence of it, N = rows such as tokens, H = columns or hidden size,
K = min(N, H).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from workbench.datasets import Dataset, DataSource, glue
from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder, load_encoder
from workbench.parallel import ProcessTensorGroup, TensorGroup, TransformerLayer, VirtualTensorGroup, generator_for
from workbench.study.rows import value_row

__all__ = [
    "Measurement",
    "Setting",
    "Spectrum",
    "area_above_diagonal",
    "cumulative_share",
    "dimension_share",
    "mean_curves",
    "measure",
    "measure_on_ranks",
    "singular_values",
    "summary_rows",
]

MICRO_BATCH = 32  # sentences; the paper's micro-batch in fine-tuning
MAX_TOKENS = 128  # tokens a sentence; SST-2's longest has fewer
PRELOAD = (__name__, "transformers.models.bert.tokenization_bert")  # imported once for all ranks
LINEARS = ("attention.query_key_value", "attention.output", "mlp.input", "mlp.output")  # the weights of a layer
SUMMED = ("attention.output", "mlp.output")  # the linears whose partial sums are sent
SHARES = (50, 90)  # percent of the sum of singular values; the dimension share that holds them is reported
ROUNDING = 1e-12  # relative; what a running sum of a few thousand float64 values may be off by


@dataclass(frozen=True, kw_only=True, slots=True)
class Spectrum:
    """The singular values of one matrix."""

    matrix: str  # such as "activation"; matrices of one kind are averaged in summaries
    part: str  # the linear it belongs to, empty where a layer has only one such matrix
    depth: str  # "middle", "last", or "layer 1", "layer 2", ...
    sentences: int  # batch size
    seed: int  # of the batch
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

    Returns:
        The trapezoid rule over the K + 1 points from (0, 0) to (1, 1), less the 1/2 below the diagonal.
    """
    curve = cumulative_share(values)
    return float((curve.sum() - curve[-1] / 2) / len(values)) - 0.5


def _summaries(values: Tensor) -> dict[str, float]:
    """Return the numbers that a record holds for one spectrum."""
    shares = {f"dimension_share_for_{percent}": dimension_share(values, percent / 100) for percent in SHARES}
    return {"area_above_diagonal": area_above_diagonal(values), **shares}


def _by_group(spectra: Iterable[Spectrum]) -> dict[tuple[str, str, int], dict[int, list[Tensor]]]:
    """Group values by (matrix, depth, sentences), then by seed."""
    groups: dict[tuple[str, str, int], dict[int, list[Tensor]]] = {}
    for spectrum in spectra:
        by_seed = groups.setdefault((spectrum.matrix, spectrum.depth, spectrum.sentences), {})
        by_seed.setdefault(spectrum.seed, []).append(spectrum.values)
    return groups


def summary_rows(spectra: Iterable[Spectrum]) -> list[dict[str, Any]]:
    """Sum up spectra as rows for a record: the mean over seeds (and parts), with the range over seeds."""
    rows = []
    for (matrix, depth, sentences), by_seed in _by_group(spectra).items():
        per_seed = [_mean_summaries(values) for values in by_seed.values()]
        keys = {"matrix": matrix, "depth": depth, "sentences": sentences}
        for quantity in per_seed[0]:
            values = [summaries[quantity] for summaries in per_seed]
            spread = {"low": min(values), "high": max(values)}
            rows.append(value_row(quantity, fmean(values), "share", **spread, **keys))
    return rows


def _mean_summaries(parts: Sequence[Tensor]) -> dict[str, float]:
    """Average the numbers of several matrices."""
    by_part = [_summaries(values) for values in parts]
    return {quantity: fmean(summaries[quantity] for summaries in by_part) for quantity in by_part[0]}


def mean_curves(spectra: Iterable[Spectrum], depth: str, sentences: int) -> Mapping[str, Tensor]:
    """Return the cumulative curves [seeds, K] of one depth and batch size, by kind of matrix, each the mean over parts.

    Where a kind's matrices differ in K (fewer tokens than columns), the smallest K, by linear interpolation.
    """
    curves = {}
    for (matrix, at, count), by_seed in _by_group(spectra).items():
        if (at, count) == (depth, sentences):
            num_points = min(len(values) for parts in by_seed.values() for values in parts)
            curves[matrix] = torch.stack([_mean_curve(parts, num_points) for parts in by_seed.values()])
    return curves


def _mean_curve(parts: Sequence[Tensor], num_points: int) -> Tensor:
    """Average cumulative curves at the dimension shares 1/num_points, 2/num_points, ..., 1."""
    return torch.stack([_resampled(cumulative_share(values), num_points) for values in parts]).mean(0)


def _resampled(curve: Tensor, num_points: int) -> Tensor:
    """Read a curve at other dimension shares, joining its points and (0, 0) by straight lines."""
    if len(curve) == num_points:
        return curve
    share = np.linspace(0, 1, len(curve) + 1)
    wanted = np.linspace(0, 1, num_points + 1)[1:]
    return torch.from_numpy(np.interp(wanted, share, np.concatenate([[0.0], curve.numpy()])))


@dataclass(frozen=True, kw_only=True, slots=True)
class Setting:
    """The encoder, its batches and its ranks."""

    encoder: str = DEFAULT_ENCODER  # a pretrained model's name, or "stand-in"
    task: str = "sst2"  # the GLUE task whose loss gives the gradients
    sentences: Sequence[int] = (32, 480)  # batch sizes, each measured by itself
    tensor_ranks: int = 2  # tensor-parallel ranks
    seeds: Sequence[int] = (0, 1, 2)  # of the drawn sentences and of the classification head, one measurement each
    in_full: bool = False  # every layer and weight matrix by itself too, not only the middle and last layer

    def __post_init__(self) -> None:
        for name in ("sentences", "seeds"):
            if not getattr(self, name):
                raise ValueError(f"{name} is empty; it must hold at least one number")
        if min(self.sentences) < 1:
            raise ValueError(f"sentences is {list(self.sentences)}; it must hold numbers of at least 1")
        if self.tensor_ranks < 1:
            raise ValueError(f"tensor_ranks is {self.tensor_ranks}; it must be at least 1")
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

    return run_on_ranks(_measure_here, setting.tensor_ranks, setting, timeout_s=timeout_s, preload=PRELOAD)[0]


def _measure_here(setting: Setting) -> Measurement:
    """Measure as one of the real ranks."""
    return measure(setting, ProcessTensorGroup())


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
    """Keeps what one layer of a model shows; the layer is changed for good, so the model must be the caller's own."""

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
        """Keep the tokens' rows of what passed, after the backward pass; `is_token_BS` is false for padding."""
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
