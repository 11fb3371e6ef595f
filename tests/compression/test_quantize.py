"""Quantize: layout and rounding by hand, fast path against the definition, stated edge cases."""

import math

import pytest
import torch

from workbench.compression import Quantize, quantize
from workbench.compression.quantize import (
    BLOCK_ELEMENTS,
    dequantize_rows,
    dequantize_rows_by_definition,
    quantize_rows,
    quantize_rows_by_definition,
)

SHAPES = [(1, 1), (3, 5), (2, 8), (5, 20), (33, 64)]
DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.float64]


def half_bytes(*values):
    return torch.tensor(values, dtype=torch.float16).view(torch.uint8).tolist()


def rows_of(kind, rows, columns):
    generator = torch.Generator().manual_seed(rows * columns)
    x = torch.randn(rows, columns, generator=generator)
    return {
        "normal": x,
        "tiny": x * 1e-7,
        "large": x * 1e4,
        "whole numbers": (2 * x).round(),
        "few values": x.sign() * 0.0,
        "constant": x[:, :1].expand(-1, columns).contiguous(),
        "far from zero": 1000 + x * 1e-3,
        "heavy tails": x**7,
        "beyond float16": x * 1e6,
        "with NaN": torch.where(x > 1, math.nan, x),
        "with inf": torch.where(x > 1, math.inf, x),
        "beyond float32": x * 3e38,
    }[kind]


KINDS = [
    "normal",
    "tiny",
    "large",
    "whole numbers",
    "few values",
    "constant",
    "far from zero",
    "heavy tails",
    "beyond float16",
    "with NaN",
    "with inf",
    "beyond float32",
]


def test_two_bit_payload_by_hand():
    # min 0, max 3: bias 0, scale 1. Codes 0 1 2 3 | 3, lowest bits first:
    # 0 + 1·4 + 2·16 + 3·64 = 228, then 3.
    payload = Quantize(2).encode(torch.tensor([[0.0, 1.0, 2.0, 3.0, 3.0]]))
    assert payload.tensors[0].tolist() == [[228, 3, *half_bytes(1.0, 0.0)]]
    assert payload.num_bytes == 6
    assert Quantize(2).decode(payload).tolist() == [[0, 1, 2, 3, 3]]


def test_four_bit_payload_by_hand():
    # min -1, max 14: bias -1, scale 1. Codes 0 15 | 8 1: 15·16 = 240, 8 + 16 = 24.
    payload = Quantize(4).encode(torch.tensor([[-1.0, 14.0, 7.0, 0.0]]))
    assert payload.tensors[0].tolist() == [[240, 24, *half_bytes(1.0, -1.0)]]


def test_three_bit_codes_straddle_bytes():
    # min 0, max 7: scale 1. Codes 1 2 3 as bits, lowest first: 100 010 110 -> 10001011 0
    # = 1 + 16 + 64 + 128 = 209, then 0.
    payload = Quantize(3).encode(torch.tensor([[0.0, 7.0], [0.0, 7.0]]))
    assert payload.tensors[0][:, 0].tolist() == [7 * 8, 7 * 8]
    payload = torch.tensor([[209, 0, *half_bytes(1.0, 0.0)]], dtype=torch.uint8)
    assert dequantize_rows(payload, 3, 3, torch.float32).tolist() == [[1, 2, 3]]


def test_ties_round_to_even():
    # scale 1, bias 0: 0.5 -> 0, 1.5 -> 2, 2.5 -> 2.
    x = torch.tensor([[0.0, 0.5, 1.5, 2.5, 3.0]])
    assert Quantize(2)(x).tolist() == [[0, 0, 2, 2, 3]]


@pytest.mark.parametrize("bits", range(1, 9))
def test_error_is_at_most_half_a_step_and_the_rounding_of_scale_and_bias(bits):
    x = rows_of("normal", 50, 40)
    spread = x.amax(1) - x.amin(1)
    step = spread / (2**bits - 1)
    # fp16 keeps 11 bits: the bias is off by 2**-11 of its size, the scale too, 2**bits - 1 times.
    bound = step / 2 + 2**-11 * (x.amin(1).abs() + spread) + 1e-6
    error = (Quantize(bits)(x) - x).abs().amax(1)
    assert (error <= bound).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bits", range(1, 9))
