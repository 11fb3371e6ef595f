"""The gradients of all learned codes of a model in one message.

Source: section 3.2 of "Does compressing activations help model parallel training?": equal encoders on all ranks of a
group; one message in place of one a call site is ours.
Simplified: the sum starts when the last gradient has arrived, so nothing overlaps with it.
Left out: passes in which some encoder has no gradient.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from workbench.compression import Codec
from workbench.parallel import TensorGroup
from workbench.parallel.traffic import Phase

__all__ = ["EncoderGradients"]


class EncoderGradients:
    """The gradients of all encoders of a model, summed over the group in one message a backward pass.

    Every encoder must take part in every backward pass: the sum runs when the last gradient has arrived. Gradients of
    several passes add up as usual. Real ranks only: virtual ranks share weights, and autograd sums their gradients.

    Args:
        group: the tensor-parallel group, of real ranks.

    Raises:
        ValueError: for virtual ranks.
    """

    def __init__(self, group: TensorGroup) -> None:
        if len(group.local_ranks) != 1:
            ranks = f"group holds ranks {group.local_ranks} in one process"
            raise ValueError(f"{ranks}: autograd sums their gradients already")
        self.group = group
        self._hooks: dict[nn.Parameter, RemovableHandle] = {}
        self._waiting: list[tuple[nn.Parameter, Tensor]] = []

    def expect(self, codec: Codec) -> None:
        """Take over the gradients of the weights that a codec encodes with, those named "encoder".

        Raises:
            ValueError: for a codec whose weights have other names: which of them encode cannot be known.
        """
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
