"""EFSign and OneBit: payloads by hand, the definitions bit for bit, error feedback."""

import math

import pytest
import torch

from workbench.compression import EFSign, ErrorFeedback, OneBit
from workbench.compression.quantize import pack_by_definition
from workbench.compression.signs import BLOCK_ELEMENTS, ef_sign_by_definition, one_bit_by_definition

X = torch.tensor([[1.0, -2.0, 0.0], [-0.0, -4.0, 5.0], [2.0, -1.0, 3.0]])
DEFINITIONS = [(EFSign, ef_sign_by_definition), (OneBit, one_bit_by_definition)]


def test_signs_travel_as_bits_lowest_first_and_zero_counts_as_positive():
    # Not negative at 0, 2, 3, 5 and 6 of the first byte, 0 of the second; magnitudes sum to 18, 11 of it positive.
    for codec, means in ((EFSign(), [2]), (OneBit(), [-7 / 3, 11 / 6])):
        bits, sent = codec.encode(X).tensors
        assert bits.tolist() == [0b1101101, 0b1]
        assert sent.tolist() == torch.tensor(means, dtype=torch.float32).tolist()
        assert codec.payload_bytes((3, 3), torch.float16) == 2 + 4 * len(means)
        x = X.clone().requires_grad_()
        codec(x).backward(X)
        assert torch.equal(x.grad, X)  # the gradient passes straight through
    assert EFSign()(X).tolist() == [[2, -2, 2], [2, -2, 2], [2, -2, 2]]
    assert OneBit()(X)[0].tolist() == pytest.approx([11 / 6, -7 / 3, 11 / 6])


@pytest.mark.parametrize(("build", "by_definition"), DEFINITIONS, ids=["EFSign", "OneBit"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_what_comes_back_has_the_bits_of_the_definition(build, by_definition, dtype):
    generator = torch.Generator().manual_seed(0)
    for size in (1, 7, 8, 9, 1001, 2 * BLOCK_ELEMENTS + 3):
        normal = torch.randn(size, generator=generator).to(dtype)
        one_sided, infinite = normal.abs(), torch.where(normal > 1, math.inf, normal)
        for x in (normal, one_sided, -1 - one_sided, normal * 0.0, normal**-5, infinite):
            payload = build().encode(x)
            decoded, expected = build().decode(payload), by_definition(x)
            assert torch.equal(decoded, expected) and torch.equal(decoded.signbit(), expected.signbit())
            assert torch.equal(payload.tensors[0], pack_by_definition((x >= 0).byte().view(1, -1), 1)[0])


@pytest.mark.parametrize("build", [EFSign, OneBit])
def test_a_sum_over_several_blocks_has_the_bits_of_its_definition_and_nan_is_seen_everywhere(build):
    codec, generator = build(), torch.Generator().manual_seed(1)
    xs = [torch.randn(2 * BLOCK_ELEMENTS + 3, generator=generator) for _ in range(3)]
    payloads = [codec.encode(x) for x in xs]
    assert torch.equal(codec.decode_sum(payloads), codec.decode_sum_by_definition(payloads))
    assert codec(torch.tensor([1.0, -1.0, math.nan])).isnan().all()


def test_error_feedback_sends_later_what_one_magnitude_loses():
    codec = ErrorFeedback(EFSign())
    # p = (3, −1) sends (2, −2), loses (1, 1); p = (4, 0) sends (2, 2), loses (2, −2); p = (5, −3) sends (4, −4).
    sent = [codec(torch.tensor([3.0, -1.0])).tolist() for _ in range(3)]
    assert sent == [[2, -2], [2, 2], [4, -4]]
