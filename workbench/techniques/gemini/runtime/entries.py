"""What a rank holds of a tensor, and how it is described in a layout.

Source: none. Simplified: wrappers' names are known by their text. Left out: FSDP1's flat parameters.
"""

from __future__ import annotations

from torch import Tensor
from torch.distributed.tensor import DTensor

from workbench.techniques.gemini.runtime.layout import Entry
from workbench.techniques.gemini.runtime.leaves import raw_bytes

__all__ = ["entry_of", "local_of", "plain_name"]

# What torch.compile and activation checkpointing put into parameters' names
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")


def plain_name(name: str) -> str:
    """Give a parameter's name without what wrappers put into it."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def local_of(tensor: Tensor) -> Tensor:
    """Give what this rank holds of a tensor: its shard if it is sharded. Gradients must be off."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def entry_of(name: str, tensor: Tensor) -> Entry:
    """Describe a tensor; where it lies is decided later."""
    local = local_of(tensor)
    try:
        raw_bytes(local)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return Entry(
        name=name,
        dtype=str(local.dtype).removeprefix("torch."),
        shape=tuple(local.shape),
        stride=tuple(local.stride()),
        whole_shape=tuple(tensor.shape),
        placements=tuple(map(repr, tensor.placements)) if isinstance(tensor, DTensor) else (),
        offset=0,
        num_bytes=local.numel() * local.itemsize,
    )
