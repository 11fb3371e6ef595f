"""Of what Espresso's and Cupcake's hooks are given nothing is lost, whatever the model and the loop are.

The gradients that are applied in some passes and what all ranks still remember are together those that
DistributedDataParallel alone would have applied.
"""

import copy
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from tests.cases import tidy
from tests.contracts.hooked import HOOKS, attach, batch, both_work, early, net, one_pass, squares
from tests.contracts.language_models import NAMES, language_model
from tests.contracts.works_with import Feature

ROUNDING = 1e-5  # of sums of a few gradients in FP32, relative to the largest


@pytest.fixture(params=HOOKS)
def technique(request):
    return request.param


def remembered(exchange, module):
    """Return what this rank remembers of each parameter, as a share in the mean over ranks."""
    state, by_name = exchange.state_dict(), {}
    sizes = {name: p.numel() for name, p in reversed([*module.named_parameters()]) if p.requires_grad}

    def of(codec):
        extra = codec["_extra_state"]
        return extra if isinstance(extra, torch.Tensor) else extra["accumulated"]

    if "gradients" in state:
        sums = {name: of(kept["encoders"]["0, 0"]) for name, kept in state["gradients"].items()}
        return {name: total[: sizes[name]] / dist.get_world_size() for name, total in sums.items()}
    for members, group in zip((tuple(sizes)[::2], tuple(sizes)[1::2]), state["groups"], strict=True):
        by_name |= dict(zip(members, of(group["codec"]).split([sizes[name] for name in members]), strict=True))
    return by_name


def lost(technique, codec="efsignsgd", build=net, run=one_pass, **options):
    """Run on a rank: by how much the sum of what is applied and remembered misses DistributedDataParallel's."""
    module = build()
    ours, plain = early(copy.deepcopy(module), **options), DistributedDataParallel(module, **options)
    with_exchange = attach(technique, ours, codec)
    sums = []
    for step in range(4):
        run(ours, step)
        run(plain, step)
        sums.append([gradients_of(model.module) for model in (ours, plain)])
    shares = remembered(with_exchange, ours.module)
    with_exchange.close()
    return largest_miss(sums, shares)


def gradients_of(module):
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in trained.items()}


def largest_miss(sums, shares):
    """Return the largest difference between applied + remembered, and wanted, in parts of the largest wanted."""
    miss = largest = 0.0
    for name, share in shares.items():
        dist.all_reduce(share)
        applied, wanted = (sum(gradients[which][name] for gradients in sums) for which in (0, 1))
        miss = max(miss, (applied.flatten() + share - wanted.flatten()).abs().max().item())
        largest = max(largest, wanted.abs().max().item())
    return miss / largest


def nothing_is_lost(pools, technique, *arguments, **options):
    assert max(pools(2).run(tidy, lost, technique, *arguments, **options)) < ROUNDING


class Branch(nn.Module):
    """In step 0 both ranks use the branch, in step 1 the first, in 2 and 3 none."""

    def __init__(self):
        super().__init__()
        self.trunk, self.branch = net(), net()

    def forward(self, x, step):
        return self.trunk(x) + (self.branch(x) if step == 0 or (step == 1 and dist.get_rank() == 0) else 0)


def branched(model, step):
    model.zero_grad(set_to_none=step % 2 == 0)
    model(batch(step), step).square().mean().backward()


def branched_and_accumulated(model, step):
    model.zero_grad()
    with model.no_sync():
        model(batch(10 + step), (step + 1) % 4).square().mean().backward()
    model(batch(step), step).square().mean().backward()


@pytest.mark.parametrize(
    ("codec", "run", "options"),
    [
        ("efsignsgd", branched, {}),
        ("dgc", branched, {}),
        ("dgc", branched, {"gradient_as_bucket_view": True}),
        ("efsignsgd", branched_and_accumulated, {}),
    ],
)
@both_work(Feature.UNUSED_PARAMETERS)
def test_of_parameters_without_a_gradient_nothing_is_lost(pools, technique, codec, run, options):
    nothing_is_lost(pools, technique, codec, Branch, run, find_unused_parameters=True, **options)


def never_used():
    made = net()
    made.unused = nn.Parameter(torch.zeros(3))
    return made


@both_work(Feature.UNUSED_PARAMETERS)
def test_a_static_graph_may_have_parameters_that_are_never_used(pools, technique):
    nothing_is_lost(pools, technique, build=never_used, static_graph=True)


def frozen():
    made = net()
    made[0].weight.requires_grad_(False)
    return made


