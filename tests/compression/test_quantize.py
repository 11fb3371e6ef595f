"""Quantize and QuantizeFeatures: layout and rounding by hand, fast paths against definitions, stated edge cases."""

import math
from itertools import product

import pytest
import torch

from workbench.compression import Quantize, QuantizeFeatures, quantize

SHAPES = [(1, 1), (3, 5), (5, 20), (33, 64)]
BITS = (1, 2, 3, 4, 8)  # 5 to 7 straddle bytes as 3 does
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def half_bytes(*values):
    return torch.tensor(values, dtype=torch.float16).view(torch.uint8).tolist()


KINDS = {
    "normal": lambda x: x,
    "tiny": lambda x: x * 1e-7,
    "large": lambda x: x * 1e4,
    "whole numbers": lambda x: (2 * x).round(),
    "few values": lambda x: x.sign() * 0.0,
    "constant": lambda x: x[:, :1].expand_as(x).contiguous(),
    "far from zero": lambda x: 1000 + x * 1e-3,
    "heavy tails": lambda x: x**7,
    "beyond float16": lambda x: x * 1e6,
    "with NaN": lambda x: torch.where(x > 1, math.nan, x),
    "with inf": lambda x: torch.where(x > 1, math.inf, x),
    "beyond float32": lambda x: x * 3e38,
}


def normal(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(math.prod(shape)))


def test_payloads_by_hand():
    # Two bits, min 0, max 3: bias 0, scale 1. Codes 0 1 2 3 | 3, lowest bits first: 0 + 1·4 + 2·16 + 3·64, then 3.
    payload = Quantize(2).encode(torch.tensor([[0.0, 1.0, 2.0, 3.0, 3.0]]))
    assert payload.tensors[0].tolist() == [[228, 3, *half_bytes(1.0, 0.0)]]
    assert payload.num_bytes == 6
    assert Quantize(2).decode(payload).tolist() == [[0, 1, 2, 3, 3]]
    # Four bits, min -1, max 14: bias -1, scale 1. Codes 0 15 | 8 1: 15·16 = 240, 8 + 16 = 24.
    payload = Quantize(4).encode(torch.tensor([[-1.0, 14.0, 7.0, 0.0]]))
    assert payload.tensors[0].tolist() == [[240, 24, *half_bytes(1.0, -1.0)]]
    # Three bits straddle bytes. Codes 1 2 3, lowest bits first: 100 010 110 -> 10001011 0 = 1 + 16 + 64 + 128, then 0.
    payload = torch.tensor([[209, 0, *half_bytes(1.0, 0.0)]], dtype=torch.uint8)
    assert quantize.dequantize_rows(payload, 3, 3, torch.float32).tolist() == [[1, 2, 3]]
    # Ties round to even, with scale 1 and bias 0: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2.
    assert Quantize(2)(torch.tensor([[0.0, 0.5, 1.5, 2.5, 3.0]])).tolist() == [[0, 0, 2, 2, 3]]
    # Q1 to Q3 on [32, 512, 1024]: 256 bytes of codes a bit pair, 4 of scale and bias for each of 16,384 rows.
    for bits, row_bytes in ((2, 256 + 4), (4, 512 + 4), (8, 1024 + 4)):
        assert Quantize(bits).payload_bytes((32, 512, 1024), torch.float16) == 16384 * row_bytes


@pytest.mark.parametrize("bits", BITS)
def test_error_is_at_most_half_a_step_and_the_rounding_of_scale_and_bias(bits):
    x = normal(50, 40)
    spread = x.amax(1) - x.amin(1)
    step = spread / (2**bits - 1)
    # fp16 keeps 11 bits: the bias is off by 2**-11 of its size, the scale too, 2**bits - 1 times.
    bound = step / 2 + 2**-11 * (x.amin(1).abs() + spread) + 1e-6
    assert ((Quantize(bits)(x) - x).abs().amax(1) <= bound).all()
    constant = torch.tensor([[0.1] * 8, [1000.3] * 8, [-7.0] * 8])
    torch.testing.assert_close(Quantize(bits)(constant), constant, rtol=2**-11, atol=0)


@pytest.mark.parametrize("bits", BITS)
def test_fast_path_gives_the_bits_of_the_definition(bits, monkeypatch):
    monkeypatch.setattr(quantize, "BLOCK_ELEMENTS", 256)
    for kind, (rows, columns), dtype in product(KINDS, SHAPES, DTYPES):
        x = KINDS[kind](normal(rows, columns)).to(dtype)
        payload = quantize.quantize_rows_by_definition(x, bits)
        assert torch.equal(quantize.quantize_rows(x, bits), payload), (kind, rows, columns, dtype)
        expected = quantize.dequantize_rows_by_definition(payload, bits, columns, dtype)
        for out in (None, torch.empty_like(x)):
            actual = quantize.dequantize_rows(payload, bits, columns, dtype, out=out)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_negative_zero_changes_nothing_in_the_payload(bits):
    positive, negative = torch.zeros(1, 16), -torch.zeros(1, 16)
    positive[0, 3], negative[0, 3] = 3.0, 3.0
    assert torch.equal(quantize.quantize_rows(positive, bits), quantize.quantize_rows(negative, bits))


