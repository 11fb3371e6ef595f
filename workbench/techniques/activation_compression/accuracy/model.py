"""A pretrained classifier whose messages are encoded, on virtual or on real ranks.

Source: "Does compressing activations help model parallel training?", sections 3.2, 3.3 and 4.1.
Of each compressed layer both forward tensor-parallel reductions are encoded, and so is the pipeline boundary whose
receiving stage starts with a compressed layer.
Simplified: no dropout; the word embeddings, half of a small encoder's weights, stay as they were pretrained.
Left out: dropout of codes.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from workbench.models.bert import BertConfig, BertForSequenceClassification
from workbench.models.hugging_face import load_hugging_face
from workbench.models.pretrained import PretrainedEncoder
from workbench.parallel import Stage, TensorGroup, VirtualTensorGroup
from workbench.parallel.boundary import Boundary
from workbench.parallel.pipeline import Loss, Mesh, Pipeline
from workbench.parallel.virtual_pipeline import VirtualPipeline

from ..runtime import compress
from .setting import FineTuning

__all__ = ["config_of", "on_real_ranks", "on_virtual_ranks"]

ACTIVATION_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def config_of(setting: FineTuning, encoder: PretrainedEncoder) -> BertConfig:
    """Return the sizes of the encoder, without dropout, under the setting's seed."""
    return BertConfig.from_hugging_face(encoder.config, dropout=0.0, attention_dropout=0.0, seed=setting.recipe.seed)


def on_virtual_ranks(setting: FineTuning, encoder: PretrainedEncoder, group: VirtualTensorGroup) -> VirtualPipeline:
    """Build all stages in this process.

    Args:
        setting: what is compressed, and how.
        encoder: gives the weights.
        group: `setting.tp` virtual ranks; its ledger also counts the boundaries.
    """
    stages = [Stage(index=index, num_stages=setting.pp) for index in range(setting.pp)]
    parts = [_part(setting, encoder, group, stage) for stage in stages]
    boundaries = [_boundary(setting, encoder, stage, group) for stage in stages[1:]]
    pipeline = VirtualPipeline(parts, loss=_loss(setting), boundaries=boundaries)
    pipeline.module.to(setting.recipe.device)
    return pipeline


def on_real_ranks(setting: FineTuning, encoder: PretrainedEncoder, mesh: Mesh) -> Pipeline:
    """Build this rank's stage.

    Args:
        setting: what is compressed, and how.
        encoder: gives the weights.
        mesh: this rank's place among `setting.tp` times `setting.pp` ranks.
    """
    group, stage, device = mesh.tensor_group, mesh.stage, setting.recipe.device
    after = None if stage.is_last else Stage(index=stage.index + 1, num_stages=stage.num_stages)
    return Pipeline(
        _part(setting, encoder, group, stage).to(device),
        mesh,
        hidden_size=encoder.config["hidden_size"],
        loss=_loss(setting),
        before=None if stage.is_first else _boundary(setting, encoder, stage, group).to(device),
        after=None if after is None else _boundary(setting, encoder, after, group).to(device),
        dtype=ACTIVATION_DTYPES[setting.recipe.precision],
        device=device,
    )


def _part(
    setting: FineTuning, encoder: PretrainedEncoder, group: TensorGroup, stage: Stage
) -> BertForSequenceClassification:
    """Build one stage's part, its chosen layers compressed."""
    config = config_of(setting, encoder)
    part = BertForSequenceClassification(config, group, setting.glue_task.num_outputs, stage)
    load_hugging_face(part, encoder.state_dict)
    chosen = set(setting.compressed_layers(config.num_layers))
    here = [place for place, layer in enumerate(stage.layers(config.num_layers)) if layer in chosen]
    if here and setting.is_compressed and setting.tp > 1:  # a single rank reduces nothing, so nothing of it is encoded
        compress(part, setting.codec(config.hidden_size), layers=here)
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


def _boundary(setting: FineTuning, encoder: PretrainedEncoder, receiver: Stage, group: TensorGroup) -> Boundary:
    """Make the boundary in front of a stage."""
    hidden, codec = encoder.config["hidden_size"], None
    if setting.is_compressed and receiver.index in setting.compressed_boundaries(encoder.config["num_hidden_layers"]):
        codec = setting.codec(hidden).for_site(f"boundary.{receiver.index}", hidden)
    return Boundary(codec, group.traffic)


def _loss(setting: FineTuning) -> Loss:
    return _squared_error if setting.glue_task.is_regression else _cross_entropy


def _squared_error(output: Tensor, targets: Tensor) -> Tensor:
    return functional.mse_loss(output.float().squeeze(-1), targets)


def _cross_entropy(output: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(output.float(), targets)
