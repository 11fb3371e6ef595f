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
