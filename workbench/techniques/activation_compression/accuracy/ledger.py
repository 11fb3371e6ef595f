"""Bytes that a rank sends in a training step, by what they are for.

Source: "Does compressing activations help model parallel training?", sections 3.2 and 3.3.
Counted, not computed: the messages that the groups really carried.
Simplified: payload, that is, what one rank contributes to a collective; a mean over the steps, whose batches differ.
Left out: the two backward all-reduces of a layer, which no method compresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from workbench.parallel import MessageKind, Phase, Traffic
from workbench.parallel.pipeline import boundary_site

__all__ = ["QUANTITIES", "Ledger"]

QUANTITIES = ("tensor_bytes", "boundary_bytes", "compressed_site_bytes", "encoder_gradient_bytes")


class Ledger:
    """Adds up the bytes of training steps.

    Args:
        traffic: what the ranks of this process send; cleared after each step.
        layers: the layers that are, or would be, compressed.
        boundaries: the stages in front of which messages are, or would be, compressed.
    """

    def __init__(self, traffic: Traffic, layers: Iterable[int], boundaries: Iterable[int]) -> None:
        self.traffic = traffic
        self.sites = {f"layers.{layer}.{part}.output" for layer in layers for part in ("attention", "mlp")}
        self.sites |= {boundary_site(index) for index in boundaries}
        self.totals, self.num_steps = Counter(), 0

    def close_step(self, batch: object = None) -> None:
        """Enter the messages of one step, of whatever batch, and forget them."""
        self.num_steps += 1
        for message in self.traffic:
            for quantity in self._quantities(message):
                self.totals[quantity] += message.message_bytes
        self.traffic.clear()

    def _quantities(self, message) -> list[str]:
        is_boundary = message.what is MessageKind.SEND
        if message.phase is Phase.BACKWARD and not is_boundary:
            return ["encoder_gradient_bytes"] if message.site in self.sites else []
        found = ["boundary_bytes" if is_boundary else "tensor_bytes"]
        return [*found, "compressed_site_bytes"] if message.site in self.sites else found

    def per_step(self) -> dict[str, float]:
        """Return each quantity in bytes a step."""
        return {quantity: self.totals[quantity] / max(1, self.num_steps) for quantity in QUANTITIES}
