"""The exchange of fused groups on virtual ranks, as it is defined: what `runtime` does on real ones."""

from collections.abc import Sequence

import torch
from torch import Tensor

from workbench.compression import Codec

__all__ = ["exchanged_by_definition"]


def exchanged_by_definition(
    gradients: Sequence[Sequence[Tensor]], ends: Sequence[int], codecs: Sequence[Sequence[Codec]]
) -> list[Tensor]:
    """Return the gradients that every rank has after a step: the sums of all ranks' encoded shares in the mean.

    Args:
        gradients: of each rank, N tensors in the order in which they are fused.
        ends: of the groups, a fusion.
        codecs: of each rank, one for each group; they remember errors from step to step.
    """
    num_ranks, found, start = len(gradients), [], 0
    for group, end in enumerate(ends):
        shares = [torch.cat([tensor.flatten() for tensor in own[start:end]]) / num_ranks for own in gradients]
        sent = [own[group].decode(own[group].encode(share)) for own, share in zip(codecs, shares, strict=True)]
        total = torch.stack(sent).sum(dim=0)
        sizes = [tensor.numel() for tensor in gradients[0][start:end]]
        pairs = zip(total.split(sizes), gradients[0][start:end], strict=True)
        found += [piece.view_as(tensor) for piece, tensor in pairs]
        start = end
    return found
