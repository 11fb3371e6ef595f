"""A call packed for the ranks: the function, its arguments, and the source of its cells."""

import functools
import inspect
import linecache
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workbench.launch.messages import Handle, Message, pack
from workbench.launch.protocol import Request

__all__ = ["PerRank", "own_part", "pack_call"]

MAX_CAPTURED_BYTES = 16 << 20  # beyond this a function is asked to take arguments instead


@dataclass(frozen=True, slots=True)
class PerRank:
    """An argument of which every rank gets its own part."""

    values: Sequence[Any]  # one a rank, in rank order

    def __reduce__(self) -> Any:
        raise TypeError("PerRank must itself be an argument; it cannot be part of one")


def pack_call(
    function: Callable[..., Any],
    args: tuple,
    kwargs: dict[str, Any],
    *,
    num_ranks: int,
    name_of: Callable[[Handle], str],
    keep_as: str | None = None,
) -> list[Message]:
    """Pack a call, once for all ranks, or once a rank if an argument is PerRank.

    `name_of` gives a handle's name, or raises ValueError; `keep_as` is the name under which the ranks keep the result.
    """
    differ = any(isinstance(value, PerRank) for value in (*args, *kwargs.values()))
    sources = _cell_sources(function)
    messages = []
    for rank in range(num_ranks if differ else 1):
        own_args, own_kwargs = own_part(rank, args, kwargs, num_ranks)
        request = Request(function=function, args=own_args, kwargs=own_kwargs, keep_as=keep_as, sources=sources)
        messages.append(pack(request, name_of))
    if messages[0].num_bytes > MAX_CAPTURED_BYTES:
        _warn_of_captured(function)
    return messages


def own_part(rank: int, args: Sequence[Any], kwargs: dict[str, Any], num_ranks: int) -> tuple[tuple, dict[str, Any]]:
    """Return the arguments of one rank, with its own value in the place of a PerRank."""
    own_args = tuple(_own_value(rank, value, num_ranks) for value in args)
    return own_args, {name: _own_value(rank, value, num_ranks) for name, value in kwargs.items()}


def _own_value(rank: int, value: Any, num_ranks: int) -> Any:
    if isinstance(value, PerRank):
        if len(value.values) != num_ranks:
            raise ValueError(f"PerRank has {len(value.values)} values; it must have {num_ranks}")
        value = value.values[rank]
    return _without_the_rest(value)


def _without_the_rest(value: Any) -> Any:
    """Copy a tensor that is a small part of a larger one, which would travel whole."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.layout is not torch.strided:
        return value
    is_part = value.untyped_storage().nbytes() > value.numel() * value.element_size()
    return value.detach().clone().requires_grad_(value.requires_grad) if is_part else value


def _captured(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the variables of the notebook or closure that travel inside a function."""
    function = inspect.unwrap(function.func if isinstance(function, functools.partial) else function)
    if not inspect.isfunction(function):
        return {}
    variables = inspect.getclosurevars(function)
    module = sys.modules.get(function.__module__ or "")
    sent_by_value = module is None or function.__module__ == "__main__" or "<locals>" in function.__qualname__
    return {**(variables.globals if sent_by_value else {}), **variables.nonlocals}


def _warn_of_captured(function: Callable[..., Any]) -> None:
    num_bytes = pack(function).num_bytes
    if num_bytes <= MAX_CAPTURED_BYTES:
        return
    sizes = {name: pack(value).num_bytes for name, value in _captured(function).items()}
    largest = max(sizes, key=sizes.__getitem__, default="unknown")
    warnings.warn(
        f"every call sends {num_bytes / 2**20:.0f} MiB of variables captured by "
        f"{getattr(function, '__name__', 'the function')} (the largest: {largest}); "
        "pass them as arguments, or keep them on the ranks with put()",
        stacklevel=4,
    )


def _cell_sources(function: Callable[..., Any]) -> dict[str, list[str]]:
    """Return the lines of the notebook cells that define a function and those it calls."""
    candidates = [function, *_captured(function).values()]
    files = {item.__code__.co_filename for item in candidates if inspect.isfunction(item)}
    return {file: linecache.getlines(file) for file in files if not os.path.exists(file)}
