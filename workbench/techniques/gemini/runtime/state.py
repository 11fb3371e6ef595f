"""The training state of one rank as an image, a flat run of bytes, and going on from it bit for bit.

An image is: a mark and the bytes of two packed trees; the weights and the optimizer's tensors, which are the same on
all ranks where nothing is sharded; and what is a rank's own: buffers, random numbers, schedule, further objects.
"""

import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from .encoding import ALIGNMENT_BYTES, PackedTree, aligned, as_bytes, unpack_tree

__all__ = ["HasState", "Image", "StateMismatch", "TrainingState", "image_of", "parts_of"]

MARK = b"GEMINI-2"
PREFIX = struct.Struct("<8sQQ")  # mark, bytes of the shared part, bytes of the rank's own
FIRST_CAPTURES = 5  # in which a DDP model may still lay out its buckets anew
PAGE_BYTES = 4096  # images are whole pages, so that their size changes rarely
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # of torch.compile and activation checkpointing


class StateMismatch(ValueError):
    """A checkpoint is of another model, optimizer, dtype, rank or world size; nothing has been overwritten."""


class HasState(Protocol):
    """Anything whose state can be taken and put back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors, arrays, plain values and collections of them."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Put a state back."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """A state about to be copied: `write_` reads the live tensors."""

    shared: PackedTree  # weights and optimizer
    own: PackedTree  # the rest

    @property
    def num_bytes(self) -> int:
        """Bytes of the image."""
        return aligned(ALIGNMENT_BYTES + self.shared.num_bytes + self.own.num_bytes, PAGE_BYTES)

    @torch.no_grad()
    def write_(self, out: Tensor, pinned: Sequence[Tensor] = ()) -> None:
        """Copy the state to `num_bytes` bytes of the host, uint8; see `PackedTree.write_`."""
        middle = ALIGNMENT_BYTES + self.shared.num_bytes
        end = middle + self.own.num_bytes
        out[:ALIGNMENT_BYTES] = _prefix(self.shared.num_bytes, self.own.num_bytes)
        self.shared.write_(out[ALIGNMENT_BYTES:middle], pinned)
        self.own.write_(out[middle:end], pinned)
        out[end:] = 0


def _prefix(*sizes: int) -> Tensor:
    return as_bytes(PREFIX.pack(MARK, *sizes).ljust(ALIGNMENT_BYTES, b"\0"))


def image_of(shared: Tensor, own: Tensor) -> Tensor:
    """Put the parts of an image together."""
    parts = (_prefix(shared.numel(), own.numel()), shared, own)
    num_bytes = sum(part.numel() for part in parts)
    image = torch.zeros(aligned(num_bytes, PAGE_BYTES), dtype=torch.uint8)
    torch.cat(parts, out=image[:num_bytes])
    return image


def parts_of(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shared and the own part of an image."""
    if image.numel() < PREFIX.size:
        raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its prefix has, {PREFIX.size}")
    mark, shared_bytes, own_bytes = PREFIX.unpack(image[: PREFIX.size].numpy().tobytes())
    if mark != MARK:
        raise StateMismatch(f"checkpoint: it begins with {mark!r} and not with {MARK!r}")
    middle, end = ALIGNMENT_BYTES + shared_bytes, ALIGNMENT_BYTES + shared_bytes + own_bytes
    if image.numel() < end:
        raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its prefix says, {end}")
    return image[ALIGNMENT_BYTES:middle], image[middle:end]


