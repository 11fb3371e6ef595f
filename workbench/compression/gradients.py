"""The codecs of gradients by name, as the techniques for data parallelism use them: 1 % kept, with error feedback."""

from collections.abc import Sequence

import torch

from workbench.checks import require_one_of
from workbench.compression.casts import FP16
from workbench.compression.codec import Codec
from workbench.compression.dgc import DGC
from workbench.compression.error_feedback import ErrorFeedback
from workbench.compression.randomk import RandomK
from workbench.compression.signs import EFSign, OneBit

__all__ = ["GRADIENT_CODECS", "gradient_codec"]

GRADIENT_CODECS = ("randomk", "dgc", "efsignsgd", "onebit", "fp16")
KEPT = 0.01  # share of the elements: 99 % sparsity, as in the thesis


def gradient_codec(name: str, *, momentum: float = 0.0, warmup: Sequence[float] = ()) -> Codec:
    """Return a new codec; momentum, and the shares kept in the first epochs, are DGC's.

    Raises:
        ValueError: if the name is not one of `GRADIENT_CODECS`, or another codec than DGC is given momentum or warm-up.
    """
    require_one_of(GRADIENT_CODECS, codec=name)
    if (momentum or warmup) and name != "dgc":
        raise ValueError(f"momentum is {momentum}, warmup {warmup}, codec {name}: only DGC has the first two")
    match name:
        case "dgc":
            return DGC(KEPT, momentum=momentum, warmup=warmup, index_dtype=torch.int32)
        case "randomk":
            return ErrorFeedback(RandomK(KEPT, index_dtype=torch.int32))
        case "fp16":
            return FP16()
    return ErrorFeedback(EFSign() if name == "efsignsgd" else OneBit())