def test_a_row_that_does_not_fit_comes_back_as_nan_and_others_do_not_care():
    for bits, poison in product((2, 3, 4, 8), [math.nan, math.inf, -math.inf, 1e8, -1e6]):
        x = normal(3, 16)
        clean = Quantize(bits)(x)
        x[1, 5] = poison
        decoded = Quantize(bits)(x)
        assert decoded[1].isnan().all() and torch.equal(decoded[[0, 2]], clean[[0, 2]]), (bits, poison)


def test_every_shape_has_its_bytes():
    for bits, shape in product((2, 3, 8), [(), (0,), (4, 0), (0, 4), (2, 0, 3), (1,), (2, 3, 5)]):
        x, codec = torch.ones(shape), Quantize(bits)
        payload = codec.encode(x)
        assert payload.num_bytes == codec.payload_bytes(shape, x.dtype) and codec.decode(payload).shape == x.shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [2, 3])
def test_a_sum_over_several_blocks_has_the_bits_of_its_definition(bits, dtype):
    codec = Quantize(bits)
    assert 3 * quantize.BLOCK_ELEMENTS > 700 * 400 > 2 * quantize.BLOCK_ELEMENTS
    generator = torch.Generator().manual_seed(0)
    payloads = [codec.encode(torch.randn(700, 400, generator=generator).to(dtype)) for _ in range(4)]
    assert torch.equal(codec.decode_sum(payloads), codec.decode_sum_by_definition(payloads))


def test_two_bits_by_feature_by_hand():
    # Scales 4 and 1; halves of them are steps: -4 -> -2, 3 -> 1.5 -> 2 -> at most 1, 1 -> 0.5 -> 0 (ties to even).
    x = torch.tensor([[-4.0, 1.0], [3.0, 0.2], [1.0, -0.8]])
    payload = QuantizeFeatures(2).encode(x)
    packed, scale = payload.tensors
    assert scale.tolist() == [4.0, 1.0]
    # Codes are steps + 2: rows (0, 3), (3, 2), (2, 0), the first in the lowest bits.
    assert packed.tolist() == [[0 + 3 * 4], [3 + 2 * 4], [2 + 0 * 4]]
    assert QuantizeFeatures(2).decode(payload).tolist() == [[-4.0, 0.5], [2.0, 0.0], [0.0, -1.0]]
    assert payload.num_bytes == 3 + 2 * 2


@pytest.mark.parametrize("bits", BITS)
def test_what_comes_back_is_what_the_definition_says(bits):
    for shape, dtype in product([(1, 1), (7, 5), (33, 64)], [torch.float32, torch.float16, torch.bfloat16]):
        x, codec = normal(*shape).pow(3).to(dtype), QuantizeFeatures(bits)
        torch.testing.assert_close(codec(x), quantize.quantized_features_by_definition(x, bits), rtol=0, atol=0)


@pytest.mark.parametrize("bits", range(1, 9))
def test_codes_are_packed_as_the_definition_says(bits):
    codes = torch.randint(0, 2**bits, (5, 13), dtype=torch.uint8, generator=torch.Generator().manual_seed(bits))
    packed = quantize.pack(codes, bits)
    assert torch.equal(packed, quantize.pack_by_definition(codes, bits))
    for unpack in (quantize.unpack, quantize.unpack_by_definition):
        assert torch.equal(unpack(packed, bits, 13), codes)


def test_tokens_share_a_scale_and_a_large_one_spoils_no_feature_in_which_it_is_ordinary():
    tokens = normal(2, 3, 8)
    torch.testing.assert_close(QuantizeFeatures(4)(tokens).view(6, 8), QuantizeFeatures(4)(tokens.view(6, 8)))
    assert QuantizeFeatures(2)(torch.zeros(3, 2)).tolist() == [[0.0, 0.0]] * 3
    x = normal(64, 32)
    x[0, 0] = 1000.0
    error = (QuantizeFeatures(4)(x) - x).abs()
    assert error[:, 1:].max() < 0.5 < error[1:, 0].max()


@pytest.mark.parametrize("broken", [math.nan, math.inf, 1e6])
def test_an_overflow_is_seen_in_its_whole_feature_and_nowhere_else(broken):
    x = normal(4, 3)
    x[1, 2] = broken
    decoded = QuantizeFeatures(2)(x)
    assert decoded[:, 2].isnan().all() and decoded[:, :2].isfinite().all()


def test_bits_out_of_range_are_refused():
    for codec, bits in product((Quantize, QuantizeFeatures), (0, 9, 2.0, True)):
        with pytest.raises(ValueError, match="bits.* must be an int in 1..8"):
            codec(bits)
