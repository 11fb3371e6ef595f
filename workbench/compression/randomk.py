"""Random-K (R1 to R4): keep elements chosen uniformly without replacement; values are not scaled by 1 / share.

The fast path draws independent positions until k differ and drops the surplus by the same method: given its size, the
set of distinct draws is uniform, and so is a uniform choice from it. The stream's position is part of the state dict.
If an element of x is not finite, the first sent value is NaN, so that the receiver notices an element that is not kept.
"""

import math
import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from workbench.compression.codec import Payload, all_finite, site_seed
from workbench.compression.sparse import SparseCodec
from workbench.recomputation import changes_once

__all__ = ["RandomK", "random_indices", "random_indices_by_definition"]

# Standard deviations of surplus drawn: a second attempt is needed once in 30,000.
SAFETY = 4.0
# The low 64 bits of a number.
WORD = (1 << 64) - 1


class RandomK(SparseCodec):
    """Keep `keep` random elements (see SparseCodec), drawn anew in each call from the codec's own stream."""

    def __init__(self, keep: float | int, seed: int = 0, *, index_dtype: torch.dtype = torch.int64) -> None:
        super().__init__(keep, index_dtype=index_dtype)
        self.seed, self.site = seed, ""
        self._stream = np.random.default_rng(site_seed(seed, ""))

    def _set_position_(self, position: Mapping[str, Any]) -> None:
        self._stream.bit_generator.state = position

    def kept_indices(self, x: Tensor, num_kept: int) -> Tensor:
        """Choose random positions, ascending.

        On other devices they are cut from a random permutation made there, seeded by
        the same stream: the positions differ from the CPU's, but have the same distribution.
        """
        if x.device.type == "cpu":
            return torch.from_numpy(random_indices(x.numel(), num_kept, self._stream))
        generator = torch.Generator(x.device).manual_seed(int(self._stream.integers(2**62)))
        order = torch.randperm(x.numel(), generator=generator, device=x.device)
        return order[:num_kept].sort().values

    @torch.no_grad()
    def encode(self, x: Tensor) -> Payload:
        """Take random elements and their positions, as SparseCodec does; the first is NaN unless all of x is finite.

        Recomputed activations keep the same positions.
        """
        with changes_once(self, self.site, lambda: self._stream.bit_generator.state, self._set_position_):
            payload = super().encode(x)
        first = payload.tensors[0][:1]
        if not x.is_cpu:  # without waiting for the device
            first.masked_fill_(~x.isfinite().all(), math.nan)
        elif not all_finite(x):
            first.fill_(math.nan)
        return payload

    def get_extra_state(self) -> Tensor:
        """Give the stream's position for the state dict, int64 [6]; see `stream_position`."""
        return stream_position(self._stream)

    def set_extra_state(self, state: Tensor) -> None:
        """Continue from a position that `get_extra_state` gave."""
        set_stream_position_(self._stream, state)

    def for_site(self, site: str, hidden: int | None = None) -> "RandomK":
        """Make a codec whose stream depends on (seed, site)."""
        codec = type(self)(self.keep, self.seed, index_dtype=self.index_dtype)
        codec.site, codec._stream = site, np.random.default_rng(site_seed(self.seed, site))
        return codec

    def for_rank(self, rank: int) -> "RandomK":
        """Make a codec whose stream depends on (seed, site, rank)."""
        return self.for_site(f"{self.site}/rank {rank}")


def stream_position(stream: np.random.Generator) -> Tensor:
    """Return the position of a PCG64 stream, from which it can be continued.

    Returns:
        int64 [6]: state and increment, 128 bits each, low half first; whether half of a
        draw is left over, and that half.
    """
    position = stream.bit_generator.state
    wide = [position["state"]["state"], position["state"]["inc"]]
    words = [word for number in wide for word in (number & WORD, number >> 64)]
    return torch.from_numpy(np.array([*words, position["has_uint32"], position["uinteger"]], np.uint64).view(np.int64))


def set_stream_position_(stream: np.random.Generator, position: Tensor) -> None:
    """Move a PCG64 stream to a position that `stream_position` gave."""
    if position.shape != (6,) or position.dtype != torch.int64:
        raise ValueError(f"position is {tuple(position.shape)}, {position.dtype}: it must be (6,), torch.int64")
    state_low, state_high, inc_low, inc_high, has_half, half = position.cpu().numpy().view(np.uint64).tolist()
    stream.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": state_low | state_high << 64, "inc": inc_low | inc_high << 64},
        "has_uint32": has_half,
        "uinteger": half,
    }


def random_indices_by_definition(num_elements: int, k: int, generator: random.Random) -> list[int]:
    """Choose k of the positions as the paper does; equal in distribution to `random_indices`."""
    return sorted(generator.sample(range(num_elements), k))


def random_indices(num_elements: int, k: int, generator: np.random.Generator) -> np.ndarray:
    """Choose k different positions uniformly: int64 [k], ascending; the generator advances."""
    if 2 * k > num_elements:
        left_out = random_indices(num_elements, num_elements - k, generator)
        return np.flatnonzero(_mask_without(num_elements, left_out))
    different = _different_draws(num_elements, k, generator)
    if different.size == k:
        return different.astype(np.int64)
    surplus = random_indices(different.size, different.size - k, generator)
    return different[_mask_without(different.size, surplus)].astype(np.int64)


def _mask_without(size: int, positions: np.ndarray) -> np.ndarray:
    """Mark all positions but the given ones."""
    mask = np.ones(size, np.bool_)
    mask[positions] = False
    return mask


def _different_draws(num_elements: int, k: int, generator: np.random.Generator) -> np.ndarray:
    """Draw independent positions until at least k differ; give these, ascending."""
    dtype = np.int32 if num_elements <= np.iinfo(np.int32).max else np.int64
    while k:
        draws = np.sort(generator.integers(num_elements, size=_num_draws(num_elements, k), dtype=dtype))
        first = np.empty(draws.size, np.bool_)
        first[0] = True
        np.not_equal(draws[1:], draws[:-1], out=first[1:])
        if np.count_nonzero(first) >= k:
            return draws[first]
    return np.empty(0, dtype)


def _num_draws(num_elements: int, k: int) -> int:
    """Count the draws after which k positions differ but for a few standard deviations.

    After m draws n·(1 − exp(−m/n)) of n positions have been met, on average.
    """
    mean = -num_elements * math.log1p(-k / num_elements)
    repeated = mean - k
    return math.ceil(mean + SAFETY * math.sqrt(2 * repeated + 1))
