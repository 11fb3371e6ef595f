"""Fused groups on real ranks equal their definition; one line measures, plans and goes on; what is refused."""

import functools
import warnings
from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.cases import refusal, refusals, tidy
from workbench.compression import Identity
from workbench.compression.gradients import GRADIENT_CODECS, gradient_codec
from workbench.techniques import cupcake
from workbench.techniques.cupcake.planning import warn_if_slower
from workbench.techniques.cupcake.runtime import Group, Places, exchanged_by_definition

GROUPS = (("4.bias", "4.weight"), ("2.bias", "2.weight", "0.bias"), ("0.weight",))


@pytest.fixture
def ranks(pools):
    """Run a function on four ranks, and close the process groups that it opens."""
    return functools.partial(pools(4).run, tidy)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 30), nn.Tanh(), nn.Linear(30, 3))


def toy_plan(codec="efsignsgd", compressed=(True, True, False), num_ranks=4, **more):
    sizes = {name: p.numel() for name, p in model().named_parameters()}
    facts = {"num_elements": sizes, "groups": GROUPS, "compressed": compressed, "predicted_s": {"Cupcake": 0.001}}
    return cupcake.Plan(codec=codec, num_ranks=num_ranks, **facts, **more)


def inputs(rank, step):
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + rank))


def early(module, ranks=None):
    return DistributedDataParallel(module, bucket_cap_mb=cupcake.BUCKET_MB, process_group=ranks)


def pair():
    """Return the process group of a rank and its neighbour."""
    return [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]


def exchanged_gradients(plans, steps=2, momentum=0.0, device="cpu", equal_steps=False, in_pairs=False):
    """Run on a rank: the gradients that each step's backward pass leaves."""
    ddp, by_step = early(model().to(device), pair() if in_pairs else None), []
    rank = dist.get_rank()
    cupcake.exchange(ddp, plans[rank % len(plans)], momentum=momentum)
    for step in range(steps):
        ddp.zero_grad()
        ddp(inputs(0 if equal_steps else rank, 0 if equal_steps else step).to(device)).square().sum().backward()
        by_step.append({name: p.grad.cpu().clone() for name, p in ddp.module.named_parameters()})
    return by_step


def own_gradients(rank, step):
    module = model()
    module(inputs(rank, step)).square().sum().backward()
    return {name: p.grad for name, p in module.named_parameters()}


def codecs_of(codec, rank):
    made = [gradient_codec(codec), gradient_codec(codec), Identity()]
    return [made_codec.for_site(f"group {number}").for_rank(rank) for number, made_codec in enumerate(made)]


@pytest.mark.parametrize("per_machine", [1, 2])
@pytest.mark.parametrize("codec", GRADIENT_CODECS)
def test_the_hook_equals_the_definition_step_by_step_and_all_ranks_end_with_the_same_bits(ranks, codec, per_machine):
    by_rank = ranks(exchanged_gradients, [toy_plan(codec, gpus_per_machine=per_machine)])
    codecs = [codecs_of(codec, rank) for rank in range(4)]
    rounding = {"rtol": 2e-3, "atol": 2e-2} if codec == "fp16" else {"rtol": 1e-5, "atol": 1e-5}  # half precision sums
    for step in range(2):
        local = [own_gradients(rank, step) for rank in range(4)]
        names = [name for group in GROUPS for name in group]
        of_ranks = [[grads[name] for name in names] for grads in local]
        wanted = exchanged_by_definition(of_ranks, (2, 5, 6), codecs, per_machine)
        for name, gradient in zip(names, wanted, strict=True):
            torch.testing.assert_close(by_rank[0][step][name], gradient, **rounding)
            assert all(torch.equal(by_rank[rank][step][name], by_rank[0][step][name]) for rank in range(1, 4))


def memory_after_a_discarded_pass():
    """Run on a rank: its shard's errors before and after a second pass, and after pieces 0 and 2 were put back."""
    places = Places.of(None, 2)
    group = Group(gradient_codec("efsignsgd"), [5, 8, 4], 0.0, "cpu", None, places)
    seen = []
    for number in range(2):
        draw = torch.Generator().manual_seed(10 * number + dist.get_rank())
        group.flat.copy_(torch.randn(17, generator=draw))
        group.encode(may_be_discarded=True)
        group.exchange()
        group.decode()
        seen.append(group.memory[0].clone())
    group.put_back_(0)
    group.put_back_(2)
    places.close()
    return [memory.tolist() for memory in (*seen, group.memory[0])]


def test_what_a_discarded_pass_left_of_a_piece_is_put_back_in_the_shard_that_holds_it(ranks):
    for rank, (before, after, now) in enumerate(ranks(memory_after_a_discarded_pass)):
        elements = range(9) if rank % 2 == 0 else range(9, 18)  # 17 elements and one of padding
        kept = [before[at] if element < 5 or 13 <= element < 17 else after[at] for at, element in enumerate(elements)]
        assert now == kept and before != after


