"""AutoEncoder: sums of codes are codes of sums, equal weights for equal seed and site."""

import pytest
import torch

from workbench.compression import AutoEncoder


def test_code_by_hand():
    codec = AutoEncoder(2, 1)
    with torch.no_grad():
        codec.encoder.copy_(torch.tensor([[1.0], [10.0]]))
        codec.decoder.copy_(torch.tensor([[2.0, 3.0]]))
    payload = codec.encode(torch.tensor([[1.0, 2.0]]))
    assert payload.tensors[0].tolist() == [[21.0]]
    assert codec.decode(payload).tolist() == [[42.0, 63.0]]


def test_bytes_of_the_study():
    # A1 on [32, 512, 1024] in half precision: 50 codes of 2 bytes for each of 16,384 rows.
    assert AutoEncoder(1024, 50).payload_bytes((32, 512, 1024), torch.float16) == 16384 * 100


def test_equal_seed_and_site_give_equal_weights_and_others_do_not():
    weights = [
        AutoEncoder(8, 3, seed=seed).for_site(site).encoder.tolist()
        for seed, site in [(1, "a"), (1, "a"), (1, "b"), (2, "a")]
    ]
    assert weights[0] == weights[1]
    assert weights[0] != weights[2]
    assert weights[0] != weights[3]


def test_weights_of_a_site_do_not_follow_the_template_after_training():
    template = AutoEncoder(8, 3, seed=1)
    fresh = template.for_site("a")
    with torch.no_grad():
        template.encoder.add_(1.0)
    assert torch.equal(template.for_site("a").encoder, fresh.encoder)
    assert fresh.encoder.data_ptr() != template.for_site("a").encoder.data_ptr()


def test_a_site_may_have_its_own_hidden_size():
    codec = AutoEncoder(8, 3, seed=1, dtype=torch.float64).for_site("a", hidden=12)
    assert codec.encoder.shape == (12, 3)
    assert codec.decoder.shape == (3, 12)
    assert codec.encoder.dtype == torch.float64


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


def test_weights_in_float32_serve_half_precision_tensors():
    codec = AutoEncoder(4, 2)
    payload = codec.encode(torch.ones(3, 4, dtype=torch.bfloat16))
    assert payload.tensors[0].dtype == torch.bfloat16
    assert payload.num_bytes == 12


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


@pytest.mark.parametrize("shape", [(3, 5), ()])
def test_another_hidden_size_is_refused(shape):
    with pytest.raises(ValueError, match="hidden = 4"):
        AutoEncoder(4, 2).encode(torch.ones(shape))


@pytest.mark.parametrize("code_size", [0, 5])
def test_a_code_larger_than_the_tensor_is_refused(code_size):
    with pytest.raises(ValueError, match="code_size"):
        AutoEncoder(4, code_size)
