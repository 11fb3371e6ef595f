"""A block on a mesh in the place of Hugging Face's, with its names; what ranks must have in common is checked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.parallel.exchanges import start_gather, take_share
from workbench.parallel.gradients import mark_shard_
from workbench.parallel.transformer import Dropout

from .block import HIDDEN, SEQUENCE, Mesh, MeshBlock

__all__ = ["OnMesh", "PlainNames", "WholeWeights"]

DIFFERS = 1e-4  # of the norm of hidden states or gradients: more than rounding, far less than another batch
WEIGHT_DIFFERS = 1e-6  # of the norm of a weight
EVERY = 8  # passes between checks of weights, and on GPUs, which must stop for them, of all else
JOINS = "joins_hidden_states"  # option of a block: whether it takes and returns whole hidden states


@dataclass(frozen=True, kw_only=True, slots=True)
class PlainNames:
    """How a Hugging Face block names what `MeshBlock.full` gives."""

    parts: Mapping[str, tuple[str, ...]]  # by part of a mesh block: the modules whose tensors it stacks
    linears_are_transposed: bool  # weights are [in, out]

    def all(self) -> set[str]:
        """Return the names of all tensors."""
        return {f"{path}.{kind}" for paths in self.parts.values() for path in paths for kind in ("weight", "bias")}

    def to_mesh(self, plain: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name and stack the tensors of a Hugging Face block as `MeshBlock.load_full_` takes them."""
        full = {}
        for part, paths in self.parts.items():
            for kind in ("weight", "bias"):
                tensors = [plain[f"{path}.{kind}"] for path in paths]
                full[f"{part}.{kind}"] = self._turned(torch.cat(tensors) if len(tensors) > 1 else tensors[0])
        return full

    def to_plain(self, full: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Name and split the tensors of `MeshBlock.full` as Hugging Face does; the inverse of `to_mesh`."""
        plain: dict[str, Tensor] = {}
        for part, paths in self.parts.items():
            for kind in ("weight", "bias"):
                pieces = self._turned(full[f"{part}.{kind}"]).chunk(len(paths))
                names = [f"{path}.{kind}" for path in paths]
                plain |= {name: piece.contiguous() for name, piece in zip(names, pieces, strict=True)}
        return plain

    def _turned(self, tensor: Tensor) -> Tensor:
        return tensor.T if self.linears_are_transposed and tensor.dim() == 2 else tensor


class OnMesh(nn.Module):
    """A block in the place of Hugging Face's; the first one cuts the hidden states, the last one joins them.

    It is mixed into the class of that block, so that Hugging Face finds it where it records hidden states or
    checkpoints activations.
    """

    def __init__(self, shard: MeshBlock, plain: nn.Module, names: PlainNames, mask_at: int):
        nn.Module.__init__(self)  # not Hugging Face's, which would make the parts of a whole block
        self.shard, self.names, self.mask_at = shard, names, mask_at
        self.plain_shapes = {name: tensor.shape for name, tensor in plain.state_dict().items()}
        self.is_first = self.is_last = False
        self.passes = 0
        self._forward_hooks.update(plain._forward_hooks)  # Hugging Face's, which record hidden states
        self.requires_grad_(next(plain.parameters()).requires_grad).train(plain.training)
        if getattr(plain, "gradient_checkpointing", False):
            self.gradient_checkpointing = True
            self._gradient_checkpointing_func = plain._gradient_checkpointing_func
        self.load_whole_(plain.state_dict())

    def load_whole_(self, plain: Mapping[str, Tensor]) -> None:
        """Copy this rank's parts of a Hugging Face block's tensors."""
        self.shard.load_full_(self.names.to_mesh(plain))

    def whole(self) -> dict[str, Tensor]:
        """Return the tensors of the Hugging Face block, in its order, on every rank; every rank calls it."""
        plain = self.names.to_plain(self.shard.full())
        return {name: plain[name] for name in self.plain_shapes}

    def get_extra_state(self) -> dict[str, Tensor]:
        """Return the place of these shards on the mesh, and the states of dropout."""
        mesh = self.shard.mesh
        place = torch.tensor([*mesh.shape, *mesh.axis1.local_ranks, *mesh.axis2.local_ranks])
        return {"place": place, "dropouts": torch.stack([drop.generator.get_state() for drop in self._dropouts()])}

    def set_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the states of dropout; ValueError if the shards belong to another place."""
        place, here = state["place"].tolist(), self.get_extra_state()["place"].tolist()
        if place != here:
            where = "mesh {} x {}, place ({}, {})"
            raise ValueError(f"state: these are the shards of {where.format(*place)}; here is {where.format(*here)}")
        for drop, generator in zip(self._dropouts(), state["dropouts"].cpu(), strict=True):
            drop.generator.set_state(generator.clone())  # of a view of a larger tensor torch reads the wrong place

    def _dropouts(self) -> tuple[Dropout, ...]:
        return *self.shard.dropouts, self.shard.attention_dropout

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, strict, missing, unexpected, errors) -> None:
        if any(f"{prefix}{name}" in state_dict for name in self.plain_shapes):
            errors.append(f"{prefix}* are of a plain model: call atp.load_full_state_dict(model, state)")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected, errors)

    def forward(
        self,
        hidden_states: Tensor,
        *args,
        attention_mask: Tensor | None = None,
        past_key_values: object = None,
        joins_hidden_states: bool = False,
        **_,
    ) -> Tensor:
        """Transform hidden states; the mask is passed by name or by position."""
        mask = args[self.mask_at] if len(args) > self.mask_at else attention_mask
        if (self.mask_at and args and args[0] is not None) or past_key_values is not None:
            raise ValueError("past_key_values: blocks on a mesh keep no keys and values; call with use_cache=False")
        mesh, cuts, x = self.shard.mesh, self.shard.config.sequence_parallel, hidden_states
        for parameter, sharers in self.shard.sharers():  # of a copy of the model, too
            mark_shard_(parameter, mesh.whole, counts=sharers is None or sharers.local_ranks[0] == 0)
        checks = x.device.type == "cpu" or self.passes % EVERY == 0
        self.passes += 1
        if self.is_first and checks:
            _require_replicas(mesh)
            rule = "every rank must have the same batch, and the same random state: torch.manual_seed(0) before both"
            seen = None if mask is None else mask.float().clamp(-1, 1)
            require_same(["hidden states", "attention masks"], [x, seen], mesh, DIFFERS, f"input: {rule}")
        if self.is_first or joins_hidden_states:
            if cuts and x.shape[SEQUENCE] % mesh.axis1.size:
                raise ValueError(f"sequence: {x.shape[SEQUENCE]} is not divisible by {mesh.axis1.size} ranks of axis 1")
            x = take_share(x, mesh.axis2, HIDDEN)
            x = take_share(x, mesh.axis1, SEQUENCE) if cuts else x
        x = self.shard(x, mask)
        if self.is_last or joins_hidden_states:
            x = start_gather(x, mesh.axis1, SEQUENCE).wait() if cuts else x
            x = start_gather(x, mesh.axis2, HIDDEN).wait()
        if self.is_last and checks and x.requires_grad:
            x.register_hook(partial(_require_same_gradient, mesh))
        return x


