"""All that training changes in modules and optimizers, as trees, and putting it back in place.

Of a module: parameters, whether each is trained, and gradients that no update has cleared; buffers, also those that a
state_dict leaves out or that appear later; and whatever else is in its state_dict (`get_extra_state`, hooks). Of an
optimizer: the state of each parameter and other entries of `state`; groups, also those that come later; and what a
`state_dict` of its own adds. Of both: plain values, tensors and generators that they have as attributes.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from itertools import zip_longest
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parameter import is_lazy

from .encoding import GENERATORS, PLAIN, can_pack, generator_state, leaves, pack_tree, restore_generator_, unpack_tree

__all__ = ["ModuleState", "OptimizerState", "StateMismatch", "kind_of", "put_back", "unwrapped"]

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
        tree = {}
        for name, kept in self._all().items():
            first = self._first.get(name, {})
            tree[name] = {key: value for key, value in kept.items() if key not in first or not _same(first[key], value)}
        return {name: changed for name, changed in tree.items() if changed}

    def generators(self) -> list[str]:
        kept = [(name, key, value) for name, values in self._all().items() for key, value in values.items()]
        return [f"{name}.{key}" if name else key for name, key, value in kept if type(value) in GENERATORS]

    def restore_(self, trees: Mapping[str, Mapping[str, Any]]) -> None:
        """Put the values of a tree back, in place where that can be done; what was not in it is as it was at first."""
        objects = self._objects()
        for name, kept in self._all().items():
            first, live = self._first.get(name, {}), objects[name].__dict__
            for key in kept.keys() - trees.get(name, {}).keys():
                if key not in first:
                    del live[key]
                elif not _same(first[key], live[key]):
                    live[key] = copy.deepcopy(first[key])
        for name, stored in trees.items():
            live = objects[name].__dict__
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
    """Return a stored value, or the live object with its content, so that other holders of the live object see it."""
    if type(live) is not type(stored):
        return stored
    match live:
        case Tensor():
            is_alike = (live.shape, live.dtype, live.device) == (stored.shape, stored.dtype, stored.device)
            is_expanded = any(not stride and size > 1 for size, stride in zip(live.shape, live.stride(), strict=True))
            if not is_alike or is_expanded:  # elements of an expanded tensor lie at one place
                return stored
            live.detach().copy_(stored)
        case np.ndarray():
            if (live.shape, live.dtype, live.flags.writeable) != (stored.shape, stored.dtype, True):
                return stored
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
        for leaf in leaves(value)
        if isinstance(leaf, Tensor)
    )


def _is_live(value: Any) -> bool:
    """Say whether a value can change in place, without being another object: then it is always kept."""
    return any(isinstance(leaf, (Tensor, np.ndarray, *GENERATORS)) for leaf in leaves(value))


def _same(first: Any, value: Any) -> bool:
    return type(first) is type(value) and not _is_live(value) and first == value


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
        self.parameters = self._live_parameters()
        self.first_buffers = {place: kind_of(buffer) for place, buffer, _ in self._buffers()}
        self._attributes = Attributes(self._modules, ignored=OF_EVERY_MODULE, owned=self._addresses)
        self.generators = self._attributes.generators()
        self._loadable: set[str] = set()  # entries of the state_dict of which it is known that they can be loaded

    def weights(self) -> dict[str, Tensor]:
        return {name: local_part(parameter) for name, parameter in self.parameters.items()}

    def kinds(self) -> dict[str, str | None]:
        return {name: kind_of(parameter) for name, parameter in self.parameters.items()}

    def buffers(self) -> dict[str, Tensor | None]:
        return {name: None if buffer is None else local_part(buffer) for name, buffer, _ in self._buffers()}

    def rest(self) -> dict[str, Any]:
        """Return all but the weights; ValueError where something could not be put back, such as a new parameter."""
        state = self.module.state_dict()  # first: FSDP2 shards again what a forward pass left whole
        self._refuse_other_parameters()
        self._refuse_unsharded_gradients()
        gradients = {name: parameter.grad for name, parameter in self.parameters.items()}
        return {
            "buffers": self.buffers(),
            "not persistent": [name for name, _, is_persistent in self._buffers() if not is_persistent],
            "further": self._further(state),
            "attributes": self._attributes.tree(),
            "frozen": [name for name, parameter in self.parameters.items() if not parameter.requires_grad],
            "gradients": {name: local_part(grad) for name, grad in gradients.items() if grad is not None},
        }

    def check(self, kinds: Mapping[str, str], rest: Mapping[str, Any], first_buffers: Mapping[str, str | None]) -> None:
        """Raise StateMismatch if weights of these kinds, and the rest, are not of this module."""
        _refuse_other_kinds(f"{self._name}/", kinds, self.kinds())
        _refuse_other_kinds("buffer ", first_buffers, self.first_buffers)
        if absent := sorted(rest["attributes"].keys() - self._modules().keys()):
            raise StateMismatch(f"checkpoint: '{self._name}/{absent[0]}' has attributes, and is not in this run")

    @torch.no_grad()
    def restore_(self, weights: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        """Put weights and the rest back in place."""
        self._restore_tensors_(weights, rest)
        if refused := self._load(self.module.state_dict(), rest["further"]):
            raise StateMismatch(f"checkpoint: {self._name}'s load_state_dict does not take {refused}")
        self._restore_tensors_(weights, rest)  # hooks may have changed them
        self._attributes.restore_(rest["attributes"])
        for name, parameter in self.parameters.items():
            parameter.requires_grad_(name not in rest["frozen"])
            gradient = rest["gradients"].get(name)
            parameter.grad = None if gradient is None else placed_as(parameter, gradient.to(parameter.device))

    def state_dict(self) -> dict[str, Any]:
        rest = self.rest()
        return {"weights": self.weights(), "rest": rest, "kinds": self.kinds(), "first_buffers": self.first_buffers}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check a tree of `state_dict`, and put it back."""
        self.check(state_dict["kinds"], state_dict["rest"], state_dict["first_buffers"])
        self.restore_(state_dict["weights"], state_dict["rest"])

    def _restore_tensors_(self, weights: Mapping[str, Tensor], rest: Mapping[str, Any]) -> None:
        for name, parameter in self.parameters.items():
            local_part(parameter).copy_(weights[name])
        modules, stored = self._modules(), rest["buffers"]
        for name in dict.fromkeys([*(name for name, *_ in self._buffers()), *stored]):
            path, _, key = name.rpartition(".")
            live, value = modules[path]._buffers.get(key), stored.get(name)
            if name not in stored:
                delattr(modules[path], key)  # it came later
            elif isinstance(live, DTensor):
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
        known: dict[str, Tensor] = {**self._live_parameters(remove_duplicate=False)}
        known |= {_plain(name): buffer for name, buffer in self.module.named_buffers(remove_duplicate=False)}
        further = {_plain(key): value for key, value in state.items() if not _is_one(value, known.get(_plain(key)))}
        if new := sorted(further.keys() - self._loadable):  # loaded once now, and not first after a failure
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
        live = self._live_parameters()
        for name in {**self.parameters, **live}:
            if live.get(name) is not self.parameters.get(name):
                change = "was replaced" if name in live and name in self.parameters else "is new or gone"
                rule = "parameters must stay the same objects: make the checkpoints after the last change of them"
                raise ValueError(f"'{self._name}/{name}' {change} since the training began; {rule}")

    def _refuse_unsharded_gradients(self) -> None:
        for module in self.module.modules():
            if not isinstance(module, FSDPModule) or (group := module._get_fsdp_state()._fsdp_param_group) is None:
                continue
            for parameter in group.fsdp_params:
                whole = getattr(getattr(parameter, "_unsharded_param", None), "grad", None)
                kept = (whole, parameter.unsharded_accumulated_grad, group._partial_reduce_output)
                if any(gradient is not None for gradient in kept):
                    rule = "an iteration must end with one that is: accumulate within an iteration"
                    raise ValueError(f"gradients of {parameter._param_fqn!r} are not reduced yet; {rule}")

    def _live_parameters(self, remove_duplicate: bool = True) -> dict[str, nn.Parameter]:
        return {_plain(name): item for name, item in self.module.named_parameters(remove_duplicate=remove_duplicate)}

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
    while isinstance(module, DistributedDataParallel) or "_orig_mod" in module._modules:
        module = module.get_submodule("module" if isinstance(module, DistributedDataParallel) else "_orig_mod")
    return module


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's shard of a tensor, or the tensor where it is not sharded, without its gradient."""
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


