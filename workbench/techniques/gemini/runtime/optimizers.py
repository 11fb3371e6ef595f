"""All that training changes in an optimizer, as trees by the names of parameters, and putting it back in place.

Kept: the state of each parameter, whatever it is made of, and other entries of `state`; groups, also those that come
later; what a `state_dict` of the optimizer's own adds; and its plain attributes that have changed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn, optim

from .attributes import Attributes
from .modules import StateMismatch, kind_of, local_part, sharded_as

__all__ = ["OptimizerState"]

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
        """Return the groups, with the names of their parameters."""
        return [
            {**group, "params": [self._names[id(parameter)] for parameter in group["params"]]}
            for group in self.optimizer.param_groups
        ]

    def rest(self) -> dict[str, Any]:
        """Return all but these tensors; ValueError where something could not be put back."""
        self._refuse_other_parameters()
        return {
            "groups": self.groups(),
            "values": {
                name: {key: value for key, value in state.items() if not isinstance(value, Tensor)}
                for name, state in self._by_parameter().items()
            },
            "others": {key: value for key, value in self.optimizer.state.items() if not isinstance(key, Tensor)},
            "further": self._further(),
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
            for key in stored.keys() - {"params"}:
                if isinstance(stored[key], Tensor) and isinstance(group.get(key), Tensor):
                    group[key].copy_(stored[key])  # a learning rate that is a tensor stays the same tensor
                else:
                    group[key] = stored[key]
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
            live[key] = sharded_as(parameter, made) if "Shard" in kind or "Replicate" in kind else made

    def _by_parameter(self) -> dict[str, dict[str, Any]]:
        """Return the state of each parameter that has one, in the order of the model's."""
        states = {}
        for name, parameter in self._parameters.items():
            state = self.optimizer.state.get(parameter)
            if state is not None and not isinstance(state, dict):
                kind = type(state).__name__
                raise ValueError(f"optimizer's state of {name!r} is a {kind}; it must be a dictionary")
            if state is not None:
                states[name] = state
        return states

    def _further(self) -> dict[str, Any]:
        """Return what a state_dict of the optimizer's own, or its hooks, add to the usual entries."""
        optimizer = self.optimizer
        is_usual = type(optimizer).state_dict is optim.Optimizer.state_dict
        if is_usual and not optimizer._optimizer_state_dict_post_hooks:
            return {}
        try:
            whole = optimizer.state_dict()
        except RuntimeError as error:
            raise ValueError(f"optimizer is {type(optimizer).__name__}; its state must be at hand: {error}") from error
        return {key: value for key, value in whole.items() if key not in USUAL}

    def _refuse_other_parameters(self) -> None:
        rule = "it must have parameters of the model only: wrap or shard the model first"
        for index, group in enumerate(self.optimizer.param_groups):
            if any(id(parameter) not in self._names for parameter in group["params"]):
                raise ValueError(f"optimizer's group {index} has other parameters; {rule}")
        if any(isinstance(key, Tensor) and id(key) not in self._names for key in self.optimizer.state):
            raise ValueError(f"optimizer's state has other parameters; {rule}")
