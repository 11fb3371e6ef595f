"""Top-K (T1 to T4): keep the elements of largest magnitude; of equal magnitudes the lowest index.

Zeros of both signs tie; NaN counts as largest, so that the receiver sees an overflow. On a CPU a sample gives a
threshold, one pass collects the candidates above it, and the exact selection runs on them; if the sample misled, it
runs on everything.
"""

import math
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor

from workbench.compression.sparse import SparseCodec

__all__ = ["TopK", "largest_indices", "largest_indices_by_definition"]

# Elements looked at to guess the threshold: error of a 1 % quantile about 4 %.
SAMPLE_SIZE = 1 << 16
# Elements a pass works on at a time: keys and mask stay in a 2 MiB cache.
BLOCK_SIZE = 1 << 17
# Standard deviations of the sample's count by which the threshold is lowered.
SAFETY = 4.0
# Give up on a threshold that lets through this many times what is kept.
MOST_CANDIDATES = 1.5

_KEY_DTYPE = MappingProxyType({2: torch.int16, 4: torch.int32, 8: torch.int64})


class TopK(SparseCodec):
    """Keep the `keep` elements of largest magnitude; see SparseCodec for the arguments."""

    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose the positions of largest magnitude, ascending."""
        return largest_indices(x, num_kept)


def largest_indices_by_definition(x: Tensor, k: int) -> Tensor:
    """Find the k largest magnitudes by a stable sort: positions in the flattened tensor, int64 [k], ascending."""
    order = torch.sort(x.reshape(-1).abs(), descending=True, stable=True).indices
    return order[:k].sort().values


def largest_indices(x: Tensor, k: int) -> Tensor:
    """Find the k largest magnitudes, lowest index first among equals, as `largest_indices_by_definition` does."""
    flat = x.detach().reshape(-1)
    if k in (0, flat.numel()):
        return torch.arange(k, device=flat.device)
    bits = flat.view(_KEY_DTYPE[flat.element_size()])
    largest_key = _bits_of_infinity(flat.dtype) + 1
    if flat.device.type != "cpu":
        return _largest_of_keys(_keys(bits, largest_key), k)
    return torch.from_numpy(_largest_on_cpu(bits.numpy(), k, largest_key))


def _bits_of_infinity(dtype: torch.dtype) -> int:
    """Read the bits of +inf: integers up to it order magnitudes as the floats do."""
    return int(torch.tensor(math.inf, dtype=dtype).view(_KEY_DTYPE[dtype.itemsize]))


def _keys(bits: Tensor, largest_key: int) -> Tensor:
    """Turn float bits into integers that order magnitudes, all NaN equal and largest."""
    return (bits & torch.iinfo(bits.dtype).max).clamp_(max=largest_key)


def _largest_of_keys(keys: Tensor, k: int) -> Tensor:
    """Find the k largest integer keys with plain tensor operations, on any device."""
    kth = torch.topk(keys, k, sorted=False).values.min()
    above = (keys > kth).nonzero().view(-1)
    ties = (keys == kth).nonzero().view(-1)[: k - above.numel()]
    return torch.cat((above, ties)).sort().values


def _largest_on_cpu(bits: np.ndarray, k: int, largest_key: int) -> np.ndarray:
    """Find the k largest magnitudes through a sampled threshold, else exactly."""
    if bits.size > SAMPLE_SIZE:
        limit, threshold = int(MOST_CANDIDATES * k) + BLOCK_SIZE, max(_sampled_threshold(bits, k), 1)
        candidates = _candidates(bits, threshold, min(limit, bits.size))
        if candidates is not None:
            indices, keys = candidates
            if len(keys) >= k:
                return indices[_kept_of_keys(np.minimum(keys, largest_key, out=keys), k)]
            if threshold == 1:  # all but zeros, as of an embedding's gradient; then the first zeros
                zeros = np.flatnonzero(bits[:k] & np.iinfo(bits.dtype).max == 0)[: k - len(indices)]
                return np.sort(np.concatenate((indices, zeros)))
    keys = np.bitwise_and(bits, np.iinfo(bits.dtype).max)
    return np.flatnonzero(_kept_of_keys(np.minimum(keys, largest_key, out=keys), k))


def _sampled_threshold(bits: np.ndarray, k: int) -> int:
    """Guess a key that a little more than k elements reach, from evenly spaced ones.

    The spacing has no factor in common with the number of elements, so every position of every dimension is visited.
    """
    stride = bits.size // SAMPLE_SIZE
    while math.gcd(stride, bits.size) > 1:
        stride += 1
    sample = bits[::stride] & np.iinfo(bits.dtype).max
    expected = sample.size * k / bits.size
    rank = math.ceil(expected + SAFETY * math.sqrt(expected) + SAFETY)
    position = max(sample.size - rank, 0)
    return int(np.partition(sample, position)[position])


def _candidates(bits: np.ndarray, threshold: int, limit: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Collect positions and keys that reach the threshold; None if there are more than `limit`."""
    indices, keys = np.empty(limit, np.int64), np.empty(limit, bits.dtype)
    block_keys, reached = np.empty(BLOCK_SIZE, bits.dtype), np.empty(BLOCK_SIZE, np.bool_)
    magnitude, count = np.iinfo(bits.dtype).max, 0
    for start in range(0, bits.size, BLOCK_SIZE):
        size = min(BLOCK_SIZE, bits.size - start)
        np.bitwise_and(bits[start : start + size], magnitude, out=block_keys[:size])
        np.greater_equal(block_keys[:size], threshold, out=reached[:size])
        hits = np.flatnonzero(reached[:size])
        if count + hits.size > limit:
            return None
        np.add(hits, start, out=indices[count : count + hits.size])
        np.take(block_keys, hits, out=keys[count : count + hits.size], mode="clip")
        count += hits.size
    return indices[:count], keys[:count]


def _kept_of_keys(keys: np.ndarray, k: int) -> np.ndarray:
    """Mark the k largest keys, lowest position first among equals."""
    kth = np.partition(keys, keys.size - k)[keys.size - k]
    kept = keys > kth
    ties = np.flatnonzero(keys == kth)[: k - np.count_nonzero(kept)]
    kept[ties] = True
    return kept
