"""Gradients of a module: derived in the reversed order, or measured; counts of published architectures."""

import subprocess
import sys
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.cases import refusals
from workbench.models import architectures, gradients
from workbench.timeline.gradients import Gradients

FIELDS = {"name": "toy", "tensors": ("b", "a"), "num_elements": (1, 3), "gap_s": (0.0, 0.5), "forward_s": 0.2}


def toy(**changes) -> Gradients:
    return Gradients(**FIELDS | {"source": "by hand"} | changes)


def test_sizes_are_those_of_fp32_and_backward_seconds_the_sum_of_the_gaps():
    made = toy(gap_s=(0.25, 0.5))
    assert (made.num_tensors, made.size_bytes, made.total_bytes, made.backward_s) == (2, (4, 12), 16, 0.75)


test_gradients_that_cannot_be_are_refused = refusals(
    ({"tensors": ("a",)}, r"have lengths \(1, 2, 2\); they must be equal"),
    ({"tensors": (), "num_elements": (), "gap_s": ()}, "must be equal and at least 1"),
    ({"num_elements": (1, 0)}, r"num_elements\[1\] is 0; it must be a whole number of at least 1"),
    ({"gap_s": (0.0, -1e-6)}, r"gap_s\[1\] is -1e-06; it must be finite and not negative"),
    ({"forward_s": -1.0}, "forward_s is -1.0"),
    of=toy,
)


def test_a_module_gives_its_parameters_reversed_and_seconds_by_elements():
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(2, 3, bias=False))
    module[2].weight = module[0].weight  # shared: counted once
    module[1].bias.requires_grad_(False)
    made = gradients.of_module(module, backward_s=1.2, name="three")
    assert (made.tensors, made.num_elements) == (("1.weight", "0.bias", "0.weight"), (3, 3, 6))
    assert made.gap_s == pytest.approx((0.3, 0.3, 0.6))
    assert (made.forward_s, made.name) == (0.6, "three") and "forward assumed" in made.source
    assert gradients.of_module(module, backward_s=1.2, forward_s=0.1).forward_s == 0.1
    with pytest.raises(ValueError, match="at least 1"):
        gradients.of_module(nn.ReLU(), backward_s=1.0)