def kind_of(tensor: Tensor | None) -> str | None:
    """Say dtype and shape, and how a tensor is sharded; None for None."""
    if tensor is None:
        return None
    words = f"{str(tensor.dtype).removeprefix('torch.')} {list(local_part(tensor).shape)}"
    if isinstance(tensor, DTensor):
        words += f" of {list(tensor.shape)} {', '.join(map(repr, tensor.placements))}"
    return words


def placed_as(parameter: nn.Parameter, local: Tensor) -> Tensor:
    """Make a DTensor of this rank's shard, placed as a parameter is, if that is one."""
    if not isinstance(parameter, DTensor):
        return local
    sizes: dict[str, Any] = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(local, parameter.device_mesh, parameter.placements, run_check=False, **sizes)


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
        if stored[name] != live[name] and (stored[name] and live[name]):  # a buffer that was None may have come
            raise StateMismatch(f"checkpoint: '{what}{name}' is {stored[name]}; this run's is {live[name]}")


USUAL = frozenset({"state", "param_groups"})  # of an optimizer's state_dict


class OptimizerState:
    """The state of an optimizer of these parameters."""

    def __init__(self, optimizer: optim.Optimizer, parameters: Mapping[str, nn.Parameter], given: set[int]):
        self.optimizer, self._parameters = optimizer, parameters
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        for name, value in vars(optimizer).items():
            if isinstance(value, optim.Optimizer) and id(value) not in given:
                inner = f"{type(optimizer).__name__} has the optimizer {type(value).__name__} as {name!r}"
                raise ValueError(f"{inner}, which is in no state_dict: give it as an entry of extra, too")
        self._refuse_other_parameters()
        usual = frozenset(vars(optim.SGD([nn.Parameter(torch.empty(0))]))) | {"step", "_opt_called"}
        self._attributes = Attributes(lambda: {"": optimizer}, ignored=usual, owned=set)

    def tensors(self) -> dict[str, dict[str, list]]:
        """Return by parameter and key the tensors, this rank's shards, with kinds of device and tensor."""
        return {
            name: {
                key: [local_part(value), value.device.type, kind_of(value)]
                for key, value in state.items()
                if isinstance(value, Tensor)
            }
            for name, state in self._by_parameter().items()
        }

    def groups(self) -> list[dict[str, Any]]:
        return [
            {**group, "params": [self._names[id(parameter)] for parameter in group["params"]]}
            for group in self.optimizer.param_groups
        ]

    def rest(self) -> dict[str, Any]:
        """Return all but these tensors; ValueError where something could not be put back."""
        self._refuse_other_parameters()
        optimizer, further, kind = self.optimizer, {}, type(self.optimizer)
        # A state_dict of the optimizer's own, or its hooks, may add to the usual entries.
        if kind.state_dict is not optim.Optimizer.state_dict or optimizer._optimizer_state_dict_post_hooks:
            try:
                further = {key: value for key, value in optimizer.state_dict().items() if key not in USUAL}
            except RuntimeError as error:
                raise ValueError(f"optimizer is {kind.__name__}; its state must be at hand: {error}") from error
        return {
            "groups": self.groups(),
            "values": {
                name: {key: value for key, value in state.items() if not isinstance(value, Tensor)}
                for name, state in self._by_parameter().items()
            },
            "others": {key: value for key, value in optimizer.state.items() if not isinstance(key, Tensor)},
            "further": further,
            "attributes": self._attributes.tree(),
        }

    def check(self, rest: Mapping[str, Any]) -> None:
        """Raise StateMismatch if the rest is of groups with other parameters; groups may have been added at the end."""
        live = [group["params"] for group in self.groups()]
        stored = [group["params"] for group in rest["groups"]]
        if live != stored[: len(live)] or any(name not in self._parameters for group in stored for name in group):
            raise StateMismatch(f"checkpoint: optimizer parameter groups differ; it has {stored}, this run {live}")

    @torch.no_grad()
    def restore_(self, tensors: Mapping[str, Mapping[str, list]], rest: Mapping[str, Any]) -> None:
        """Put tensors and the rest back, in place where there are tensors of the same kind already."""
        optimizer = self.optimizer
        for group in rest["groups"][len(optimizer.param_groups) :]:
            optimizer.add_param_group({**group, "params": [self._parameters[name] for name in group["params"]]})
        if rest["further"]:
            optimizer.load_state_dict({**optimizer.state_dict(), **rest["further"]})
        for name, parameter in self._parameters.items():
            if name in tensors:
                self._restore_state_(parameter, tensors[name], rest["values"][name])
            else:
                optimizer.state.pop(parameter, None)  # it never had a gradient
        for key in [key for key in optimizer.state if not isinstance(key, Tensor) and key not in rest["others"]]:
            del optimizer.state[key]
        optimizer.state.update(rest["others"])
        for group, stored in zip(optimizer.param_groups, rest["groups"], strict=True):
            for key in stored.keys() - {"params"}:  # lists and dictionaries may be the same ones in several groups
                is_kept = isinstance(stored[key], Tensor)  # a learning rate that is a tensor stays the same tensor
                group[key] = put_back(group.get(key), stored[key]) if is_kept else stored[key]
        self._attributes.restore_(rest["attributes"])

    def _restore_state_(self, parameter: nn.Parameter, tensors: Mapping[str, list], values: Mapping[str, Any]) -> None:
        live, local = self.optimizer.state[parameter], local_part(parameter)
        for key in live.keys() - tensors.keys() - values.keys():
            del live[key]
        live.update(values)
        for key, (tensor, device_type, kind) in tensors.items():
            device = local.device if device_type == local.device.type else torch.device(device_type)
            known = live.get(key)
            if isinstance(known, Tensor) and kind_of(known) == kind and local_part(known).device == device:
                local_part(known).copy_(tensor)
                continue
            made = torch.empty_like(local, dtype=tensor.dtype, device=device) if tensor.shape == local.shape else None
            made = tensor.to(device, copy=True) if made is None else made.copy_(tensor)
            live[key] = placed_as(parameter, made) if "Shard" in kind or "Replicate" in kind else made

    def _by_parameter(self) -> dict[str, dict[str, Any]]:
        """Return the state of each parameter that has one, in the order of the model's."""
        live = self.optimizer.state
        states = {name: live[parameter] for name, parameter in self._parameters.items() if parameter in live}
        for name, state in states.items():
            if not isinstance(state, dict):
                raise ValueError(f"optimizer's state of {name!r} is a {type(state).__name__}; it must be a dictionary")
        return states

    def _refuse_other_parameters(self) -> None:
        rule = "it must have parameters of the model only: wrap or shard the model first"
        for index, group in enumerate(self.optimizer.param_groups):
            if any(id(parameter) not in self._names for parameter in group["params"]):
                raise ValueError(f"optimizer's group {index} has other parameters; {rule}")
        if any(isinstance(key, Tensor) and id(key) not in self._names for key in self.optimizer.state):
            raise ValueError(f"optimizer's state has other parameters; {rule}")
