"""The sum over a tensor-parallel group of partial activations that travel encoded, plain and fused (section 3.2)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from workbench.compression import Aggregation, Codec, Payload
from workbench.parallel import TensorGroup
from workbench.parallel.traffic import Phase

__all__ = ["CompressedReduction", "EncoderGradients", "FusedReduction", "check_fusible", "require_wrapped"]


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
            gradients.expect(self.codecs[0])

    def forward(self, partials: Sequence[Tensor]) -> Tensor:
        """Return the sum over all ranks of their partials [..., hidden], one tensor a local rank, all of one shape."""
        if self.codecs[0].aggregation is Aggregation.SUM:
            return self._sum_of_codes(self._encode_alike(partials))
        return _SumOfGathered.apply(self, *partials)

    def _sum_of_codes(self, payloads: Sequence[Payload]) -> Tensor:
        by_position = zip(*(payload.tensors for payload in payloads), strict=True)
        total = tuple(self.group.sum(codes) for codes in by_position)
        return self.codecs[0].decode(dataclasses.replace(payloads[0], tensors=total))

    def _encode_alike(self, tensors: Sequence[Tensor]) -> list[Payload]:
        """Encode one tensor a local rank with the weights that all ranks share."""
        require_wrapped(self.codecs[0])
        encoders = [_Encoder(codec) for codec in self.codecs]
        weights = dict(encoders[0].named_parameters())
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

    def __init__(self, codec: Codec) -> None:
        super().__init__()
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
        gathered = [reduction.group.gather(messages) for messages in by_position]  # of all ranks, in rank order
        payloads = [dataclasses.replace(ctx.payloads[0], tensors=sent) for sent in zip(*gathered, strict=True)]
        return ctx.codecs[0].decode_sum(payloads)

    @staticmethod
    def backward(ctx, grad_output: Tensor):
        local = zip(ctx.codecs, ctx.payloads, strict=True)
        return (None, *(codec.input_gradient(grad_output, payload) for codec, payload in local))