class TrainingState:
    """One rank's training state."""

    def __init__(
        self,
        model: nn.Module,  # plain, DistributedDataParallel, or sharded by `fully_shard`
        optimizer: torch.optim.Optimizer,  # its state is tensors and plain values (SGD, Adam, AdamW, ...)
        *,
        scheduler: HasState | None = None,
        extra: Mapping[str, HasState] | None = None,  # more objects by name, such as the data position
        rank: int | None = None,  # None takes that of torch.distributed, or 0
        world_size: int | None = None,  # None takes that of torch.distributed, or 1
    ):
        self.model, self.optimizer = model, optimizer
        self._inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._extra = _checked_extras(extra, scheduler)
        self._parameters = {_plain(name): parameter for name, parameter in self._inner.named_parameters()}
        self._names = {id(parameter): name for name, parameter in self._parameters.items()}
        for index, group in enumerate(optimizer.param_groups):
            if any(id(parameter) not in self._names for parameter in group["params"]):
                rule = "it must have parameters of the model only: wrap or shard the model first"
                raise ValueError(f"optimizer's group {index} has other parameters; {rule}")
        self._generators = {  # that modules keep as attributes, such as this project's own dropout
            f"{name}.{attribute}": value
            for name, module in self._inner.named_modules()
            for attribute, value in vars(module).items()
            if isinstance(value, torch.Generator)
        }
        if getattr(model, "static_graph", False):
            rule = "it must not be, because a run that resumes would add gradients in another order"
            raise ValueError(f"model is {type(model).__name__} with static_graph; {rule}")
        self._order: list[str] = []  # of a DDP model's parameters in its buckets
        self._num_captured = 0
        in_group = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if in_group else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if in_group else 1

    @torch.no_grad()
    def capture(self, iteration: int) -> Image:
        """Describe the state of an iteration as it is now; it is copied by `Image.write_`, before anything changes."""
        self._note_order()
        return Image(shared=PackedTree(self._shared()), own=PackedTree(self._own(iteration)))

    def image(self, iteration: int) -> Tensor:
        """Return a copy of the state, uint8."""
        captured = self.capture(iteration)
        out = torch.empty(captured.num_bytes, dtype=torch.uint8)
        captured.write_(out)
        return out

    @torch.no_grad()
    def load_(self, image: Any) -> int:
        """Check a verified image as a whole, put it back in place and drop gradients; return its iteration."""
        shared, own = self._checked(as_bytes(image))
        self._restore_order_(own["order"])
        for name, value in own["extra"].items():
            self._extra[name].load_state_dict(value)
        self.optimizer.zero_grad(set_to_none=True)
        for name, parameter in self._parameters.items():
            _local(parameter).copy_(shared["model"][name])
            self._load_optimizer_(parameter, shared["optimizer"].get(name))
        for group, stored in zip(self.optimizer.param_groups, own["groups"], strict=True):
            for key in stored.keys() - {"params"}:
                if isinstance(stored[key], Tensor) and isinstance(group.get(key), Tensor):
                    group[key].copy_(stored[key])  # a learning rate that is a tensor stays the same tensor
                else:
                    group[key] = stored[key]
        for name, buffer in self._buffers():
            _local(buffer).copy_(own["buffers"][name])
        _restore_random_state_(own["random"], self._generators)  # last: all before may draw numbers
        return own["iteration"]

    def _load_optimizer_(self, parameter: nn.Parameter, stored: Mapping[str, Any] | None) -> None:
        """Give a parameter its optimizer's state, in place where there is one of the same kind already."""
        if stored is None:
            self.optimizer.state.pop(parameter, None)  # it never had a gradient
            return
        live = self.optimizer.state[parameter]
        for key in live.keys() - stored.keys():
            del live[key]
        local = _local(parameter)
        for key, value in stored.items():
            if isinstance(value, list):  # a tensor, and the kind of device it was on
                tensor, device = value[0], local.device if value[1] == local.device.type else torch.device(value[1])
                like_parameter = tensor.shape == local.shape
                known = live.get(key)
                if isinstance(known, Tensor) and _kind(known) == value[2] and _local(known).device == device:
                    _local(known).copy_(tensor)
                    continue
                made = torch.empty_like(local, dtype=tensor.dtype, device=device) if like_parameter else None
                made = tensor.to(device, copy=True) if made is None else made.copy_(tensor)
                live[key] = _sharded_as(parameter, made) if "Shard" in value[2] or "Replicate" in value[2] else made
            else:
                live[key] = value

    def changed_since(self, image: Tensor) -> list[str]:
        """Name the weights, buffers, settings and floating-point values that differ from an image of this state."""
        shared, own = (unpack_tree(part, copy=False) for part in parts_of(image))
        found = [f"model/{name}" for name in _differing(shared["model"], self._shared()["model"])]
        found += [f"optimizer/{name}" for name in _differing(shared["optimizer"], self._shared()["optimizer"])]
        live = self._own(0)
        found += [f"buffer {name}" for name in _differing(own["buffers"], live["buffers"])]
        if not _equal(own["groups"], live["groups"]):
            found.append("settings of the optimizer, such as its learning rate")
        floats = ({name: _floats(value) for name, value in tree["extra"].items()} for tree in (own, live))
        return found + [f"extra/{name}" for name in _differing(*floats)]

    def _shared(self) -> dict[str, Any]:
        """Return weights and optimizer's tensors; each of the latter with the kinds of device and tensor."""
        return {
            "model": {name: _local(parameter) for name, parameter in self._parameters.items()},
            "kinds": {name: _kind(parameter) for name, parameter in self._parameters.items()},
            "optimizer": {
                name: {
                    key: [_local(value), value.device.type, _kind(value)] if isinstance(value, Tensor) else value
                    for key, value in state.items()
                }
                for name, parameter in self._parameters.items()
                if (state := self.optimizer.state.get(parameter)) is not None
            },
        }

    def _own(self, iteration: int) -> dict[str, Any]:
        return {
            "iteration": iteration,
            "about": {
                "model": type(self._inner).__name__.removeprefix("FSDP"),
                "optimizer": type(self.optimizer).__name__,
                "world_size": self.world_size,
                "rank": self.rank,
            },
            "order": self._order,
            "groups": [
                {**group, "params": [self._names[id(parameter)] for parameter in group["params"]]}
                for group in self.optimizer.param_groups
            ],
            "buffers": {name: _local(buffer) for name, buffer in self._buffers()},
            "extra": {name: item.state_dict() for name, item in self._extra.items()},
            "random": _random_state(self._generators),
        }

    def _checked(self, image: Tensor) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parts of an image, or refuse one that is not of this run."""
        shared_part, own_part = parts_of(image)
        shared, own = unpack_tree(shared_part, copy=False), unpack_tree(own_part)
        live = self._own(0)
        for field, value in own["about"].items():
            _refuse_unless(value == live["about"][field], f"{field} is {value!r}", repr(live["about"][field]))
        kinds = {name: _kind(parameter) for name, parameter in self._parameters.items()}
        for what, stored, known in (
            ("model/", shared["kinds"], kinds),
            ("buffer ", _kinds(own["buffers"]), _kinds(live["buffers"])),
        ):
            for name in [*stored, *known]:
                if name not in known or name not in stored:
                    places = ("it", "this run") if name in stored else ("this run", "it")
                    raise StateMismatch(f"checkpoint: '{what}{name}' is in {places[0]} and not in {places[1]}")
                _refuse_unless(stored[name] == known[name], f"'{what}{name}' is {stored[name]}", known[name])
        names = sorted(own["extra"]), sorted(live["extra"])
        _refuse_unless(names[0] == names[1], f"extra is {names[0]}", names[1])
        params = [[group["params"] for group in part["groups"]] for part in (own, live)]
        _refuse_unless(params[0] == params[1], "the parameters of the optimizer's groups are others", params[1])
        _refuse_unless(
            own["random"]["modules"].keys() == live["random"]["modules"].keys(),
            "the generators of modules are others",
            sorted(live["random"]["modules"]),
        )
        _refuse_unless(own["random"]["cuda"] is None or torch.cuda.is_available(), "its tensors were on CUDA", "not")
        return shared, own

    def _note_order(self) -> None:
        """Note the order of a DDP model's buckets, which it lays out anew after its first backward pass."""
        if not isinstance(self.model, DistributedDataParallel):
            return
        self._num_captured += 1
        is_new = self.model.reducer._rebuild_buckets()  # as the next forward pass would do
        if is_new or self._num_captured <= FIRST_CAPTURES:
            buckets = self.model.reducer._get_zeros_like_grad_buckets()
            self._order = [self._names[id(parameter)] for bucket in buckets for parameter in bucket.parameters()]

    def _restore_order_(self, order: Sequence[str]) -> None:
        """Let a fresh DDP model lay out its buckets as the run before did; every rank calls it.

        DDP adds the gradients of a bucket in an order that depends on their places, and takes the places from the order
        in which gradients become ready in its first backward pass: so they become ready here, as zeros.
        """
        is_laid_out_anew = isinstance(self.model, DistributedDataParallel) and not self.model.find_unused_parameters
        if not is_laid_out_anew or not order:
            return
        self.model.reducer.prepare_for_backward([])
        with torch.enable_grad():
            for name in order:
                (0 * self._parameters[name].sum()).backward()
        self.model.reducer._rebuild_buckets()
        self.model.zero_grad(set_to_none=True)

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self._inner.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and key not in module._non_persistent_buffers_set:
                    yield _plain(f"{name}.{key}" if name else key), buffer


