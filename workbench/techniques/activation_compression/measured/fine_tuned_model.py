"""A pretrained encoder whose messages are encoded, on virtual or on real ranks: setting, model, and the bytes it sends.

Of each compressed layer both forward tensor-parallel reductions are encoded, and so is the pipeline boundary whose
receiving stage starts with a compressed layer.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workbench.checks import require_counts, require_one_of
from workbench.compression import Codec, ErrorFeedback
from workbench.datasets import glue
from workbench.models.bert import BertConfig, BertForMaskedLM, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import DEFAULT_ENCODER, PretrainedEncoder
from workbench.parallel import MessageKind, Phase, Stage, TensorGroup, Traffic, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Mesh, Pipeline, VirtualPipeline, boundary_site
from workbench.study.loop import Recipe

from ..method import Family, method
from ..runtime import compress

__all__ = ["BYTES", "Compressed", "FineTuning", "Ledger", "PreTraining", "on_real_ranks", "on_virtual_ranks"]

Part = BertForSequenceClassification | BertForMaskedLM
ACTIVATION_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
PAPER_DTYPE = torch.float16  # its size decides how many elements T1, T2, R1 and R2 keep, whatever the precision here
PLAIN = "w/o"  # the method that encodes nothing
BYTES = ("tensor_bytes", "boundary_bytes", "compressed_site_bytes", "encoder_gradient_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compressed(ABC):
    """A training of a pretrained encoder whose messages are encoded; a subclass says what stands on the encoder."""

    method: str  # a row of table 1, such as "A1"
    recipe: Recipe  # its seed is also that of head, codecs and drawn examples
    layers: Sequence[int] | None = None  # indices of the compressed layers; None: the last half
    max_tokens: int = 128  # longer sequences are cut
    error_feedback: bool = False  # each call site adds the loss of its last message to the next
    encoder: str = DEFAULT_ENCODER  # a pretrained encoder's name, or "stand-in"
    tp: int = 2  # tensor-parallel ranks
    pp: int = 2  # pipeline stages

    def __post_init__(self) -> None:
        method(self.method)
        require_counts(1, max_tokens=self.max_tokens, tp=self.tp, pp=self.pp)

    def compressed_layers(self, num_layers: int) -> tuple[int, ...]:
        """Return the indices of the compressed layers of a model, ascending."""
        if self.layers is None:
            return tuple(range(num_layers // 2, num_layers))
        chosen = tuple(sorted(self.layers))
        if not chosen or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(num_layers)):
            rule = f"it must be different indices in 0..{num_layers - 1}, at least one"
            raise ValueError(f"layers is {list(self.layers)}; {rule}")
        return chosen

    def compressed_boundaries(self, num_layers: int) -> tuple[int, ...]:
        """Return the stages whose first layer is compressed, and with it the message that they receive."""
        stages = [Stage(index=index, num_stages=self.pp) for index in range(1, self.pp)]
        chosen = self.compressed_layers(num_layers)
        return tuple(stage.index for stage in stages if stage.layers(num_layers).start in chosen)

    def codec(self, hidden: int) -> Codec:
        """Build the codec that each call site copies, for a hidden size."""
        row = method(self.method)
        dtype = torch.float32 if row.family is Family.AUTOENCODER else PAPER_DTYPE  # learned weights stay in fp32
        codec = row.codec(hidden, dtype=dtype, seed=self.recipe.seed)
        return ErrorFeedback(codec) if self.error_feedback else codec

    @abstractmethod
    def build(self, config: BertConfig, group: TensorGroup, stage: Stage) -> Part:
        """Build one stage's part of the model."""

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of the last stage's output; a target of -100 asks for nothing."""
        return functional.cross_entropy(output.float().flatten(0, -2), targets.flatten())


