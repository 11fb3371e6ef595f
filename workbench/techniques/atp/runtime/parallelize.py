"""One line for a Hugging Face GPT-2 or BERT: its blocks on a mesh, the mesh found by search if none is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.launch.agreement import tell_all
from workbench.parallel.exchanges import start_gather, take_share

from ..cost import Workload
from ..method.search import Strategy, require_meshes, search_exactly
from .block import HIDDEN, SEQUENCE, BlockConfig, Mesh, MeshBlock, open_mesh
from .measure import measure

__all__ = ["parallelize"]

LARGEST_BYTES = 1 << 24  # of a message with which links are measured
DIFFERS = 1e-4  # of the norm of hidden states: more than rounding, far less than another batch


class _Block(nn.Module):
    """A block in the place of Hugging Face's; the first one cuts the hidden states, the last one joins them."""

    def __init__(self, block: MeshBlock, mask_at: int):
        super().__init__()
        self.block, self.mask_at = block, mask_at
        self.is_first = self.is_last = self.is_seen = False

    def forward(self, hidden_states: Tensor, *args, past_key_values=None, attention_mask=None, **_) -> Tensor:
        """Transform hidden states; the mask is the argument of that name, or the one at its place."""
        mask = args[self.mask_at] if len(args) > self.mask_at else attention_mask
        if (self.mask_at and args and args[0] is not None) or past_key_values is not None:
            raise ValueError("past_key_values: blocks on a mesh keep no keys and values; call with use_cache=False")
        mesh, cuts = self.block.mesh, self.block.config.sequence_parallel
        x = hidden_states
        if self.is_first:
            if not self.is_seen:
                self.is_seen = True
                _require_one_input(x)
            if cuts and x.shape[SEQUENCE] % mesh.axis1.size:
                raise ValueError(f"sequence: {x.shape[SEQUENCE]} is not divisible by {mesh.axis1.size} ranks of axis 1")
            x = take_share(x, mesh.axis2, HIDDEN)
            x = take_share(x, mesh.axis1, SEQUENCE) if cuts else x
        x = self.block(x, mask)
        if self.is_last:
            x = start_gather(x, mesh.axis1, SEQUENCE).wait() if cuts else x
            x = start_gather(x, mesh.axis2, HIDDEN).wait()
        return x


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

    Weights are those of the first rank. Every rank needs the same batch and, where there is dropout, the same random
    state: the first forward pass refuses others. Embeddings and heads stay whole on every rank.
    Train as before: every rank has the same loss, and its own gradients, of which `clip_grad_norm_` would take a norm
    that differs between ranks: clip by value instead. Hidden states of single layers are not recorded.

    Args:
        model: A GPT2Model, GPT2LMHeadModel, BertModel or a model with one of these inside.
        mesh: Where, or (d1, d2); None searches for the fastest on links that are measured now.
        chunks: Parts of the batch that compute while the messages of the others travel.
        batch, sequence: What the search expects, where there is one; `sequence` is the longest the model knows if None.
        sequence_parallel: Cut activations along the sequence too, whose length axis 1 must then divide.
        seed: Of the dropout on this mesh.

    Returns:
        The strategy the search chose, or None where a mesh was given.

    Raises:
        ValueError: naming a size that the mesh does not divide, or an architecture that is not known.
    """
    core, parts, config, find = _family(model)
    first = next(model.parameters())
    config = replace(config, chunks=chunks, sequence_parallel=sequence_parallel, seed=seed)
    chosen, place = None, {"device": first.device, "dtype": first.dtype}
    if mesh is None:
        sequence = core.config.max_position_embeddings if sequence is None else sequence
        sizes = {"batch": batch, "sequence": sequence, "num_layers": len(parts)}
        work = Workload(hidden=config.hidden_size, heads=config.num_heads, value_bytes=first.dtype.itemsize, **sizes)
        require_meshes(dist.get_world_size(), work)
        largest_bytes = min(LARGEST_BYTES, work.num_values * work.value_bytes)
        found = measure(largest_bytes=largest_bytes, device=first.device.type).matrix
        chosen = search_exactly(found, dist.get_world_size(), work, sequence_parallel=(sequence_parallel,))[0]
        mesh = chosen.d1, chosen.d2
    config.check_mesh(*(mesh.shape if isinstance(mesh, Mesh) else mesh))
    mesh = mesh if isinstance(mesh, Mesh) else open_mesh(*mesh, device=first.device.type)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor.detach(), 0)
    for number, part in enumerate(parts):
        block = MeshBlock(config, mesh, site=f"layers.{number}", **place)
        block.load_full_(find(part))
        block.requires_grad_(_is_trained(number, part))
        parts[number] = _Block(block, mask_at=int(config.norm_first)).train(part.training)
    parts[0].is_first = parts[-1].is_last = True
    own = {*parts.parameters()}  # not to be averaged over ranks, should a user wrap the model after all
    names = [name for name, parameter in model.named_parameters() if parameter in own]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, names)
    core.config.use_cache = False
    return chosen


def _is_trained(number: int, part: nn.Module) -> bool:
    """Say whether a block's parameters are trained; ValueError if some are and some are frozen."""
    trained = {parameter.requires_grad for parameter in part.parameters()}
    if len(trained) > 1:
        raise ValueError(f"model: some parameters of block {number} are frozen and some are not; freeze all or none")
    return trained.pop()