class _Slow(torch.autograd.Function):
    """The identity, which takes 5 ms forward and 20 ms backward."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(0.005)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(0.02)
        return grad


class _Swapped(nn.Module):
    """Registers its parameters in another order than it uses them, and the slow function between the two."""

    def __init__(self):
        super().__init__()
        self.last, self.first = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
        self.unused = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return _Slow.apply(self.first.sum() * x) * self.last.sum()


def test_measuring_finds_the_real_order_and_the_gap_of_slow_work_and_leaves_no_hook():
    module = _Swapped()
    made = gradients.measure(module, lambda: module(torch.ones(())).backward(), device="cpu", iterations=3, warmup=1)
    assert (made.tensors, made.num_elements) == (("last", "first"), (2, 3))  # reversed order: unused, first, last
    assert made.gap_s[0] < 0.02 <= made.gap_s[1] and made.forward_s >= 0.005
    assert not module._forward_hooks and not module.first._post_accumulate_grad_hooks
    assert module.first.grad is None  # it would count into the training that follows


def measured_on_a_rank(rank_s, last_has_more=False):
    """Measure on this rank; its backward pass takes rank_s[rank] longer in the middle."""
    module, rank = _Swapped(), dist.get_rank()
    module.first.register_hook(lambda grad: time.sleep(rank_s[rank]))

    def step():
        loss = module(torch.ones(()))
        (loss + module.unused.sum() if last_has_more and rank == len(rank_s) - 1 else loss).backward()

    try:
        return gradients.measure(module, step, device="cpu", iterations=2, warmup=0, on_all_ranks=True)
    except ValueError as error:
        return str(error)


def test_a_gradient_is_ready_once_the_slowest_rank_has_it(pools):
    fast, slow = pools(2).run(measured_on_a_rank, (0.0, 0.08))
    assert fast == slow and fast.tensors == ("last", "first")
    assert fast.gap_s[0] < 0.02 and fast.forward_s + fast.backward_s >= 0.005 + 0.02 + 0.08
    refused = pools(2).run(measured_on_a_rank, (0.0, 0.0), True)
    assert refused == ["step must make the same gradients ready every time, on all ranks"] * 2


@pytest.mark.parametrize("calls", [0, 2])
def test_steps_without_the_module_and_with_two_backward_passes_are_refused(calls):
    module = _Swapped()

    def step():
        for _ in range(calls):
            module(torch.ones(())).backward()

    with pytest.raises(ValueError, match="step must call the module, then make each of its gradients ready once"):
        gradients.measure(module, step, device="cpu")


def test_steps_that_differ_in_their_gradients_and_other_devices_are_refused():
    module, with_unused = _Swapped(), iter([False, True])

    def step():
        loss = module(torch.ones(()))
        (loss + module.unused.sum() if next(with_unused) else loss).backward()

    with pytest.raises(ValueError, match="the same gradients ready every time$"):
        gradients.measure(module, step, device="cpu", iterations=2, warmup=0)
    with pytest.raises(ValueError, match="device is mps; it must be"):
        gradients.measure(module, step, device="mps")


def test_the_measured_order_of_the_lstm_is_the_one_that_espresso_recorded():
    module = architectures.WordLSTM(5, 4)
    ids_SB = torch.zeros(3, 2, dtype=torch.long)
    made = gradients.measure(module, lambda: module(ids_SB).sum().backward(), device="cpu", iterations=3)
    parts = ("weight_ih_l0", "weight_hh_l0", "bias_hh_l0", "bias_ih_l0")
    layers = [f"rnns.{layer}.{part}" for layer in (1, 0) for part in parts]
    assert made.tensors == ("decoder.bias", *layers, "encoder.weight")  # models/lstm.csv


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_measuring_on_a_gpu_counts_its_work_and_not_its_launches():
    module = nn.Sequential(nn.Linear(4096, 4096), nn.Linear(4096, 4096)).cuda()
    x = torch.ones(4096, 4096, device="cuda")
    made = gradients.measure(module, lambda: module(x).sum().backward(), device="cuda")
    assert sorted(made.num_elements) == [4096] * 2 + [4096**2] * 2
    assert made.backward_s > 3 * 2 * 4096**3 / 1e15  # the last layer's two products and the first one's, at 1 PFLOP/s


@pytest.mark.parametrize(
    ("name", "num_tensors", "num_elements"),  # Espresso's models_summary.csv
    [
        ("vgg16", 32, 138_357_544),
        ("resnet50", 161, 25_557_032),
        ("resnet101", 314, 44_549_160),
        ("bert_base", 199, 108_897_794),
        ("gpt2", 148, 124_439_808),
        ("lstm", 10, 85_974_278),
    ],
)
def test_architectures_have_as_many_gradients_as_espresso_recorded(name, num_tensors, num_elements):
    made = gradients.of_module(architectures.architecture(name), backward_s=1.0)
    assert (made.num_tensors, made.total_bytes) == (num_tensors, 4 * num_elements)


def test_an_unknown_architecture_is_refused_and_small_models_of_our_own_run():
    with pytest.raises(ValueError, match="name is 'ugatit'; it must be one of vgg16"):
        architectures.architecture("ugatit")
    assert architectures.WordLSTM(5, 4)(torch.zeros(3, 2, dtype=torch.long)).shape == (3, 2, 5)
    with torch.device("meta"):
        assert architectures.vgg16()(torch.empty(2, 3, 224, 224)).shape == (2, 1000)


def test_gradients_are_imported_without_torch():
    code = (
        "import sys, workbench.models.gradients, workbench.datasets.gradient_traces; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
