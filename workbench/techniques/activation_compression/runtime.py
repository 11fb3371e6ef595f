"""Activation compression on real and virtual ranks: encoded sums, encoded outputs, and the call that adds them.

One codec, copied, serves all chosen layers of a model; all of it can be taken out again (sections 3.2 and 3.3).
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from workbench.compression import Aggregation, Codec, Payload
from workbench.parallel import RowParallelLinear, TensorGroup
from workbench.parallel.traffic import Phase

from .layers import CODEC_NAMES, Layers, chosen_layers
from .method import PAPER_HIDDEN, Family, method

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CODEC_NAMES", "CompressedOutput", "CompressedReduction", "Compression", "EncoderGradients"]
__all__ += ["FusedReduction", "compress"]

WRAPPERS = {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}  # know the parameters of their start


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Compression:
    """What `compress` changed in a model."""

    sites: tuple[str, ...]  # names of the call sites, in the model's order
    codecs: tuple[Codec, ...]  # the codec of each site
    undo: tuple[Callable[[], None], ...]  # what gives each site its plain form back
    sent: tuple[Site, ...]  # what each site sends

    def __repr__(self) -> str:
        kinds = " and ".join(dict.fromkeys(type(codec).__name__ for codec in self.codecs))
        return f"Compression({kinds} at {', '.join(self.sites)}; report() has the bytes, remove() undoes it)"

    def report(self) -> pd.DataFrame:
        """Return a table of the bytes of the last forward pass, by layer and for all; RuntimeError before there is one.

        Columns are plain_bytes, sent_bytes and saved_bytes, and what share is `saved`. A layer's output is one message
        to the next stage; a sum over ranks counts as the bytes that a rank sends in ring collectives.
        """
        import pandas as pd  # half a second, which ranks that train need not wait

        rows = [(site.plain_bytes, site.encoded_bytes) for site in self.sent]
        if not any(plain_bytes for plain_bytes, _ in rows):
            raise RuntimeError("report: no bytes are known yet; run a forward pass of the model, then ask again")
        table = pd.DataFrame(rows, index=pd.Index(self.sites, name="layer"), columns=["plain_bytes", "sent_bytes"])
        table.loc["all"] = table.sum()
        table["saved_bytes"] = table.plain_bytes - table.sent_bytes
        table["saved"] = (table.saved_bytes / table.plain_bytes).map("{:.0%}".format)
        return table

    def remove(self) -> None:
        """Give the model its plain reductions and outputs back, the last change first."""
        for restore in reversed(self.undo):
            restore()
        _forget_compiled_code()


def compress(
    model: nn.Module,
    codec: Codec | str,
    layers: Layers = None,
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
        layers: how many of the last blocks, or their indices, or names of modules; None is the last half of the blocks.
            Blocks are the transformer's, or those of another stack of equal modules (ModuleList or Sequential).
        fused: encode the weights in place of the activations (`FusedReduction`): the same numbers up to rounding from
            far fewer operations, for linear codecs on row-parallel linears. False is the paper's way.
        gradients: sums all encoders' gradients in one message; None sums each by itself.

    Raises:
        ValueError: before anything is changed, for layers that the model does not have, that come twice, that are none
            or that are encoded already, for a number where it is not clear which blocks, for a learned method's name
            where the width is not known, for learned codes in a model that is wrapped already (DistributedDataParallel,
            FSDP), and for fused codes that are not linear.

    Source: section 4.1 (the last 12 of 24 layers), sections 3.2 and 3.3.
    """
    sites = [site for name, layer in chosen_layers(model, layers) for site in _sites(name, layer, codec, fused)]
    names = [site.name for site in sites]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"layers: {sorted(twice)[0]} is chosen twice")
    classes = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    is_learned = any(True for site in sites for _ in site.codec.parameters())
    if is_learned and (wrappers := sorted(WRAPPERS & classes)):
        rule = "would not synchronise the weights of learned codes: compress the model first, then wrap it"
        raise ValueError(f"model holds a {wrappers[0]}, which {rule}")
    undo: list[Callable[[], None]] = []
    for site in sites:
        if isinstance(linear := site.module, RowParallelLinear):
            undo.append(partial(setattr, linear, "reduction", linear.reduction))
            linear.reduction = (FusedReduction if fused else CompressedReduction)(site.codec, linear.group, gradients)
            if gradients is not None:
                undo.append(partial(gradients.forget, site.codec))
        else:
            home, name = _codec_home(site.name, site.module)
            home.add_module(name, site.codec)
            output = CompressedOutput(site.codec, site.name)
            undo.append(partial(delattr, home, name))
            undo.append(site.module.register_forward_hook(output).remove)
            undo.append(site.codec.register_forward_pre_hook(output.refuse_others).remove)
        undo.append(site.module.register_forward_hook(site).remove)
    _forget_compiled_code()
    codecs = tuple(site.codec for site in sites)
    return Compression(sites=tuple(names), codecs=codecs, undo=tuple(undo), sent=tuple(sites))


