"""Moving weights between our cut models and Hugging Face's full ones, by one table of names a family, both ways.

A stage of a model loads exactly the weights that it holds; other entries are reported.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from workbench.models.bert import BERT_NAMES, BertModel
from workbench.models.names import Names
from workbench.models.vit import VIT_NAMES, ViTModel

__all__ = ["LoadedWeights", "load_hugging_face", "to_hugging_face"]

Model = BertModel | ViTModel


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedWeights:
    """The missing and the unused weights of a checkpoint."""

    missing: tuple[str, ...]  # weights of a head that the checkpoint lacks; they keep their initial values
    unused: tuple[str, ...]  # entries without a place in the model, or with a place in other stages


@torch.no_grad()
def load_hugging_face(model: Model, state_dict: Mapping[str, Tensor]) -> LoadedWeights:
    """Load Hugging Face weights, cut to the local shards; return what was missing or left over.

    Args:
        model: Model, or stage of one, to fill.
        state_dict: Full tensors; names with or without the family's prefix ("bert.",
            "vit."), as `transformers` has them now or had them in older files.
    """
    names = _names_of(model)
    full = {names.plain(name): tensor for name, tensor in state_dict.items()}
    replicated = names.replicated_of(model)
    wanted = [*replicated]
    wanted += [f"{part}.{kind}" for parts, _ in names.cut_of(model) for part in parts for kind in KINDS]
    missing = tuple(name for name in wanted if name not in full)
    if lacking := [name for name in missing if name.startswith(names.required)]:
        raise ValueError(f"state_dict: {len(lacking)} weights are missing, first {lacking[0]!r}")
    for name, parameter in replicated.items():
        if name in full:
            if parameter.shape != full[name].shape:
                rule = f"it must be {tuple(parameter.shape)}"
                raise ValueError(f"{name}: shape {tuple(full[name].shape)} does not fit; {rule}")
            parameter.copy_(full[name])
    for parts, linear in names.cut_of(model):
        weight, bias = (torch.cat([full[f"{part}.{kind}"] for part in parts]) for kind in KINDS)
        linear.load_full_(weight, bias)
    return LoadedWeights(missing=missing, unused=tuple(sorted(full.keys() - set(wanted))))


def to_hugging_face(model: Model, gradients: bool = False) -> dict[str, Tensor]:
    """Collect the full weights (or gradients) under their Hugging Face names.

    Every tensor-parallel rank must call it: the shards are gathered.

    Returns:
        Name without the family's prefix -> full tensor, detached; parameters that have no gradient are left out.
    """
    names = _names_of(model)
    replicated = names.replicated_of(model).items()
    tensors = ((name, parameter.grad if gradients else parameter) for name, parameter in replicated)
    full = {name: tensor.detach() for name, tensor in tensors if tensor is not None}
    for parts, linear in names.cut_of(model):
        stacks = [linear.full_weight(gradients), linear.full_bias(gradients)]
        for kind, stack in zip(KINDS, stacks, strict=True):
            blocks = stack.chunk(len(parts))
            full |= {f"{part}.{kind}": block for part, block in zip(parts, blocks, strict=True)}
    return full


KINDS = ("weight", "bias")
FAMILIES = (BERT_NAMES, VIT_NAMES)


def _names_of(model: Model) -> Names:
    """Give the names of a model's family."""
    for names in FAMILIES:
        if isinstance(model, names.models):
            return names
    raise ValueError(f"model: {type(model).__name__} is of no family whose Hugging Face names are known")
