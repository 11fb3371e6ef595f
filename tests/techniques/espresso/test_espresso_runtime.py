"""Options on real ranks equal those on virtual ranks; the hook trains as DDP does; what is refused before training."""

import math
import os
import random
import warnings
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests import cases
from tests.cases import refusal, tidy
from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.techniques import espresso
from workbench.techniques.espresso.method import Option, compression_options
from workbench.techniques.espresso.method.exchange import Encoders, exchanged_by_definition, make_codec
from workbench.techniques.espresso.method.job import CpuMachines, Job
from workbench.techniques.espresso.planning import WITHOUT_WORK, plan_of
from workbench.techniques.espresso.runtime import Groups, _Journey
from workbench.timeline.gradients import Gradients

PLACE = 2, 2
INTER_ONLY = Option.parse("intra.reduce-scatter comp.gpu inter.allgather* decomp.gpu intra.allgather")
SOME = [str(option) for option in compression_options()[::173]]


@pytest.fixture
def ranks(pools):
    return pools(4)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 3))


def toy_plan(option=None, codec="efsignsgd", place=PLACE, work=None):
    """Plan one option for all parameters of `model`, or a list with one for each; None: no compression."""
    sizes = {name: p.numel() for name, p in reversed([*model().named_parameters()])}
    order = {"tensors": tuple(sizes), "num_elements": tuple(sizes.values()), "gap_s": (1e-3,) * len(sizes)}
    link = Link(bandwidth_bytes_per_s=1e8, latency_s=1e-4)
    links = {"intra": link, "inter": link} | (work or {})
    machines = (CpuMachines if work else Machines)(num_machines=place[0], gpus_per_machine=place[1], **links)
    costs = {processor: lambda elements: 1e-4 + 1e-9 * elements for processor in Processor}
    times = CodecTimes(name=codec, encode_s=costs, decode_s=costs, sent_bytes=0.2)
    job = Job(Gradients(name="toy", forward_s=1e-3, source="a test", **order), machines, times)
    options = option if isinstance(option, list) else [option] * len(sizes)
    return plan_of(job, [chosen or job.uncompressed for chosen in options], codec)


def inputs(rank, step):
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + rank))


def exchanged_gradients(plans, steps=2, momentum=0.0, device="cpu", equal_steps=False):
    """Run on a rank: the gradients that each step's backward pass leaves."""
    ddp, by_step = DistributedDataParallel(model().to(device), bucket_cap_mb=espresso.BUCKET_MB), []
    with espresso.compress_gradients(ddp, plans[dist.get_rank() % len(plans)], momentum=momentum):
        for step in range(steps):
            ddp.zero_grad()
            x = inputs(0, 0) if equal_steps else inputs(dist.get_rank(), step)
            ddp(x.to(device)).square().sum().backward()
            by_step.append({name: p.grad.clone().cpu() for name, p in ddp.module.named_parameters()})
    return by_step


def own_gradients(steps=2):
    by_step = []
    for step in range(steps):
        by_step.append([])
        for rank in range(4):
            module = model()
            module(inputs(rank, step)).square().sum().backward()
            by_step[-1].append({name: p.grad for name, p in module.named_parameters()})
    return by_step


def exchange_each(names):
    """Run on a rank: a gradient along each option, task by task, without workers."""
    groups, rank, sums = Groups(*PLACE), dist.get_rank(), []
    for name in names:
        encoders = Encoders(lambda place: make_codec("efsignsgd", place), "w")
        journey = _Journey("w", Option.parse(name), encoders, groups, 0.0)
        gradient = torch.randn(13, generator=torch.Generator().manual_seed(rank))
        journey.begin_(gradient, lambda _: None)
        is_on_its_way = True
        while is_on_its_way:
            journey.leave_()
            is_on_its_way = journey.run_()
        sums.append(4 * gradient)
    return sums


