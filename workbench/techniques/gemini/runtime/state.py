"""The training state of one rank as one flat run of bytes, and going on from it bit for bit.

Parameters and the optimizer's tensors change in optimizer steps only and are read in place; the rest is copied.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

from .encoding import as_bytes, pack_tree, raw_bytes, unpack_tree
from .layout import Entry, Pieces, StateLayout, StateMismatch, entry_of, local_of, plain_name, prefix_of

__all__ = ["HasState", "StateMismatch", "TrainingState", "resume_"]

SPARE_BYTES = 16 * 1024  # for the captured part to grow, such as a schedule's lists; the generators alone take 10 KB
THROW_AWAY_PASSES = 2  # the first backward pass rebuilds DDP's buckets, the second runs in them


class HasState(Protocol):
    """Anything whose state can be taken and put back."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state: tensors, arrays, plain values and collections of them."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Put a state back."""


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
        spare_bytes: int = SPARE_BYTES,  # room for the captured part to grow during the run
    ):
        self.model, self.optimizer = model, optimizer
        self._inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._extra = _checked_extras(extra, scheduler)
        self._parameters = {plain_name(name): parameter for name, parameter in self._inner.named_parameters()}
        known = {id(parameter) for parameter in self._parameters.values()}
        for index, group in enumerate(optimizer.param_groups):
            if any(id(parameter) not in known for parameter in group["params"]):
                rule = "it must have parameters of the model only: wrap or shard the model first"
                raise ValueError(f"optimizer's group {index} has other parameters; {rule}")
        self._generators = {  # that modules keep as attributes, such as this project's own dropout
            f"{name}.{attribute}": value
            for name, module in self._inner.named_modules()
            for attribute, value in vars(module).items()
            if isinstance(value, torch.Generator)
        }
        in_group = dist.is_available() and dist.is_initialized()
        self.rank = rank if rank is not None else dist.get_rank() if in_group else 0
        self.world_size = world_size if world_size is not None else dist.get_world_size() if in_group else 1
        self._spare_bytes = spare_bytes
        self._layout: StateLayout | None = None
        self._pieces: Pieces | None = None

    @property
    def layout(self) -> StateLayout:
        """The places of everything in the image; fixed by the first `capture` or `load_`."""
        if self._layout is None:
            raise RuntimeError("the layout is fixed by the first capture() or load_(): a fresh optimizer has no state")
        return self._layout

    @property
    def num_bytes(self) -> int:
        """Bytes of the image."""
        return self.layout.num_bytes

    @property
    def head(self) -> Tensor:
        """The part that `capture` froze: prefix, header and captured part, uint8."""
        return self._captured_pieces().head

    @torch.no_grad()
    def capture(self, iteration: int) -> StateLayout:
        """Copy what the next iteration changes before its optimizer step; ValueError if tensors were replaced."""
        captured = pack_tree(self._small())
        live = self.tensors()
        if self._layout is None:
            self._layout = self._laid_out(live, len(captured) + self._spare_bytes)
        if self._pieces is None or not self._pieces.are_of(live):
            self._layout.refuse_unless_loadable(self._laid_out(live, self._layout.captured_capacity_bytes))
            self._pieces = Pieces(self._layout, live)
        self._pieces.fill_head_(iteration, captured)
        return self._layout

    def views(self, offset: int, size: int) -> list[Tensor]:
        """View the bytes [offset, offset + size) of the captured image, on the devices of its tensors."""
        return self._captured_pieces().views(offset, size)

    def read_into_(self, offset: int, out) -> int:
        """Copy the image's bytes from `offset` on into a buffer, as many as fit; return their number."""
        out = as_bytes(out)
        size = min(out.numel(), self.num_bytes - offset)
        self._captured_pieces().read_into_(offset, out[:size])
        return size

    @torch.no_grad()
    def load_(self, image) -> int:
        """Check a verified image as a whole, put it back in place and drop gradients; return its iteration."""
        image = as_bytes(image)
        stored = self.check(image)
        small = unpack_tree(stored.captured(image))
        self._check_small(small)
        self._make_optimizer_state(stored)
        live = self.tensors()
        for name, value in small["extra"].items():
            self._extra[name].load_state_dict(value)
        for entry in stored.entries:
            raw_bytes(local_of(live[entry.name])).copy_(image[entry.offset : entry.offset + entry.num_bytes])
        self._load_small_(small)
        self._layout, self._pieces = stored, None
        return prefix_of(image)[0]

    def check(self, image) -> StateLayout:
        """Refuse an image that is not of this run; a fresh optimizer's state is not compared."""
        image = as_bytes(image)
        stored = StateLayout.read(image)
        if image.numel() < stored.num_bytes:
            raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its header's {stored.num_bytes}")
        self.check_layout(stored)
        return stored

    def check_layout(self, stored: StateLayout) -> None:
        """Refuse the layout of an image that is not of this run; see `check`."""
        part = "" if self.optimizer.state else "model/"
        stored.refuse_unless_loadable(self._laid_out(self.tensors(), 0), part)

    def parameter_of(self, entry: Entry) -> nn.Parameter:
        """Return the parameter of an entry, or of an optimizer's entry."""
        return self._parameters[entry.name.split("/")[1]]

    def _captured_pieces(self) -> Pieces:
        if self._pieces is None:
            raise RuntimeError("nothing has been captured: call capture(iteration) after the optimizer's step")
        return self._pieces

    def tensors(self) -> dict[str, Tensor]:
        """Return the live tensors that only an optimizer step changes, by name; sharded tensors are DTensors."""
        live = {f"model/{name}": parameter for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    live[f"optimizer/{name}/{key}"] = value
        return live

    def _small(self) -> dict[str, Any]:
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        return {
            "groups": [
                {**group, "params": [names[id(parameter)] for parameter in group["params"]]}
                for group in self.optimizer.param_groups
            ],
            "optimizer": {
                name: {key: value for key, value in state.items() if not isinstance(value, Tensor)}
                for name, parameter in self._parameters.items()
                if (state := self.optimizer.state.get(parameter)) is not None
            },
            "buffers": {name: local_of(buffer) for name, buffer in self._buffers()},
            "extra": {name: item.state_dict() for name, item in self._extra.items()},
            "random": _random_state(self._generators),
        }

    def _load_small_(self, small: dict[str, Any]) -> None:
        """Put the captured part back, but for the extra objects; random numbers last."""
        for group, stored in zip(self.optimizer.param_groups, small["groups"], strict=True):
            for key in stored.keys() - {"params"}:
                if isinstance(stored[key], Tensor) and isinstance(group.get(key), Tensor):
                    group[key].copy_(stored[key])  # a learning rate that is a tensor stays the same tensor
                else:
                    group[key] = stored[key]
        for name, values in small["optimizer"].items():
            self.optimizer.state[self._parameters[name]].update(values)
        for name, buffer in self._buffers():
            local_of(buffer).copy_(small["buffers"][name])
        _restore_random_state_(small["random"], self._generators)

    def _check_small(self, small: dict[str, Any]) -> None:
        own = self._small()
        for part in ("buffers", "extra"):
            if small[part].keys() != own[part].keys():
                raise StateMismatch(f"checkpoint: {part} are {sorted(small[part])}; this run's are {sorted(own[part])}")
        for name, buffer in own["buffers"].items():
            if (buffer.dtype, buffer.shape) != (small["buffers"][name].dtype, small["buffers"][name].shape):
                raise StateMismatch(f"checkpoint: buffer {name!r} has another dtype or shape than this run's")
        if [group["params"] for group in small["groups"]] != [group["params"] for group in own["groups"]]:
            raise StateMismatch("checkpoint: the optimizer's groups have other parameters than this run's")
        if small["random"]["modules"].keys() != own["random"]["modules"].keys():
            raise StateMismatch("checkpoint: the modules' generators are others than this run's")
        if small["random"]["cuda"] is not None and not torch.cuda.is_available():
            raise StateMismatch("checkpoint: it has a state of CUDA's generator, and there is no CUDA here")

    def _make_optimizer_state(self, stored: StateLayout) -> None:
        """Make a fresh optimizer's state as large as the checkpoint's, and compare; undone if it does not fit."""
        was_fresh = not self.optimizer.state
        wanted = {entry.name for entry in stored.entries}
        self.optimizer.zero_grad(set_to_none=True)  # or torch takes the gradients for the sign of a state
        if was_fresh:
            with torch.enable_grad():
                get_optimizer_state_dict(self.model, self.optimizer)
        for name, parameter in self._parameters.items():
            state = self.optimizer.state.get(parameter, {})
            for key in [key for key in state if f"optimizer/{name}/{key}" not in wanted]:
                del state[key]  # a parameter that never had a gradient has no state; plain values come with the image
            if not state:
                self.optimizer.state.pop(parameter, None)
        try:
            stored.refuse_unless_loadable(self._laid_out(self.tensors(), 0))
        except StateMismatch:
            if was_fresh:
                self.optimizer.state.clear()
            raise

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        for name, module in self._inner.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and key not in module._non_persistent_buffers_set:
                    yield plain_name(f"{name}.{key}" if name else key), buffer

    @torch.no_grad()
    def _laid_out(self, live: dict[str, Tensor], captured_capacity_bytes: int) -> StateLayout:
        return StateLayout.of(
            model=type(self._inner).__name__.removeprefix("FSDP"),
            optimizer=type(self.optimizer).__name__,
            rank=self.rank,
            world_size=self.world_size,
            captured_capacity_bytes=captured_capacity_bytes,
            entries=[entry_of(name, tensor) for name, tensor in live.items()],
        )


def resume_(state: TrainingState, image, throw_away: Callable[[], Tensor] | None = None) -> int:
    """Put a verified image into a new process so that training goes on bit for bit; return its iteration, 0 for None.

    DDP lays its buckets out anew after its first backward pass and then sums in another order. So two passes run first,
    whose gradients are dropped: `throw_away` gives the loss of any batch of the usual shape. FSDP2 needs none.
    """
    if image is None:
        return 0
    image = as_bytes(image)
    state.check(image)
    require_throw_away(state.model, throw_away)
    if isinstance(state.model, DistributedDataParallel):
        for _ in range(THROW_AWAY_PASSES):
            with torch.enable_grad():
                throw_away().backward()
            state.optimizer.zero_grad(set_to_none=True)
    return state.load_(image)


def require_throw_away(model: nn.Module, throw_away: Callable[[], Tensor] | None) -> None:
    """Refuse a DDP model without losses to throw away."""
    if isinstance(model, DistributedDataParallel) and throw_away is None:
        raise ValueError("throw_away is None; it must give a loss, or a DDP model cannot resume bit for bit")