def _refuse_unless(is_right: bool, stored: str, live: Any) -> None:
    if not is_right:
        raise StateMismatch(f"checkpoint: {stored}; this run's is {live}")


def _checked_extras(extra: Mapping[str, HasState] | None, scheduler: HasState | None) -> dict[str, HasState]:
    objects = dict(extra or {})
    if scheduler is not None:
        if "scheduler" in objects:
            raise ValueError("extra has 'scheduler'; it must not, because a scheduler is given besides")
        objects["scheduler"] = scheduler
    for name, item in objects.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise ValueError(f"extra[{name!r}] is {type(item).__name__}; it must have state_dict and load_state_dict")
    return objects


def _random_state(generators: dict[str, torch.Generator]) -> dict[str, Any]:
    cuda_is_used = torch.cuda.is_available() and torch.cuda.is_initialized()
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if cuda_is_used else None,
        "python": (version, np.array(words, dtype=np.uint32), gauss),  # as text, 625 words would take 20 times as long
        "numpy": np.random.get_state(legacy=False),
        "modules": {name: generator.get_state() for name, generator in generators.items()},
    }


def _restore_random_state_(state: dict[str, Any], generators: dict[str, torch.Generator]) -> None:
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["numpy"])
    for name, generator in generators.items():
        generator.set_state(state["modules"][name])


