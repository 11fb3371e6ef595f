"""Options on real ranks equal those on virtual ranks; the hook trains as DDP does; what is refused before training."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.launch import Ranks
from workbench.techniques import espresso
from workbench.techniques.espresso.cost import Job
from workbench.techniques.espresso.method import Option, compression_options
from workbench.techniques.espresso.method.exchange import Encoders, exchanged_by_definition, make_codec
from workbench.techniques.espresso.planning import plan_of
from workbench.techniques.espresso.runtime import Groups
from workbench.timeline.gradients import Gradients

PLACE = 2, 2
PRELOAD = ("workbench.techniques.espresso",)
INTER_ONLY = Option.parse("intra.reduce-scatter comp.gpu inter.allgather* decomp.gpu intra.allgather")
SOME = [str(option) for option in compression_options()[::173]]


@pytest.fixture(scope="module")
def ranks():
    with Ranks(4, preload=PRELOAD) as ranks:
        yield ranks


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 3))


def toy_plan(option=None, codec="efsignsgd", place=PLACE):
    """Plan one option for all parameters of `model`; None: no compression."""
    sizes = {name: p.numel() for name, p in reversed([*model().named_parameters()])}
    order = {"tensors": tuple(sizes), "num_elements": tuple(sizes.values()), "gap_s": (1e-3,) * len(sizes)}
    link = Link(bandwidth_bytes_per_s=1e8, latency_s=1e-4)
    machines = Machines(num_machines=place[0], gpus_per_machine=place[1], intra=link, inter=link)
    costs = {processor: lambda elements: 1e-4 + 1e-9 * elements for processor in Processor}
    times = CodecTimes(name=codec, encode_s=costs, decode_s=costs, sent_bytes=0.2)
    job = Job(Gradients(name="toy", forward_s=1e-3, source="a test", **order), machines, times)
    return plan_of(job, [option or job.uncompressed] * len(sizes), codec)


def inputs(rank, step):
    return torch.randn(5, 7, generator=torch.Generator().manual_seed(10 * step + rank))


def exchanged_gradients(plans, steps=2, momentum=0.0, device="cpu"):
    """Run on a rank: the gradients that each step's backward pass leaves."""
    ddp, found = DistributedDataParallel(model().to(device)), []
    with espresso.compress_gradients(ddp, plans[dist.get_rank() % len(plans)], momentum=momentum):
        for step in range(steps):
            ddp.zero_grad()
            ddp(inputs(dist.get_rank(), step).to(device)).square().sum().backward()
            found.append({name: p.grad.clone().cpu() for name, p in ddp.module.named_parameters()})
    return found


def own_gradients(steps=2):
    found = []
    for step in range(steps):
        found.append([])
        for rank in range(4):
            own = model()
            own(inputs(rank, step)).square().sum().backward()
            found[-1].append({name: p.grad for name, p in own.named_parameters()})
    return found


def exchange_each(names):
    """Run on a rank: a gradient along each option, task by task, without workers."""
    from workbench.techniques.espresso.runtime import _Journey

    groups, rank, found = Groups(*PLACE), dist.get_rank(), []
    for name in names:
        encoders = Encoders(lambda place: make_codec("efsignsgd", place), "w", rank)
        journey = _Journey("w", Option.parse(name), encoders, groups, torch.device("cpu"))
        gradient = torch.randn(13, generator=torch.Generator().manual_seed(rank))
        journey.begin_(gradient, lambda: None)
        while not journey.is_over:
            journey.run_()
        found.append(4 * gradient)
    return found


def test_options_on_real_ranks_equal_those_on_virtual_ranks(ranks):
    by_rank = ranks.run(exchange_each, SOME)
    gradients = [torch.randn(13, generator=torch.Generator().manual_seed(rank)) for rank in range(4)]
    for number, name in enumerate(SOME):
        encoders = [Encoders(lambda place: make_codec("efsignsgd", place), "w", rank) for rank in range(4)]
        wanted = exchanged_by_definition(Option.parse(name), gradients, encoders, *PLACE)
        for rank in range(4):
            torch.testing.assert_close(
                by_rank[rank][number], wanted[rank], msg=lambda text, name=name: f"{name}: {text}"
            )


