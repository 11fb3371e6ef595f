"""1F1B without a flush on real ranks: the order of passes, which weights they use, and refused results."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.checkpoint import checkpoint

from workbench.parallel.endless import Endless1F1B


@pytest.fixture(scope="module")
def ranks(pools):
    return pools(3)


class Labels(list):
    """Collects passes in their order; a context that does nothing."""

    def __call__(self, label, kind):
        self.append(f"{'F' if kind.name == 'FORWARD' else 'B'}{label}")
        return self

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def stage_of(value):
    part = nn.Linear(1, 1, bias=False)
    nn.init.constant_(part.weight, value)
    return part


def follow(num_batches):
    """Train x -> a x -> b a x -> c b a x on the loss c b a x, with rate 1 on stage 0 alone."""
    part, order, weights = stage_of(2.0), Labels(), []
    schedule = Endless1F1B(part, lambda output, target: (output * target).sum(), group=dist.group.WORLD, during=order)
    rate = 1.0 if dist.get_rank() == 0 else 0.0
    batches = [(torch.full((1, 1), 1.0 + number), torch.ones(1, 1)) for number in range(num_batches)]
    losses = []
    for loss in schedule.run(batches):
        losses.append(None if loss is None else loss.item())
        with torch.no_grad():
            part.weight -= rate * part.weight.grad
        weights.append(part.weight.item())
        part.weight.grad = None
    return " ".join(order), losses, weights


def test_stage_j_of_m_is_m_minus_j_forward_passes_ahead_and_its_passes_use_the_weights_of_then(ranks):
    orders, losses, weights = zip(*ranks.run(follow, 5), strict=True)
    assert orders == ("F0 F1 F2 B0 F3 B1 F4 B2 B3 B4", "F0 F1 B0 F2 B1 F3 B2 F4 B3 B4", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4")
    # The gradient of stage 0 is 4 x: its weight is 2, then 2 - 4, 2 - 4 - 8. Mini-batch 3 finds the second of these.
    assert weights[0] == [-2.0, -10.0, -22.0, -38.0, -58.0]
    assert losses[2] == [2.0 * 4, 2.0 * 8, 2.0 * 12, weights[0][0] * 16, weights[0][1] * 20]
    assert losses[0] == losses[1] == [None] * 5


class Checkpointed(nn.Module):
    """Computes its forward pass anew in the backward pass."""

    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, x):
        return checkpoint(self.part, x, use_reentrant=False)


def train(num_batches, is_checkpointed):
    torch.manual_seed(dist.get_rank())
    part = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    part = Checkpointed(part) if is_checkpointed else part
    optimizer = torch.optim.SGD(part.parameters(), lr=0.5)
    schedule = Endless1F1B(part, nn.functional.mse_loss, group=dist.group.WORLD)
    batches = torch.randn(num_batches, 2, 4, 3, generator=torch.Generator().manual_seed(0))
    for _ in schedule.run(batches):
        optimizer.step()
        optimizer.zero_grad()
    return nn.utils.parameters_to_vector(part.parameters()).detach()


def test_activation_checkpointing_uses_the_weights_of_then_too(ranks):
    for plain, checkpointed in zip(
        *(ranks.run(train, 6, is_checkpointed) for is_checkpointed in (False, True)), strict=True
    ):
        assert torch.equal(plain, checkpointed)


class Partly(nn.Module):
    """A weight that is used, one that is frozen, and one that nothing uses."""

    def __init__(self):
        super().__init__()
        self.used, self.frozen, self.unused = (nn.Parameter(torch.ones(1)) for _ in range(3))
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return x * self.used * self.frozen


def train_partly(lengths):
    part = Partly()
    schedule = Endless1F1B(part, lambda output, _: output.sum(), group=dist.group.WORLD)
    for _ in schedule.run([(torch.ones(length, 2), torch.zeros(0)) for length in lengths]):
        pass  # gradients add up
    return [None if weight.grad is None else weight.grad.item() for weight in part.parameters()]


def test_gradients_add_up_over_mini_batches_of_any_length_and_some_weights_have_none(ranks):
    assert ranks.run(train_partly, [3, 1]) == [[8.0, None, None]] * 3


def train_with_hooks():
    part, seen = stage_of(2.0), []
    part.weight.register_hook(lambda gradient: 0.5 * gradient)
    part.weight.register_post_accumulate_grad_hook(lambda weight: seen.append(weight.grad.item()))
    part.requires_grad_(dist.get_rank() > 0)  # nothing of the first stage is trained
    schedule = Endless1F1B(part, lambda output, _: output.sum(), group=dist.group.WORLD)
    for _ in schedule.run([(torch.ones(1, 1), torch.zeros(0))] * 2):
        pass
    return seen


def test_hooks_of_parameters_see_their_gradients_and_a_stage_may_be_frozen(ranks):
    assert ranks.run(train_with_hooks) == [[], [2.0, 4.0], [2.0, 4.0]]  # a half of 2 * 2, and once more


def send_words():
    part = nn.Embedding(2, 2)
    part.register_forward_hook(lambda *_: torch.zeros(2, dtype=torch.int64))
    schedule = Endless1F1B(part, lambda output, _: output.sum(), group=dist.group.WORLD)
    if dist.get_rank() == 0:
        with pytest.raises(ValueError, match=r"result of stage 0 is torch.int64 \(2,\); it must be of floats"):
            next(schedule.run([(torch.zeros(2, dtype=torch.int64), torch.zeros(0))]))


def test_a_result_that_is_not_of_floats_is_refused(ranks):
    ranks.run(send_words)
