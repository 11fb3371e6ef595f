"""What the tests of Espresso's and Cupcake's hooks share: a small model, its exchange, one backward pass."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.contracts.works_with import refuses, works
from workbench.cluster.machines import Link, Machines
from workbench.compression.costs import CodecTimes, Processor
from workbench.techniques import cupcake, espresso
from workbench.techniques.espresso.method import Option
from workbench.techniques.espresso.method.job import Job
from workbench.techniques.espresso.planning import plan_of
from workbench.timeline.gradients import Gradients

HOOKS = ("espresso", "cupcake")
COMPRESSED = Option.parse("comp.gpu flat.allgather* decomp.gpu")


def both_work(*features, note=""):
    return lambda test: [works(name, *features, note=note)(test) for name in HOOKS][-1]


def both_refuse(*features, note=""):
    return lambda test: [refuses(name, *features, note=note)(test) for name in HOOKS][-1]


def attach(technique, model, codec="efsignsgd", place=None, option=COMPRESSED, **options):
    """Make an exchange of a model in which all gradients are compressed, or, of the codec "momentum", none."""
    module, world = getattr(model, "module", model), dist.get_world_size()
    sizes = {name: p.numel() for name, p in reversed([*module.named_parameters()]) if p.requires_grad}
    names, is_compressed = tuple(sizes), codec != "momentum"
    codec = codec if is_compressed else "dgc"
    if technique == "cupcake":
        groups = names[::2], names[1::2]
        facts = {"num_elements": sizes, "groups": groups, "compressed": (is_compressed,) * 2, "predicted_s": {}}
        return cupcake.exchange(model, cupcake.Plan(codec=codec, num_ranks=world, **facts), **options)
    order = {"tensors": names, "num_elements": tuple(sizes.values()), "gap_s": (1e-3,) * len(names)}
    link = Link(bandwidth_bytes_per_s=1e8, latency_s=1e-4)
    num_machines, gpus_per_machine = place or (world, 1)
    machines = Machines(num_machines=num_machines, gpus_per_machine=gpus_per_machine, intra=link, inter=link)
    costs = {processor: lambda elements: 1e-9 * elements for processor in Processor}
    times = CodecTimes(name=codec, encode_s=costs, decode_s=costs, sent_bytes=0.2)
    job = Job(Gradients(name="own", forward_s=1e-3, source="a test", **order), machines, times)
    strategy = [option if is_compressed else job.uncompressed] * len(names)
    return espresso.compress_gradients(model, plan_of(job, strategy, codec), **options)


def net():
    return nn.Sequential(nn.Linear(7, 30), nn.Tanh(), nn.Linear(30, 3))


def batch(step, rank=None, size=5):
    seed = 10 * step + (dist.get_rank() if rank is None else rank)
    return torch.randn(size, 7, generator=torch.Generator().manual_seed(seed))


def squares(model, step):
    return model(batch(step)).square().mean()


def early(module, **options):
    return DistributedDataParallel(module, bucket_cap_mb=cupcake.BUCKET_MB, **options)


def one_pass(model, step, loss=squares):
    model.zero_grad()
    loss(model, step).backward()


def message_of(error, call, *arguments, **options):
    with pytest.raises(error) as raised:
        call(*arguments, **options)
    return str(raised.value)