@dataclass(slots=True)
class WholeWeights:
    """Compares weights that all ranks hold, once in `EVERY` passes; called before each pass of a model on a mesh."""

    mesh: Mesh
    passes: int = field(default=0)

    def __call__(self, model: nn.Module, _: Any) -> None:
        """Raise ValueError on all ranks if whole weights differ between ranks, or if FSDP has the model."""
        self.passes += 1
        if (self.passes - 1) % EVERY:
            return
        if any(kind.__name__ == "FSDPModule" for module in model.modules() for kind in type(module).__mro__):
            raise ValueError("model: fully_shard (FSDP) would mix the shards of different places of a mesh")
        parts = {
            parameter for module in model.modules() if isinstance(module, OnMesh) for parameter in module.parameters()
        }
        whole = {name: parameter for name, parameter in model.named_parameters() if parameter not in parts}
        rule = "weights: ranks must update them alike; clip by atp.clip_grad_norm_, with one learning rate"
        require_same([*whole], [*whole.values()], self.mesh, WEIGHT_DIFFERS, rule)


def _require_replicas(mesh: Mesh) -> None:
    """Raise ValueError if DistributedDataParallel averages over ranks at different places of their meshes."""
    wrapper = DistributedDataParallel._get_active_ddp_module()
    if mesh.replicas is None or wrapper is None:
        return
    averaged, wanted = (dist.get_process_group_ranks(group) for group in (wrapper.process_group, mesh.replicas))
    if averaged != wanted:
        rule = f"wrap by DistributedDataParallel(model, process_group=mesh.replicas), ranks {wanted}"
        raise ValueError(f"model: DistributedDataParallel averages over ranks {averaged}; {rule}")


def _require_same_gradient(mesh: Mesh, gradient: Tensor) -> None:
    rule = "gradient: every rank must have the same labels, loss and random state"
    require_same(["gradients of the last block's output"], [gradient], mesh, DIFFERS, rule)


@torch.no_grad()
def require_same(names: Sequence[str], tensors: Sequence[Tensor | None], mesh: Mesh, differs: float, rule: str) -> None:
    """Raise ValueError on all ranks of a mesh if a rank's tensors differ from the first rank's.

    Ranks exchange, for each tensor, the number of rows, the norm, and a weighted sum of the elements.

    Args:
        names: Names of the tensors in errors.
        tensors: Tensors to compare; None counts as a tensor without elements.
        differs: Largest difference of the sums, as a share of the norm.
        rule: Advice for the user; its first word names the argument.
    """
    device = mesh.device_mesh.device_type
    numbers = torch.stack([_sample(tensor, device) for tensor in tensors])
    by_rank = torch.stack(mesh.whole.gather([numbers])).tolist()
    argument, rule = rule.split(": ", 1)
    for rank, samples in enumerate(by_rank):
        for name, (rows, total, _), (first_rows, first_total, norm) in zip(names, samples, by_rank[0], strict=True):
            if rows != first_rows or abs(total - first_total) > differs * norm:
                ranks = dist.get_process_group_ranks(mesh.whole.process_group or dist.group.WORLD)
                raise ValueError(
                    f"{argument}: {name} of rank {ranks[rank]} differ from those of rank {ranks[0]}; {rule}"
                )


def _sample(tensor: Tensor | None, device: str) -> Tensor:
    """Return the number of rows, a sum of all elements with factors between -1 and 1, and the norm: [3], float64."""
    if tensor is None or tensor.numel() == 0:
        return torch.zeros(3, dtype=torch.float64, device=device)
    rows = tensor.detach().reshape(-1, tensor.shape[-1] if tensor.dim() else 1).float()
    of_row, of_column = (torch.cos(torch.arange(1, n + 1, device=rows.device) * 1.7) for n in rows.shape)
    with torch.autocast(rows.device.type, enabled=False):
        total = torch.dot(rows @ of_column, of_row)
    return torch.stack([torch.tensor(float(len(rows)), device=rows.device), total, rows.norm()]).double()
