"""Plain values, tensors and generators that objects keep as attributes, in no state_dict, and putting them back."""

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
from torch import Tensor, nn

from .encoding import MAPPINGS, PLAIN, SEQUENCES, can_pack
from .generators import GENERATORS, generator_state, restore_generator_

__all__ = ["Attributes", "put_back"]

Objects = Callable[[], Mapping[str, Any]]  # returns the objects by name


class Attributes:
    """Those of some objects: every tensor, array and generator, and the plain values that have changed since.

    Left alone are parameters and buffers, which modules register, and tensors of a graph, which end with its iteration.
    """

    def __init__(self, objects: Objects, *, ignored: frozenset[str], owned: Callable[[], set[int]]):
        self._objects, self._ignored = objects, ignored
        self._owned = owned  # returns the addresses of parameters and buffers
        self._first = {
            name: {key: copy.deepcopy(value) for key, value in kept.items() if not _is_live(value)}
            for name, kept in self._all().items()
        }

    def tree(self) -> dict[str, dict[str, Any]]:
        """Return their values by object and name."""
        trees = {}
        for name, kept in self._all().items():
            first = self._first.get(name, {})
            changed = {key: value for key, value in kept.items() if key not in first or not _same(first[key], value)}
            if changed:
                trees[name] = changed
        return trees

    def generators(self) -> list[str]:
        """Name the generators."""
        return [
            f"{name}.{key}" if name else key
            for name, kept in self._all().items()
            for key, value in kept.items()
            if type(value) in GENERATORS
        ]

    def restore_(self, trees: Mapping[str, Mapping[str, Any]]) -> None:
        """Put the values of a tree back, in place where that can be done; what was not in it is as it was at first."""
        objects = self._objects()
        for name, kept in self._all().items():
            first, stored, live = self._first.get(name, {}), trees.get(name, {}), vars(objects[name])
            for key in kept.keys() - stored.keys():
                if key not in first:
                    del live[key]
                elif not _same(first[key], live[key]):
                    live[key] = copy.deepcopy(first[key])
        for name, stored in trees.items():
            live = vars(objects[name])
            for key, value in stored.items():
                live[key] = put_back(live.get(key), value)

    def _all(self) -> dict[str, dict[str, Any]]:
        owned = self._owned()
        return {
            name: {
                key: value
                for key, value in vars(item).items()
                if key not in self._ignored and _can_be_kept(value, f"{name}.{key}", owned)
            }
            for name, item in self._objects().items()
        }


def put_back(live: Any, stored: Any) -> Any:
    """Return a stored value, or the live one with its content, where whoever else holds the live one should see it."""
    if type(live) is not type(stored):
        return stored
    match live:
        case Tensor() if _is_alike(live, stored) and _can_be_written(live):
            live.detach().copy_(stored)
        case np.ndarray() if _is_alike(live, stored) and live.flags.writeable:
            live[...] = stored
        case dict():
            values = {key: put_back(live.get(key), value) for key, value in stored.items()}
            live.clear()
            live.update(values)
        case list():
            live[:] = [put_back(old, new) for old, new in zip_longest(live[: len(stored)], stored)]
        case _ if type(live) in GENERATORS:
            restore_generator_(live, generator_state(stored))
        case _:
            return stored
    return live


def _is_alike(live: Any, stored: Any) -> bool:
    devices = (live.device, stored.device) if isinstance(live, Tensor) else (None, None)
    return live.shape == stored.shape and live.dtype == stored.dtype and devices[0] == devices[1]


def _can_be_written(tensor: Tensor) -> bool:
    """Say whether no two elements of a tensor lie at one place because it was expanded."""
    return all(stride or size < 2 for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _can_be_kept(value: Any, name: str, owned: set[int]) -> bool:
    if type(value) in PLAIN:
        return True
    if isinstance(value, GENERATORS) and type(value) not in GENERATORS:
        rule = "it must be of torch, NumPy or Python's random, whose positions are known"
        raise ValueError(f"generator {name} is a {type(value).__name__}; {rule}")
    if not can_pack(value):
        return False
    return not any(
        isinstance(leaf, nn.Parameter) or leaf.grad_fn is not None or leaf.data_ptr() in owned
        for leaf in _leaves(value)
        if isinstance(leaf, Tensor)
    )


def _is_live(value: Any) -> bool:
    """Say whether a value can change in place, without being another object: then it is always kept."""
    return any(isinstance(leaf, (Tensor, np.ndarray, *GENERATORS)) for leaf in _leaves(value))


def _leaves(tree: Any) -> Iterator[Any]:
    if type(tree) in MAPPINGS:
        for value in tree.values():
            yield from _leaves(value)
    elif type(tree) in SEQUENCES:
        for item in tree:
            yield from _leaves(item)
    else:
        yield tree


def _same(first: Any, value: Any) -> bool:
    return type(first) is type(value) and not _is_live(value) and first == value
