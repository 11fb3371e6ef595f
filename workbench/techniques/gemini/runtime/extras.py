"""Further objects with a state beside model and optimizer, and what can be seen of those that were not given."""

import functools
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn, optim
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from .attributes import put_back
from .encoding import PLAIN
from .modules import ModuleState
from .traffic import TrafficWatch

__all__ = ["HasState", "checked_extras", "refuse_unseen", "refuse_unseen_scaler"]

MOST_FRAMES = 12  # between a loss scaler's step and the hook of an optimizer's

# What a communication hook may hold without having a state that training changes.
STATELESS = (*PLAIN, bytes, complex, torch.dtype, torch.device, dist.ProcessGroup, TrafficWatch, type)
STATELESS += (types.ModuleType,)


class HasState(Protocol):
    """Anything whose state can be taken and put back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors, arrays, plain values and collections of them."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Put a state back."""


class HookState:
    """The attributes of a communication hook's state without a state_dict, such as torch's PowerSGDState."""

    def __init__(self, state: Any):
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return all but process groups."""
        slots = [name for kind in type(self._state).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*slots, *getattr(self._state, "__dict__", {})]
        values = {name: getattr(self._state, name) for name in names if hasattr(self._state, name)}
        return {name: value for name, value in values.items() if not isinstance(value, dist.ProcessGroup)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Put them back."""
        for name, value in state.items():
            setattr(self._state, name, put_back(getattr(self._state, name, None), value))


def checked_extras(given: Mapping[str, Any], model: nn.Module) -> dict[str, HasState]:
    """Return objects with state_dict and load_state_dict for those given, or refuse them."""
    hook_states = [id(item) for item in _hook_objects(model)]
    objects: dict[str, HasState] = {}
    for name, item in given.items():
        if isinstance(item, nn.Module):
            objects[name] = ModuleState(item, f"extra/{name}")
        elif hasattr(item, "state_dict") and hasattr(item, "load_state_dict"):
            objects[name] = item
        elif id(item) in hook_states and not isinstance(item, dict | list | set):
            objects[name] = HookState(item)
        else:
            rule = "it must have state_dict and load_state_dict"
            raise ValueError(f"extra[{name!r}] is {type(item).__name__}; {rule}")
    return objects


def refuse_unseen(model: nn.Module, optimizer: optim.Optimizer, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a state of the training is seen that was not given: of a hook, or a scheduler."""
    known = {id(item) for item in (optimizer, *given.values())}
    for item in _hook_objects(model):
        if id(item) not in known and not (isinstance(item, nn.Module) and not item.state_dict()):
            kind = type(item).__name__
            rule = "give it as an entry of extra, or a run that resumes would begin with an empty one"
            raise ValueError(f"the communication hook of {type(model).__name__} has a state, a {kind}; {rule}")
    is_scheduled = hasattr(optimizer.step, "_wrapped_by_lr_sched")
    if is_scheduled and not any(isinstance(part, LRScheduler) for part in _parts(given)):
        rule = "give it as `scheduler`, or a run that resumes would begin its schedule again"
        raise ValueError(f"optimizer {type(optimizer).__name__} has a learning-rate scheduler; {rule}")


def _parts(given: Mapping[str, Any]) -> Iterator[Any]:
    """Give the objects, and what they have as attributes."""
    for item in given.values():
        yield item
        yield from getattr(item, "__dict__", {}).values()


def refuse_unseen_scaler(given: Mapping[str, Any]) -> None:
    """Raise ValueError if this update of an optimizer comes from a loss scaler that was not given."""
    frame = sys._getframe(1)
    for _ in range(MOST_FRAMES):
        scaler = frame.f_locals.get("self")
        is_scaler = isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled()
        if is_scaler and not any(part is scaler for part in _parts(given)):
            rule = "give it as an entry of extra, or a run that resumes would begin with its first scale"
            raise ValueError(f"the loss is scaled by a {type(scaler).__name__}; {rule}")
        if frame.f_back is None:
            return
        frame = frame.f_back


def _hook_objects(model: nn.Module) -> Iterator[Any]:
    """Give all that a DDP model's communication hooks hold and that may be a state: arguments, cells of closures."""
    seen: set[int] = set()

    def walk(item: Any) -> Iterator[Any]:
        if id(item) in seen:
            return
        seen.add(id(item))
        if isinstance(item, functools.partial):
            yield from walk((item.func, *item.args, *item.keywords.values()))
        elif isinstance(item, tuple):
            for part in item:
                yield from walk(part)
        elif hasattr(item, "__self__") and isinstance(item, Callable):
            yield from walk((item.__self__, getattr(item, "__func__", None)))
        elif hasattr(item, "__code__"):
            for cell in item.__closure__ or ():
                yield from walk(_content(cell))
        elif not isinstance(item, STATELESS) and not _is_of_parameters(item):
            yield item

    if isinstance(model, DistributedDataParallel):
        seen.update(map(id, (model, *model.modules())))
        for hook, state in model._comm_hooks:
            yield from walk((state, hook))


def _is_of_parameters(item: Any) -> bool:
    """Say whether an object is a parameter or a collection of parameters, by name or not."""
    parts = [*item, *item.values()] if isinstance(item, dict) else item if isinstance(item, list | set) else [item]
    return bool(parts) and all(isinstance(part, nn.Parameter | str) for part in parts)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # not assigned yet
