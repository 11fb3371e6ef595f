"""FP16 and Identity: bytes and rounding by hand."""

import torch

from workbench.compression import FP16, Identity, Payload


def test_half_precision_rounds_to_nearest_even_and_overflows_to_inf():
    # Between 2048 and 4096 half precision has steps of 2: 2049 -> 2048, 2051 -> 2052.
    x = torch.tensor([2049.0, 2051.0, 65519.0, 65520.0])
    assert FP16()(x).tolist() == [2048, 2052, 65504, float("inf")]


def test_half_precision_sends_two_bytes_an_element():
    assert FP16().encode(torch.ones(3, 5)).num_bytes == 30
    assert FP16().payload_bytes((3, 5), torch.float64) == 30


def test_identity_sends_the_tensor_itself():
    x = torch.ones(3, 5, dtype=torch.float64)
    payload = Identity().encode(x)
    assert payload.tensors[0] is x
    assert payload.num_bytes == 120


def test_a_payload_without_tensors_is_refused():
    for tensors in ((), [torch.ones(1)]):
        try:
            Payload(tensors=tensors, shape=(1,), dtype=torch.float32)
        except ValueError as error:
            assert "tensors" in str(error)
        else:
            raise AssertionError("accepted")
