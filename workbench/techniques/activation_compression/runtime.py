"""Activation compression on ranks: what travels in place of an activation.

Source: "Does compressing activations help model parallel training?", sections 3.2 (tensor parallelism) and 3.3
(pipeline boundaries).
The same code serves real ranks and virtual ranks in one process: the group decides. Left out: DTensor-parallel models
(`parallelize_module`), whose reductions cannot be replaced from outside; their layers can be compressed at the output.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from workbench.compression import Aggregation, Codec, Payload
from workbench.parallel import RowParallelLinear, TensorGroup
from workbench.parallel.traffic import Phase

from .method import method

__all__ = ["CompressedOutput", "CompressedReduction", "Compression", "EncoderGradients", "compress"]


class CompressedReduction(nn.Module):
    """The sum over a tensor-parallel group of partial activations that travel encoded.

    Forward: every rank encodes its partial sum. Codes that can be summed are all-reduced and decoded once; messages
    that cannot are all-gathered, decoded by every rank and added. Backward: nothing is communicated for the
    activation; the encoder's weight gradient is all-reduced, so that the encoders stay equal.

    Args:
        codec: built for this call site; its `aggregation` says how messages combine.
        group: the tensor-parallel group, real or virtual.
        gradients: sums the encoder's gradient together with those of other call sites; None sums it by itself.

    Source: section 3.2.
    """

    def __init__(self, codec: Codec, group: TensorGroup, gradients: EncoderGradients | None = None) -> None:
        super().__init__()
        self.codecs = nn.ModuleList(codec.for_rank(rank) for rank in group.local_ranks)
        self.group, self.gradients = group, gradients
        if gradients is not None and codec.aggregation is Aggregation.SUM:
            gradients.expect(_Encoder(self.codecs[0]))

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Return the sum over all ranks of their partials [..., hidden].

        Args:
            partials: one tensor a local rank, all of one shape.
        """
        if self.codecs[0].aggregation is Aggregation.SUM:
            return self._sum_of_codes(partials)
        return _SumOfGathered.apply(self, *partials)

    def _sum_of_codes(self, partials: Sequence[Tensor]) -> Tensor:
        encoders = [_Encoder(codec) for codec in self.codecs]
        # Each rank applies the same weights to its own partial: their gradient is the sum over the group.
        shared = self.group.copy if self.gradients is None else _alone
        weights = {name: shared(weight) for name, weight in encoders[0].named_parameters()}
        payloads = [functional_call(*call) for call in zip(encoders, repeat(weights), partials)]
        by_position = zip(*(payload.tensors for payload in payloads), strict=True)
        total = tuple(self.group.sum(codes) for codes in by_position)
        return self.codecs[0].decode(dataclasses.replace(payloads[0], tensors=total))

    def encode(self, partials: Sequence[Tensor]) -> list[Payload]:
        """Return the payload of each local rank's partial."""
        return [codec.encode(partial) for codec, partial in zip(self.codecs, partials, strict=True)]

    def gather(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads of all ranks, in rank order, given those of the local ranks."""
        by_position = zip(*(payload.tensors for payload in payloads), strict=True)
        gathered = [self.group.gather(messages) for messages in by_position]
        return [dataclasses.replace(payloads[0], tensors=tensors) for tensors in zip(*gathered, strict=True)]


def _alone(weight: Tensor) -> Tensor:
    return weight


class EncoderGradients:
    """The gradients of all encoders of a model, summed over the group in one message a backward pass.

    Every encoder must take part in every backward pass: the sum runs when the last gradient has arrived. Gradients of
    several passes add up as usual. Real ranks only: virtual ranks share weights, and autograd sums their gradients.

    Args:
        group: the tensor-parallel group, of real ranks.
    """

    def __init__(self, group: TensorGroup) -> None:
        self.group = group
        self._expected = 0
        self._waiting: list[tuple[nn.Parameter, Tensor]] = []

    def expect(self, encoder: nn.Module) -> None:
        """Take over the gradients of an encoder's weights that its encoding half uses."""
        for name, weight in encoder.named_parameters():
            if name.rpartition(".")[2] == "encoder":
                self._expected += 1
                weight.register_hook(partial(self._arrived, weight))

    def _arrived(self, weight: nn.Parameter, gradient: Tensor) -> Tensor:
        """Keep a gradient back until all are here; then add the sums, and give the last its own."""
        self._waiting.append((weight, gradient))
        if len(self._waiting) < self._expected:
            return torch.zeros_like(gradient)
        waiting, self._waiting = self._waiting, []
        flat = torch.cat([gradient.reshape(-1) for _, gradient in waiting])
        with self.group.traffic.at("encoder gradients", Phase.BACKWARD):
            total = self.group.sum([flat])
        sums = total.split([gradient.numel() for _, gradient in waiting])
        for (earlier, _), summed in zip(waiting[:-1], sums, strict=False):
            earlier.grad.add_(summed.view_as(earlier))
        return sums[-1].view_as(gradient)


class _Encoder(nn.Module):
    """A codec's encoding half as a module, so that its weights can be passed in."""

    def __init__(self, codec: Codec) -> None:
        super().__init__()
        self.codec = codec

    def forward(self, x: Tensor) -> Payload:
        return self.codec.encode(x)


class _SumOfGathered(torch.autograd.Function):
    """Forward: all-gather the messages, decode, add. Backward: the codec's rule, nothing communicated."""

    @staticmethod
    def forward(ctx, reduction: CompressedReduction, *partials: Tensor) -> Tensor:
        ctx.codecs, ctx.payloads = reduction.codecs, reduction.encode(partials)
        return reduction.codecs[0].decode_sum(reduction.gather(ctx.payloads))

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        local = zip(ctx.codecs, ctx.payloads, strict=True)
        return (None, *(codec.input_gradient(grad_output, payload) for codec, payload in local))


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
        raise ValueError(f"output of {type(module).__name__}={type(output).__name__}: a tensor or a tuple that begins with one")


@dataclass(frozen=True, kw_only=True, slots=True)
class Compression:
    """What `compress` changed in a model.

    Attributes:
        sites: names of the call sites, in the model's order.
        codecs: the codec of each site.
        undo: what gives each site its plain form back.
    """

    sites: tuple[str, ...]
    codecs: tuple[Codec, ...]
    undo: tuple[Callable[[], None], ...]

    def remove(self) -> None:
        """Give the model its plain reductions and outputs back, the last change first."""
        for restore in reversed(self.undo):
            restore()


def compress(
    model: nn.Module,
    codec: Codec | str,
    layers: int | Iterable[int] | Iterable[str] | None = None,
    *,
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
        gradients: sums all encoders' gradients in one message; None sums each by itself.

    Returns:
        The call sites, and how to undo it.

    Raises:
        ValueError: for layers that the model does not have, that come twice or that are none; nothing is changed then.

    Source: section 4.1 (the last 12 of 24 layers), sections 3.2 and 3.3.
    """
    changes = [change for name, layer in _chosen_layers(model, layers) for change in _changes(name, layer, codec)]
    sites = [change.site for change in changes]
    if twice := {site for site in sites if sites.count(site) > 1}:
        raise ValueError(f"layers: {sorted(twice)[0]} is chosen twice")
    undo = tuple(change.apply(gradients) for change in changes)
    return Compression(sites=tuple(sites), codecs=tuple(change.codec for change in changes), undo=undo)


OUTPUT_CODEC = "output_codec"  # name of the sub-module that a layer with a compressed output gets


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    """One call site that is to be compressed: nothing has happened before `apply`."""

    site: str
    module: nn.Module
    codec: Codec

    def apply(self, gradients: EncoderGradients | None) -> Callable[[], None]:
        """Compress the call site; return what undoes it."""
        if isinstance(self.module, RowParallelLinear):
            plain = self.module.reduction
            self.module.reduction = CompressedReduction(self.codec, self.module.group, gradients)
            return partial(setattr, self.module, "reduction", plain)
        self.module.add_module(OUTPUT_CODEC, self.codec)
        hook = self.module.register_forward_hook(CompressedOutput(self.codec))
        return partial(self._forget, hook)

    def _forget(self, hook: RemovableHandle) -> None:
        hook.remove()
        delattr(self.module, OUTPUT_CODEC)


def _changes(name: str, layer: nn.Module, codec: Codec | str) -> Iterator[_Change]:
    reducers = [module for module in layer.modules() if isinstance(module, RowParallelLinear)]
    for module in reducers:
        weight = module.weights[0]
        site_codec = _codec_for(codec, module.site, module.out_features, weight.dtype).to(weight.device)
        yield _Change(site=module.site, module=module, codec=site_codec)
    if not reducers:
        parameter = next(layer.parameters(), None)
        site_codec = _codec_for(codec, name, None, None)
        yield _Change(site=name, module=layer, codec=site_codec if parameter is None else site_codec.to(parameter.device))


def _codec_for(codec: Codec | str, site: str, hidden: int | None, dtype: torch.dtype | None) -> Codec:
    if isinstance(codec, str):
        if hidden is None:
            raise ValueError(f"codec={codec!r}: layer {site} has no known width; give a codec such as TopK(0.05)")
        codec = method(codec).codec(hidden, dtype=dtype)
    return codec.for_site(site, hidden)


def _chosen_layers(
    model: nn.Module, layers: int | Iterable[int] | Iterable[str] | None
) -> list[tuple[str, nn.Module]]:
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
    lists = [(name, module) for name, module in model.named_modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    lists = [(name, module) for name, module in lists if not any(isinstance(layer, Codec) for layer in module)]
    name, longest = max(lists, key=lambda named: len(named[1]), default=("", ()))
    return [(f"{name}.{index}" if name else str(index), layer) for index, layer in enumerate(longest)]