def test_options_on_real_ranks_equal_those_on_virtual_ranks(ranks):
    by_rank = ranks.run(tidy, exchange_each, SOME)
    gradients = [torch.randn(13, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    for number, name in enumerate(SOME):
        encoders = [Encoders(lambda place: make_codec("efsignsgd", place), "w") for _ in range(4)]
        wanted = exchanged_by_definition(Option.parse(name), gradients, encoders, *PLACE)
        for rank in range(4):
            torch.testing.assert_close(
                by_rank[rank][number], wanted[rank], msg=lambda text, name=name: f"{name}: {text}"
            )


def passes(plan, seed, num_passes):
    """Run on a rank: many backward passes, one soon after the other; the sum of the last gradients."""
    torch.manual_seed(seed)
    module = model()
    ddp, x = DistributedDataParallel(module, bucket_cap_mb=espresso.BUCKET_MB), torch.randn(2, 7)
    with espresso.compress_gradients(ddp, plan):
        for _ in range(num_passes):
            ddp.zero_grad()
            ddp(x).square().sum().backward()
    return sum(p.grad.double().sum().item() for p in module.parameters())


@pytest.mark.parametrize(
    ("place", "num_passes"),
    [((2, 1), 25), *(pytest.param(place, 200, marks=pytest.mark.slow) for place in [(2, 1), (3, 1), (2, 2)])],
)
def test_passes_that_follow_one_another_at_once_never_hang(pools, place, num_passes):
    for seed in range(3):
        options = random.Random(seed).choices([None, *compression_options()], k=len(toy_plan().options))
        sums = pools(math.prod(place)).run(tidy, passes, toy_plan(options, place=place), seed, num_passes)
        assert sums == [sums[0]] * len(sums), f"place {place}, seed {seed}"


@pytest.mark.parametrize("codec", ["randomk", "dgc", "efsignsgd", "none"])
def test_the_hook_equals_the_definition_step_by_step_and_without_compression_the_mean(ranks, codec):
    plan = toy_plan() if codec == "none" else toy_plan(INTER_ONLY, codec)
    by_rank = ranks.run(tidy, exchanged_gradients, [plan])
    encoders = {
        name: [Encoders(lambda place: make_codec(codec, place), name) for rank in range(4)]
        for name, _ in (model().named_parameters() if codec != "none" else ())
    }
    for step, local in enumerate(own_gradients()):
        for name in local[0]:
            if codec == "none":
                wanted = [sum(grads[name] for grads in local)] * 4
            else:
                wanted = exchanged_by_definition(INTER_ONLY, [grads[name] for grads in local], encoders[name], *PLACE)
            for rank in range(4):
                torch.testing.assert_close(by_rank[rank][step][name], wanted[rank] / 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("option", [None, INTER_ONLY, Option.parse(str(INTER_ONLY).replace("gpu", "cpu"))])
def test_gradients_on_a_gpu_are_exchanged_as_those_on_a_cpu(ranks, option):
    on_cpu, on_gpu = (
        ranks.run(tidy, exchanged_gradients, [toy_plan(option)], 2, 0.0, device) for device in ("cpu", "cuda:0")
    )
    for wanted, exchanged in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(exchanged, wanted)


OTHER_MODEL = replace(toy_plan(), num_elements=dict(toy_plan().num_elements) | {"0.bias": 31})


@pytest.mark.parametrize(
    ("plans", "momentum", "message"),
    [
        ([toy_plan(), toy_plan(INTER_ONLY)], 0.0, "the plan of rank 0 differs from that of rank 1, 3"),
        ([toy_plan(place=(2, 1))], 0.0, "for 2 machines of 1; there are 4 ranks"),
        ([toy_plan()] * 2 + [OTHER_MODEL, toy_plan()], 0.0, "rank 2: the plan is of another model, toy: 0.bias has 30"),
        ([toy_plan()], 0.9, "only DGC has the first two"),
    ],
)
def test_plans_that_cannot_be_are_refused_before_training(ranks, plans, momentum, message):
    refused = ranks.run(tidy, refusal, exchanged_gradients, plans, momentum=momentum)
    assert all(message in text for text in refused)


def refusal_of_a_pair(plan):
    """Run on a rank: what is said of a model whose process group is not all ranks."""
    pair = [dist.new_group([0, 1]), dist.new_group([2, 3])][dist.get_rank() // 2]
    return refusal(espresso.compress_gradients, DistributedDataParallel(model(), process_group=pair), plan)


def test_a_process_group_that_is_not_all_ranks_is_refused(ranks):
    messages = ranks.run(tidy, refusal_of_a_pair, toy_plan())
    assert messages == ["the model's process group has 2 ranks; it must have all 4, those of the machines"] * 4


def test_gradients_that_stay_uncompressed_have_momentum_too(ranks):
    plan = toy_plan(codec="dgc")
    first, second, third = ranks.run(tidy, exchanged_gradients, [plan], 3, 0.5, "cpu", True)[0]
    for name in first:  # 1, 1 + 0.5, 1 + 0.5 (1 + 0.5)
        torch.testing.assert_close(second[name], 1.5 * first[name])
        torch.testing.assert_close(third[name], 1.75 * first[name])


def what_is_raised(plan, breaks):
    """Run on a rank: the error of a backward pass after a worker broke, or after the exchange was closed."""
    ddp = DistributedDataParallel(model(), bucket_cap_mb=espresso.BUCKET_MB)
    exchange = espresso.compress_gradients(ddp, plan)
    if breaks:
        for journey in exchange._journeys.values():
            journey.encoders.encode = None
    else:
        exchange.close()
    try:
        return refusal(lambda: ddp(inputs(0, 0)).square().sum().backward())
    finally:
        if breaks:
            exchange.close()


def test_a_broken_worker_and_a_closed_exchange_end_the_backward_pass_by_name(ranks):
    plan = toy_plan(Option.parse("comp.gpu flat.allgather* decomp.gpu"))
    broken = ranks.run(tidy, what_is_raised, plan, True)
    assert all("could not exchange" in text and "not callable" in text for text in broken)
    assert all("the exchange is closed" in text for text in ranks.run(tidy, what_is_raised, plan, False))


def open_files(plan, uses):
    """Run on a rank: how many files are open after so many uses."""
    for _ in range(uses):
        exchanged_gradients([plan], steps=1)
    return len(os.listdir("/proc/self/fd"))


def test_a_velocity_that_was_loaded_follows_the_gradients_to_their_device():
    plan = toy_plan()
    encoders = Encoders(lambda place: make_codec("dgc", place), "0.bias")
    journey = _Journey("0.bias", plan.options["0.bias"], encoders, SimpleNamespace(place=PLACE), 0.5)
    journey.begin_(torch.ones(30), print)
    journey.load_state_dict(journey.state_dict())
    journey.begin_(torch.ones(30, device="meta"), print)
    assert journey.memory[0].is_meta


def test_a_closed_exchange_leaves_no_connections(ranks):
    before = ranks.run(open_files, toy_plan(), 1)
    after = ranks.run(open_files, toy_plan(), 4)
    assert all(now <= then + 3 for then, now in zip(before, after, strict=True))


def warned_of(plan):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        espresso.compress_gradients(DistributedDataParallel(model()), plan).close()
    return str(caught[-1].message)


def test_late_buckets_are_named(ranks):
    assert all("late in the backward pass" in text for text in ranks.run(tidy, warned_of, toy_plan()))


def test_a_plan_is_saved_and_read():
    written = toy_plan(INTER_ONLY)
    assert espresso.Plan.from_json(written.to_json()) == written
    assert str(written).startswith("toy: 4 of 4 gradients compressed by efsignsgd\npredicted iteration: this plan ")


def test_a_plan_for_cpus_numbers_the_tasks_of_an_option_alone_and_says_what_messages_take_of_them():
    plain = toy_plan(INTER_ONLY)
    work = {"intra_work": plain.machines.intra, "inter_work": plain.machines.inter}
    written = toy_plan(INTER_ONLY, work=work)
    assert {number for _, number in written.orders[0]} == {0, 4} and {number for _, number in written.orders[1]} == {2}
    assert written.predicted_s[WITHOUT_WORK] == plain.predicted_s["this plan"] < written.predicted_s["this plan"]
    assert espresso.Plan.from_json(written.to_json()) == written


def measured_machines():
    """Run on a rank: the machines that all ranks measure together."""
    return espresso.measure_cluster(*PLACE, runs=1)


def test_ranks_on_cpus_measure_what_messages_take_of_them(ranks):
    by_rank = ranks.run(tidy, measured_machines)
    share = max(1.0, 4 / len(os.sched_getaffinity(0)))
    assert all(f"processor seconds at {share:g} ranks a core" in machines.intra_work.source for machines in by_rank)
    assert all(machines == by_rank[0] for machines in by_rank)


def test_two_lines_plan_a_model_of_ones_own_also_a_parameter_without_a_gradient():
    net = model()
    net[0].register_parameter("unused", nn.Parameter(torch.zeros(5)))
    plan = espresso.plan(net, toy_plan().machines, step=lambda: net(inputs(0, 0)).square().sum().backward())
    assert plan.num_elements == {"2.bias": 3, "2.weight": 90, "0.bias": 30, "0.weight": 210, "0.unused": 5}
    assert "0.unused" in plan.options


test_models_that_a_plan_does_not_fit_and_plans_that_cannot_be_made_are_refused = cases.refusals(
    (lambda: toy_plan().check(model().half()), "0.weight is torch.float16; parameters must be float32"),
    (
        lambda: toy_plan().check(nn.Sequential(nn.Linear(7, 2), nn.Tanh(), nn.Linear(30, 3))),
        "another model, toy: 0.bias has 2 elements in the model and 30 in the",
    ),
    (lambda: espresso.plan(model(), toy_plan().machines), "step is missing"),
    (lambda: espresso.plan(model(), toy_plan().machines, codec="zip", step=print), "codec is 'zip'"),
)
