"""Which layers of a model are meant.

Source: "Does compressing activations help model parallel training?", section 4.1: the last 12 of 24 layers.
Simplified: the layers of a model are its longest list of modules. Left out: nothing.
"""

from collections.abc import Iterable

from torch import nn

from workbench.compression import Codec

__all__ = ["chosen_layers"]


def chosen_layers(model: nn.Module, layers: int | Iterable[int] | Iterable[str] | None) -> list[tuple[str, nn.Module]]:
    """Return the chosen layers of a model, each with its name.

    Args:
        model: any module.
        layers: how many of the last ones, or their indices, or names of modules; None is the last half.

    Raises:
        ValueError: for layers that the model does not have, and for none.
    """
    stack = _layer_stack(model)
    if layers is None or isinstance(layers, int):
        count = -(-len(stack) // 2) if layers is None else layers
        if not 1 <= count <= len(stack):
            raise ValueError(f"layers={layers}: the model has {len(stack)} in its longest list; or name modules")
        return stack[len(stack) - count :]
    modules = dict(model.named_modules())
    chosen = [_layer_at(wanted, stack, modules) for wanted in layers]
    if not chosen:
        raise ValueError("layers is empty: nothing would be compressed")
    return chosen


def _layer_at(wanted: int | str, stack: list, modules: dict[str, nn.Module]) -> tuple[str, nn.Module]:
    if isinstance(wanted, str):
        if wanted not in modules:
            raise ValueError(f"layers: the model has no module {wanted!r}")
        return wanted, modules[wanted]
    if not 0 <= wanted < len(stack):
        raise ValueError(f"layers: index {wanted} is outside 0..{len(stack) - 1}")
    return stack[wanted]


def _layer_stack(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the layers of the longest list of modules, each with its name; lists of codecs are ours."""
    kinds = nn.ModuleList | nn.Sequential
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, kinds)]
    lists = [(name, module) for name, module in lists if not any(isinstance(layer, Codec) for layer in module)]
    name, longest = max(lists, key=lambda named: len(named[1]), default=("", ()))
    return [(f"{name}.{index}" if name else str(index), layer) for index, layer in enumerate(longest)]
