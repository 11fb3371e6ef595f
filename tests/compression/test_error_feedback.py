"""ErrorFeedback: what a payload loses is in the next one; keyed by call site, off in evaluation."""

import math

import pytest
import torch
from torch import nn

from workbench.compression import FP16, Aggregation, AutoEncoder, ErrorFeedback, Quantize, TopK, clear_error_feedback


def test_what_was_lost_is_sent_next_time():
    codec = ErrorFeedback(TopK(1))
    x = torch.tensor([3.0, 2.0])
    # Sends 3, keeps e = (0, 2); x + e = (3, 4) sends 4, keeps (3, 0); (6, 2) sends 6.
    assert [codec(x).tolist() for _ in range(3)] == [[3, 0], [0, 4], [6, 0]]


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
    x = torch.tensor([3.0, 2.0])
    codec(x)
    codec.eval()
    assert codec(x).tolist() == [3, 0]
    assert codec.error.tolist() == [0, 2]
    codec.train()
    assert codec(x).tolist() == [0, 4]


def test_call_sites_do_not_share_errors():
    template = ErrorFeedback(TopK(1))
    first, second = template.for_site("layer 0"), template.for_site("layer 1")
    x = torch.tensor([3.0, 2.0])
    first(x)
    assert second(x).tolist() == [3, 0]
    assert template.error is None


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
        codec(torch.tensor([3.0, 2.0]))
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


def test_an_overflow_of_the_codec_alone_is_not_remembered():
    codec = ErrorFeedback(FP16())
    assert codec(torch.tensor([70000.0, 1.0])).tolist() == [math.inf, 1]  # half precision ends at 65504
    assert codec(torch.tensor([2.0, 1.0])).tolist() == [2, 1]


def test_the_gradient_is_that_of_the_codec_inside():
    x = torch.tensor([3.0, 2.0], requires_grad=True)
    codec = ErrorFeedback(TopK(1))
    codec(x)
    # The error (0, 2) makes the second element the larger one.
    codec(x).backward(torch.tensor([5.0, 7.0]))
    assert x.grad.tolist() == [0, 7]


def test_the_error_carries_no_graph():
    codec = ErrorFeedback(AutoEncoder(4, 2))
    codec(torch.ones(3, 4, requires_grad=True))
    assert not codec.error.requires_grad


def test_a_saved_error_is_sent_by_the_one_who_loads_it():
    first, second = ErrorFeedback(TopK(1)), ErrorFeedback(TopK(1))
    x = torch.tensor([3.0, 2.0])
    first(x)  # sends 3, keeps (0, 2)
    second.load_state_dict(first.state_dict())
    assert second(x).tolist() == [0, 4]
    assert first.error.tolist() == [0, 2]


def test_a_state_without_an_error_takes_the_error_away():
    codec = ErrorFeedback(TopK(1))
    start = codec.state_dict()
    codec(torch.tensor([3.0, 2.0]))
    codec.load_state_dict(start)
    assert codec.error is None


def test_payloads_are_aggregated_as_those_of_the_codec_inside():
    assert ErrorFeedback(TopK(1)).aggregation is Aggregation.GATHER
    assert ErrorFeedback(AutoEncoder(4, 2)).aggregation is Aggregation.SUM
