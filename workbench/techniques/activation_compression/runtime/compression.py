"""Codecs put into a model, and taken out again: one codec, copied, for all chosen layers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.compression import Aggregation, Codec
from workbench.parallel import RowParallelLinear
from workbench.parallel.linear import Reduction

from ..method import PAPER_HIDDEN, Family, method
from .layers import Layers, chosen_layers, codec_home
from .reduction import CompressedReduction, EncoderGradients, FusedReduction, check_fusible, require_wrapped

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["CompressedOutput", "Compression", "compress"]


@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Compression:
    """What `compress` changed in a model."""

    sites: tuple[str, ...]  # names of the call sites, in the model's order
    codecs: tuple[Codec, ...]  # the codec of each site
    undo: tuple[Callable[[], None], ...]  # what gives each site its plain form back
    sent: tuple[SentBytes, ...]  # the bytes of each site

    def __repr__(self) -> str:
        kinds = " and ".join(dict.fromkeys(type(codec).__name__ for codec in self.codecs))
        return f"Compression({kinds} at {', '.join(self.sites)}; report() has the bytes, remove() undoes it)"

    def report(self) -> pd.DataFrame:
        """Tell the bytes saved at each site, and at all of them, in the last forward pass.

        Returns:
            A table by layer: plain_bytes, sent_bytes and saved_bytes, and what share is `saved`. A layer's output is
            one message to the next stage; a sum over ranks counts as the bytes that a rank sends in ring collectives.

        Raises:
            RuntimeError: where no site was reached by a forward pass yet.
        """
        import pandas as pd  # half a second, which ranks that train need not wait

        if not any(sent.plain_bytes for sent in self.sent):
            raise RuntimeError("report: no bytes are known yet; run a forward pass of the model, then ask again")
        rows = [(sent.plain_bytes, sent.encoded_bytes) for sent in self.sent]
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

    Returns:
        The call sites, the bytes that they save, and how to undo it.

    Raises:
        ValueError: for layers that the model does not have, that come twice, that are none or that have an encoded
            output already, for a number of blocks where it is not clear which, for a learned method's name where the
            width is not known, for learned codes in a model that DistributedDataParallel or FSDP wraps already, and for
            fused codes that are not linear; nothing is changed then.

    Source: section 4.1 (the last 12 of 24 layers), sections 3.2 and 3.3.
    """
    chosen = chosen_layers(model, layers)
    changes = [change for name, layer in chosen for change in _changes(name, layer, codec, fused)]
    sites = [change.site for change in changes]
    if twice := {site for site in sites if sites.count(site) > 1}:
        raise ValueError(f"layers: {sorted(twice)[0]} is chosen twice")
    _require_unwrapped(model, changes)
    undo = [change.apply(gradients) for change in changes]
    sent = tuple(change.sent_bytes() for change in changes)
    undo += [change.module.register_forward_hook(each).remove for change, each in zip(changes, sent, strict=True)]
    codecs = tuple(change.codec for change in changes)
    _forget_compiled_code()
    return Compression(sites=tuple(sites), codecs=codecs, undo=tuple(undo), sent=sent)


def _forget_compiled_code() -> None:
    """Have torch.compile compile what it has compiled again: it takes no notice of hooks that come or go later."""
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()


class CompressedOutput:
    """A forward hook that hands a module's output on as decode(encode(output)).

    It shows a user's own model what its next stage would receive; the gradient follows the codec's rule.
    """

    def __init__(self, codec: Codec, site: str = "") -> None:
        self.codec, self.site = codec, site
        self._is_asked = False

    def __call__(self, module: nn.Module, inputs: tuple, output):
        """Replace the output tensor, or the first tensor of an output tuple [..., hidden]."""
        require_wrapped(self.codec)
        self._is_asked = True
        if getattr(output, "is_nested", False):
            rule = "it must be a dense one: build nn.TransformerEncoder with enable_nested_tensor=False"
            raise ValueError(f"output of {type(module).__name__} is a nested tensor; {rule}")
        if isinstance(output, Tensor):
            return self.codec(output)
        if isinstance(output, tuple) and output and isinstance(output[0], Tensor):
            return (self.codec(output[0]), *output[1:])
        given = f"output of {type(module).__name__}={type(output).__name__}"
        raise ValueError(f"{given}: a tensor or a tuple that begins with one")

    def refuse_others(self, codec: Codec, inputs: tuple) -> None:
        """Raise RuntimeError where not this hook calls the codec: its layer's forward would encode twice."""
        if not self._is_asked:
            rule = "compress the layer around it, or one inside, if its forward calls all of its sub-modules"
            raise RuntimeError(f"{type(codec).__name__} of {self.site or 'a layer'} is called by another; {rule}")
        self._is_asked = False


