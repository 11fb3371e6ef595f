"""Codecs put into a model, and taken out again: one codec, copied, for all chosen layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.compression import Codec
from workbench.parallel import RowParallelLinear
from workbench.parallel.linear import Reduction

from ..method import method
from .reduction import CompressedReduction, EncoderGradients, FusedReduction, check_fusible

__all__ = ["CompressedOutput", "Compression", "compress"]

OUTPUT_CODEC = "output_codec"  # name of the sub-module that a layer with a compressed output gets


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """What `compress` changed in a model."""

    sites: tuple[str, ...]  # names of the call sites, in the model's order
    codecs: tuple[Codec, ...]  # the codec of each site
    undo: tuple[Callable[[], None], ...]  # what gives each site its plain form back

    def remove(self) -> None:
        """Give the model its plain reductions and outputs back, the last change first."""
        for restore in reversed(self.undo):
            restore()


def compress(
    model: nn.Module,
    codec: Codec | str,
    layers: int | Iterable[int] | Iterable[str] | None = None,
    *,
    fused: bool = False,
    gradients: EncoderGradients | None = None,
) -> Compression:
    """Let the chosen layers of a model communicate encoded activations.

    Layers that hold row-parallel linears reduce through the codec; any other layer has its output encoded and
    decoded, as at a pipeline boundary. Codecs become sub-modules of the model, so that learned ones are trained and
    all of them follow `eval()` and `to(device)`: build the optimizer afterwards.

    Args:
        model: any module; changed in place.
        codec: a codec, copied with its own state for every call site, or a method's name such as "A1".
        layers: how many of the last layers, or their indices, or names of modules; None is the last half. Layers
            are counted in the longest list of modules (ModuleList or Sequential) of the model.
        fused: encode the weights in place of the activations (`FusedReduction`): the same numbers up to rounding from
            far fewer operations, for linear codecs on row-parallel linears. False is the paper's way.
        gradients: sums all encoders' gradients in one message; None sums each by itself.

    Returns:
        The call sites, and how to undo it.

    Raises:
        ValueError: for layers that the model does not have, that come twice, that are none or that have an encoded
            output already, and for fused codes that are not linear; nothing is changed then.

    Source: section 4.1 (the last 12 of 24 layers), sections 3.2 and 3.3.
    """
    chosen = _chosen_layers(model, layers)
    changes = [change for name, layer in chosen for change in _changes(name, layer, codec, fused)]
    sites = [change.site for change in changes]
    if twice := {site for site in sites if sites.count(site) > 1}:
        raise ValueError(f"layers: {sorted(twice)[0]} is chosen twice")
    undo = tuple(change.apply(gradients) for change in changes)
    return Compression(sites=tuple(sites), codecs=tuple(change.codec for change in changes), undo=undo)


class CompressedOutput:
    """A forward hook that hands a module's output on as decode(encode(output)).

    It shows a user's own model what its next stage would receive; the gradient follows the codec's rule.
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec

    def __call__(self, module: nn.Module, inputs: tuple, output):
        """Replace the output tensor, or the first tensor of an output tuple [..., hidden]."""
        if isinstance(output, Tensor):
            return self.codec(output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (self.codec(output[0]), *output[1:])
        given = f"output of {type(module).__name__}={type(output).__name__}"
        raise ValueError(f"{given}: a tensor or a tuple that begins with one")


@dataclass(frozen=True, kw_only=True, slots=True)
class _ReductionChange:
    """A row-parallel linear that is to reduce through a codec: nothing has happened before `apply`."""

    site: str
    module: RowParallelLinear
    codec: Codec
    fused: bool

    def __post_init__(self) -> None:
        if self.fused:
            check_fusible(self.codec)

    def apply(self, gradients: EncoderGradients | None) -> Callable[[], None]:
        """Replace the reduction; return what undoes it."""
        plain, kind = self.module.reduction, FusedReduction if self.fused else CompressedReduction
        self.module.reduction = kind(self.codec, self.module.group, gradients)
        return partial(self._restore, plain, gradients)

    def _restore(self, plain: Reduction | None, gradients: EncoderGradients | None) -> None:
        self.module.reduction = plain
        if gradients is not None:
            gradients.forget(self.codec)


@dataclass(frozen=True, kw_only=True, slots=True)
class _OutputChange:
    """A module whose output is to be encoded and decoded: nothing has happened before `apply`."""

    site: str
    module: nn.Module
    codec: Codec

    def __post_init__(self) -> None:
        if hasattr(self.module, OUTPUT_CODEC):
            raise ValueError(f"layers: the output of {self.site} is compressed already; remove that first")

    def apply(self, gradients: EncoderGradients | None) -> Callable[[], None]:
        """Hook the output; return what undoes it."""
        self.module.add_module(OUTPUT_CODEC, self.codec)
        hook = self.module.register_forward_hook(CompressedOutput(self.codec))
        return partial(self._restore, hook)

    def _restore(self, hook: RemovableHandle) -> None:
        hook.remove()
        delattr(self.module, OUTPUT_CODEC)


_Change = _ReductionChange | _OutputChange


def _changes(name: str, layer: nn.Module, codec: Codec | str, fused: bool) -> Iterator[_Change]:
    reducers = [module for module in layer.modules() if isinstance(module, RowParallelLinear)]
    for module in reducers:
        weight = module.weights[0]
        site_codec = _codec_for(codec, module.site, module.out_features, weight.dtype).to(weight.device)
        yield _ReductionChange(site=module.site, module=module, codec=site_codec, fused=fused)
    if not reducers:
        yield _output_change(name, layer, codec, fused)


def _output_change(name: str, layer: nn.Module, codec: Codec | str, fused: bool) -> _OutputChange:
    if fused:
        raise ValueError(f"fused=True: {name} holds no row-parallel linear, so no weight can be encoded")
    site_codec, parameter = _codec_for(codec, name, None, None), next(layer.parameters(), None)
    return _OutputChange(
        site=name, module=layer, codec=site_codec if parameter is None else site_codec.to(parameter.device)
    )


def _codec_for(codec: Codec | str, site: str, hidden: int | None, dtype: torch.dtype | None) -> Codec:
    if isinstance(codec, str):
        if hidden is None:
            raise ValueError(f"codec={codec!r}: layer {site} has no known width; give a codec such as TopK(0.05)")
        codec = method(codec).codec(hidden, dtype=dtype)
    return codec.for_site(site, hidden)


def _chosen_layers(model: nn.Module, layers: int | Iterable[int] | Iterable[str] | None) -> list[tuple[str, nn.Module]]:
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
