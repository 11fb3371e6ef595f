"""Tensor groups: sums, copies, gathers and the ledger of what was sent."""

import pytest
import torch

from workbench.parallel import Message, MessageKind, Phase, TensorGroup, Traffic, VirtualTensorGroup


def test_a_virtual_group_is_a_tensor_group():
    assert isinstance(VirtualTensorGroup(2), TensorGroup)


def test_sum_adds_the_partials_and_hands_the_gradient_to_each():
    group = VirtualTensorGroup(2)
    a, b = (torch.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    total = group.sum([a, 10 * b])
    total.backward(torch.tensor([1.0, 3.0]))
    assert total.tolist() == [11.0, 22.0]
    assert a.grad.tolist() == [1.0, 3.0]
    assert b.grad.tolist() == [10.0, 30.0]


def test_copy_is_the_identity_and_sums_gradients():
    group = VirtualTensorGroup(3)
    x = torch.tensor([2.0], requires_grad=True)
    y = group.copy(x)
    sum(y * weight for weight in (1.0, 10.0, 100.0)).backward()
    assert y.item() == 2.0
    assert x.grad.item() == 111.0


def test_gather_keeps_integer_types_and_rank_order_and_no_gradient():
    group = VirtualTensorGroup(2)
    messages = [torch.tensor([1, 2]), torch.tensor([3, 4])]
    assert [message.tolist() for message in group.gather(messages)] == [[1, 2], [3, 4]]
    values = [torch.ones(2, requires_grad=True) for _ in range(2)]
    assert not any(message.requires_grad for message in group.gather(values))


def test_traffic_counts_what_one_rank_contributes():
    group = VirtualTensorGroup(2)
    x = torch.ones(3, 4, requires_grad=True)
    with group.traffic.at("here"):
        y = group.copy(x)
    with group.traffic.at("there"):
        group.sum([y, y]).sum().backward()
        group.gather([torch.zeros(5, dtype=torch.uint8)] * 2)
    expected = {  # 12 fp32 elements are 48 bytes, 5 bytes are 5
        ("sum", "forward", 48, "there"),
        ("copy-backward", "backward", 48, "here"),
        ("gather", "forward", 5, "there"),
    }
    assert {(m.what, m.phase, m.message_bytes, m.site) for m in group.traffic} == expected
    assert group.traffic.num_bytes() == 101
    assert group.traffic.num_bytes(phase="forward") == 53
    assert group.traffic.num_bytes(site="there") == 53
    group.traffic.clear()
    assert len(group.traffic) == 0


def test_a_group_of_one_sends_nothing():
    group = VirtualTensorGroup(1)
    group.copy(group.sum([torch.ones(2, requires_grad=True)])).sum().backward()
    assert len(group.traffic) == 0


def test_the_phase_named_at_a_site_is_recorded():
    traffic = Traffic()
    with traffic.at("boundary", phase=Phase.BACKWARD):
        traffic.record(MessageKind.SEND, torch.zeros(2, dtype=torch.float16), num_ranks=2)
    assert traffic.messages == [
        Message(what=MessageKind.SEND, phase=Phase.BACKWARD, message_bytes=4, num_ranks=2, site="boundary")
    ]


def test_one_tensor_for_every_local_rank_is_demanded():
    with pytest.raises(ValueError, match="tensors: 1 given.*2 ranks"):
        VirtualTensorGroup(2).sum([torch.ones(1)])
    with pytest.raises(ValueError, match="size: 0"):
        VirtualTensorGroup(0)
