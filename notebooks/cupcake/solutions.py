"""Solutions of the functions that the lesson asks for."""

import torch
import torch.distributed as dist


def link_free(problem, before, j, k):
    """Wait for the encoder and for the link, then send tensors i to j - 1; take the best i."""
    encode, send = problem.compress, problem.communicate
    encoded_s = problem.ready_s[j] + k * encode.startup_s + encode.s_per_byte * problem.until_bytes[j]
    return min(
        max(encoded_s, free_s) + send.startup_s + send.s_per_byte * (problem.until_bytes[j] - problem.until_bytes[i])
        for i, free_s in before.items()
    )


def fused_mean(gradients, fusion):
    """Put each group into one tensor, add it up over the ranks, and cut it again."""
    means, start = [], 0
    for end in fusion:
        group = gradients[start:end]
        flat = torch.cat([gradient.flatten() for gradient in group])
        dist.all_reduce(flat)
        pieces = (flat / dist.get_world_size()).split([gradient.numel() for gradient in group])
        means += [piece.view(gradient.shape) for piece, gradient in zip(pieces, group, strict=True)]
        start = end
    return means
