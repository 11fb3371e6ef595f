"""All that training changes in a module, as trees, and putting it back in place.

Kept: parameters, whether each is trained, and gradients that no update has cleared; buffers, also those that a
state_dict leaves out or that appear later; whatever else is in its state_dict (`get_extra_state`, hooks); and plain
values, tensors and generators that its modules have as attributes, also in collections.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from .attributes import Attributes, put_back
from .encoding import pack_tree, unpack_tree

__all__ = ["ModuleState", "StateMismatch", "kind_of", "local_part", "sharded_as", "unwrapped"]

WRAPPERS = ("_orig_mod", "_checkpoint_wrapped_module")  # of torch.compile and activation checkpointing
OF_EVERY_MODULE = frozenset(vars(nn.Module())) - {"training"}


class StateMismatch(ValueError):
    """A checkpoint is of another model, optimizer, dtype, rank or world size; nothing has been overwritten."""


class ModuleState:
    """The state of a module, by names without the wrappers' parts."""

    def __init__(self, module: nn.Module, name: str = "model"):
        self.module, self._name = unwrapped(module), name
        for place, tensor in (*self.module.named_parameters(), *self.module.named_buffers()):
            if is_lazy(tensor):
                raise ValueError(f"'{name}/{place}' has no shape yet; it must have one: run one forward pass before")
        self.parameters = dict(self._named_parameters())
        self.first_buffers = {place: kind_of(buffer) for place, buffer, _ in self._buffers()}
        self._attributes = Attributes(self._modules, ignored=OF_EVERY_MODULE, owned=self._addresses)
        self.generators = self._attributes.generators()
        self._loadable: set[str] = set()  # entries of the state_dict of which it is known that they can be loaded

    def weights(self) -> dict[str, Tensor]:
        """Return the parameters, this rank's shards of them."""
        return {name: local_part(parameter) for name, parameter in self.parameters.items()}

    def buffers(self) -> dict[str, Tensor | None]:
        """Return the buffers, this rank's shards of them."""
        return {name: None if buffer is None else local_part(buffer) for name, buffer, _ in self._buffers()}

    def rest(self) -> dict[str, Any]:
        """Return all but the weights; ValueError where something could not be put back, such as a new parameter."""
        state = self.module.state_dict()  # first: FSDP2 shards again what a forward pass left whole
        self._refuse_other_parameters()
        self._refuse_unsharded_gradients()
        return {
            "buffers": self.buffers(),
            "not persistent": [name for name, _, is_persistent in self._buffers() if not is_persistent],
            "further": self._further(state),
            "attributes": self._attributes.tree(),
            "frozen": [name for name, parameter in self.parameters.items() if not parameter.requires_grad],
            "gradients": {
                name: local_part(parameter.grad)
                for name, parameter in self.parameters.items()
                if parameter.grad is not None
            },
        }

    def check(self, kinds: Mapping[str, str], rest: Mapping[str, Any], first_buffers: Mapping[str, str | None]) -> None:
        """Raise StateMismatch if weights of these kinds, and the rest, are not of this module."""
        live = {name: kind_of(parameter) for name, parameter in self.parameters.items()}
        _refuse_other_kinds(f"{self._name}/", kinds, live)
        _refuse_other_kinds("buffer ", first_buffers, self.first_buffers)
        modules = self._modules()
        absent = [name for name in rest["attributes"] if name not in modules]
        if absent:
            raise StateMismatch(f"checkpoint: '{self._name}/{absent[0]}' has attributes, and is not in this run")

    @torch.no_grad()
    def restore_(self, weights: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Put weights and the rest back in place."""
        self._restore_tensors_(weights, rest)
        refused = self._load(self.module.state_dict(), rest["further"])
        if refused:
            raise StateMismatch(f"checkpoint: {self._name}'s load_state_dict does not take {refused}")
        self._restore_tensors_(weights, rest)  # hooks may have changed them
        self._attributes.restore_(rest["attributes"])
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name not in rest["frozen"])
            gradient = rest["gradients"].get(name)
            if gradient is not None:
                gradient = gradient.to(parameter.device)
                gradient = sharded_as(parameter, gradient) if isinstance(parameter, DTensor) else gradient
            parameter.grad = gradient

    def state_dict(self) -> dict[str, Any]:
        """Return all as one tree."""
        kinds = {name: kind_of(parameter) for name, parameter in self.parameters.items()}
        facts = {"kinds": kinds, "first_buffers": self.first_buffers}
        return {"weights": self.weights(), "rest": self.rest(), **facts}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Check a tree of `state_dict`, and put it back."""
        self.check(state["kinds"], state["rest"], state["first_buffers"])
        self.restore_(state["weights"], state["rest"])

    def _restore_tensors_(self, weights: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        for name, parameter in self.parameters.items():
            local_part(parameter).copy_(weights[name])
        modules, stored = self._modules(), rest["buffers"]
        for name in [name for name, *_ in self._buffers() if name not in stored]:
            path, _, key = name.rpartition(".")
            delattr(modules[path], key)  # it came later
        for name, value in stored.items():
            path, _, key = name.rpartition(".")
            live = modules[path]._buffers.get(key)
            if isinstance(live, DTensor):
                local_part(live).copy_(value)
            else:
                modules[path].register_buffer(key, put_back(live, value), persistent=name not in rest["not persistent"])

    def _load(self, state: dict[str, Any], further: Mapping[str, Any]) -> list[str]:
        """Load the state_dict as it is, with further entries; name those that are not taken."""
        names = {_plain(key): key for key in state}
        for name, value in further.items():
            state[names.get(name, name)] = value
        keys = self.module.load_state_dict(state, strict=False)
        return sorted({_plain(key) for key in keys.unexpected_keys} & further.keys())

    def _further(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the entries of a state_dict that are no parameter or buffer as it is."""
        known = dict(self._named_parameters(remove_duplicate=False))
        known |= {_plain(name): buffer for name, buffer in self.module.named_buffers(remove_duplicate=False)}
        further = {_plain(key): value for key, value in state.items() if not _is_one(value, known.get(_plain(key)))}
        new = sorted(further.keys() - self._loadable)
        if new:  # they are loaded once now, so that it is not first tried after a failure
            try:
                refused = self._load(dict(state), unpack_tree(pack_tree(further)))
            except RuntimeError as error:
                raise ValueError(f"state_dict of {self._name} has {new}; it must load them again: {error}") from error
            if refused:
                rule = "load_state_dict must take them: see set_extra_state and register_load_state_dict_pre_hook"
                raise ValueError(f"state_dict of {self._name} has {refused}; {rule}")
            self._loadable |= further.keys()
        return further

    def _refuse_other_parameters(self) -> None:
        live = dict(self._named_parameters())
        for name in {**self.parameters, **live}:
            if live.get(name) is not self.parameters.get(name):
                change = "was replaced" if name in live and name in self.parameters else "is new or gone"
                rule = "parameters must stay the same objects: make the checkpoints after the last change of them"
                raise ValueError(f"'{self._name}/{name}' {change} since the training began; {rule}")

    def _refuse_unsharded_gradients(self) -> None:
        for module in self.module.modules():
            group = module._get_fsdp_state()._fsdp_param_group if isinstance(module, FSDPModule) else None
            for parameter in group.fsdp_params if group else ():
                whole = getattr(parameter, "_unsharded_param", None)
                kept = (whole.grad if whole is not None else None, parameter.unsharded_accumulated_grad)
                if any(gradient is not None for gradient in (*kept, group._partial_reduce_output)):
                    rule = "an iteration must end with one that is: accumulate within an iteration"
                    raise ValueError(f"gradients of {parameter._param_fqn!r} are not reduced yet; {rule}")

    def _named_parameters(self, remove_duplicate: bool = True) -> Iterator[tuple[str, nn.Parameter]]:
        for name, parameter in self.module.named_parameters(remove_duplicate=remove_duplicate):
            yield _plain(name), parameter

    def _modules(self) -> dict[str, nn.Module]:
        return {
            _plain(name): module
            for name, module in self.module.named_modules()
            if not any(wrapper in module._modules for wrapper in WRAPPERS)
        }

    def _buffers(self) -> Iterator[tuple[str, Tensor | None, bool]]:
        """Give name, buffer, which may be None, and whether a state_dict has it."""
        for name, module in self._modules().items():
            for key, buffer in module._buffers.items():
                yield f"{name}.{key}" if name else key, buffer, key not in module._non_persistent_buffers_set

    def _addresses(self) -> set[int]:
        tensors = (*self.module.parameters(), *self.module.buffers())
        return {local_part(tensor).data_ptr() for tensor in tensors if tensor.numel()}


def unwrapped(module: nn.Module) -> nn.Module:
    """Return the module within torch.compile's and DDP's wrappers."""
    while True:
        if isinstance(module, DistributedDataParallel):
            module = module.module
        elif "_orig_mod" in module._modules:
            module = module._orig_mod
        else:
            return module


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor where it is not sharded, without its gradient."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def kind_of(tensor: Tensor | None) -> str | None:
    """Say dtype and shape, and how a tensor is sharded; None for None."""
    if tensor is None:
        return None
    words = f"{str(tensor.dtype).removeprefix('torch.')} {list(local_part(tensor).shape)}"
    if not isinstance(tensor, DTensor):
        return words
    return f"{words} of {list(tensor.shape)} {', '.join(map(repr, tensor.placements))}"


def sharded_as(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """Make a DTensor of this rank's shard, placed as a parameter is."""
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _plain(name: str) -> str:
    """Return a name without the wrappers' parts."""
    return ".".join(part for part in name.split(".") if part not in WRAPPERS)


def _is_one(value: Any, tensor: Tensor | None) -> bool:
    """Say whether an entry of a state_dict is a tensor itself, and nothing made of it."""
    if not isinstance(value, Tensor) or tensor is None or kind_of(value) != kind_of(tensor):
        return False
    return local_part(value).data_ptr() == local_part(tensor).data_ptr()


def _refuse_other_kinds(what: str, stored: Mapping[str, str | None], live: Mapping[str, str | None]) -> None:
    for name in [*stored, *live]:
        if name not in live or name not in stored:
            places = ("it", "this run") if name in stored else ("this run", "it")
            raise StateMismatch(f"checkpoint: '{what}{name}' is in {places[0]} and not in {places[1]}")
        if stored[name] != live[name] and (stored[name] and live[name]):  # one that was None may have come
            raise StateMismatch(f"checkpoint: '{what}{name}' is {stored[name]}; this run's is {live[name]}")
