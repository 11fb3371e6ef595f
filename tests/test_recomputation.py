"""Checkpointed regions give the bits of a model without them, in gradients and in what is remembered."""

import copy
import functools
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.distributed._composable import checkpoint as composable_checkpoint
from torch.utils import checkpoint as torch_checkpoint
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from workbench.compression import DGC, ErrorFeedback, RandomK, TopK
from workbench.parallel.transformer import Dropout
from workbench.techniques.activation_compression import compress

OWNERS = {
    "RandomK": lambda: RandomK(0.3),
    "ErrorFeedback": lambda: ErrorFeedback(TopK(0.2)),
    "ErrorFeedback of RandomK": lambda: ErrorFeedback(RandomK(0.3)),
    "DGC": lambda: DGC(0.2, momentum=0.5),
    "Dropout": lambda: Dropout(0.5),
}


class Net(nn.Module):
    """Four blocks, the first three with private state; the second is called twice."""

    def __init__(self, owner: str):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(4))
        if owner == "Dropout":
            for number, block in enumerate(self.blocks[:3]):
                block.append(Dropout(0.5, site=f"blocks.{number}"))
        else:
            compress(self, OWNERS[owner](), layers=[0, 1, 2])

    def forward(self, x, wrap):
        return wrap(self, x)


def plain(net, x):
    first, second, third, last = net.blocks
    return last(third(second(second(first(x)))))


def rerun(function, x, **options):
    return checkpoint(function, x, use_reentrant=False, **options)


def reentrant(function, x):
    return checkpoint(function, x, use_reentrant=True)


def around_all(net, x):
    return rerun(lambda x: plain(net, x), x)


def around_all_reentrant(net, x):
    return reentrant(lambda x: plain(net, x), x)


def around_each(net, x):
    return functools.reduce(lambda x, number: rerun(net.blocks[number], x), (0, 1, 1, 2, 3), x)


def around_each_reentrant(net, x):
    twice = nn.Sequential(net.blocks[1], net.blocks[1])  # one region: two would add its gradients in another order
    return functools.reduce(lambda x, block: reentrant(block, x), (net.blocks[0], twice, *net.blocks[2:]), x)


def nested(outer, inner):
    def wrap(net, x):
        return outer(lambda x: net.blocks[3](inner(lambda x: plain_but_last(net, x), x)), x)

    return wrap


def plain_but_last(net, x):
    first, second, third, _ = net.blocks
    return third(second(second(first(x))))


def without_early_stop(net, x):
    with torch_checkpoint.set_checkpoint_early_stop(False):
        return around_all(net, x)


def saved_on_cpu_inside(net, x):
    def function(x):
        with torch.autograd.graph.save_on_cpu():
            return plain(net, x)

    return rerun(function, x)


def saved_on_cpu_outside(net, x):
    with torch.autograd.graph.save_on_cpu():
        return around_all(net, x)


def selective(context, op, *args, **kwargs):
    saves = (torch.ops.aten.addmm.default, torch.ops.aten.mul.Tensor, torch.ops.aten.clone.default)
    return CheckpointPolicy.MUST_SAVE if op in saves else CheckpointPolicy.PREFER_RECOMPUTE


def around_all_but_products(net, x):
    contexts = functools.partial(create_selective_checkpoint_contexts, selective)
    return rerun(lambda x: plain(net, x), x, context_fn=contexts)


def composable(net, x):
    for block in net.blocks:
        if not hasattr(block, "is_wrapped"):
            composable_checkpoint(block)
            block.is_wrapped = True
    return plain(net, x)


class OthersCheckpoint(torch.autograd.Function):
    """As in Megatron-LM and DeepSpeed."""

    @staticmethod
    def forward(ctx, run, x):
        ctx.run = run
        ctx.save_for_backward(x)
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.run(x)
        torch.autograd.backward(y, gradient)
        return None, x.grad


def anothers_function(net, x):
    return OthersCheckpoint.apply(lambda x: plain(net, x), x)


WRAPS = {
    wrap.__name__: wrap
    for wrap in (
        around_all,
        around_all_reentrant,
        around_each,
        around_each_reentrant,
        without_early_stop,
        saved_on_cpu_inside,
        saved_on_cpu_outside,
        around_all_but_products,
        composable,
        anothers_function,
    )
}
WRAPS |= {
    "nested": nested(rerun, rerun),
    "nested reentrant": nested(reentrant, reentrant),
    "reentrant inside": nested(rerun, reentrant),
    "reentrant outside": nested(reentrant, rerun),
    "nested three times": nested(rerun, lambda f, x: rerun(lambda x: rerun(f, x), x)),
}


def private_state(net):
    """Copy what the owners remember."""
    generators = [module.generator.get_state() for module in net.modules() if isinstance(module, Dropout)]
    extra = {name: value for name, value in net.state_dict().items() if name.endswith("_extra_state")}
    return copy.deepcopy((generators, extra))