def test_without_compression_the_gradients_are_the_mean_over_ranks(ranks):
    for step, own in enumerate(own_gradients()):
        for found in ranks.run(exchanged_gradients, [toy_plan()]):
            for name, gradient in found[step].items():
                torch.testing.assert_close(gradient, sum(grads[name] for grads in own) / 4)


@pytest.mark.parametrize("codec", ["randomk", "dgc", "efsignsgd"])
def test_with_compression_the_hook_equals_the_definition_step_by_step(ranks, codec):
    by_rank = ranks.run(exchanged_gradients, [toy_plan(INTER_ONLY, codec)], 3)
    encoders = {
        name: [Encoders(lambda place: make_codec(codec, place), name, rank) for rank in range(4)]
        for name, _ in model().named_parameters()
    }
    for step, own in enumerate(own_gradients(3)):
        for name, of_ranks in encoders.items():
            wanted = exchanged_by_definition(INTER_ONLY, [grads[name] for grads in own], of_ranks, *PLACE)
            for rank in range(4):
                torch.testing.assert_close(by_rank[rank][step][name], wanted[rank] / 4)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("option", [None, INTER_ONLY, Option.parse(str(INTER_ONLY).replace("gpu", "cpu"))])
def test_gradients_on_a_gpu_are_exchanged_as_those_on_a_cpu(ranks, option):
    on_cpu, on_gpu = (
        ranks.run(exchanged_gradients, [toy_plan(option)], 2, 0.0, device) for device in ("cpu", "cuda:0")
    )
    for wanted, found in zip(on_cpu, on_gpu, strict=True):
        torch.testing.assert_close(found, wanted)


def refusals(plans, momentum=0.0):
    try:
        exchanged_gradients(plans, momentum=momentum)
    except ValueError as error:
        return str(error)
    return "nothing was refused"


@pytest.mark.parametrize(
    ("plans", "momentum", "message"),
    [
        ([toy_plan(), toy_plan(INTER_ONLY)], 0.0, "the plan of rank 0 differs from that of rank 1, 3"),
        ([toy_plan(place=(2, 1))], 0.0, "for 2 machines of 1; there are 4 ranks"),
        ([toy_plan()], 0.9, "only DGC has the first two"),
    ],
)
def test_plans_that_cannot_be_are_refused_before_training(ranks, plans, momentum, message):
    assert all(message in found for found in ranks.run(refusals, plans, momentum))


def test_a_plan_of_another_model_names_the_parameter():
    with pytest.raises(ValueError, match=r"another model, toy: 0.bias has 2 elements in the model and 30 in the"):
        toy_plan().check(nn.Sequential(nn.Linear(7, 2), nn.Tanh(), nn.Linear(30, 3)))


def test_a_plan_is_saved_and_read():
    written = toy_plan(INTER_ONLY)
    assert espresso.Plan.from_json(written.to_json()) == written
    assert str(written).startswith("toy: 4 of 4 gradients compressed by efsignsgd\npredicted iteration: this plan ")


def test_two_lines_plan_a_model_of_ones_own():
    own, link = model(), Link(bandwidth_bytes_per_s=1e6, latency_s=1e-4)
    cluster = Machines(num_machines=2, gpus_per_machine=2, intra=link, inter=link)
    found = espresso.plan(own, cluster, step=lambda: own(inputs(0, 0)).square().sum().backward())
    assert found.num_elements == {"2.bias": 3, "2.weight": 90, "0.bias": 30, "0.weight": 210}
    with pytest.raises(ValueError, match="step is missing"):
        espresso.plan(own, cluster)
    with pytest.raises(ValueError, match="codec is 'zip'"):
        espresso.plan(own, cluster, codec="zip", step=lambda: own(inputs(0, 0)).square().sum().backward())
