"""DGC: two steps by hand, the definition, momentum SGD as the limit, the warm-up, overflow and state."""

import math

import pytest
import torch

from workbench.compression import DGC, exponential_warmup
from workbench.compression.dgc import dgc_by_definition


def gradients(steps, shape=(5, 7)):
    return torch.randn(steps, *shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_momentum_goes_on_where_nothing_was_sent_and_stops_where_something_was():
    codec = DGC(1, momentum=0.5)
    # u = v = g = (4, 2, −3); 4 is sent, u = v = (0, 2, −3).
    assert codec(torch.tensor([4.0, 2.0, -3.0])).tolist() == [4, 0, 0]
    # u = (1, 3, −2.5), v = (1, 5, −5.5); −5.5 is sent.
    assert codec(torch.tensor([1.0, 2.0, -1.0])).tolist() == [0, 0, -5.5]
    assert (codec.velocity.tolist(), codec.accumulated.tolist()) == ([1, 3, 0], [1, 5, 0])
    # Without masking u stays whole: (4, 2, −3), then 0.5 u + g = (3, 3, −2.5), v = (3, 5, −5.5).
    codec = DGC(1, momentum=0.5, masking=False)
    assert [codec(torch.tensor(g)).tolist() for g in ([4.0, 2.0, -3.0], [1.0, 2.0, -1.0])] == [[4, 0, 0], [0, 0, -5.5]]
    assert (codec.velocity.tolist(), codec.accumulated.tolist()) == ([3, 3, -2.5], [3, 5, 0])


@pytest.mark.parametrize("masking", [True, False])
def test_steps_equal_the_definition(masking):
    # A product with 0.5 is exact, so fused and separate additions round alike.
    codec, gs = DGC(0.1, momentum=0.5, masking=masking), gradients(20)
    sent = dgc_by_definition(gs.flatten(1).tolist(), 4, 0.5, masking)
    for gradient, expected in zip(gs, sent, strict=True):
        values, indices = codec.encode(gradient).tensors
        assert dict(zip(indices.tolist(), values.tolist(), strict=True)) == expected


def test_without_masking_the_whole_gradient_is_momentum_sgd_and_a_share_of_it_only_later():
    dense, sparse, masked = DGC(1.0, masking=False), DGC(0.1, masking=False), DGC(1.0)
    weight, sent, sent_sparsely = torch.zeros(5, 7, dtype=torch.float64, requires_grad=True), 0, 0
    optimizer = torch.optim.SGD([weight], lr=1.0, momentum=0.9)
    for gradient in gradients(10):
        weight.grad = gradient
        optimizer.step()
        sent, sent_sparsely = sent + dense(gradient), sent_sparsely + sparse(gradient)
        # In float64, some 10 terms of size 1 to 10.
        torch.testing.assert_close(sent, -weight.detach(), rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(sent_sparsely + sparse.accumulated, sent, rtol=1e-12, atol=1e-12)
        # With masking momentum never outlives the step: plain SGD.
        assert torch.equal(masked(gradient), gradient)


def test_the_warm_up_is_that_of_the_paper_and_payloads_follow_it():
    # Section 3.3 of Lin et al.: 75, 93.75, 98.4375, 99.6 and 99.9 % sparsity.
    shares = exponential_warmup(0.001)
    assert [100 * (1 - share) for share in shares] == [75, 93.75, 98.4375, 99.609375]
    codec, kept = DGC(0.001, warmup=shares, index_dtype=torch.int32), []
    for epoch in range(7):
        codec.at_epoch(epoch)
        kept.append(codec.num_kept((100, 100)))
        assert codec.encode(torch.ones(100, 100)).num_bytes == codec.payload_bytes((100, 100), torch.float32)
    assert kept == [2500, 625, 156, 39, 10, 10, 10]


def test_evaluation_neither_uses_nor_changes_what_was_accumulated():
    codec, x = DGC(1), torch.tensor([3.0, 2.0])
    codec(x)
    codec.eval()
    assert codec(x).tolist() == [3, 0] and codec.accumulated.tolist() == [0, 2]
    # u = (3, 3.8), v = (3, 5.8) in training.
    assert codec.train()(x).tolist() == pytest.approx([0, 5.8])


@pytest.mark.parametrize("masking", [True, False])
def test_an_overflow_is_sent_and_not_remembered(masking):
    codec = DGC(1, momentum=0.5, masking=masking)
    assert codec(torch.tensor([math.nan, 2.0, -math.inf])).isnan().any()
    assert codec.velocity.tolist() == codec.accumulated.tolist() == [0, 2, 0]


def test_a_state_takes_accumulated_gradients_and_epoch_along_and_sites_share_neither():
    codec, other = DGC(1, warmup=(0.5,)), DGC(1, warmup=(0.5,)).for_site("layer 0")
    codec.at_epoch(1)
    codec(torch.tensor([3.0, 2.0]))
    assert codec.for_rank(0).epoch == 1 and codec.for_rank(0).velocity is None
    other.load_state_dict(codec.state_dict())
    assert other.keep == 1 and other.accumulated.tolist() == [0, 2]
    with pytest.raises(ValueError, match=r"'layer 0' has shape \(3,\), the accumulated gradient \(2,\).*clear\(\)"):
        other(torch.ones(3))
    other.clear()
    assert other(torch.ones(3)).tolist() == [1, 0, 0]


def test_options_out_of_range_are_refused():
    for options, field in (({"momentum": 1.0}, "momentum"), ({"warmup": (0.0,)}, "warmup"), ({"keep": 0}, "keep")):
        with pytest.raises(ValueError, match=field):
            DGC(**options)
    with pytest.raises(ValueError, match="epoch"):
        DGC().at_epoch(-1)