@pytest.mark.parametrize("compressed", [(True,) * 3, (False,) * 3])
def test_a_model_of_a_process_group_is_exchanged_with_that_group_alone(ranks, compressed):
    by_rank = ranks(exchanged_gradients, [toy_plan("efsignsgd", compressed, 2)], 1, 0.0, "cpu", False, True)
    names = [name for group in GROUPS for name in group]
    for first in (0, 2):
        local = [own_gradients(rank, 0) for rank in (first, first + 1)]
        codecs = [[gradient_codec("efsignsgd") if flag else Identity() for flag in compressed] for _ in local]
        wanted = exchanged_by_definition([[grads[name] for name in names] for grads in local], (2, 5, 6), codecs)
        for name, gradient in zip(names, wanted, strict=True):
            for rank in (first, first + 1):
                torch.testing.assert_close(by_rank[rank][0][name], gradient, rtol=1e-5, atol=1e-5)


def test_gradients_that_stay_uncompressed_have_momentum_too(ranks):
    plan = toy_plan("dgc", (False,) * 3)
    first, second, third = ranks(exchanged_gradients, [plan], 3, 0.5, "cpu", True)[0]
    for name in first:  # 1, 1 + 0.5, 1 + 0.5 (1 + 0.5)
        torch.testing.assert_close(second[name], 1.5 * first[name])
        torch.testing.assert_close(third[name], 1.75 * first[name])


def device_of_a_loaded_velocity():
    group = Group(Identity(), [5], 0.5, "meta")
    group.load_state_dict({"codec": {}, "velocity": torch.ones(5)})
    return group.memory[0].device.type


def test_a_velocity_that_was_loaded_lies_where_the_group_does(ranks):
    assert ranks(device_of_a_loaded_velocity) == ["meta"] * 4


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_gradients_on_a_gpu_are_exchanged_as_those_on_a_cpu(ranks):
    on_cpu, on_gpu = (ranks(exchanged_gradients, [toy_plan()], 2, 0.0, device) for device in ("cpu", "cuda:0"))
    torch.testing.assert_close(on_gpu, on_cpu)


def trained_with_one_line(codec, per_machine):
    """Run on a rank: the plan, the first losses beside plain DDP's, and whether all ranks have equal weights."""
    plain, fused = DistributedDataParallel(model()), early(model())
    exchange, losses = cupcake.fuse(fused, codec, gpus_per_machine=per_machine), []
    for step in range(8):
        row = []
        for ddp in (plain, fused):
            ddp.zero_grad()
            loss = ddp(inputs(dist.get_rank(), step)).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in ddp.parameters():
                    p -= 0.01 * p.grad
            row.append(loss.item())
        losses.append(row)
    total = torch.stack([p.detach().double().sum() for p in fused.parameters()]).sum()
    everywhere = [torch.empty_like(total) for _ in range(dist.get_world_size())]
    dist.all_gather(everywhere, total)
    return exchange.plan, losses, len({value.item() for value in everywhere})


@pytest.mark.parametrize("per_machine", [1, 2])
def test_one_line_measures_plans_and_goes_on(ranks, per_machine):
    plan, losses, num_different = ranks(trained_with_one_line, "efsignsgd", per_machine)[0]
    assert plan.gpus_per_machine == per_machine
    assert sorted(name for names in plan.groups for name in names) == sorted(plan.num_elements)
    assert all(plan.compressed) and plan.predicted_s["Cupcake"] <= plan.predicted_s["GRACE"]
    assert all(loss == pytest.approx(other, rel=1e-5) for loss, other in losses[:5])  # uncompressed until it is planned
    assert losses[7][0] != losses[7][1] and num_different == 1


def planned_in_pairs():
    """Run on a rank: the plan of a small model, and whether the pair has equal gradients."""
    torch.manual_seed(0)
    ddp = early(nn.Linear(6, 3), pair())
    exchange = cupcake.fuse(ddp, "onebit")
    for step in range(6):
        ddp.zero_grad()
        ddp(torch.randn(4, 6, generator=torch.Generator().manual_seed(9 * dist.get_rank() + step))).sum().backward()
    both = [torch.empty(3, 6) for _ in range(2)]
    dist.all_gather(both, ddp.module.weight.grad, group=ddp.process_group)
    return exchange.plan, torch.equal(*both)


def test_one_line_plans_for_the_models_process_group_and_says_from_when_times_are_counted(ranks):
    for plan, is_equal in ranks(planned_in_pairs):
        assert (plan.num_ranks, is_equal, set(plan.misses)) == (2, True, set(plan.lines))
        assert "times are measured in 3 backward passes, from the first gradient on" in str(plan).splitlines()


def shares_by_pass():
    """Run on a rank: what DGC keeps after each pass, if its epoch was set before the plan was made."""
    ddp, by_pass = early(model()), []
    exchange = cupcake.fuse(ddp, "dgc", warmup=(0.5, 0.25))
    exchange.at_epoch(1)
    for step in range(6):
        ddp(inputs(0, step)).sum().backward()
        by_pass.append({group.codec.keep for group in exchange._groups if hasattr(group.codec, "keep")})
    return by_pass


