"""Gradient norms and the search for infinities over ranks, also by torch's own functions.

A parameter that is cut over ranks counts once, and so does a parameter that all ranks hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from workbench.parallel.groups import TensorGroup

__all__ = ["ShardGradient", "clip_grad_norm_", "mark_shard_"]

KIND = "_shard_gradient"  # attribute of a parameter that is cut over ranks: the class of its gradient


class ShardGradient(Tensor):
    """The gradient of this rank's part of a parameter; ranks may also hold equal parts.

    `torch.nn.utils.clip_grad_norm_` and `GradScaler` inspect gradients by three functions. Here these functions return
    the result of the whole parameter, by small messages; every rank calls them. All other functions give plain tensors
    of this rank's part.
    """

    group: ClassVar[TensorGroup]  # all ranks that hold parts
    counts: ClassVar[bool]  # whether this rank is the first rank that holds this part

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        """Call a function of torch on this rank's parts, and join norms and infinities over ranks."""
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
            if func is torch._amp_foreach_non_finite_check_and_unscale_:
                for group in _groups(args[0]):
                    args[1].copy_(torch.stack(group.gather([args[1]])).amax(0))
            elif func is torch._foreach_norm:
                return _over_groups(result, args[0], float(args[1]) if len(args) > 1 else 2.0)
            elif func is torch.linalg.vector_norm and result.dim() == 0:
                return _over_groups([result], args[:1], float(args[1]) if len(args) > 1 else 2.0)[0]
            return result


def _groups(gradients: Iterable[Tensor]) -> list[TensorGroup]:
    return [*dict.fromkeys(type(part).group for part in gradients if isinstance(part, ShardGradient))]


def _over_groups(norms: Sequence[Tensor], gradients: Sequence[Tensor], order: float) -> list[Tensor]:
    """Join the norms of parts over each group; the norms of other gradients stay as they are."""
    norms = list(norms)
    for group in _groups(gradients):
        parts = {at: part for at, part in enumerate(gradients) if isinstance(part, ShardGradient)}
        parts = {at: part for at, part in parts.items() if type(part).group is group}
        counted = [norms[at] if type(part).counts else torch.zeros_like(norms[at]) for at, part in parts.items()]
        joined = torch.linalg.vector_norm(torch.stack(group.gather([torch.stack(counted)])), order, dim=0)
        for at, norm in zip(parts, joined.unbind(), strict=True):
            norms[at] = norm
    return norms


def mark_shard_(parameter: nn.Parameter, group: TensorGroup, counts: bool) -> None:
    """Make a parameter's gradients `ShardGradient`s from the next backward pass on.

    Args:
        parameter: the part that this rank holds.
        group: all ranks that hold parts; one of them in each process.
        counts: whether this rank is the first rank that holds this part.
    """
    if hasattr(parameter, KIND) or not parameter.requires_grad:
        return
    setattr(parameter, KIND, type("ShardGradient", (ShardGradient,), {"group": group, "counts": counts}))
    parameter.register_post_accumulate_grad_hook(_mark_later)


def _mark_later(parameter: Tensor) -> None:
    # At the end of the backward pass: before that DistributedDataParallel may put a gradient of its own there.
    torch.autograd.Variable._execution_engine.queue_callback(lambda: _mark_(parameter))


def _mark_(parameter: Tensor) -> None:
    if parameter.grad is not None and not isinstance(parameter.grad, ShardGradient):
        parameter.grad = parameter.grad.as_subclass(getattr(parameter, KIND))


@torch.no_grad()
def clip_grad_norm_(
    parameters: nn.Module | Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Clip the gradient norm of a model that is cut over ranks by one message, as torch's function of this name does.

    torch's function gives the same result with a message for each parameter.

    Args:
        parameters: The model or its parameters, the same on every rank.
        max_norm: The largest norm afterwards.
        norm_type: Order of the norm, above 0; `inf` for the largest element.
        error_if_nonfinite: Whether a norm that is not finite is a RuntimeError.

    Returns:
        The norm before clipping, the same bits on all ranks.
    """
    if isinstance(parameters, nn.Module):
        parameters = parameters.parameters()
    parameters = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    if norm_type <= 0:
        raise ValueError(f"norm_type: {norm_type} must be above 0")
    kinds = [getattr(parameter, KIND, None) for parameter in parameters]
    groups = [*dict.fromkeys(kind.group for kind in kinds if kind is not None)]
    if len(groups) != 1:
        raise ValueError(f"parameters: {len(groups)} groups of ranks hold parts; there must be one")
    is_first = groups[0].local_ranks[0] == 0
    counted = [
        parameter.grad.as_subclass(Tensor)
        for parameter, kind in zip(parameters, kinds, strict=True)
        if parameter.grad is not None and (is_first if kind is None else kind.counts)
    ]
    wide = torch.promote_types(parameters[0].dtype, torch.float32)
    norms = torch.nn.utils.get_total_norm(counted, norm_type).to(parameters[0].device, wide)
    total = torch.nn.utils.get_total_norm(groups[0].gather([norms]), norm_type, error_if_nonfinite)
    torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, total)
    return total