def _plain(name: str) -> str:
    """Return a parameter's name without the wrappers' parts."""
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _local(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor where it is not sharded, without its gradient."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def _kind(tensor: Tensor) -> str:
    """Say dtype and shape, and how a tensor is sharded."""
    words = f"{str(tensor.dtype).removeprefix('torch.')} {list(_local(tensor).shape)}"
    placed = (
        f" of {list(tensor.shape)} {', '.join(map(repr, tensor.placements))}" if isinstance(tensor, DTensor) else ""
    )
    return words + placed


def _kinds(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return {name: _kind(tensor) for name, tensor in tensors.items()}


def _sharded_as(parameter: nn.Parameter, local: Tensor) -> Tensor:
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _floats(tree: Any) -> Any:
    """Keep the floating-point values of a tree: positions in data, which may move on, are whole numbers."""
    if isinstance(tree, Mapping):
        return {key: _floats(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_floats(value) for value in tree]
    is_kept = tree.is_floating_point() if isinstance(tree, Tensor) else isinstance(tree, float)
    return tree if is_kept else None


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name the entries of two dictionaries that are not equal to the last bit."""
    return [name for name in {**before, **after} if not _equal(before.get(name), after.get(name))]


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        own = after.detach().cpu()
        return (
            before.shape == own.shape
            and before.dtype == own.dtype
            and torch.equal(
                before.contiguous().reshape(-1).view(torch.uint8), own.contiguous().reshape(-1).view(torch.uint8)
            )
        )
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and not _differing(before, after)
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_equal, before, after))
    return before == after