def test_an_epoch_that_is_set_before_the_plan_holds_with_it(ranks):
    assert ranks(shares_by_pass)[0] == [set()] * 4 + [{0.25}] * 2


def test_a_plan_that_predicts_less_without_compression_warns():
    predicted_s = {"Cupcake": 2e-3, "FP16": 1e-3, "FP32": 3e-3, "FP32, fused best": 2e-3}
    with pytest.warns(UserWarning, match=r"do not compress: efsignsgd takes 2.00 ms, FP16 1.00 ms$"):
        warn_if_slower(replace(toy_plan(), predicted_s=predicted_s))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_if_slower(replace(toy_plan(), predicted_s=predicted_s | {"Cupcake": 1e-3}))


def closed():
    ddp = early(model())
    cupcake.exchange(ddp, toy_plan()).close()
    ddp(inputs(0, 0)).square().sum().backward()


def half():
    cupcake.fuse(early(model().half()))


def fused(codecs):
    cupcake.fuse(early(model()), codecs[dist.get_rank()])


def not_wrapped():
    cupcake.fuse(model())


SIZES = toy_plan().num_elements
ONE_LESS = replace(toy_plan(), num_elements={name: SIZES[name] for name in SIZES if name != "0.bias"})


def refused_in_turn(cases):
    return [refusal(call, *args) for call, args, _ in cases]


def test_what_cannot_be_is_refused_on_every_rank(ranks):
    cases = [
        (exchanged_gradients, [[toy_plan(), toy_plan("dgc")]], "the plan of rank 0 differs from that of rank 1, 3"),
        (exchanged_gradients, [[toy_plan(num_ranks=2)]], "rank 0, 1, 2, 3: the plan is for 2 ranks; there are 4"),
        (exchanged_gradients, [[*[toy_plan()] * 3, toy_plan(num_ranks=2)]], "rank 3: the plan is for 2 ranks; there"),
        (exchanged_gradients, [[toy_plan(), toy_plan("zip")]], "rank 1, 3: codec is 'zip'"),
        (exchanged_gradients, [[toy_plan(), ONE_LESS]], "rank 1, 3: groups hold 0.bias 1 times, num_elements 0"),
        (exchanged_gradients, [[toy_plan(gpus_per_machine=3)]], "gpus_per_machine is 3; it must divide the 4 ranks"),
        (fused, [["dgc", "dgc", "zip", "dgc"]], "rank 2: codec is 'zip'"),
        (not_wrapped, [], "model is a Sequential; it must be a DistributedDataParallel"),
        (exchanged_gradients, [[toy_plan()], 1, 0.9], "only DGC has the first two"),
        (exchanged_gradients, [[toy_plan("zip")]], "codec is 'zip'"),
        (closed, [], "the exchange is closed"),
        (half, [], "0.weight is torch.float16; parameters must be float32"),
        (exchanged_gradients, [[toy_plan(gpus_per_machine=3)]], "gpus_per_machine is 3; it must divide the 4 ranks"),
        (fused, [["dgc", "onebit"] * 2], "the plan of rank 0 differs"),
    ]
    for texts in ranks(refused_in_turn, cases):
        assert not [text for text, (*_, message) in zip(texts, cases, strict=True) if message not in text]


def warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cupcake.exchange(DistributedDataParallel(model()), toy_plan())
    return str(caught[-1].message)


def test_late_buckets_are_named(ranks):
    assert all("make it with bucket_cap_mb=cupcake.BUCKET_MB" in text for text in ranks(warned_of))


def test_a_plan_is_saved_read_and_printed():
    assert cupcake.Plan.from_json(toy_plan().to_json()) == toy_plan()
    first, *_, last = str(toy_plan()).splitlines()
    assert first == "6 gradients in 3 groups, 2 compressed by efsignsgd"
    assert last == "   2: 1 gradients, 0.00 MiB, 0.weight to 0.weight"
    with pytest.raises(ValueError, match=r"another model: 0.bias has 2 elements in the model and 30 in the plan"):
        toy_plan().check(nn.Sequential(nn.Linear(7, 2)), 4)


test_a_plan_whose_groups_do_not_hold_each_parameter_once_is_refused = refusals(
    ({"groups": GROUPS[:2], "compressed": (True,) * 2}, "groups hold 0.weight 0 times, num_elements 1; both must"),
    ({"groups": (*GROUPS[:2], ("0.weight", "0.bias"))}, "groups hold 0.bias 2 times, num_elements 1; both must"),
    ({"groups": (*GROUPS[:2], ("0.weight", "9.bias"))}, "groups hold 9.bias 1 times, num_elements 0; both must"),
    ({"groups": (*GROUPS, ()), "compressed": (True,) * 4}, r"for groups of \[2, 3, 1, 0\] gradients; none may be"),
    ({"compressed": (True, False)}, r"compressed is \(True, False\) for groups of \[2, 3, 1\] gradients"),
    of=lambda **changed: replace(toy_plan(), **changed).check(model(), 4),
)
