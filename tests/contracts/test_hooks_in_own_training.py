"""Espresso's and Cupcake's hooks in trainings of their users' own: scaled, interrupted, failing, or refused."""

import io
import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.amp import GradScaler
from torch.distributed.algorithms import Join
from torch.nn.parallel import DistributedDataParallel

from tests.cases import tidy
from tests.contracts.hooked import HOOKS, attach, both_refuse, both_work, early, message_of, net, one_pass, squares
from tests.contracts.trainings import equal
from tests.contracts.works_with import Feature
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from workbench.launch import Ranks

GIVEN = "Give the GradScaler, or an object with get_scale(), as scaler=; one that is not given is refused."


@pytest.fixture(params=HOOKS)
def technique(request):
    return request.param


def trained(technique, codec="efsignsgd", scaler=None, steps=range(6), resumed=None, **options):
    """Run on a rank: train with SGD; return the weights, and what is saved of all after three steps and at the end."""
    torch.manual_seed(0)
    ours, saved = early(net()), []
    optimizer = torch.optim.SGD(ours.parameters(), lr=0.1, momentum=0.0 if "momentum" in options else 0.9)
    exchange = attach(technique, ours, codec, scaler=scaler, **options)
    scaler = GradScaler("cpu", enabled=False) if scaler is None else scaler
    for part, state in zip((ours.module, optimizer, exchange), resumed or (), strict=False):
        part.load_state_dict(state)
    for step in steps:
        exchange.at_epoch(step // 2)
        optimizer.zero_grad()
        scaler.scale(squares(ours, step) / (0 if step == OVERFLOW and dist.get_rank() == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        if step in (2, 5):
            file = io.BytesIO()
            torch.save([part.state_dict() for part in (ours.module, optimizer, exchange)], file)
            saved.append(torch.load(io.BytesIO(file.getvalue()), weights_only=True))
    exchange.close()
    return torch.cat([p.detach().flatten() for p in ours.parameters()]), saved


OVERFLOW = 100  # the step in which one rank's loss is infinite


class ByHand:
    """A loss that a user multiplies himself, by a factor that goes up and down."""

    def __init__(self):
        self.scales = [2.0, 1.0, 1024.0, 1.0, 0.5, 8.0]

    def get_scale(self):
        return self.scales[0]

    def scale(self, loss):
        return loss * self.scales[0]

    def step(self, optimizer):
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad /= self.scales[0]
        optimizer.step()

    def update(self):
        self.scales = self.scales[1:]


CODECS = {"espresso": ("efsignsgd", "randomk", "dgc"), "cupcake": ("efsignsgd", "onebit", "randomk", "dgc")}
CASES = [
    ("espresso", "randomk"),
    ("cupcake", "efsignsgd"),
    *((name, codec) for name in HOOKS for codec in ("dgc", "momentum")),
]


def options_of(codec):
    return {"momentum": 0.9, "warmup": (0.5, 0.25)} if codec in ("dgc", "momentum") else {}


def scaled(technique, codec, **options):
    """Run on a rank: whether a scaler's and a user's own scale leave the weights of a loss that is not scaled."""
    growing, options = GradScaler("cpu", init_scale=1024.0, growth_interval=2), options | options_of(codec)
    runs = [trained(technique, codec, scaler, **options)[0] for scaler in (growing, ByHand())]
    scale = growing.get_scale()
    del growing  # a scaler that lives must be given
    plain = trained(technique, codec, **options)[0]
    return [torch.equal(run, plain) for run in runs], scale


def resumed(technique, codec):
    """Run on a rank: whether a training that was resumed after three steps ends as one that was not interrupted."""
    whole, (at_three, at_end) = trained(technique, codec, **options_of(codec))
    continued, (again,) = trained(technique, codec, steps=range(3, 6), resumed=at_three, **options_of(codec))
    return torch.equal(whole, continued), equal(at_end[2], again[2])


@pytest.mark.parametrize(("technique", "codec"), CASES)
@both_work(Feature.GRADIENT_SCALING, note=GIVEN)
@both_work(Feature.RESUME, note="Each rank saves and loads the exchange's own state_dict beside the model's.")
def test_a_loss_scaled_by_powers_of_two_and_a_resumed_training_give_the_same_weights_bit_for_bit(
    pools, technique, codec
):
    by_rank = pools(2).run(tidy, lambda: (scaled(technique, codec), resumed(technique, codec)))
    assert by_rank == [(([True, True], 8192.0), (True, True))] * 2


def skipped(technique, codec):
    """Run on a rank: whether a step that the scaler skips leaves no trace, and the scale that it leaves."""
    backing_off = GradScaler("cpu", init_scale=1024.0)
    with_overflow = trained(technique, codec, backing_off, [0, 1, OVERFLOW, 2, 3], **options_of(codec))[0]
    scale = backing_off.get_scale()
    without = trained(technique, codec, GradScaler("cpu"), [0, 1, 2, 3], **options_of(codec))[0]
    return torch.equal(with_overflow, without), scale


@pytest.mark.parametrize("codec", ["efsignsgd", "dgc"])
@both_work(Feature.GRADIENT_SCALING, note="What a skipped step has sent is remembered again.")
def test_a_step_that_the_scaler_skips_leaves_no_trace(pools, technique, codec):
    assert pools(2).run(tidy, skipped, technique, codec) == [(True, 512.0)] * 2


def skipped_by_two_optimizers(technique):
    """Run on a rank: weights and memory of the first layer before and after a pass that spoils the last layer's."""
    ours, scaler = early(net()), GradScaler("cpu", init_scale=1024.0)
    optimizers = [torch.optim.SGD(ours.module[layer].parameters(), lr=0.1) for layer in (0, 2)]
    exchange, states = attach(technique, ours, scaler=scaler), []
    for step in range(2):
        ours.zero_grad()
        spoilt = ours.module[2].bias.sum() * float("inf") if step == 1 else 0.0
        scaler.scale(squares(ours, step) + spoilt).backward()
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        state = exchange.state_dict()
        states.append([ours.module[0].weight.detach().clone(), state.get("gradients", state.get("groups"))])
    exchange.close()
    return equal(*states)


@both_work(Feature.GRADIENT_SCALING, note="A step is skipped by all optimizers of a model.")
def test_a_pass_that_is_forgotten_is_applied_by_no_optimizer(pools, technique):
    assert pools(2).run(tidy, skipped_by_two_optimizers, technique) == [True] * 2


def passes_with_momentum(technique, codec, clear):
    """Run on a rank: two exchanged passes and one that is not, with what clears gradients between them."""
    ours = early(net())
    exchange = attach(technique, ours, codec, momentum=0.9)
    one_pass(ours, 0)
    for step in (1, 2):
        if clear:
            ours.zero_grad(set_to_none=clear == "to none")
        with ours.no_sync():
            squares(ours, 10 + step).backward()
        loss = squares(ours, step)
        if not clear:
            message = message_of(ValueError, loss.backward)
            exchange.close()
            return message
        loss.backward()
    exchange.close()


@pytest.mark.parametrize("codec", ["dgc", "momentum"])
@both_work(Feature.ACCUMULATION, note="With momentum= one exchanged pass a step; others in no_sync().")
def test_momentum_counts_one_pass_a_step(pools, technique, codec):
    for clear in ("to none", "to zero"):
        assert pools(2).run(tidy, passes_with_momentum, technique, codec, clear) == [None] * 2
    for message in pools(2).run(tidy, passes_with_momentum, technique, codec, ""):
        assert message.startswith("momentum is 0.9, and ") and "exchange one pass a step" in message


def with_a_scaler_made(when, technique):
    """Run on a rank: the error for a GradScaler that was not given, made before the first pass or later."""
    ours = early(net())
    scaler = GradScaler("cpu") if when == "before" else None
    exchange = attach(technique, ours)
    if when == "later":
        one_pass(ours, 0)
    scaler = scaler or GradScaler("cpu")
    message = message_of(ValueError, scaler.scale(squares(ours, 1)).backward)
    exchange.close()
    return message


def test_a_scaler_that_was_not_given_is_refused_by_name(pools, technique):
    made = ("before", "between", "later")
    for messages in pools(2).run(tidy, lambda: [with_a_scaler_made(when, technique) for when in made]):
        assert all("give it as scaler=" in message for message in messages)


def finite_after(technique, codec, value):
    """Run on a rank: whether all gradients are finite after rank 1 has one element that is not, and after that pass."""
    ours, are_finite = early(net()), []
    exchange = attach(technique, ours, codec, **options_of(codec))
    for step in range(2):
        ours.zero_grad()
        loss = squares(ours, step)
        if step == 0 and dist.get_rank() == 1:
            loss = loss + ours.module[0].weight[3, 4] * value
        loss.backward()
        are_finite.append(all(bool(p.grad.isfinite().all()) for p in ours.parameters()))
    exchange.close()
    return are_finite


@both_work(Feature.NOT_FINITE)
def test_a_gradient_that_is_not_finite_on_one_rank_is_so_on_all_and_not_in_the_next_pass(pools, technique):
    cases = [(codec, value) for codec in (*CODECS[technique], "momentum") for value in (float("inf"), float("nan"))]
    are_finite = pools(2).run(tidy, lambda: [finite_after(technique, *case) for case in cases])
    assert are_finite == [[[False, True]] * len(cases)] * 2


def refused_states(technique):
    ours = early(net())
    exchange = attach(technique, ours)
    one_pass(ours, 0)
    before, messages = exchange.state_dict(), []
    for changed in ({"rank": 7}, {"codec": '"dgc"'}, {"momentum": "0.5"}):
        messages.append(message_of(ValueError, exchange.load_state_dict, before | {"scale": 2.0} | changed))
    messages.append(message_of(ValueError, exchange.load_state_dict, {}))
    is_unchanged = equal(before, exchange.state_dict())
    exchange.close()
    return messages, is_unchanged


def test_a_state_of_another_rank_or_plan_is_refused_before_anything_is_loaded(pools, technique):
    for rank, (messages, is_unchanged) in enumerate(pools(2).run(tidy, refused_states, technique)):
        starts = [f"rank of the state is 7, here it is {rank}", 'codec of the state is "dgc", here']
        starts += ["momentum of the state", "rank of the state is missing"]
        assert all(message.startswith(start) for message, start in zip(messages, starts, strict=True)) and is_unchanged


def clipped_and_averaged(technique):
    """Run on a rank: the clipped norm, and weights, their average and a saved copy of the model."""
    ours = early(net())
    exchange = attach(technique, ours)
    average, optimizer = torch.optim.swa_utils.AveragedModel(ours), torch.optim.SGD(ours.parameters(), lr=0.1)
    by_hand = 0
    for step in range(2):
        one_pass(ours, step)
        norm = nn.utils.clip_grad_norm_(ours.parameters(), 0.1)
        clipped = torch.cat([p.grad.flatten() for p in ours.parameters()]).norm()
        optimizer.step()
        average.update_parameters(ours)
        by_hand = by_hand + ours.module[0].weight.detach() / 2
    loaded = net()
    loaded.load_state_dict(ours.module.state_dict())
    exchange.close()
    weights = [model[0].weight.detach() for model in (ours.module, loaded, average.module.module)]
    return norm.item(), clipped.item(), *weights, by_hand


@both_work(Feature.CLIPPING, Feature.EMA, Feature.SAVING)
def test_norms_averages_and_saved_models_are_those_of_the_gradients_that_all_ranks_have(pools, technique):
    first, second = pools(2).run(tidy, clipped_and_averaged, technique)
    assert equal(first, second) and first[0] > 0.1
    assert first[1] == pytest.approx(0.1, rel=1e-4)
    assert torch.equal(first[2], first[3])
    torch.testing.assert_close(first[4], first[5])


def ignoring():
    module = net()
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, ["0.weight"])
    return early(module)


def sharded():
    from torch.distributed.fsdp import fully_shard

    return fully_shard(net())


def compiled_before():
    return torch.compile(early(net()))


def half():
    return early(net().bfloat16())


def sparse():
    return early(nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 3)))


