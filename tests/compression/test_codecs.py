"""AutoEncoder, error feedback, half precision and the identity, by hand."""

import math

import pytest
import torch
from torch import nn

from workbench.compression import (
    FP16,
    AutoEncoder,
    ErrorFeedback,
    Identity,
    Payload,
    Quantize,
    TopK,
    clear_error_feedback,
)


def test_code_by_hand():
    codec = AutoEncoder(2, 1)
    with torch.no_grad():
        codec.encoder.copy_(torch.tensor([[1.0], [10.0]]))
        codec.decoder.copy_(torch.tensor([[2.0, 3.0]]))
    payload = codec.encode(torch.tensor([[1.0, 2.0]]))
    assert payload.tensors[0].tolist() == [[21.0]]
    assert codec.decode(payload).tolist() == [[42.0, 63.0]]
    # A1 on [32, 512, 1024] in half precision: 50 codes of 2 bytes for each of 16,384 rows.
    assert AutoEncoder(1024, 50).payload_bytes((32, 512, 1024), torch.float16) == 16384 * 100


def test_initial_weights_have_the_stated_variance():
    encoder = AutoEncoder(400, 200, seed=0).encoder
    # 80,000 uniform numbers: the variance is known to about 0.3 %.
    assert encoder.var().item() == pytest.approx(1 / 400, rel=0.02)
    assert encoder.mean().item() == pytest.approx(0, abs=1e-3)


def test_weights_learn_through_the_round_trip():
    codec = AutoEncoder(4, 2, seed=0)
    x = torch.eye(4)
    codec(x).sum().backward()
    # y = x E D with x the identity: dE = 1 D^T, dD = E^T 1.
    ones = torch.ones(4, 4)
    torch.testing.assert_close(codec.encoder.grad, ones @ codec.decoder.detach().t())
    torch.testing.assert_close(codec.decoder.grad, codec.encoder.detach().t() @ ones)


@pytest.mark.parametrize(
    "template", [AutoEncoder(4, 2, seed=1, dtype=torch.float16), AutoEncoder(4, 2, seed=1).to(torch.float16)]
)
def test_weights_in_half_precision_stay_so_at_every_site_and_serve_it(template):
    codec = template.for_site("a")
    in_full = AutoEncoder(4, 2, seed=1).for_site("a")
    assert torch.equal(codec.encoder, in_full.encoder.half())
    assert torch.equal(codec.decoder, in_full.decoder.half())
    x = torch.tensor([[1.0, -2.0, 0.5, 3.0]], dtype=torch.float16, requires_grad=True)
    y = codec(x)
    assert y.dtype == torch.float16
    torch.testing.assert_close(y.float(), in_full(x.float()), rtol=1e-2, atol=1e-2)
    y.sum().backward()
    assert {codec.encoder.grad.dtype, codec.decoder.grad.dtype, x.grad.dtype} == {torch.float16}


def test_equal_seed_and_site_give_equal_weights_whatever_the_template_has_learnt():
    template = AutoEncoder(8, 3, seed=1)
    fresh = template.for_site("a").encoder
    with torch.no_grad():
        template.encoder.add_(1.0)
    again, other_site, other_seed = template.for_site("a"), template.for_site("b"), AutoEncoder(8, 3, seed=2)
    assert torch.equal(again.encoder, fresh) and again.encoder.data_ptr() != fresh.data_ptr()
    assert not torch.equal(fresh, other_site.encoder)
    assert not torch.equal(fresh, other_seed.for_site("a").encoder)
    wider = AutoEncoder(8, 3, seed=1, dtype=torch.float64).for_site("a", hidden=12)
    assert (wider.encoder.shape, wider.decoder.shape, wider.encoder.dtype) == ((12, 3), (3, 12), torch.float64)


def test_hidden_sizes_that_do_not_fit_are_refused():
    for shape in ((3, 5), ()):
        with pytest.raises(ValueError, match="hidden = 4"):
            AutoEncoder(4, 2).encode(torch.ones(shape))
    for code_size in (0, 5):
        with pytest.raises(ValueError, match="code_size"):
            AutoEncoder(4, code_size)


X = torch.tensor([3.0, 2.0])  # TopK(1) sends 3 and loses 2


def test_what_was_lost_is_sent_next_time_and_evaluation_neither_uses_nor_changes_it():
    codec = ErrorFeedback(TopK(1))
    # Sends 3, keeps e = (0, 2); x + e = (3, 4) sends 4, keeps (3, 0); (6, 2) sends 6.
    assert codec(X).tolist() == [3, 0]
    codec.eval()
    assert codec(X).tolist() == [3, 0]
    assert codec.error.tolist() == [0, 2]
    codec.train()
    assert [codec(X).tolist() for _ in range(2)] == [[0, 4], [6, 0]]


def test_nothing_is_lost_in_the_long_run():
    codec = ErrorFeedback(Quantize(2))
    x = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    total = sum(codec(x) for _ in range(50))
    torch.testing.assert_close(total + codec.error, 50 * x, rtol=0, atol=1e-3)


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
