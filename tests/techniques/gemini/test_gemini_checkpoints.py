"""Training with checkpoints in peers' memory goes on after any failure as if nothing had happened, bit for bit."""

import pytest
import torch
from torch import nn

from workbench.techniques.gemini.runtime import Fault, InMemoryCheckpoints, Slot, Victim, run_training

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
    extra = {}
    if options.pop("two_optimizers", False):
        weights = list(model.parameters())
        optimizer = torch.optim.AdamW(weights[:2], lr=0.01)
        extra["second"] = torch.optim.AdamW(weights[2:], lr=0.02)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)

    def loss() -> torch.Tensor:
        return model(torch.randn(8, 24)).square().mean()  # drawn from the global generator, whose state is kept

    torch.manual_seed(context.rank)
    checkpoints = InMemoryCheckpoints(
        context, model, optimizer, scheduler=schedule, extra=extra, throw_away=loss, **SMALL, **options
    )
    for _ in range(checkpoints.iteration, NUM_ITERATIONS):
        model.zero_grad()
        loss().backward()
        for each in (*extra.values(), optimizer):  # the further one first: it must not change what is being sent either
            each.step()
        schedule.step()
        checkpoints.step()
    settled = checkpoints.interleaving.profile is not None
    checkpoints.close()
    local = [getattr(weight, "_local_tensor", weight).detach() for weight in model.parameters()]
    values = [value.tolist() for value in local] + [schedule.get_last_lr(), torch.get_rng_state().tolist()]
    tiers = [source.tier.value for source in checkpoints.plan.sources]
    sizes = {"kept_bytes": checkpoints.kept_bytes, "shard_bytes": checkpoints.shard_bytes}
    return {
        "values": values,
        "settled": settled,
        "tiers": tiers,
        "resumed": checkpoints.plan.iteration,
        **sizes,
        "memory": sum(context.memory_names().values()),
    }


@pytest.fixture(scope="module")
def trained(fleet):
    """Trains on warm machines and gives what every rank returned."""

    def results(kind: str, faults=(), **options) -> list[dict]:
        outcome = run_training(train, NUM_MACHINES, args=(kind, options), faults=faults, machines=fleet, timeout_s=100)
        return list(outcome.results)

    return results


@pytest.fixture(scope="module")
def undisturbed(trained) -> dict[str, list]:
    return {kind: [each["values"] for each in trained(kind)] for kind in ("ddp", "fsdp")}


def test_a_run_without_failure_starts_at_0_and_interleaves_once_it_has_profiled(trained, undisturbed):
    ranks = trained("fsdp", scheme="Unpipelined")
    assert all(rank["settled"] and rank["resumed"] == 0 for rank in ranks)
    assert [rank["values"] for rank in ranks] == undisturbed["fsdp"]


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_lost_machine_is_replaced_from_its_peer(trained, undisturbed, kind):
    ranks = trained(kind, [Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=7)])
    assert [rank["values"] for rank in ranks] == undisturbed[kind]
    assert ranks[0]["tiers"] == ["local memory", "peer memory", "local memory", "local memory"]
    # Of 7 iterations at most two are lost: one on its way, and one that not all ranks know to be complete.
    assert ranks[0]["resumed"] >= 5


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_a_lost_rank_resumes_from_its_own_machine(trained, undisturbed, kind):
    ranks = trained(kind, [Fault(kills=Victim.RANK, numbers=(2,), at_iteration=4)])
    assert [rank["values"] for rank in ranks] == undisturbed[kind]
    assert ranks[0]["tiers"] == ["local memory"] * NUM_MACHINES and ranks[0]["resumed"] >= 2


def test_a_whole_group_that_is_lost_without_storage_starts_again(trained, undisturbed):
    ranks = trained("fsdp", [Fault(kills=Victim.MACHINE, numbers=(2, 3), at_iteration=3)])
    assert [rank["values"] for rank in ranks] == undisturbed["fsdp"]
    assert ranks[0]["tiers"] == ["the start"] * NUM_MACHINES and ranks[0]["resumed"] == 0


def test_two_losses_one_after_the_other_find_as_many_replicas_as_one(trained, undisturbed):
    # Machine 1 comes back from machine 0, which dies as soon as all four have resumed: what it kept was sent again.
    first = Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=4)
    second = Fault(kills=Victim.MACHINE, numbers=(0,), after_event="resumed", occurrence=2 * NUM_MACHINES)
    ranks = trained("fsdp", [first, second])
    assert [rank["values"] for rank in ranks] == undisturbed["fsdp"]
    assert ranks[0]["resumed"] >= 2 and "the start" not in ranks[0]["tiers"]


def test_a_further_optimizer_waits_for_what_is_being_sent_and_comes_back_with_the_rest(trained):
    expected = trained("ddp", two_optimizers=True)
    found = trained("ddp", [Fault(kills=Victim.MACHINE, numbers=(1,), at_iteration=7)], two_optimizers=True)
    assert [rank["values"] for rank in found] == [rank["values"] for rank in expected]
    assert found[1]["resumed"] >= 5 and found[1]["tiers"][1] == "peer memory"


def skip_an_update(context) -> tuple[int, int]:
    """Train with an update left out, as a loss scaler does; return both iteration numbers."""
    model, optimizer = build("fsdp")
    checkpoints = InMemoryCheckpoints(context, model, optimizer, **SMALL)
    for iteration in range(NUM_ITERATIONS):
        model(torch.randn(8, 24)).square().mean().backward()
        if iteration not in (1, 6, 7):
            optimizer.step()
        optimizer.zero_grad()
        checkpoints.step()
    checkpoints.close()
    return checkpoints._kept.slot(context.rank).latest().iteration, checkpoints.iteration


def test_an_update_that_is_left_out_spoils_no_checkpoint_and_no_profile(fleet):
    outcome = run_training(skip_an_update, 2, machines=fleet, timeout_s=60)
    assert outcome.results == ((NUM_ITERATIONS, NUM_ITERATIONS),) * 2 and outcome.num_generations == 1


class Alone:
    """A context that nothing is asked of."""

    rank, world_size, machine, num_machines, ranks_per_machine, local_rank = 0, 1, 0, 1, 1, 0


def refusals() -> list[str]:
    model, optimizer = build("ddp")
    wrong = [
        {},
        {"throw_away": list, "num_replicas": 2},
        {"throw_away": list, "num_replicas": 1, "num_buffers": 0},
        {"throw_away": list, "num_replicas": 1, "timeout_s": 0},
        {"throw_away": list, "num_replicas": 1, "every": 0},
        {"throw_away": list, "num_replicas": 1, "storage_every": 3},
    ]
    said = []
    for options in wrong:
        with pytest.raises(ValueError) as caught:
            InMemoryCheckpoints(Alone(), model, optimizer, **{"num_replicas": 1, **options})
        said.append(str(caught.value))
    return said


def test_bad_input_is_refused_before_anything_is_sent(pools):
    (said,) = pools(1).run(refusals)
    for words, sentence in zip(
        (
            "throw_away is None",
            "num_replicas",
            "num_buffers is 0",
            "timeout_s is 0",
            "every is 0",
            "storage_every is 3",
        ),
        said,
        strict=True,
    ):
        assert words in sentence


def test_a_machine_keeps_two_buffers_for_each_of_its_replicas_and_no_more(trained):
    for rank in trained("fsdp"):
        assert rank["kept_bytes"] == rank["memory"]
        tables = Slot.memory_bytes(1)  # what two buffers take beside their data
        assert 4 * rank["shard_bytes"] < rank["kept_bytes"] <= 2 * (2 * rank["shard_bytes"] + tables)
