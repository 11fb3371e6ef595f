"""Error feedback: encode x + e, and let e become the loss (x + e) − decode(encode(x + e)); e starts at 0.

In evaluation e is neither used nor changed. Elements of e that overflow become 0. e is part of the state dict, so that
a resumed run continues as an uninterrupted one would. It is no buffer: DistributedDataParallel would broadcast it.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from workbench.compression.codec import Codec, Payload
from workbench.recomputation import changes_once

__all__ = ["ErrorFeedback", "clear_error_feedback"]


class ErrorFeedback(Codec):
    """Wrap a codec; each call site (`for_site`), named in errors, remembers its own error."""

    def __init__(self, codec: Codec, site: str = "") -> None:
        super().__init__()
        self.codec, self.site = codec, site
        self.aggregation = codec.aggregation
        self.error: Tensor | None = None

    def encode(self, x: Tensor) -> Payload:
        """Encode x plus the remembered error, and remember the error of this payload."""
        if not self.training:
            return self.codec.encode(x)
        with changes_once(self, self.site, lambda: self.error, self._set_error_):
            corrected = x
            if self.error is not None:
                if x.shape != self.error.shape:
                    raise ValueError(
                        f"x at site {self.site!r} has shape {tuple(x.shape)}, the remembered error "
                        f"{tuple(self.error.shape)}: they must be equal; call clear() when the shape changes"
                    )
                corrected = x + self.error.to(x)
            payload = self.codec.encode(corrected)
            with torch.no_grad():
                lost = corrected.detach() - self.codec.decode(payload)
                self.error = lost.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
            return payload

    def _set_error_(self, error: Tensor | None) -> None:
        self.error = error

    def decode(self, payload: Payload, *, out: Tensor | None = None) -> Tensor:
        """Decode as the wrapped codec does."""
        return self.codec.decode(payload, out=out)

    def decode_sum(self, payloads: Sequence[Payload]) -> Tensor:
        """Add payloads as the wrapped codec does."""
        return self.codec.decode_sum(payloads)

    def input_gradient(self, grad_output: Tensor, payload: Payload) -> Tensor:
        """Differentiate as the wrapped codec does; the error is a constant."""
        return self.codec.input_gradient(grad_output, payload)

    def for_site(self, site: str, hidden: int | None = None) -> "ErrorFeedback":
        """Make the wrapper of one call site, with no error yet."""
        return ErrorFeedback(self.codec.for_site(site, hidden), site)

    def for_rank(self, rank: int) -> "ErrorFeedback":
        """Make the wrapper of one rank, with no error yet."""
        return ErrorFeedback(self.codec.for_rank(rank), f"{self.site}, rank {rank}")

    def payload_bytes(self, shape: Sequence[int], dtype: torch.dtype) -> int:
        """Count as the wrapped codec does."""
        return self.codec.payload_bytes(shape, dtype)

    def clear(self) -> None:
        """Forget the error, as after a change of shape or a restart."""
        self.error = None

    @property
    def memory(self) -> tuple[Tensor, ...]:
        """The error, and the memory of the wrapped codec."""
        return (*(() if self.error is None else (self.error,)), *self.codec.memory)

    def get_extra_state(self) -> Tensor:
        """Give the error for the state dict, an empty tensor where there is none yet; safetensors take no dict."""
        return torch.empty(0) if self.error is None else self.error

    def set_extra_state(self, state: Tensor) -> None:
        """Continue with the error that `get_extra_state` gave."""
        self.error = state.clone() if state.numel() else None


def clear_error_feedback(module: nn.Module) -> int:
    """Forget the errors of all call sites inside a module; return how many there are."""
    wrappers = [inner for inner in module.modules() if isinstance(inner, ErrorFeedback)]
    for wrapper in wrappers:
        wrapper.clear()
    return len(wrappers)