REFUSED = {
    sharded: "model is a FSDPSequential; it must be a DistributedDataParallel",
    half: "is torch.bfloat16; parameters must be float32",
    compiled_before: "model is a OptimizedModule; it must be a DistributedDataParallel",
    sparse: "0.weight has a sparse gradient; it must be dense",
    ignoring: "0.weight is trained, but ignored by DistributedDataParallel; freeze it",
}


def refusals(technique):
    return [message_of(ValueError, attach, technique, build()) for build in REFUSED]


@both_refuse(Feature.FSDP)
@both_refuse(Feature.BF16, note="Train in FP32 with autocast.")
def test_models_whose_gradients_cannot_be_exchanged_are_refused(pools, technique):
    for texts in pools(2).run(tidy, refusals, technique):
        assert all(message in text for message, text in zip(REFUSED.values(), texts, strict=True)), texts


def refusal_of_join(technique, scaler, divide):
    ours = early(net())
    exchange = attach(technique, ours, scaler=scaler and ByHand())

    def train():
        with Join([ours], divide_by_initial_world_size=divide):
            one_pass(ours, 0)

    message = message_of(ValueError, train)
    exchange.close()
    return message


def test_a_join_in_which_scales_would_differ_is_refused(pools, technique):
    for message in pools(2).run(tidy, refusal_of_join, technique, True, True):
        assert message.startswith("join() with scaler=: ")
    for message in pools(2).run(tidy, refusal_of_join, technique, False, False):
        assert message.startswith("join(divide_by_initial_world_size=False): ")


