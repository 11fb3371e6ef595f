"""Deep gradient compression: Top-K of gradients accumulated with momentum, one state u, v a call site.

    u ← m u + g      v ← v + u      send the largest |v|; there v ← 0 (and, with masking, u ← 0)

The receiver averages what is sent and steps by it with no momentum of its own; error feedback around this codec would
count v twice. The loop clips before `encode`: the norm of all gradients of a rank, to the limit divided
by the square root of the number of ranks. In evaluation it is plain Top-K. The selection is TopK's: a threshold found
on a sample, then exactly k elements, so that a payload's size depends on shape, dtype and epoch only.
Source: Lin et al. (2018), "Deep gradient compression: reducing the communication bandwidth for distributed training".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from workbench.compression.codec import Payload
from workbench.compression.topk import TopK
from workbench.recomputation import changes_once

__all__ = ["DGC", "dgc_by_definition", "exponential_warmup"]

# Share of the elements kept in the first epoch, and the factor from one epoch to the next (Lin et al., section 3.3).
WARMUP_FACTOR = 0.25


class DGC(TopK):
    """Keep the `keep` elements of largest magnitude of what momentum has accumulated.

    Args:
        keep: share or number of elements after the warm-up, see SparseCodec.
        momentum: m in [0, 1).
        warmup: shares kept in the first epochs, see `at_epoch` and `exponential_warmup`.
        masking: whether momentum stops where an element was sent.
        index_dtype: torch.int64 or torch.int32.
    """

    def __init__(
        self,
        keep: float | int = 0.01,
        *,
        momentum: float = 0.9,
        warmup: Sequence[float] = (),
        masking: bool = True,
        index_dtype: torch.dtype = torch.int64,
    ) -> None:
        super().__init__(keep, index_dtype=index_dtype)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum is {momentum}: it must lie in [0, 1)")
        if not all(0 < share <= 1 for share in warmup):
            raise ValueError(f"warmup is {warmup}: each share must lie in (0, 1]")
        self.momentum = momentum
        self.masking = masking
        self.site = ""
        self.shares = (*map(float, warmup), keep)
        self.velocity: Tensor | None = None  # no buffers: DistributedDataParallel would broadcast them
        self.accumulated: Tensor | None = None
        self._is_remembered = False  # whether a checkpointed region also holds u and v
        self.at_epoch(0)

    def at_epoch(self, epoch: int) -> None:
        """Keep the share of this epoch, counted from 0, which decides payload sizes; all ranks call it alike."""
        if epoch < 0:
            raise ValueError(f"epoch is {epoch}: it must be at least 0")
        self.epoch, self.keep = epoch, self.shares[min(epoch, len(self.shares) - 1)]

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Accumulate a gradient, always of the same shape, and take the largest elements out of the sum.

        Raises:
            ValueError: if x has another shape than before.
        """
        if not self.training:
            return super().encode(x)
        with changes_once(self, self.site, self._remember, self._go_back_):
            velocity, accumulated = self._state_for(x)
            torch.add(x.detach(), velocity, alpha=self.momentum, out=velocity)
            payload = super().encode(accumulated.add_(velocity))
            for state in (accumulated, velocity) if self.masking else (accumulated,):
                state.view(-1).index_fill_(0, payload.tensors[1].to(torch.int64), 0.0)
            if not payload.tensors[0].isfinite().all():  # such values count as largest: if none is sent, none is left
                for state in (accumulated, velocity):
                    state.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            return payload

    def _remember(self) -> tuple[Tensor | None, Tensor | None]:
        self._is_remembered = True
        return self.velocity, self.accumulated

    def _go_back_(self, state: tuple[Tensor | None, Tensor | None]) -> None:
        self.velocity, self.accumulated = state

    def clear(self) -> None:
        """Forget the accumulated gradients, as after a change of shape or a restart."""
        self.velocity = self.accumulated = None

    def for_site(self, site: str, hidden: int | None = None) -> DGC:
        """Make the codec of one call site, at the same epoch, with nothing accumulated yet."""
        *warmup, keep = self.shares
        codec = DGC(keep, momentum=self.momentum, warmup=warmup, masking=self.masking, index_dtype=self.index_dtype)
        codec.site = site
        codec.at_epoch(self.epoch)
        return codec.train(self.training)

    def for_rank(self, rank: int) -> DGC:
        """Make the codec of one rank, with nothing accumulated yet."""
        return self.for_site(f"{self.site}, rank {rank}")

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """Give u and v."""
        return () if self.velocity is None or self.accumulated is None else (self.velocity, self.accumulated)

    def get_extra_state(self) -> dict[str, Tensor]:
        """Give the epoch, int64 [], and u and v where there are some, for the state dict."""
        return {"epoch": torch.tensor(self.epoch), **dict(zip(("velocity", "accumulated"), self.memory, strict=False))}

    def set_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Continue at the epoch, and with u and v, that `get_extra_state` gave."""
        self.at_epoch(int(state["epoch"]))
        self.velocity = state["velocity"].clone() if "velocity" in state else None
        self.accumulated = state["accumulated"].clone() if "accumulated" in state else None

    def _state_for(self, x: Tensor) -> tuple[Tensor, Tensor]:
        velocity, accumulated = self.memory or (x.new_zeros(x.shape), x.new_zeros(x.shape))
        if x.shape != velocity.shape:
            raise ValueError(
                f"x at site {self.site!r} has shape {tuple(x.shape)}, the accumulated gradient "
                f"{tuple(velocity.shape)}: they must be equal; call clear() when the shape changes"
            )
        self.velocity = velocity.to(x, copy=self._is_remembered)
        self.accumulated = accumulated.to(x, copy=self._is_remembered)
        self._is_remembered = False
        return self.velocity, self.accumulated


def exponential_warmup(keep: float) -> tuple[float, ...]:
    """Give the shares 1/4, 1/16, ... above `keep`; of 0.001 the paper's 75, 93.75, 98.4375 and 99.6 % sparsity."""
    shares = [WARMUP_FACTOR]
    while shares[-1] > keep > 0:
        shares.append(shares[-1] * WARMUP_FACTOR)
    return tuple(shares[:-1])


def dgc_by_definition(
    gradients: Sequence[list[float]], num_kept: int, momentum: float, masking: bool = True
) -> list[dict[int, float]]:
    """Return the sent values of each step by ascending position, computed with plain numbers."""
    velocity = [0.0] * len(gradients[0])
    accumulated = [0.0] * len(gradients[0])
    sent = []
    for gradient in gradients:
        velocity = [momentum * u + g for u, g in zip(velocity, gradient, strict=True)]
        accumulated = [v + u for v, u in zip(accumulated, velocity, strict=True)]
        magnitudes = [abs(v) for v in accumulated]
        largest = sorted(range(len(gradient)), key=magnitudes.__getitem__, reverse=True)[:num_kept]
        sent.append({i: accumulated[i] for i in sorted(largest)})
        for i in largest:
            accumulated[i] = 0.0
            velocity[i] = 0.0 if masking else velocity[i]
    return sent
