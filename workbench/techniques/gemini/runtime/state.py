"""The training state of one rank as one flat run of bytes, without pickle and without a second copy of the tensors.

    state = TrainingState(model, optimizer, scheduler=scheduler, extra={"data": sampler})
    state.capture(iteration)                    # after the optimizer's step
    for offset in range(0, state.num_bytes, chunk_bytes): state.read_into_(offset, buffer)
    iteration = state.load_(image)              # in place, also into a fresh model and optimizer

What: parameters and the optimizer's tensors are read from where they live; between one optimizer step and the next they
do not change, so chunks may be read at any time in between. What does change in between (buffers of the model, random
numbers, the data position) is small and copied by `capture`.
Source: thesis, chapter 6 (Gemini), sections 2.4 (model states) and 6.5.2 (chunks).
Simplified: one optimizer; another one can be added as an object with state_dict and load_state_dict, which is copied.
Left out: FSDP1 (`FullyShardedDataParallel`), whose flat parameters hide the names; reading into another world size.

The interface follows torch.distributed.checkpoint: objects with state_dict and load_state_dict, loading in place. Its
`get_optimizer_state_dict` makes the state of a fresh optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.nn.parallel import DistributedDataParallel

from workbench.techniques.gemini.runtime.entries import entry_of, local_of, plain_name
from workbench.techniques.gemini.runtime.extras import HasState, checked_extras
from workbench.techniques.gemini.runtime.layout import Entry, StateLayout, StateMismatch, as_bytes, prefix_of
from workbench.techniques.gemini.runtime.leaves import pack_tree, raw_bytes, unpack_tree
from workbench.techniques.gemini.runtime.pieces import Pieces
from workbench.techniques.gemini.runtime.randomness import module_generators, random_state, restore_random_state_

__all__ = ["HasState", "StateLayout", "StateMismatch", "TrainingState"]

# Room for the captured part to grow, such as a schedule's lists: chosen; the generators alone take 10 KB
SPARE_BYTES = 16 * 1024


class TrainingState:
    """One rank's training state."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: HasState | None = None,
        extra: Mapping[str, HasState] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        spare_bytes: int = SPARE_BYTES,
    ):
        self.model, self.optimizer = model, optimizer
        self._inner = model.module if isinstance(model, DistributedDataParallel) else model
        self._extra = checked_extras(extra, scheduler)
        self._parameters = {plain_name(name): parameter for name, parameter in self._inner.named_parameters()}
        self._check_optimizer()
        self._generators = module_generators(self._inner)
        in_group = dist.is_available() and dist.is_initialized()
        self._rank = rank if rank is not None else dist.get_rank() if in_group else 0
        self._world_size = world_size if world_size is not None else dist.get_world_size() if in_group else 1
        self._spare_bytes = spare_bytes
        self._layout: StateLayout | None = None
        self._pieces: Pieces | None = None

    @property
    def layout(self) -> StateLayout:
        """Where everything lies; fixed by the first `capture` or `load_`."""
        if self._layout is None:
            raise RuntimeError("the layout is fixed by the first capture() or load_(): a fresh optimizer has no state")
        return self._layout

    @property
    def num_bytes(self) -> int:
        """Bytes of the image."""
        return self.layout.num_bytes

    @property
    def rank(self) -> int:
        """Whose state it is."""
        return self._rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self._world_size

    @property
    def head(self) -> Tensor:
        """What `capture` froze: prefix, header and captured part, uint8."""
        return self._captured_pieces().head

    @torch.no_grad()
    def capture(self, iteration: int) -> StateLayout:
        """Freeze what the next iteration changes before its optimizer step; the rest stays where it is."""
        captured = pack_tree(self._small())
        live = self._live()
        if self._layout is None:
            self._layout = self._laid_out(live, len(captured) + self._spare_bytes)
        if self._pieces is None or not self._pieces.are_of(live):
            self._layout.refuse_unless_loadable(self._laid_out(live, self._layout.captured_capacity_bytes))
            self._pieces = Pieces(self._layout, live)
        self._pieces.fill_head_(iteration, captured)
        return self._layout

    def views(self, offset: int, size: int) -> list[Tensor]:
        """Give the bytes [offset, offset + size) of the captured image without copying them."""
        return self._captured_pieces().views(offset, size)

    def read_into_(self, offset: int, out) -> int:
        """Copy the image's bytes from `offset` on into a buffer, as many as fit."""
        out = as_bytes(out)
        size = min(out.numel(), self.num_bytes - offset)
        self._captured_pieces().read_into_(offset, out[:size])
        return size

    @torch.no_grad()
    def load_(self, image) -> int:
        """Put an image back in place. Gradients are dropped."""
        image = as_bytes(image)
        stored = self.check(image)
        small = unpack_tree(stored.captured(image))
        self._check_small(small)
        self._make_optimizer_state(stored, image)
        live = self._live()
        for name, value in small["extra"].items():
            self._extra[name].load_state_dict(value)
        for entry in stored.entries:
            raw_bytes(local_of(live[entry.name])).copy_(image[entry.offset : entry.offset + entry.num_bytes])
        self._load_small_(small)
        self._layout, self._pieces = stored, None
        return prefix_of(image)[0]

    def check(self, image) -> StateLayout:
        """Refuse an image that is not of this run, changing nothing."""
        image = as_bytes(image)
        stored = StateLayout.read(image)
        if image.numel() < stored.num_bytes:
            raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its header's {stored.num_bytes}")
        self.check_layout(stored)
        return stored

    def check_layout(self, stored: StateLayout) -> None:
        """Refuse the layout of an image that is not of this run; see `check`."""
        part = "" if self.optimizer.state else "model/"
        stored.refuse_unless_loadable(self._laid_out(self._live(), 0), part)

    def parameter_of(self, entry: Entry) -> nn.Parameter:
        """Give the parameter that an entry is, or that an entry of the optimizer belongs to."""
        return self._parameters[entry.name.split("/")[1]]

    def tensors(self) -> dict[str, Tensor]:
        """Give the live tensors by name, sharded ones as DTensors."""
        return self._live()

    def _captured_pieces(self) -> Pieces:
        if self._pieces is None:
            raise RuntimeError("nothing has been captured: call capture(iteration) after the optimizer's step")
        return self._pieces

    def _live(self) -> dict[str, Tensor]:
        """Name every tensor that only an optimizer step changes."""
        live = {f"model/{name}": parameter for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            for key, value in self.optimizer.state.get(parameter, {}).items():
                if isinstance(value, Tensor):
                    live[f"optimizer/{name}/{key}"] = value
        return live

    def _small(self) -> dict[str, Any]:
        """Collect what is copied; see `capture`."""
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
            "random": random_state(self._generators),
        }

    def _load_small_(self, small: dict[str, Any]) -> None:
        """Put back what `_small` collected, but for the extra objects; random numbers last."""
        for group, stored in zip(self.optimizer.param_groups, small["groups"], strict=True):
            _update_group_(group, stored)
        for name, values in small["optimizer"].items():
            self.optimizer.state[self._parameters[name]].update(values)
        for name, buffer in self._buffers():
            local_of(buffer).copy_(small["buffers"][name])
        restore_random_state_(small["random"], self._generators)

    def _check_small(self, small: dict[str, Any]) -> None:
        """Refuse what `_load_small_` could not put back."""
        own = self._small()
        for part in ("buffers", "extra"):
            if small[part].keys() != own[part].keys():
                raise StateMismatch(f"checkpoint: {part} are {sorted(small[part])}; this run's are {sorted(own[part])}")
        for name, buffer in own["buffers"].items():
            if (buffer.dtype, buffer.shape) != (small["buffers"][name].dtype, small["buffers"][name].shape):
                raise StateMismatch(f"checkpoint: buffer {name!r} has another dtype or shape than this run's")
        found, wanted = ([group["params"] for group in groups["groups"]] for groups in (small, own))
        if found != wanted:
            raise StateMismatch("checkpoint: the optimizer's groups have other parameters than this run's")
        if small["random"]["modules"].keys() != own["random"]["modules"].keys():
            raise StateMismatch("checkpoint: the modules' generators are others than this run's")
        if small["random"]["cuda"] is not None and not torch.cuda.is_available():
            raise StateMismatch("checkpoint: it has a state of CUDA's generator, and there is no CUDA here")

    def _make_optimizer_state(self, stored: StateLayout, image: Tensor) -> None:
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
            stored.refuse_unless_loadable(self._laid_out(self._live(), 0))
        except StateMismatch:
            if was_fresh:
                self.optimizer.state.clear()
            raise

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Give the buffers that belong to the state."""
        for name, module in self._inner.named_modules():
            for key, buffer in module._buffers.items():
                if buffer is not None and key not in module._non_persistent_buffers_set:
                    yield plain_name(f"{name}.{key}" if name else key), buffer

    @torch.no_grad()
    def _laid_out(self, live: dict[str, Tensor], captured_capacity_bytes: int) -> StateLayout:
        return StateLayout.of(
            model=type(self._inner).__name__.removeprefix("FSDP"),
            optimizer=type(self.optimizer).__name__,
            rank=self._rank,
            world_size=self._world_size,
            captured_capacity_bytes=captured_capacity_bytes,
            entries=[entry_of(name, tensor) for name, tensor in live.items()],
        )

    def _check_optimizer(self) -> None:
        known = {id(parameter) for parameter in self._parameters.values()}
        for index, group in enumerate(self.optimizer.param_groups):
            if any(id(parameter) not in known for parameter in group["params"]):
                raise ValueError(
                    f"optimizer: group {index} has parameters that the model has not; wrap or shard the model first"
                )


def _update_group_(group: dict[str, Any], stored: dict[str, Any]) -> None:
    """Put a parameter group's numbers back; a learning rate that is a tensor stays the same tensor."""
    for key, value in stored.items():
        if key == "params":
            continue
        if isinstance(value, Tensor) and isinstance(group.get(key), Tensor):
            group[key].copy_(value)
        else:
            group[key] = value
