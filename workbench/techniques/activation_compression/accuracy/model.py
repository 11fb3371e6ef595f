"""A pretrained encoder with a head whose messages are encoded, on virtual or on real ranks.

Source: "Does compressing activations help model parallel training?", sections 3.2, 3.3 and 4.1.
Of each compressed layer both forward tensor-parallel reductions are encoded, and so is the pipeline boundary whose
receiving stage starts with a compressed layer.
Simplified: no dropout; the word embeddings, half of a small encoder's weights, stay as they were pretrained.
Left out: dropout of codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from workbench.datasets.glue import Task
from workbench.models.bert import BertConfig, BertForMaskedLM, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import PretrainedEncoder
from workbench.parallel import Stage, TensorGroup, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Loss, Mesh, Pipeline
from workbench.parallel.virtual_pipeline import VirtualPipeline

from ..runtime import compress
from .setting import Compressed

__all__ = ["Head", "classifier", "masked_words", "on_real_ranks", "on_virtual_ranks"]

Part = BertForSequenceClassification | BertForMaskedLM
ACTIVATION_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Head:
    """What is trained on top of the encoder."""

    build: Callable[[BertConfig, TensorGroup, Stage], Part]  # one stage's part of the model
    loss: Loss  # of the last stage's output


def classifier(task: Task) -> Head:
    """Return the head of a GLUE task: classes, or one number for a regression."""

    def build(config: BertConfig, group: TensorGroup, stage: Stage) -> Part:
        return BertForSequenceClassification(config, group, task.num_outputs, stage)

    return Head(build=build, loss=_squared_error if task.is_regression else _cross_entropy)


def masked_words() -> Head:
    """Return the head that predicts masked words; a label of -100 asks for nothing."""
    return Head(build=BertForMaskedLM, loss=_cross_entropy)


def on_virtual_ranks(
    setting: Compressed, encoder: PretrainedEncoder, head: Head, group: VirtualTensorGroup
) -> VirtualPipeline:
    """Build all stages in this process.

    Args:
        setting: what is compressed, and how.
        encoder: gives the weights.
        head: what is trained on top of it.
        group: `setting.tp` virtual ranks; its ledger also counts the boundaries.
    """
    stages = [Stage(index=index, num_stages=setting.pp) for index in range(setting.pp)]
    parts = [_part(setting, encoder, head, group, stage) for stage in stages]
    boundaries = [_boundary(setting, encoder, stage, group) for stage in stages[1:]]
    pipeline = VirtualPipeline(parts, loss=head.loss, boundaries=boundaries)
    pipeline.module.to(setting.recipe.device)
    return pipeline


def on_real_ranks(setting: Compressed, encoder: PretrainedEncoder, head: Head, mesh: Mesh) -> Pipeline:
    """Build this rank's stage.

    Args:
        setting: what is compressed, and how.
        encoder: gives the weights.
        head: what is trained on top of it.
        mesh: this rank's place among `setting.tp` times `setting.pp` ranks.
    """
    group, stage, device = mesh.tensor_group, mesh.stage, setting.recipe.device
    after = None if stage.is_last else Stage(index=stage.index + 1, num_stages=stage.num_stages)
    return Pipeline(
        _part(setting, encoder, head, group, stage).to(device),
        mesh,
        hidden_size=encoder.config["hidden_size"],
        loss=head.loss,
        before=None if stage.is_first else _boundary(setting, encoder, stage, group).to(device),
        after=None if after is None else _boundary(setting, encoder, after, group).to(device),
        dtype=ACTIVATION_DTYPES[setting.recipe.precision],
        device=device,
    )


def _part(setting: Compressed, encoder: PretrainedEncoder, head: Head, group: TensorGroup, stage: Stage) -> Part:
    """Build one stage's part, its chosen layers compressed."""
    config = BertConfig.from_hugging_face(encoder.config, dropout=0.0, attention_dropout=0.0, seed=setting.recipe.seed)
    part = head.build(config, group, stage=stage)
    load_hugging_face(part, encoder.state_dict)
    chosen = set(setting.compressed_layers(config.num_layers))
    here = [place for place, layer in enumerate(stage.layers(config.num_layers)) if layer in chosen]
    if here and setting.is_compressed and setting.tp > 1:  # a single rank reduces nothing, so nothing of it is encoded
        compress(part, setting.codec(config.hidden_size), layers=here)
    if (words := getattr(part, "tied_weight", None)) is not None:
        words.requires_grad_(False)
    if stage.is_first:
        part.encoder.embeddings.word.weight.requires_grad_(False)
        part.encoder.embeddings.register_forward_hook(_Cast(ACTIVATION_DTYPES[setting.recipe.precision]))
    return part


class _Cast:
    """A forward hook that gives activations the precision in which they are handed on and sent."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype

    def __call__(self, module: torch.nn.Module, inputs: tuple, output: Tensor) -> Tensor:
        return output.to(self.dtype)


def _boundary(setting: Compressed, encoder: PretrainedEncoder, receiver: Stage, group: TensorGroup) -> Boundary:
    """Make the boundary in front of a stage."""
    hidden, codec = encoder.config["hidden_size"], None
    if setting.is_compressed and receiver.index in setting.compressed_boundaries(encoder.config["num_hidden_layers"]):
        codec = setting.codec(hidden).for_site(f"boundary.{receiver.index}", hidden)
    return Boundary(codec, group.traffic)


def _squared_error(output: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(output.float().squeeze(-1), targets)


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float().flatten(0, -2), targets.flatten())
