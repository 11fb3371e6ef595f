"""Training with checkpoints in peers' memory goes on after any failure as if nothing had happened, bit for bit."""

import pytest
import torch
from torch import nn

from workbench.techniques.gemini.runtime.checkpoints import PRELOAD, InMemoryCheckpoints
from workbench.techniques.gemini.runtime.training import Fault, Victim, run_training

NUM_MACHINES, NUM_ITERATIONS = 4, 9
SMALL = {"reserved_bytes": 4096, "num_buffers": 4, "num_profiled": 2}  # so that some iterations interleave


def build(kind: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(7)
    blocks = [nn.Sequential(nn.Linear(24, 24), nn.Dropout(0.2), nn.GELU()) for _ in range(3)]
    model = nn.Sequential(*blocks)
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.001)
    else:
        for module in (*blocks, model):
            fully_shard(module)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(context, kind: str, options: dict) -> dict:
    """Train, and return all that could differ."""
    model, optimizer = build(kind)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)

    def loss() -> torch.Tensor:
        return model(torch.randn(8, 24)).square().mean()  # drawn from the global generator, whose state is kept

    torch.manual_seed(context.rank)
    checkpoints = InMemoryCheckpoints(context, model, optimizer, scheduler=schedule, throw_away=loss, **SMALL, **options)
    for _ in range(checkpoints.iteration, NUM_ITERATIONS):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        schedule.step()
        checkpoints.step()
    settled = checkpoints.interleaving.profile is not None
    checkpoints.close()
    local = [getattr(weight, "_local_tensor", weight).detach() for weight in model.parameters()]
    values = [value.tolist() for value in local] + [schedule.get_last_lr(), torch.get_rng_state().tolist()]
    tiers = [source.tier.value for source in checkpoints.plan.sources]
    return {"values": values, "settled": settled, "tiers": tiers, "resumed": checkpoints.plan.iteration,
            "kept_bytes": checkpoints.kept_bytes, "memory": sum(context.memory_names().values())}  # fmt: skip


def trained(kind: str, faults=(), **options) -> list[dict]:
    outcome = run_training(train, NUM_MACHINES, args=(kind, options), faults=faults, preload=PRELOAD, timeout_s=100)
    return list(outcome.results)


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, list]:
    return {kind: [each["values"] for each in trained(kind)] for kind in ("ddp", "fsdp")}


def test_a_run_without_failure_starts_at_0_and_interleaves_once_it_has_profiled(undisturbed):
    ranks = trained("fsdp", scheme="Unpipelined")
    assert all(rank["settled"] and rank["resumed"] == 0 for rank in ranks)
    assert [rank["values"] for rank in ranks] == undisturbed["fsdp"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_lost_machine_is_replaced_from_its_peer(undisturbed, kind):
    ranks = trained(kind, [Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=7)])
    assert [rank["values"] for rank in ranks] == undisturbed[kind]
    assert ranks[0]["tiers"] == ["local memory", "peer memory", "local memory", "local memory"]
    assert ranks[0]["resumed"] >= 6, "at most the iteration under way and the one whose checkpoint travelled are lost"


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_lost_rank_resumes_from_its_own_machine(undisturbed, kind):
    ranks = trained(kind, [Fault(kills=Victim.RANK, numbers=(2,), at_iteration=4)])
    assert [rank["values"] for rank in ranks] == undisturbed[kind]
    assert ranks[0]["tiers"] == ["local memory"] * NUM_MACHINES and ranks[0]["resumed"] >= 3


def test_a_whole_group_that_is_lost_without_storage_starts_again(undisturbed):
    ranks = trained("fsdp", [Fault(kills=Victim.MACHINE, numbers=(2, 3), at_iteration=3)])
    assert [rank["values"] for rank in ranks] == undisturbed["fsdp"]
    assert ranks[0]["tiers"] == ["the start"] * NUM_MACHINES and ranks[0]["resumed"] == 0


def test_a_machine_keeps_two_buffers_for_each_of_its_replicas_and_no_more():
    for rank in trained("fsdp"):
        assert rank["kept_bytes"] == rank["memory"]