def exchanged(technique, group, kept):
    """Run on a rank whose peer may fail: one backward pass, and the end of the exchange if that fails."""
    if not kept:
        kept["model"] = early(net(), process_group=group)
        kept["exchange"] = attach(technique, kept["model"])
        one_pass(kept["model"], 0)  # DDP rebuilds its buckets together after the first
    try:
        one_pass(kept["model"], 0)
    except BaseException:
        kept["exchange"].close()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("espresso")]
        raise


def espresso_exchanged(group, kept):
    exchanged("espresso", group, kept)


def cupcake_exchanged(group, kept):
    exchanged("cupcake", group, kept)


def one_rank_raises(late):
    """Run on a rank: what it hears when rank 1 raises in the middle of a backward pass, and ends the exchange."""
    ours = early(net())
    try:
        with attach("espresso", ours):
            one_pass(ours, 0)
            if dist.get_rank() == 1:
                ours.module[0].register_full_backward_pre_hook(lambda *_: 1 / 0)
            if dist.get_rank() == late:
                ours.module[-1].register_full_backward_pre_hook(lambda *_: time.sleep(0.5))
            one_pass(ours, 1)
    except (RuntimeError, ZeroDivisionError) as error:
        return str(error), [thread.name for thread in threading.enumerate() if thread.name.startswith("espresso")]


@pytest.mark.parametrize("late", [0, 1])
def test_the_exchange_of_a_rank_that_raises_in_a_backward_pass_ends_that_of_the_others(late):
    with Ranks(2, timeout_s=300) as ranks:
        heard, raised = ranks.run(tidy, one_rank_raises, late)
    assert "rank 1 does not answer" in heard[0] and "division by zero" in raised[0]
    assert heard[1] == raised[1] == []


STEPS = {"espresso": espresso_exchanged, "cupcake": cupcake_exchanged}
NAMED = {"espresso": "rank 0 could not exchange ", "cupcake": "gradients of group 0, 2.bias to "}


@pytest.mark.parametrize("ending", ENDINGS)
@both_work(Feature.RAISES, Feature.EXITS, Feature.FREEZES)
def test_when_a_rank_fails_the_others_end_within_the_timeout_and_name_it(technique, ending):
    (heard,) = errors_of_the_rest(STEPS[technique])[ending].values()
    assert "rank 1 does not answer" in heard and NAMED[technique] in heard