def test_fast_path_gives_the_bits_of_the_definition(bits, kind, monkeypatch):
    monkeypatch.setattr(quantize, "BLOCK_ELEMENTS", 256)
    for rows, columns in SHAPES:
        for dtype in DTYPES:
            x = rows_of(kind, rows, columns).to(dtype)
            payload = quantize_rows_by_definition(x, bits)
            assert torch.equal(quantize_rows(x, bits), payload), (rows, columns, dtype)
            expected = dequantize_rows_by_definition(payload, bits, columns, dtype)
            actual = dequantize_rows(payload, bits, columns, dtype)
            torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
            into = dequantize_rows(payload, bits, columns, dtype, out=torch.empty_like(x))
            torch.testing.assert_close(into, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("columns", [1023, 1024])
def test_rows_of_an_activation_agree_with_the_definition(bits, columns):
    x = rows_of("normal", 300, columns)
    payload = quantize_rows_by_definition(x, bits)
    assert torch.equal(quantize_rows(x, bits), payload)
    decoded = dequantize_rows_by_definition(payload, bits, columns, x.dtype)
    assert torch.equal(dequantize_rows(payload, bits, columns, x.dtype), decoded)


@pytest.mark.parametrize("bits", [2, 4])
def test_a_negative_zero_changes_nothing_in_the_payload(bits):
    positive, negative = torch.zeros(1, 16), -torch.zeros(1, 16)
    positive[0, 3], negative[0, 3] = 3.0, 3.0
    assert torch.equal(quantize_rows(positive, bits), quantize_rows(negative, bits))


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_a_constant_row_comes_back_to_half_precision(bits):
    x = torch.tensor([[0.1] * 8, [1000.3] * 8, [-7.0] * 8])
    torch.testing.assert_close(Quantize(bits)(x), x, rtol=2**-11, atol=0)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf, 1e8, -1e6])
def test_a_row_that_does_not_fit_comes_back_as_nan_and_others_do_not_care(bits, poison):
    x = rows_of("normal", 3, 16)
    clean = Quantize(bits)(x)
    x[1, 5] = poison
    decoded = Quantize(bits)(x)
    assert decoded[1].isnan().all()
    assert torch.equal(decoded[[0, 2]], clean[[0, 2]])


@pytest.mark.parametrize("shape", [(), (0,), (4, 0), (0, 4), (2, 0, 3), (1,), (2, 3, 5)], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_every_shape_has_its_bytes(bits, shape):
    x = torch.ones(shape)
    payload = Quantize(bits).encode(x)
    assert payload.num_bytes == Quantize(bits).payload_bytes(shape, x.dtype)
    assert Quantize(bits).decode(payload).shape == x.shape


def test_bytes_of_the_study():
    # Q1 on [32, 512, 1024]: 256 bytes of codes and 4 of scale and bias for each of 16,384 rows.
    assert Quantize(2).payload_bytes((32, 512, 1024), torch.float16) == 16384 * 260
    assert Quantize(4).payload_bytes((32, 512, 1024), torch.float16) == 16384 * 516
    assert Quantize(8).payload_bytes((32, 512, 1024), torch.float16) == 16384 * 1028


@pytest.mark.parametrize("bits", [0, 9, 2.0, True])
def test_bits_out_of_range_are_refused(bits):
    with pytest.raises(ValueError, match="bits"):
        Quantize(bits)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_a_sum_over_several_blocks_has_the_bits_of_its_definition(bits, dtype):
    codec = Quantize(bits)
    assert 3 * BLOCK_ELEMENTS > 700 * 400 > 2 * BLOCK_ELEMENTS
    generator = torch.Generator().manual_seed(0)
    payloads = [codec.encode(torch.randn(700, 400, generator=generator).to(dtype)) for _ in range(4)]
    assert torch.equal(codec.decode_sum(payloads), codec.decode_sum_by_definition(payloads))
