"""Exchanges in a job of `init_process_group()`, which names no backend: torch makes one for each kind of device."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.contracts.hooked import attach, batch, early, net
from tests.lost_ranks import PATIENCE_S, processes
from workbench.launch.agreement import tell_all
from workbench.launch.backends import backend_of, carrying_device
from workbench.parallel import ProcessTensorGroup
from workbench.parallel.exchanges import start_scatter_sum
from workbench.parallel.links import measure_link
from workbench.techniques import zen


def gradients_with(attached, module, inputs):
    """Return the gradients of the third of three passes."""
    torch.manual_seed(0)
    model = early(module())
    exchange = attached(model)
    for step in range(3):
        model.zero_grad()
        model(inputs(step)).square().mean().backward()
    assert exchange is not None
    return [parameter.grad.tolist() for parameter in model.parameters()]


def of_zen():
    def inputs(step):
        return torch.arange(dist.get_rank(), 50, 7 + step)

    return gradients_with(zen.synchronise, lambda: nn.Sequential(nn.Embedding(50, 4), nn.Linear(4, 2)), inputs)


def of_scattered():
    group = ProcessTensorGroup()
    whole = torch.arange(8.0).view(2, 4) * (1 + group.local_ranks[0])
    return start_scatter_sum(whole, group, 1).wait().tolist()


WORK = {
    "espresso": lambda: gradients_with(lambda model: attach("espresso", model), net, batch),
    "cupcake": lambda: gradients_with(lambda model: attach("cupcake", model), net, batch),
    "zen": of_zen,
    "reduce-scatter": of_scattered,
    "a link": lambda: measure_link().latency_s > 0,
    "agreement": lambda: tell_all({"rank": dist.get_rank()}),
    "backends": lambda: [backend_of("cpu"), str(carrying_device("cpu")), str(carrying_device("cuda"))],
}


def on_rank(report, rank, port, backend):
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(backend, store=store, rank=rank, world_size=2)
    outcomes = {}
    for name, work in WORK.items():
        try:
            outcomes[name] = work()
        except Exception as error:
            outcomes[name] = error
    report(outcomes)


def reported(backend):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with processes([(on_rank, rank, store.port, backend) for rank in range(2)]) as pipes:
        return [pipe.recv() for pipe in pipes if pipe.poll(PATIENCE_S)]


@pytest.fixture(scope="module")
def named():
    return reported("gloo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch would choose NCCL, too")
@pytest.mark.parametrize("backend", [None, "cpu:gloo"])
def test_without_a_name_of_a_backend_every_exchange_is_that_of_gloo(backend, named):
    assert len(named) == 2
    assert reported(backend) == named
    assert named[0]["backends"] == ["gloo", "cpu", "cpu"]
    assert named[0]["reduce-scatter"] == [[0.0, 3.0], [12.0, 15.0]]