@both_work(Feature.FROZEN_PARAMETERS)
def test_frozen_parameters_are_left_alone(pools, technique):
    nothing_is_lost(pools, technique, build=frozen)


def tied():
    made = nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(7, 7))
    made[2].weight = made[0].weight
    return made


@both_work(Feature.TIED_WEIGHTS)
def test_tied_weights_have_the_sum_of_their_gradients(pools, technique):
    nothing_is_lost(pools, technique, build=tied)


def normalised():
    return nn.Sequential(nn.Linear(7, 30), nn.BatchNorm1d(30), nn.Tanh(), nn.Linear(30, 3))


@both_work(Feature.BUFFERS)
def test_buffers_that_ddp_broadcasts_are_no_memory_of_the_exchange(pools, technique):
    nothing_is_lost(pools, technique, build=normalised)


class Recomputed(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = net(), nn.Linear(3, 3)

    def forward(self, x):
        x = checkpoint(self.first, x.requires_grad_(), use_reentrant=True)
        return checkpoint(self.second, x, use_reentrant=False)


@both_work(Feature.CHECKPOINTING)
def test_activations_may_be_recomputed(pools, technique):
    nothing_is_lost(pools, technique, build=Recomputed)


def compiled():
    made = net()
    made.compile(backend="aot_eager")
    return made


@both_work(Feature.COMPILE, note="Compile the module before DDP wraps it: torch refuses DDP with such small buckets.")
def test_a_compiled_module_is_exchanged(pools, technique):
    nothing_is_lost(pools, technique, build=compiled)


def accumulated(model, step):
    model.zero_grad()
    with model.no_sync():
        squares(model, 10 + step).backward()
    squares(model, step).backward()


@both_work(Feature.ACCUMULATION)
def test_gradients_may_be_accumulated_without_being_sent(pools, technique):
    nothing_is_lost(pools, technique, run=accumulated)


def in_bf16(model, step):
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = squares(model, step)
    loss.backward()


@both_work(Feature.AUTOCAST)
def test_autocast_leaves_gradients_in_fp32(pools, technique):
    nothing_is_lost(pools, technique, run=in_bf16)


def lost_beside_another_default(technique, dtype):
    before = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype)
        return lost(technique, "dgc", lambda: net().float(), in_fp32)
    finally:
        torch.set_default_dtype(before)


def in_fp32(model, step):
    model.zero_grad()
    model(batch(step).float()).square().mean().backward()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_gradients_stay_in_fp32_whatever_torchs_default_is(pools, technique, dtype):
    assert max(pools(2).run(tidy, lost_beside_another_default, technique, dtype)) < ROUNDING


def adapted():
    import peft

    config = peft.LoraConfig(r=2, target_modules=["0", "2"], init_lora_weights=False)
    return peft.get_peft_model(net(), config)


@both_work(Feature.LORA)
def test_adapters_are_exchanged_alone(pools, technique):
    nothing_is_lost(pools, technique, build=adapted)


def language(model, step):
    model.zero_grad()
    ids = (torch.arange(12).view(2, 6) * (step + 2) + dist.get_rank()) % 50
    model(input_ids=ids, labels=ids).loss.backward()


def lost_of_transformers(technique):
    codec = "onebit" if technique == "cupcake" else "efsignsgd"
    return {
        name: lost(technique, codec, partial(language_model, name), language, find_unused_parameters=name == "bert")
        for name in NAMES
    }


@both_work(Feature.MODELS)
def test_transformers_are_exchanged(pools, technique):
    for misses in pools(2).run(tidy, lost_of_transformers, technique):
        assert max(misses.values()) < ROUNDING, misses


def lost_with_unequal_ends(technique):
    module = net()
    ours, plain = early(copy.deepcopy(module)), DistributedDataParallel(module)
    exchange, sums = attach(technique, ours), []
    with Join([ours, plain]):
        for step in range(4 if dist.get_rank() == 0 else 1):
            one_pass(ours, step)
            one_pass(plain, step)
            sums.append([gradients_of(model.module) for model in (ours, plain)])
    shares = remembered(exchange, ours.module)
    exchange.close()
    return largest_miss(sums, shares)


NO_SCALER = (
    "With `join()` as in DDP, but not with scaler=, nor with divide_by_initial_world_size=False, which are refused."
)


@both_work(Feature.UNEVEN_ENDS, note=NO_SCALER)
def test_ranks_that_have_joined_send_what_they_remember(pools, technique):
    assert pools(2).run(tidy, lost_with_unequal_ends, technique)[0] < ROUNDING  # the other has missed three steps