@dataclass(kw_only=True, slots=True)
class SentBytes:
    """A forward hook that notes how many bytes are sent of a module's output, plain and encoded."""

    codec: Codec
    plain_copies: float = 1.0  # times that a rank sends the plain output: once to the next stage
    encoded_copies: float = 1.0
    plain_bytes: int = 0  # of the last forward pass
    encoded_bytes: int = 0

    def __call__(self, module: nn.Module, inputs: tuple, output) -> None:
        """Note the bytes of an output tensor, or of the first tensor of an output tuple."""
        tensor = output if isinstance(output, Tensor) else output[0]
        self.plain_bytes = round(self.plain_copies * tensor.nbytes)
        self.encoded_bytes = round(self.encoded_copies * self.codec.payload_bytes(tensor.shape, tensor.dtype))


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

    def sent_bytes(self) -> SentBytes:
        """Count a ring's all-reduce, and its all-gather where codes cannot be summed."""
        size = self.module.group.size
        summed, gathered = 2 * (size - 1) / size, size - 1
        copies = summed if self.codec.aggregation is Aggregation.SUM else gathered
        return SentBytes(codec=self.codec, plain_copies=summed, encoded_copies=copies)

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
        if any(isinstance(hook, CompressedOutput) for hook in self.module._forward_hooks.values()):
            raise ValueError(f"layers: the output of {self.site} is compressed already; remove that first")
        if isinstance(self.module, nn.ModuleList | nn.ModuleDict):
            inner = [f"{self.site}.{name}" for name, _ in self.module.named_children()][-2:]
            raise ValueError(f"layers has {self.site!r}, a list without an output; name its modules, such as {inner}")
        if codec_home(self.module) is None:
            raise ValueError(f"layers has {self.site!r}, a Sequential without a layer that could hold one more codec")

    def sent_bytes(self) -> SentBytes:
        """Count one message to the next stage."""
        return SentBytes(codec=self.codec)

    def apply(self, gradients: EncoderGradients | None) -> Callable[[], None]:
        """Hook the output; return what undoes it."""
        home, name = codec_home(self.module)
        home.add_module(name, self.codec)
        output = CompressedOutput(self.codec, self.site)
        hooks = [self.module.register_forward_hook(output), self.codec.register_forward_pre_hook(output.refuse_others)]
        return partial(self._restore, hooks, partial(delattr, home, name))

    def _restore(self, hooks: list[RemovableHandle], forget: Callable[[], None]) -> None:
        for hook in hooks:
            hook.remove()
        forget()


_Change = _ReductionChange | _OutputChange
WRAPPERS = {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}  # know the parameters of their start


def _require_unwrapped(model: nn.Module, changes: list[_Change]) -> None:
    learned = [change.site for change in changes if any(True for _ in change.codec.parameters())]
    classes = {kind.__name__ for module in model.modules() for kind in type(module).__mro__}
    if learned and (wrappers := sorted(WRAPPERS & classes)):
        rule = "would not synchronise the weights of learned codes: compress the model first, then wrap it"
        raise ValueError(f"model holds a {wrappers[0]}, which {rule}")


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
    parameter = next(layer.parameters(), torch.empty(0))
    site_codec = _codec_for(codec, name, None, parameter.dtype).to(parameter.device)
    return _OutputChange(site=name, module=layer, codec=site_codec)


def _codec_for(codec: Codec | str, site: str, hidden: int | None, dtype: torch.dtype) -> Codec:
    if isinstance(codec, str):
        if hidden is None and method(codec).family is Family.AUTOENCODER:
            rule = "pass AutoEncoder(hidden, code_size) of workbench.compression, with that width as hidden"
            raise ValueError(f"codec is {codec!r}, a learned code; the width of {site}'s output is not known: {rule}")
        codec = method(codec).codec(hidden or PAPER_HIDDEN, dtype=dtype)
    return codec.for_site(site, hidden)