def trained(owner, wrap, *, retain=False):
    """Take two steps of two micro-batches whose forward passes run before the backward passes, the last one first."""
    net = Net(owner)
    draws = torch.Generator().manual_seed(1)
    by_step = []
    for _ in range(2):
        xs = [torch.randn(8, 16, generator=draws).requires_grad_() for _ in range(2)]
        losses = [net(x, wrap).square().sum() for x in xs]
        for loss in reversed(losses):
            for _ in range(1 + retain):
                loss.backward(retain_graph=retain)
        by_step.append((torch.stack(losses).detach(), [p.grad.clone() for p in net.parameters()], [x.grad for x in xs]))
        by_step.append(private_state(net))
    return by_step


@functools.cache
def trained_without_checkpoints(owner, retain=False):
    return trained(owner, plain, retain=retain)


def assert_same_bits(actual, expected):
    torch.testing.assert_close(actual, expected, rtol=0, atol=0)


BOTH = "ErrorFeedback of RandomK"  # remembers an error, and draws numbers
CASES = [(BOTH, wrap) for wrap in WRAPS]
CASES += [(owner, wrap) for owner in OWNERS for wrap in ("around_all", "reentrant inside") if owner != BOTH]


@pytest.mark.parametrize(("owner", "wrap"), CASES)
def test_recomputation_gives_the_same_bits_and_changes_state_once(owner, wrap):
    assert_same_bits(trained(owner, WRAPS[wrap]), trained_without_checkpoints(owner))


@pytest.mark.parametrize("wrap", ["around_all", "around_all_reentrant", "nested", "around_each"])
def test_two_backward_passes_of_one_graph_recompute_the_same_twice(wrap):
    assert_same_bits(trained(BOTH, WRAPS[wrap], retain=True), trained_without_checkpoints(BOTH, True))


@pytest.mark.parametrize("around", [rerun, reentrant])
def test_a_layer_that_the_forward_pass_did_not_have_is_refused_by_name(around):
    torch.manual_seed(0)
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(2)))
    loss = around(blocks, torch.randn(8, 16).requires_grad_()).sum()
    compress(blocks, RandomK(0.3), layers=["0"])
    with pytest.raises(RuntimeError, match="RandomK '0': activation checkpointing recomputes its call 1 of a region"):
        loss.backward()


def test_gradients_encoded_during_a_backward_pass_are_no_recomputation():
    """A hook of gradients inside a reentrant checkpoint's own backward pass advances its stream as usual."""
    sent, expected = RandomK(0.3, seed=3), RandomK(0.3, seed=3)
    layer = nn.Linear(16, 16)
    layer.weight.register_hook(lambda gradient: sent(gradient))
    for around in (lambda function, x: function(x), rerun, reentrant):
        around(layer, torch.randn(8, 16).requires_grad_()).sum().backward()
        expected(torch.zeros(16, 16))
    assert torch.equal(sent.get_extra_state(), expected.get_extra_state())


class _GradientCompressed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, codec):
        ctx.codec = codec
        return codec(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.codec(gradient), None


def test_a_function_that_encodes_its_input_and_its_gradient_advances_twice():
    codec, expected = RandomK(0.3), RandomK(0.3)
    _GradientCompressed.apply(torch.randn(8, 16).requires_grad_(), codec).sum().backward()
    for _ in range(2):
        expected.encode(torch.zeros(8, 16))
    assert torch.equal(codec.get_extra_state(), expected.get_extra_state())


@pytest.mark.parametrize("around", [rerun, reentrant])
def test_what_a_region_remembers_goes_with_it(around):
    codec = ErrorFeedback(TopK(0.2))
    layer = nn.Linear(16, 16)
    codec(torch.randn(8, 16))
    earlier = weakref.ref(codec.error)
    y = around(lambda x: codec(layer(x)), torch.randn(8, 16).requires_grad_())
    assert earlier() is not None
    y.sum().backward()
    del y
    gc.collect()
    assert earlier() is None


def test_global_generators_are_left_alone():
    net, x = Net("RandomK"), torch.randn(8, 16).requires_grad_()
    state = torch.get_rng_state()
    net(x, around_all).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("wrap", ["around_all", "around_all_reentrant", "nested"])
@pytest.mark.parametrize("owner", OWNERS)
def test_a_gpu_recomputes_the_same(owner, wrap):
    gradients = []
    for chosen in (plain, WRAPS[wrap]):
        net, x = Net(owner).cuda(), torch.ones(8, 16, device="cuda", requires_grad=True)
        for _ in range(2):
            net(x, chosen).square().sum().backward()
        gradients.append([p.grad for p in net.parameters()])
    assert_same_bits(*gradients)
