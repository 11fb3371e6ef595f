"""ErrorFeedback: the next payload has what the last one lost; half precision and the identity."""

import math

import pytest
import torch
from torch import nn

from workbench.compression import FP16, ErrorFeedback, Identity, Payload, Quantize, TopK, clear_error_feedback

X = torch.tensor([3.0, 2.0])  # TopK(1) sends 3 and loses 2


def test_what_was_lost_is_sent_next_time():
    codec = ErrorFeedback(TopK(1))
    # Sends 3, keeps e = (0, 2); x + e = (3, 4) sends 4, keeps (3, 0); (6, 2) sends 6.
    assert [codec(X).tolist() for _ in range(3)] == [[3, 0], [0, 4], [6, 0]]


def test_nothing_is_lost_in_the_long_run():
    codec = ErrorFeedback(Quantize(2))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    total = sum(codec(x) for _ in range(50))
    torch.testing.assert_close(total + codec.error, 50 * x, rtol=0, atol=1e-3)


def test_messages_that_differ_are_further_off_with_the_error_of_another():
    generator = torch.Generator().manual_seed(0)
    plain, feedback = Quantize(2), ErrorFeedback(Quantize(2))
    messages = [torch.randn(32, 24, 384, generator=generator) for _ in range(20)]

    def off(codec, x):
        return ((codec.decode(codec.encode(x)) - x).norm() / x.norm()).item()

    assert off(plain, messages[-1]) == pytest.approx(0.57, abs=0.01)
    assert [off(feedback, x) for x in messages][-1] == pytest.approx(0.95, abs=0.03)


def test_evaluation_neither_uses_nor_changes_the_error():
    codec = ErrorFeedback(TopK(1))
    codec(X)
    codec.eval()
    assert codec(X).tolist() == [3, 0]
    assert codec.error.tolist() == [0, 2]
    codec.train()
    assert codec(X).tolist() == [0, 4]


def test_a_change_of_shape_is_refused_until_the_error_is_cleared():
    codec = ErrorFeedback(TopK(1)).for_site("layer 0")
    codec(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"'layer 0' has shape \(1, 3\), the remembered error \(2, 3\).*clear\(\)"):
        codec(torch.ones(1, 3))
    codec.clear()
    assert codec(torch.ones(1, 3)).shape == (1, 3)


def test_all_errors_of_a_model_are_cleared_at_once():
    model = nn.ModuleList([ErrorFeedback(TopK(1)), nn.Linear(2, 2), ErrorFeedback(TopK(1))])
    for codec in (model[0], model[2]):
        codec(X)
    assert clear_error_feedback(model) == 2
    assert model[0].error is None
    assert model[2].error is None


@pytest.mark.parametrize("broken", [math.inf, -math.inf, math.nan])
def test_one_overflow_is_not_remembered_and_the_other_errors_are(broken):
    codec = ErrorFeedback(TopK(1))
    x = torch.tensor([3.0, 2.0, 1.0])
    codec(x)  # sends 3, keeps (0, 2, 1)
    assert not codec(torch.tensor([broken, 0.0, 0.0])).isfinite().all()  # the receiver sees it
    assert codec.error.tolist() == [0, 2, 1]
    assert codec(x).tolist() == [0, 4, 0]
    half = ErrorFeedback(FP16())
    assert half(torch.tensor([70000.0, 1.0])).tolist() == [math.inf, 1]  # half precision ends at 65504
    assert half(X).tolist() == [3, 2]


def test_call_sites_do_not_share_errors_and_a_state_takes_its_error_along_or_away():
    template = ErrorFeedback(TopK(1))
    first, second = template.for_site("layer 0"), template.for_site("layer 1")
    start = first.state_dict()
    first(X)
    assert second(X).tolist() == [3, 0] and template.error is None
    template.load_state_dict(first.state_dict())
    assert template(X).tolist() == [0, 4] and first.error.tolist() == [0, 2]
    first.load_state_dict(start)
    assert first.error is None


def test_the_gradient_is_that_of_the_codec_inside():
    x = torch.tensor([3.0, 2.0], requires_grad=True)
    codec = ErrorFeedback(TopK(1))
    codec(x)
    assert not codec.error.requires_grad
    # The error (0, 2) makes the second element the larger one.
    codec(x).backward(torch.tensor([5.0, 7.0]))
    assert x.grad.tolist() == [0, 7]


def test_half_precision_rounds_to_nearest_even_and_overflows_to_inf():
    # Between 2048 and 4096 half precision has steps of 2: 2049 -> 2048, 2051 -> 2052.
    x = torch.tensor([2049.0, 2051.0, 65519.0, 65520.0])
    assert FP16()(x).tolist() == [2048, 2052, 65504, float("inf")]
    assert FP16().encode(torch.ones(3, 5)).num_bytes == FP16().payload_bytes((3, 5), torch.float64) == 30


def test_identity_sends_the_tensor_itself():
    x = torch.ones(3, 5, dtype=torch.float64)
    payload = Identity().encode(x)
    assert payload.tensors[0] is x and payload.num_bytes == 120
    for tensors in ((), [x]):
        with pytest.raises(ValueError, match="tensors"):
            Payload(tensors=tensors, shape=(1,), dtype=torch.float32)