def _forget_compiled_code() -> None:
    """Have torch.compile compile what it has compiled again: it takes no notice of hooks that come or go later."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


# --- call sites


@dataclass(kw_only=True, slots=True)
class Site:
    """A call site, and the forward hook that notes how many bytes are sent of its output, plain and encoded."""

    name: str  # in the model
    module: nn.Module  # a row-parallel linear that reduces through the codec, or else a layer with an output
    codec: Codec
    plain_copies: float = 1.0  # times that a rank sends the plain output
    encoded_copies: float = 1.0
    plain_bytes: int = 0  # in the last forward pass
    encoded_bytes: int = 0

    def __call__(self, module: nn.Module, inputs: tuple, output) -> None:
        """Note the bytes of an output tensor, or of the first tensor of an output tuple."""
        tensor = output if isinstance(output, Tensor) else output[0]
        self.plain_bytes = round(self.plain_copies * tensor.nbytes)
        self.encoded_bytes = round(self.encoded_copies * self.codec.payload_bytes(tensor.shape, tensor.dtype))


def _sites(name: str, layer: nn.Module, codec: Codec | str, fused: bool) -> Iterator[Site]:
    """Yield the call sites of one layer; refuse the layer before anything changes."""
    reducers = [module for module in layer.modules() if isinstance(module, RowParallelLinear)]
    for module in reducers:
        site_codec = _codec_for(codec, module.site, module.out_features, module.weights[0])
        if fused:
            check_fusible(site_codec)
        size = module.group.size  # a ring's all-reduce, and its all-gather where codes cannot be summed
        plain = 2 * (size - 1) / size
        encoded = plain if site_codec.aggregation is Aggregation.SUM else size - 1
        yield Site(name=module.site, module=module, codec=site_codec, plain_copies=plain, encoded_copies=encoded)
    if reducers:
        return
    if fused:
        raise ValueError(f"fused=True: {name} holds no row-parallel linear, so no weight can be encoded")
    site_codec = _codec_for(codec, name, None, next(layer.parameters(), torch.empty(0)))
    if any(isinstance(hook, CompressedOutput) for hook in layer._forward_hooks.values()):
        raise ValueError(f"layers: the output of {name} is compressed already; remove that first")
    if isinstance(layer, nn.ModuleList | nn.ModuleDict):
        inner = [f"{name}.{child}" for child, _ in layer.named_children()][-2:]
        raise ValueError(f"layers has {name!r}, a list without an output; name its modules, such as {inner}")
    _codec_home(name, layer)
    yield Site(name=name, module=layer, codec=site_codec)


def _codec_for(codec: Codec | str, site: str, hidden: int | None, like: Tensor) -> Codec:
    """Return the codec of a call site, with the type and on the device of one of its weights."""
    if isinstance(codec, str):
        if hidden is None and method(codec).family is Family.AUTOENCODER:
            rule = "pass AutoEncoder(hidden, code_size) of workbench.compression, with that width as hidden"
            raise ValueError(f"codec is {codec!r}, a learned code; the width of {site}'s output is not known: {rule}")
        codec = method(codec).codec(hidden or PAPER_HIDDEN, dtype=like.dtype)
    return codec.for_site(site, hidden).to(like.device)


def _codec_home(name: str, layer: nn.Module) -> tuple[nn.Module, str]:
    """Return the module that holds the codec of a layer's output, and the codec's name there, or refuse the layer.

    A Sequential would run a further child, as a layer of its own: there it is the first leaf that has none yet.
    """
    in_layer, in_sequence = CODEC_NAMES
    if not isinstance(layer, nn.Sequential):
        return layer, in_layer
    for inner, module in layer.named_modules():
        is_list = isinstance(module, nn.Sequential | nn.ModuleList | nn.ModuleDict)
        is_codec = set(CODEC_NAMES) & set(inner.split("."))
        if not is_list and not is_codec and all(child == in_layer for child, _ in module.named_children()):
            return module, in_sequence
    raise ValueError(f"layers has {name!r}, a Sequential without a layer that could hold one more codec")


class CompressedOutput:
    """A forward hook that hands a module's output on as decode(encode(output)), as its next stage would receive it."""

    def __init__(self, codec: Codec, site: str) -> None:
        self.codec, self.site = codec, site
        self._is_asked = False

    def __call__(self, module: nn.Module, inputs: tuple, output):
        """Replace the output tensor, or the first tensor of an output tuple [..., hidden]."""
        require_wrapped(self.codec)
        self._is_asked = True
        if getattr(output, "is_nested", False):
            rule = "it must be a dense one: build nn.TransformerEncoder with enable_nested_tensor=False"
            raise ValueError(f"output of {type(module).__name__} is a nested tensor; {rule}")
        first = output[0] if isinstance(output, tuple) and output else output
        if not isinstance(first, Tensor):
            given = f"output of {type(module).__name__}={type(output).__name__}"
            raise ValueError(f"{given}: a tensor or a tuple that begins with one")
        if not first.is_floating_point():
            raise ValueError(f"output of {type(module).__name__} is {first.dtype}; it must be of floats")
        if first is output:
            return self.codec(output)
        parts = self.codec(first), *output[1:]
        return type(output)(*parts) if hasattr(output, "_fields") else parts  # users read named tuples by name

    def refuse_others(self, codec: Codec, inputs: tuple) -> None:
        """Raise RuntimeError where not this hook calls the codec: its layer's forward would encode twice."""
        if not self._is_asked:
            rule = "compress the layer around it, or one inside, if its forward calls all of its sub-modules"
            raise RuntimeError(f"{type(codec).__name__} of {self.site} is called by another; {rule}")
        self._is_asked = False