@dataclass(frozen=True, kw_only=True, slots=True)
class FineTuning(Compressed):
    """One cell of tables 5, 15 and 16: classes, or one number for a regression."""

    task: str  # a GLUE task
    fixed_length: bool = False  # pad every batch to the longest sequence of all, not to its own longest
    limit: int | None = None  # training examples drawn with the seed; None takes all

    def __post_init__(self) -> None:
        Compressed.__post_init__(self)  # slots make a new class, which super() misses
        require_one_of(glue.TASKS, task=self.task)
        if self.limit is not None and self.limit < self.recipe.batch:
            raise ValueError(f"limit is {self.limit}; it must be at least the batch, {self.recipe.batch}")
        if self.error_feedback and not (self.fixed_length and self.recipe.drop_last):
            rule = "it must be False without fixed_length, since an error is added to messages of its shape"
            raise ValueError(f"error_feedback is True; {rule}")

    @property
    def glue_task(self) -> glue.Task:
        """The task with its measures."""
        return glue.TASKS[self.task]

    def build(self, config: BertConfig, group: TensorGroup, stage: Stage) -> Part:
        """Build one stage's part of the model."""
        return BertForSequenceClassification(config, group, self.glue_task.num_outputs, stage)

    def loss(self, output: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of a regression, else the cross entropy."""
        if self.glue_task.is_regression:
            return functional.mse_loss(output.float().squeeze(-1), targets)
        return Compressed.loss(self, output, targets)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreTraining(Compressed):
    """One masked language model of table 8."""

    num_blocks: int  # pieces of running text, of max_tokens each, that are learned from

    def __post_init__(self) -> None:
        Compressed.__post_init__(self)
        if self.num_blocks < self.recipe.batch:
            raise ValueError(f"num_blocks is {self.num_blocks}; it must be at least the batch, {self.recipe.batch}")

    def build(self, config: BertConfig, group: TensorGroup, stage: Stage) -> Part:
        """Build one stage's part of the model."""
        return BertForMaskedLM(config, group, stage)


def on_virtual_ranks(setting: Compressed, encoder: PretrainedEncoder, group: VirtualTensorGroup) -> VirtualPipeline:
    """Build all stages in this process, on `setting.tp` virtual ranks, whose traffic also counts the boundaries."""
    stages = [Stage(index=index, num_stages=setting.pp) for index in range(setting.pp)]
    parts = [_part(setting, encoder, group, stage) for stage in stages]
    boundaries = [_boundary(setting, encoder, stage.index, group) for stage in stages[1:]]
    pipeline = VirtualPipeline(parts, loss=setting.loss, boundaries=boundaries)
    pipeline.module.to(setting.recipe.device)
    return pipeline


def on_real_ranks(setting: Compressed, encoder: PretrainedEncoder, mesh: Mesh) -> Pipeline:
    """Build the stage of this rank, at its place in a mesh of `setting.tp` times `setting.pp` ranks."""
    group, stage, device = mesh.tensor_group, mesh.stage, setting.recipe.device
    return Pipeline(
        _part(setting, encoder, group, stage).to(device),
        mesh,
        hidden_size=encoder.config["hidden_size"],
        loss=setting.loss,
        before=None if stage.is_first else _boundary(setting, encoder, stage.index, group).to(device),
        after=None if stage.is_last else _boundary(setting, encoder, stage.index + 1, group).to(device),
        dtype=ACTIVATION_DTYPES[setting.recipe.precision],
        device=device,
    )


def _part(setting: Compressed, encoder: PretrainedEncoder, group: TensorGroup, stage: Stage) -> Part:
    """Build one stage's part: chosen layers compressed, word embeddings frozen, activations in the set precision."""
    config = BertConfig.from_hugging_face(encoder.config, dropout=0.0, attention_dropout=0.0, seed=setting.recipe.seed)
    part = setting.build(config, group, stage)
    load_hugging_face(part, encoder.state_dict)
    chosen = set(setting.compressed_layers(config.num_layers))
    here = [place for place, layer in enumerate(stage.layers(config.num_layers)) if layer in chosen]
    is_reduced = setting.tp > 1  # a single rank reduces nothing, so nothing of it is encoded
    if here and is_reduced and setting.method != PLAIN:
        compress(part, setting.codec(config.hidden_size), layers=here)
    if (words := getattr(part, "tied_weight", None)) is not None:
        words.requires_grad_(False)
    if (embeddings := part.encoder.embeddings) is not None:
        dtype = ACTIVATION_DTYPES[setting.recipe.precision]
        embeddings.word.weight.requires_grad_(False)
        embeddings.register_forward_hook(lambda module, inputs, output: output.to(dtype))
    return part


def _boundary(setting: Compressed, encoder: PretrainedEncoder, receiver: int, group: TensorGroup) -> Boundary:
    """Make the boundary in front of a stage."""
    hidden, codec = encoder.config["hidden_size"], None
    if setting.method != PLAIN and receiver in setting.compressed_boundaries(encoder.config["num_hidden_layers"]):
        codec = setting.codec(hidden).for_site(f"boundary.{receiver}", hidden)
    return Boundary(codec, group.traffic)


class Ledger:
    """Adds up the payload bytes of training steps that one rank contributes, by what they are for."""

    def __init__(self, traffic: Traffic, layers: Iterable[int], boundaries: Iterable[int]) -> None:
        self.traffic = traffic
        self.sites = {f"layers.{layer}.{part}.output" for layer in layers for part in ("attention", "mlp")}
        self.sites |= {boundary_site(index) for index in boundaries}
        self.totals: Counter[str] = Counter()
        self.num_steps = 0

    def close_step(self, batch: object = None) -> None:
        """Add the messages of one step, of any batch, and clear them."""
        self.num_steps += 1
        for message in self.traffic:
            is_compressed, is_boundary = message.site in self.sites, message.what is MessageKind.SEND
            if is_boundary or message.phase is not Phase.BACKWARD:
                self.totals["boundary_bytes" if is_boundary else "tensor_bytes"] += message.message_bytes
                self.totals["compressed_site_bytes"] += message.message_bytes if is_compressed else 0
            elif is_compressed:
                self.totals["encoder_gradient_bytes"] += message.message_bytes
        self.traffic.clear()

    def per_step(self) -> dict[str, float]:
        """Return each quantity in bytes a step."""
        return {quantity: self.totals[quantity] / max(1, self.num_steps) for quantity in BYTES}
