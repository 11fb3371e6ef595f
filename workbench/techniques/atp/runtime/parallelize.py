"""One line for a Hugging Face GPT-2 or BERT: its blocks on a mesh, the mesh found by search if none is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from ..cost import Workload
from ..method.search import Strategy, require_meshes, search_exactly
from .block import PARTS, BlockConfig, Mesh, MeshBlock, open_mesh
from .measure import measure
from .on_mesh import JOINS, OnMesh, PlainNames, WholeWeights
from .whole import replace_save_pretrained_

__all__ = ["parallelize"]

LARGEST_BYTES = 1 << 24  # of a message with which links are measured
CAPTURING = "transformers.utils.output_capturing"  # the module of Hugging Face's own hooks, which record hidden states
ATTENTIONS = ("sdpa", "eager")  # implementations whose masks blocks on a mesh understand


@dataclass(frozen=True, kw_only=True, slots=True)
class Family:
    """An architecture of Hugging Face."""

    core: str  # class of the model that has the blocks
    block: str  # class of a block
    path: str  # of the blocks in the core
    read: Callable[[Any], BlockConfig]  # gives the sizes in a Hugging Face configuration
    names: PlainNames


def parallelize(
    model: nn.Module,
    mesh: Mesh | tuple[int, int] | None = None,
    *,
    chunks: int = 1,
    batch: int = 8,
    sequence: int | None = None,
    sequence_parallel: bool = False,
    seed: int = 0,
) -> Strategy | None:
    """Put the blocks of a Hugging Face GPT-2 or BERT on a mesh, in place; every rank calls it before its optimizer.

    Weights are those of the first rank. Every rank of the mesh needs the same batch and, where there is dropout, the
    same random state; a pass refuses others. Embeddings and heads stay whole on every rank.
    Train as before: every rank has the same loss, and the gradients of its own shards. `clip_grad_norm_` and GradScaler
    see whole gradients; other functions, and optimizers that compute with more than single elements (LAMB, Adafactor,
    Muon), see shards. `model.state_dict()` is this rank's part, with which it resumes; `full_state_dict` and
    `save_pretrained`, which every rank calls, give the whole model.

    Args:
        model: A GPT2Model, GPT2LMHeadModel, BertModel or a model with one of these inside.
        mesh: Where, or (d1, d2); None searches for the fastest on links that are measured now. Of a mesh that
            `open_mesh(d1, d2, replicas=...)` made, wrap the model in DistributedDataParallel over `mesh.replicas`.
        chunks: Parts of the batch that compute while the messages of the others travel.
        batch, sequence: What the search expects, where there is one; `sequence` is the longest the model knows if None.
        sequence_parallel: Cut activations along the sequence too, whose length axis 1 must then divide.
        seed: Of the dropout on this mesh.

    Returns:
        The strategy the search chose, or None where a mesh was given.

    Raises:
        ValueError: naming a size that the mesh does not divide, or what of a model is not known.
        RuntimeError: in a backward pass through gradients, as of a gradient penalty: blocks are differentiated once.
    """
    family, core, blocks = _find(model)
    first = next(blocks.parameters())
    config = replace(family.read(core.config), chunks=chunks, sequence_parallel=sequence_parallel, seed=seed)
    chosen = None
    if mesh is None:
        work = Workload(
            batch=batch,
            sequence=core.config.max_position_embeddings if sequence is None else sequence,
            hidden=config.hidden_size,
            heads=config.num_heads,
            num_layers=len(blocks),
            value_bytes=first.dtype.itemsize,
        )
        require_meshes(dist.get_world_size(), work)
        largest_bytes = min(LARGEST_BYTES, work.num_values * work.value_bytes)
        matrix = measure(largest_bytes=largest_bytes, device=first.device.type).matrix
        chosen = search_exactly(matrix, dist.get_world_size(), work, sequence_parallel=(sequence_parallel,))[0]
        mesh = chosen.d1, chosen.d2
    config.check_mesh(*(mesh.shape if isinstance(mesh, Mesh) else mesh))
    mesh = mesh if isinstance(mesh, Mesh) else open_mesh(*mesh, device=first.device.type)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), 0)
    kind, eager = type(blocks[0]), torch.compiler.disable  # messages are not compiled, but what is around blocks may be
    on_mesh = type(f"{kind.__name__}OnMesh", (OnMesh, kind), {"forward": eager(OnMesh.forward)})
    for number, block in enumerate(blocks):
        shard = MeshBlock(config, mesh, site=f"layers.{number}", device=first.device, dtype=first.dtype)
        blocks[number] = on_mesh(shard, block, family.names, mask_at=int(config.norm_first))
    blocks[0].is_first = blocks[-1].is_last = True
    if mesh.replicas is None:  # should a user wrap the model after all, shards are not to be averaged over ranks
        shards = {*blocks.parameters()}
        names = [name for name, parameter in model.named_parameters() if parameter in shards]
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    core.register_forward_pre_hook(eager(_Asked(family, config.is_causal)), with_kwargs=True)
    model.register_forward_pre_hook(eager(WholeWeights(mesh)))
    replace_save_pretrained_(model)
    return chosen


@dataclass(frozen=True, slots=True)
class _Asked:
    """Called before each pass of the core: refuses what blocks on a mesh do not give, and has hidden states joined."""

    family: Family
    is_causal: bool

    def __call__(self, core: nn.Module, args: tuple, options: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        def asked(name: str) -> Any:
            return options.get(name, getattr(core.config, name, None))

        if asked("output_attentions"):
            raise ValueError("output_attentions: blocks on a mesh keep no attention weights")
        if asked("is_causal") not in (None, self.is_causal):
            raise ValueError(f"is_causal: {asked('is_causal')} is not what a {self.family.core} on a mesh computes")
        if options.get("encoder_hidden_states") is not None:
            raise ValueError("encoder_hidden_states: blocks on a mesh have no cross-attention")
        _require_attention(core)
        if options.get("use_cache") is None:
            options["use_cache"] = False
        return args, options | {JOINS: bool(asked("output_hidden_states"))}


def _find(model: nn.Module) -> tuple[Family, Any, Any]:
    """Return the family of a model, the Hugging Face model in it that has the blocks, and these."""
    if isinstance(model, DistributedDataParallel):
        raise ValueError("model: it is a DistributedDataParallel; give the module in it: a mesh trains on one batch")
    core: Any
    for core in model.modules():
        for family in FAMILIES:
            if type(core).__name__ == family.core:
                blocks: Any = core.get_submodule(family.path)
                if any(isinstance(block, OnMesh) for block in blocks):
                    raise ValueError("model: it is on a mesh already")
                if len([*blocks.parameters()]) < sum(len([*block.parameters()]) for block in blocks):
                    raise ValueError("model: blocks share parameters; each must have its own")
                for number, block in enumerate(blocks):
                    _require_plain(number, block, family)
                _require_attention(core)
                return family, core, blocks
    others = "cut another model by hand with workbench.parallel.linear.MeshLinear"
    raise ValueError(f"model: {type(model).__name__} has neither a GPT2Model nor a BertModel in it; {others}")


def _require_attention(core: Any) -> None:
    if (implementation := core.config._attn_implementation) not in ATTENTIONS:
        raise ValueError(f"attn_implementation: it is {implementation}; on a mesh it must be {' or '.join(ATTENTIONS)}")


def _require_plain(number: int, block: nn.Module, family: Family) -> None:
    """Raise ValueError if a block is not just what Hugging Face makes: a block on a mesh would leave out the rest."""
    where, parameters = f"model: block {number}", [*block.parameters()]
    if type(block).__name__ != family.block:
        raise ValueError(f"{where} is a {type(block).__name__}; it must be a {family.block}")
    if others := sorted(family.names.all() ^ block.state_dict().keys()):
        rule = f"it must have the tensors of a {family.block} alone; merge adapters such as LoRA's before"
        raise ValueError(f"{where} has or lacks {', '.join(others[:3])}; {rule}")
    if any(isinstance(parameter, DTensor) for parameter in parameters):
        raise ValueError(f"{where} is sharded, as by fully_shard (FSDP); a mesh cuts whole tensors")
    if len({parameter.requires_grad for parameter in parameters}) > 1:
        raise ValueError(f"model: some parameters of block {number} are frozen and some are not; freeze all or none")
    if len({(parameter.dtype, parameter.device) for parameter in parameters}) > 1:
        raise ValueError(f"{where} has parameters of several types or devices; they must have one")
    for module in block.modules():
        hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
        hooks += [*module._backward_hooks.values(), *module._backward_pre_hooks.values()]
        if any(getattr(hook, "__module__", "") != CAPTURING for hook in hooks):
            raise ValueError(f"{where} has hooks, which a block on a mesh would not call; register them afterwards")


def _gpt2_config(config) -> BlockConfig:
    is_known = config.activation_function == "gelu_new" and config.scale_attn_weights and not config.add_cross_attention
    if not is_known or config.scale_attn_by_inverse_layer_idx:
        rule = "the activation gelu_new, scaled scores, no cross-attention, no scaling by layer"
        raise ValueError(f"model: GPT-2's blocks must have {rule}")
    return BlockConfig(
        hidden_size=config.n_embd,
        num_heads=config.n_head,
        mlp_size=config.n_inner or 4 * config.n_embd,
        dropout=config.resid_pdrop,
        attention_dropout=config.attn_pdrop,
        norm_eps=config.layer_norm_epsilon,
    )


def _bert_config(config) -> BlockConfig:
    if config.hidden_act != "gelu" or config.is_decoder:
        raise ValueError("model: BERT's blocks must have the activation gelu and be those of an encoder")
    return BlockConfig(
        hidden_size=config.hidden_size,
        num_heads=config.num_attention_heads,
        mlp_size=config.intermediate_size,
        norm_first=False,
        is_causal=False,
        gelu="none",
        dropout=config.hidden_dropout_prob,
        attention_dropout=config.attention_probs_dropout_prob,
        norm_eps=config.layer_norm_eps,
    )


def _parts(*paths: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    """Give the paths of all parts, in the order of `PARTS`."""
    return dict(zip(PARTS, paths, strict=True))


GPT2 = Family(
    core="GPT2Model",
    block="GPT2Block",
    path="h",
    read=_gpt2_config,
    names=PlainNames(
        parts=_parts(("ln_1",), ("attn.c_attn",), ("attn.c_proj",), ("ln_2",), ("mlp.c_fc",), ("mlp.c_proj",)),
        linears_are_transposed=True,
    ),
)
BERT = Family(
    core="BertModel",
    block="BertLayer",
    path="encoder.layer",
    read=_bert_config,
    names=PlainNames(
        parts=_parts(
            ("attention.output.LayerNorm",),
            ("attention.self.query", "attention.self.key", "attention.self.value"),
            ("attention.output.dense",),
            ("output.LayerNorm",),
            ("intermediate.dense",),
            ("output.dense",),
        ),
        linears_are_transposed=False,
    ),
)
FAMILIES = (GPT2, BERT)
