"""QuantizeFeatures: layout and rounding by hand, the fast path against the definition, stated edge cases."""

import math

import pytest
import torch

from workbench.compression import QuantizeFeatures
from workbench.compression.quantize import (
    pack,
    pack_by_definition,
    quantized_features_by_definition,
    unpack,
    unpack_by_definition,
)


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def test_two_bits_by_hand():
    # Scales 4 and 1; halves of them are steps: -4 -> -2, 3 -> 1.5 -> 2 -> at most 1, 1 -> 0.5 -> 0 (ties to even).
    x = torch.tensor([[-4.0, 1.0], [3.0, 0.2], [1.0, -0.8]])
    payload = QuantizeFeatures(2).encode(x)
    packed, scale = payload.tensors
    assert scale.tolist() == [4.0, 1.0]
    # Codes are steps + 2: rows (0, 3), (3, 2), (2, 0), the first in the lowest bits.
    assert packed.tolist() == [[0 + 3 * 4], [3 + 2 * 4], [2 + 0 * 4]]
    assert QuantizeFeatures(2).decode(payload).tolist() == [[-4.0, 0.5], [2.0, 0.0], [0.0, -1.0]]
    assert payload.num_bytes == 3 + 2 * 2


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (33, 64)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_comes_back_is_what_the_definition_says(bits, shape, dtype):
    x, codec = normal(*shape).pow(3).to(dtype), QuantizeFeatures(bits)
    torch.testing.assert_close(codec(x), quantized_features_by_definition(x, bits), rtol=0, atol=0)


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_packed_as_the_definition_says(bits):
    codes = torch.randint(0, 2**bits, (5, 13), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    packed = pack(codes, bits)
    assert torch.equal(packed, pack_by_definition(codes, bits))
    assert torch.equal(unpack(packed, bits, 13), codes) and torch.equal(unpack_by_definition(packed, bits, 13), codes)


def test_the_scale_is_shared_over_batch_and_sequence():
    x = normal(2, 3, 8)
    torch.testing.assert_close(QuantizeFeatures(4)(x), QuantizeFeatures(4)(x.view(6, 8)).view(2, 3, 8), rtol=0, atol=0)


def test_a_large_token_spoils_no_feature_in_which_it_is_ordinary():
    x = normal(64, 32)
    x[0, 0] = 1000.0
    off = (QuantizeFeatures(4)(x) - x).abs()
    assert off[:, 1:].max() < 0.5 < off[1:, 0].max()


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e6])
def test_an_overflow_is_seen_in_its_whole_feature_and_nowhere_else(broken):
    x = normal(4, 3)
    x[1, 2] = broken
    found = QuantizeFeatures(2)(x)
    assert found[:, 2].isnan().all() and found[:, :2].isfinite().all()


def test_a_feature_of_zeros_comes_back_as_zeros():
    assert QuantizeFeatures(2)(torch.zeros(3, 2)).tolist() == [[0.0, 0.0]] * 3


@pytest.mark.parametrize("bits", [0, 9, 2.0, True])
def test_other_bits_are_refused(bits):
    with pytest.raises(ValueError, match="must be an int in 1..8"):
        QuantizeFeatures(bits)
