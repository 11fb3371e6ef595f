"""Plain checkpoints of a model on a mesh: names, shapes and bits of the model before `parallelize`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.launch.agreement import tell_all
from workbench.parallel.timeouts import naming_lost_ranks, timeout_of

from .block import Mesh
from .on_mesh import OnMesh

__all__ = ["full_state_dict", "load_full_state_dict", "replace_save_pretrained_"]

WAIT = timedelta(seconds=60)  # longest wait for all ranks of a mesh to ask for a checkpoint after a common pass


def full_state_dict(model: nn.Module) -> dict[str, Any]:
    """Return the whole model's state, as before `parallelize`, on every rank; every rank of the mesh calls it.

    Tensors are copies on the device of the model; tied tensors stay tied.

    Raises:
        ValueError: if the model has no blocks on a mesh.
        RankLost: if ranks do not call it within a minute; the message names them.
    """
    model, blocks = _blocks(model)
    mesh = next(iter(blocks.values())).shard.mesh
    _meet(mesh)
    state: dict[str, Any] = {}
    copies, joined = {}, set()
    for name, value in model.state_dict().items():
        prefix = next(filter(name.startswith, blocks), None)
        if prefix is None and isinstance(value, Tensor):
            key = value.data_ptr(), value.shape, value.stride()
            if key not in copies:
                copies[key] = value.detach().clone()
            state[name] = copies[key]
        elif prefix is None:
            state[name] = value
        elif prefix not in joined:
            joined.add(prefix)
            state |= {f"{prefix}{inner}": tensor for inner, tensor in blocks[prefix].whole().items()}
    return state


def load_full_state_dict(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a plain state, from `full_state_dict` or from the model before `parallelize`; every rank calls it.

    Each rank takes its part without communication. The state may have only one name of tied tensors.

    Raises:
        ValueError: if tensors are missing, unexpected or of another shape; nothing is loaded then.
    """
    model, blocks = _blocks(model)
    local_state = model.state_dict()
    shapes: dict[str, torch.Size | None] = {}
    tied: dict[tuple[int, torch.Size], list[str]] = {}
    for name, value in local_state.items():
        if not name.startswith(tuple(blocks)):
            shapes[name] = value.shape if isinstance(value, Tensor) else None
            if isinstance(value, Tensor):
                tied.setdefault((value.data_ptr(), value.shape), []).append(name)
    for prefix, block in blocks.items():
        shapes |= {f"{prefix}{name}": shape for name, shape in block.plain_shapes.items()}
    given = {other for names in tied.values() if any(name in state for name in names) for other in names}
    if missing := [name for name in shapes if name not in state and name not in given]:
        raise ValueError(f"state: it lacks {_some(missing)}")
    if unexpected := [name for name in state if name not in shapes]:
        raise ValueError(f"state: it has {_some(unexpected)}, which the model before parallelize had not")
    for name, value in state.items():
        if (shape := shapes[name]) is not None and value.shape != shape:
            raise ValueError(f"state: {name} is {tuple(value.shape)}; it must be {tuple(shape)}")
    model.load_state_dict({name: value for name, value in state.items() if name in local_state}, strict=False)
    for prefix, block in blocks.items():
        block.load_whole_({name: state[f"{prefix}{name}"] for name in block.plain_shapes})


def replace_save_pretrained_(model: nn.Module) -> None:
    """Make `save_pretrained` write the whole model, for each Hugging Face model with blocks on a mesh."""
    module: Any
    for module in model.modules():
        if hasattr(type(module), "save_pretrained") and any(isinstance(part, OnMesh) for part in module.modules()):
            module.save_pretrained = partial(_save_pretrained, module)


def _save_pretrained(
    module: Any, save_directory: str | os.PathLike, *, state_dict: Mapping[str, Any] | None = None, **options
) -> None:
    """Write the whole model to a folder on the first rank; every rank calls it, unless a state is given."""
    _, blocks = _blocks(module)
    save = partial(type(module).save_pretrained, module, save_directory, **options)
    if state_dict is not None:
        if shards := [name for name in state_dict if name.startswith(tuple(f"{prefix}shard." for prefix in blocks))]:
            rule = "give atp.full_state_dict(model), or no state and call save_pretrained on every rank"
            raise ValueError(f"state_dict: {_some(shards)} are parts of this rank; {rule}")
        save(state_dict=state_dict)
        return
    state, error = full_state_dict(module), None
    if dist.get_rank() == 0:
        try:
            save(state_dict=state)
        except Exception as raised:
            error = raised
    group = next(iter(blocks.values())).shard.mesh.whole.process_group
    errors = tell_all(None if error is None else repr(error), group)
    if any(errors):
        raise RuntimeError(f"save_pretrained: the first rank could not write: {next(filter(None, errors))}") from error


def _blocks(model: nn.Module) -> tuple[nn.Module, dict[str, OnMesh]]:
    """Return the module inside a DistributedDataParallel, and its blocks on a mesh by the prefix of their names."""
    model = model.module if isinstance(model, DistributedDataParallel) else model
    blocks = {f"{name}.": module for name, module in model.named_modules() if isinstance(module, OnMesh)}
    if not blocks:
        raise ValueError(f"model: {type(model).__name__} has no blocks on a mesh; call atp.parallelize before")
    return model, blocks


def _meet(mesh: Mesh) -> None:
    """Wait until all ranks of a mesh call it; RankLost names the missing ranks."""
    group = mesh.whole.process_group
    here = torch.zeros(1, device=mesh.device_mesh.device_type)
    with naming_lost_ranks(group, "a whole model is asked for, which every rank of its mesh must do together"):
        dist.all_reduce(here, group=group, async_op=True).wait(min(WAIT, timeout_of(group)))


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