# --- encoded sums over a tensor-parallel group


class CompressedReduction(nn.Module):
    """The sum over a tensor-parallel group of partial activations that travel encoded.

    Forward: every rank encodes its partial sum. Codes that can be summed are all-reduced and decoded once; messages
    that cannot are all-gathered, decoded by every rank and added. Backward: nothing is communicated for the
    activation; the encoder's weight gradient is all-reduced, by itself or by `gradients` together with those of other
    call sites, so that the encoders stay equal.

    Source: section 3.2.
    """

    def __init__(self, codec: Codec, group: TensorGroup, gradients: EncoderGradients | None = None) -> None:
        super().__init__()
        self.codecs = nn.ModuleList(codec.for_rank(rank) for rank in group.local_ranks)
        self.group, self.gradients = group, gradients
        if gradients is not None and codec.aggregation is Aggregation.SUM:
            gradients.expect(self.first_codec)

    @property
    def first_codec(self) -> Codec:
        """The codec of the first local rank, whose weights all ranks share."""
        codec = self.codecs[0]
        assert isinstance(codec, Codec)
        return codec

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Return the sum over all ranks of their partials [..., hidden], one tensor a local rank, all of one shape."""
        if self.first_codec.aggregation is Aggregation.SUM:
            return self._sum_of_codes(self._encode_alike(partials))
        return _SumOfGathered.apply(self, *partials)

    def _sum_of_codes(self, payloads: Sequence[Payload]) -> Tensor:
        by_position = zip(*(payload.tensors for payload in payloads), strict=True)
        total = tuple(self.group.sum(codes) for codes in by_position)
        return self.first_codec.decode(dataclasses.replace(payloads[0], tensors=total))

    def _encode_alike(self, tensors: Sequence[Tensor]) -> list[Payload]:
        """Encode one tensor a local rank with the weights that all ranks share."""
        require_wrapped(self.first_codec)
        encoders = [_Encoder(codec) for codec in self.codecs]
        weights: dict[str, Tensor] = dict(encoders[0].named_parameters())
        if self.gradients is None:
            # Each rank applies the same weights to its own tensor: their gradient is the sum over the group.
            weights = {name: self.group.copy(weight) for name, weight in weights.items()}
        return [functional_call(encoder, weights, tensor) for encoder, tensor in zip(encoders, tensors, strict=True)]


class FusedReduction(CompressedReduction):
    """The same sum of codes without the partial activations: the weight is encoded in their place.

    A linear code needs no full-size product: (xᵣ Wᵣᵀ) E = xᵣ (Wᵣᵀ E). With N tokens, I/T inputs, hidden size h and
    code size c, a rank's share of the layer takes forward and backward 6·(h·I/T + N·I/T + N·h)·c floating point
    operations, not 6·N·h·(I/T + 2·c). Outputs and all gradients are those of `CompressedReduction` up to rounding:
    the gradient g of the code reaches xᵣ as g (Wᵣᵀ E)ᵀ, the weight as E (xᵣᵀ g)ᵀ and the encoder as Wᵣ xᵣᵀ g. What is
    communicated is the same. A codec that is not linear is refused, error feedback included.

    Source: ours; section 3.2 is `CompressedReduction`.
    """

    def __init__(self, codec: Codec, group: TensorGroup, gradients: EncoderGradients | None = None) -> None:
        check_fusible(codec)
        super().__init__(codec, group, gradients)

    def reduce_products(
        self, weights: Sequence[Tensor], multiply: Callable[[Sequence[Tensor]], list[Tensor]]
    ) -> Tensor:
        """Return the sum over all ranks of their partials [..., hidden]; see `ReductionOfProducts`."""
        encoded = self._encode_alike([weight.t() for weight in weights])
        codes = multiply([payload.tensors[0].t() for payload in encoded])
        # A payload of activations [..., h] has their codes [..., c]; that of the weight has its shape [I/T, h].
        shape = torch.Size((*codes[0].shape[:-1], encoded[0].shape[-1]))
        return self._sum_of_codes([Payload(tensors=(code,), shape=shape, dtype=code.dtype) for code in codes])


class EncoderGradients:
    """The gradients of all encoders of a model, summed over the group in one message a backward pass.

    Every encoder must take part in every backward pass: the sum runs when the last gradient has arrived. Gradients of
    several passes add up as usual. Virtual ranks are refused: they share weights, and autograd sums their gradients.
    """

    def __init__(self, group: TensorGroup) -> None:
        if len(group.local_ranks) != 1:
            ranks = f"group holds ranks {group.local_ranks} in one process"
            raise ValueError(f"{ranks}: autograd sums their gradients already")
        self.group = group
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._waiting: list[tuple[nn.Parameter, Tensor]] = []

    def expect(self, codec: Codec) -> None:
        """Take over the gradients of the weights that a codec encodes with: those named "encoder", else ValueError."""
        weights = {name: weight for name, weight in codec.named_parameters() if name.rpartition(".")[2] == "encoder"}
        if not weights and any(True for _ in codec.parameters()):
            rule = "none of its weights is named encoder; sum its gradients by itself"
            raise ValueError(f"codec={type(codec).__name__}: {rule}")
        for weight in weights.values():
            self._hooks[weight] = weight.register_hook(partial(self._arrived, weight))

    def forget(self, codec: Codec) -> None:
        """Leave a codec's gradients alone from now on."""
        for weight in codec.parameters():
            if weight in self._hooks:
                self._hooks.pop(weight).remove()

    def _arrived(self, weight: nn.Parameter, gradient: Tensor) -> Tensor:
        """Keep a gradient back until all are here; then add the sums, and give the last its own."""
        self._waiting.append((weight, gradient))
        if len(self._waiting) < len(self._hooks):
            return torch.zeros_like(gradient)
        waiting, self._waiting = self._waiting, []
        flat = torch.cat([gradient.reshape(-1) for _, gradient in waiting])
        with self.group.traffic.at("encoder gradients", Phase.BACKWARD):
            total = self.group.sum([flat])
        sums = total.split([gradient.numel() for _, gradient in waiting])
        for (earlier, _), summed in zip(waiting[:-1], sums, strict=False):
            assert earlier.grad is not None  # the zeros that it was given
            earlier.grad.add_(summed.view_as(earlier))
        return sums[-1].view_as(gradient)


