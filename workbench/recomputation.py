"""Activation checkpointing computes a region of the model twice: private state must change once, and give equal values.

torch restores its global generators for the second time, but no generator, counter or remembered error of a module.
`changes_once` does that. Without reentrance a region is the frame that torch's hooks for saved tensors share; otherwise
the context of an autograd function, such as the `CheckpointFunction` of torch or Megatron, that runs a part of a model
in `forward` and again in `backward`. No global generator is touched: ranks whose batches come from it would go apart.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from inspect import getclosurevars
from typing import Any, TypeVar

import torch
from torch.autograd.function import FunctionCtx
from torch.autograd.graph import _engine_run_backward
from torch.utils import checkpoint

__all__ = ["changes_once"]

State = TypeVar("State")
KEPT = "_workbench_states"  # attribute of a region with its `_States`, which live as long as the region


@dataclass(slots=True)
class _States:
    """States before each call in one region by owner, and how many of them a recomputation has used."""

    by_owner: dict[object, list] = field(default_factory=dict)
    recomputation: object = None
    used: dict[object, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Regions:
    """Checkpointed regions around a call: those computed for the first time, up to the innermost recomputed one."""

    first: list[object] = field(default_factory=list)
    again: object = None
    recomputation: object = None  # of `again`; another one in each recomputation


@contextmanager
def changes_once(owner: object, name: str, get: Callable[[], State], set_: Callable[[State], object]) -> Iterator[None]:
    """Let the body, which changes an owner's state, change it once although activation checkpointing runs it twice.

    In a checkpointed region the state before the body is remembered. In a recomputation the body starts from that
    state, call by call in the same order; the present state is put back afterwards.

    Args:
        owner: holds the state; a module.
        name: of the owner, in errors.
        get: returns the state, which later changes must not reach.
        set_: goes back to a state that `get` returned. Neither may compute on tensors: selective checkpointing counts
            operations.

    Raises:
        RuntimeError: in a recomputation, for a call that the first forward pass did not make.
    """
    in_backward = torch._C._current_graph_task_id() != -1
    if not in_backward and torch.is_grad_enabled() and _top_hooks() is None:
        yield
        return
    regions = _regions_of_hooks()
    if in_backward or not torch.is_grad_enabled():
        _add_regions_of_functions_(regions, in_backward)
    if not regions.first and regions.again is None:
        yield
        return
    present = get()
    state = present if regions.again is None else _remembered(owner, name, regions)
    for region in regions.first:
        _states(region).by_owner.setdefault(owner, []).append(state)
    if regions.again is None:
        yield
        return
    set_(state)
    try:
        yield
    finally:
        set_(present)


def _remembered(owner: object, name: str, regions: _Regions) -> Any:
    """Return the state before this call in the first computation of the region."""
    states = _states(regions.again)
    if states.recomputation != regions.recomputation:
        states.recomputation, states.used = regions.recomputation, {}
    at, of_owner = states.used.get(owner, 0), states.by_owner.get(owner, [])
    if at >= len(of_owner):
        what = f"{type(owner).__name__} {name!r}: activation checkpointing recomputes its call {at + 1} of a region"
        rule = "no layer may be changed between the forward and the backward pass"
        raise RuntimeError(f"{what}, which the forward pass did not make; {rule}")
    states.used[owner] = at + 1
    return of_owner[at]


def _states(region: object) -> _States:
    if not hasattr(region, KEPT):
        setattr(region, KEPT, _States())
    return getattr(region, KEPT)


def _top_hooks() -> tuple[Callable, Callable] | None:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


def _regions_of_hooks() -> _Regions:
    """Find the regions of checkpoints without reentrance, each of which has hooks for saved tensors."""
    regions, popped = _Regions(), []
    while regions.again is None and (hooks := _top_hooks()) is not None:
        pack = getattr(hooks[0], "_torchdynamo_orig_callable", hooks[0])
        if getattr(pack, "__module__", "") == checkpoint.__name__ and pack.__name__ == "pack_hook":
            closure = getclosurevars(pack).nonlocals
            if "frame" in closure:
                regions.first.append(closure["frame"])
            else:
                regions.again, regions.recomputation = closure["target_frame_ref"](), hooks[0]
        torch._C._autograd._pop_saved_tensors_default_hooks()
        popped.append(hooks)
    for hooks in reversed(popped):
        torch._C._autograd._push_saved_tensors_default_hooks(*hooks)
    return regions


def _add_regions_of_functions_(regions: _Regions, in_backward: bool) -> None:
    """Find the autograd functions around the call, from the innermost to one that recomputes in its `backward`."""
    needs_gradient = torch.is_grad_enabled()
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame, code = caller, caller.f_code
        is_checkpoint = code.co_name == "recompute_fn" and code.co_filename == checkpoint.__file__
        if is_checkpoint or code is _engine_run_backward.__code__:
            return  # the region that the hooks told of, or a hook of gradients
        if code.co_name not in ("forward", "backward") or not code.co_argcount:
            continue
        context: Any = frame.f_locals.get(code.co_varnames[0])
        if not issubclass(type(context), FunctionCtx):
            continue
        if not in_backward and getattr(context, "grad_was_enabled", False):
            return  # a reentrant checkpoint computes without gradients
        function = type(context)._forward_cls
        if code.co_name == "forward":
            needs_gradient |= any(context.needs_input_grad)
            if not function.__module__.startswith("workbench."):  # ours are around a codec
                regions.first.append(context)
        else:
            if needs_gradient or function is checkpoint.CheckpointFunction:  # else it encodes a gradient
                regions.again, regions.recomputation = context, torch._C._current_graph_task_id()
            return