def _require_one_input(x: Tensor) -> None:
    """Raise ValueError on all ranks if one has other hidden states than the first: its batch or dropout differs."""
    flat = x.detach().flatten().double()
    probe = (flat * torch.linspace(-1, 1, len(flat), device=x.device)).sum()
    told = tell_all([list(x.shape), probe.item(), flat.norm().item()])
    for rank, (shape, probe, _) in enumerate(told):
        if shape != told[0][0] or abs(probe - told[0][1]) > DIFFERS * told[0][2]:
            rule = "every rank must have the same batch, and the same random state: torch.manual_seed(0) before both"
            raise ValueError(f"input: hidden states of rank {rank} differ from those of rank 0; {rule}")


def _family(model: nn.Module) -> tuple[nn.Module, nn.ModuleList, BlockConfig, object]:
    """Return the model that has the blocks, these, their sizes, and what finds the full tensors of one."""
    if isinstance(model, DistributedDataParallel):
        raise ValueError("model: it is a DistributedDataParallel; give the module in it: a mesh trains on one batch")
    kinds = {
        "GPT2Model": ("h", _gpt2_config, _gpt2_tensors),
        "BertModel": ("encoder.layer", _bert_config, _bert_tensors),
    }
    for module in model.modules():
        for kind, (path, config, find) in kinds.items():
            if type(module).__name__ == kind:
                parts = module.get_submodule(path)
                if any(isinstance(part, _Block) for part in parts):
                    raise ValueError("model: it is on a mesh already")
                if len([*parts.parameters()]) < sum(len([*part.parameters()]) for part in parts):
                    raise ValueError("model: blocks share parameters; each must have its own")
                return module, parts, config(module.config), find
    others = "cut another model by hand with workbench.parallel.linear.MeshLinear"
    raise ValueError(f"model: {type(model).__name__} has neither a GPT2Model nor a BertModel in it; {others}")


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


def _gpt2_tensors(block: nn.Module) -> Mapping[str, Tensor]:
    linears = {
        "query_key_value": block.attn.c_attn,
        "output": block.attn.c_proj,
        "input": block.mlp.c_fc,
        "projection": block.mlp.c_proj,
    }
    return _named(linears, {"attention_norm": block.ln_1, "mlp_norm": block.ln_2}, is_transposed=True)


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


def _bert_tensors(layer: nn.Module) -> Mapping[str, Tensor]:
    own = layer.attention.self
    linears = {
        "output": layer.attention.output.dense,
        "input": layer.intermediate.dense,
        "projection": layer.output.dense,
    }
    norms = {"attention_norm": layer.attention.output.LayerNorm, "mlp_norm": layer.output.LayerNorm}
    found = dict(_named(linears, norms, is_transposed=False))
    for kind in ("weight", "bias"):
        found[f"query_key_value.{kind}"] = torch.cat([getattr(one, kind) for one in (own.query, own.key, own.value)])
    return found


def _named(
    linears: Mapping[str, nn.Module], norms: Mapping[str, nn.Module], *, is_transposed: bool
) -> dict[str, Tensor]:
    found = {f"{name}.weight": one.weight.T if is_transposed else one.weight for name, one in linears.items()}
    found |= {f"{name}.weight": one.weight for name, one in norms.items()}
    return found | {f"{name}.bias": one.bias for name, one in (linears | norms).items()}