def check_fusible(codec: Codec) -> None:
    """Raise ValueError for a codec that cannot encode a weight in place of its products."""
    if not codec.is_linear:
        rule = "only a linear code, encode(x W) = x encode(W), can be taken of the weight in place of the activation"
        raise ValueError(f"fused=True with codec={codec}: {rule}")


def require_wrapped(codec: Codec) -> None:
    """Raise RuntimeError for a learned code that came into a model after DistributedDataParallel had wrapped it."""
    wrapper = DistributedDataParallel._active_ddp_module
    if wrapper is None or torch.compiler.is_compiling():
        return
    weights = {id(weight) for weight in codec.parameters() if weight.requires_grad}
    if not weights <= {id(weight) for weight in (wrapper._module_parameters if weights else ())}:
        rule = "compress the model before DistributedDataParallel wraps it"
        raise RuntimeError(f"weights of {codec} would not be synchronised between ranks: {rule}")


class _Encoder(nn.Module):
    """A codec's encoding half as a module, so that its weights can be passed in."""

    def __init__(self, codec: nn.Module) -> None:
        super().__init__()
        assert isinstance(codec, Codec)
        self.codec = codec

    def forward(self, x: Tensor) -> Payload:
        return self.codec.encode(x)


class _SumOfGathered(torch.autograd.Function):
    """Forward: all-gather the messages, decode, add. Backward: the codec's rule, nothing communicated."""

    @staticmethod
    def forward(ctx, reduction: CompressedReduction, *partials: Tensor) -> Tensor:
        ctx.codecs = reduction.codecs
        ctx.payloads = [codec.encode(partial) for codec, partial in zip(ctx.codecs, partials, strict=True)]
        by_position = zip(*(payload.tensors for payload in ctx.payloads), strict=True)
        gathered = [reduction.group.gather(messages) for messages in by_position]  # all ranks, in order
        payloads = [dataclasses.replace(ctx.payloads[0], tensors=sent) for sent in zip(*gathered, strict=True)]
        return ctx.codecs[0].decode_sum(payloads)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output: Tensor):
        local = zip(ctx.codecs, ctx.payloads, strict=True)
        return (None, *(codec.input_gradient(grad_output, payload) for codec, payload in local))
