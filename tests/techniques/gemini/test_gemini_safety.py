"""Gemini in a user's own training: never other bits in silence, never endless, and useful in three lines."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.techniques.gemini import control
from workbench.techniques.gemini.control import Fault, Victim, operator, run_training
from workbench.techniques.gemini.measured import reliability, schedules
from workbench.techniques.gemini.measured.training import PoolContext, shard
from workbench.techniques.gemini.runtime import CheckpointOptions, InMemoryCheckpoints

pytestmark = pytest.mark.timeout(120)
TIMING = control.Timing(heartbeat_s=0.05, lease_s=1.0)
DRAWN = [
    # two trainings each whose state changes at random moments, grows, or has a late gradient; then one of a kind:
    (12, "changed state"),
    (28, "changed state"),
    (13, "growing state"),
    (29, "growing state"),
    (4, "store twice"),
    (5, "frozen store"),
    (11, "damaged chunk"),
    (14, "rank again and again"),
    (15, "no memory"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "kind"), DRAWN)
def test_a_drawn_training_ends_with_the_bits_of_an_undisturbed_one_or_says_why_it_cannot(
    fleet, monkeypatch, seed, kind
):
    monkeypatch.setattr(operator, "MOST_STALLED", 4)  # a rank that is killed again and again is given up sooner
    planned = schedules.draw_schedule(seed)
    assert kind in planned.kinds
    undisturbed = reliability.Undisturbed(fleet).digests(planned)
    row = reliability.run_schedule(planned, undisturbed, fleet)
    assert row["ends_rightly"] and row["different_ranks"] == 0, row["error"]
    assert (row["num_orphans"], row["leaked_bytes"]) == (0, 0)
    assert kind != "damaged chunk" or any("chunk damaged" in strike["what"] for strike in row["strikes"])


def train_and_change_late(context) -> list[str]:
    """Clip weights after the iteration's end, as a loop by hand may do."""
    model = DistributedDataParallel(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoints = InMemoryCheckpoints(context, model, optimizer)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(4):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            checkpoints.step()
            for weight in model.parameters():
                weight.data.clamp_(-0.01, 0.01)  # in no checkpoint
    checkpoints.close()
    return [str(warning.message) for warning in caught if "forward pass" in str(warning.message)]


def test_what_changes_after_an_iterations_end_is_told_once_by_name(fleet):
    for rank, told in enumerate(run_training(train_and_change_late, 2, machines=fleet, timing=TIMING).results):
        assert told == [
            f"rank {rank}: model/weight, model/bias changed between the end of iteration 1 and the next forward pass; "
            "unless each begins so, a run that resumes ends with other bits: use checkpoints.iterations()"
        ]


class Loader:
    """A data loader with a position."""

    def __init__(self, rank: int):
        self.next, self.rank = 0, rank

    def __iter__(self):
        while True:
            self.next += 1
            generator = torch.Generator().manual_seed(100 * self.rank + self.next)
            yield torch.randint(0, 64, (2, 8), generator=generator)

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


def three_lines(context, kind: str, total: int) -> list:
    """Train a Hugging Face model with a loss scaler, a schedule and a data loader."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=2, n_head=2))
    if kind == "ddp":
        model = DistributedDataParallel(model, bucket_cap_mb=0.01)
    if kind == "fsdp":
        shard(*model.transformer.h, model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=2)
    loader = Loader(context.rank)
    torch.manual_seed(context.rank)

    extra = {"loader": loader, "scaler": scaler}
    checkpoints = InMemoryCheckpoints(context, model, optimizer, scheduler=scheduler, extra=extra)
    for _, ids in zip(checkpoints.iterations(total), loader, strict=False):
        scaler.scale(model(ids, labels=ids).loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scheduler.step()
        optimizer.zero_grad()
    weights = [getattr(weight, "_local_tensor", weight).detach().double().sum().item() for weight in model.parameters()]
    return [checkpoints.plan.iteration, weights, scaler.get_scale(), scheduler.get_last_lr(), torch.rand(1).item()]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_machines"), [("plain", 1), ("ddp", 3), ("fsdp", 3)])
def test_three_lines_resume_a_hugging_face_model_with_scaler_schedule_and_loader(fleet, kind, num_machines):
    pytest.importorskip("transformers")
    # A kill is on its way for some milliseconds; a small model has left iteration 4 far behind then.
    usual = {"args": (kind, 40), "machines": fleet, "timing": TIMING, "timeout_s": 60}
    expected = run_training(three_lines, num_machines, **usual).results
    fault = Fault(kills=Victim.RANK, numbers=(num_machines - 1,), at_iteration=4)
    found = run_training(three_lines, num_machines, faults=[fault], **usual).results
    assert [rank[1:] for rank in found] == [rank[1:] for rank in expected]
    assert all(rank[0] >= 2 for rank in found) and all(rank[0] == 0 for rank in expected)


def add_gradients(kind: str) -> tuple[list[float], str]:
    """Train a DDP model of several buckets with checkpoints, or without; return its weights and a refusal."""
    torch.manual_seed(0)
    unused = {"find_unused_parameters": True} if "unused" in kind else {}
    model = DistributedDataParallel(
        nn.Sequential(*(nn.Linear(30, 30) for _ in range(4))), bucket_cap_mb=0.004, **unused
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    context, step = PoolContext(dist.get_rank(), dist.get_world_size()), lambda: None
    if "checkpoints" in kind:
        step = InMemoryCheckpoints(context, model, optimizer, options=CheckpointOptions(num_profiled=2)).step
    torch.manual_seed(dist.get_rank())
    for _ in range(5):
        model(torch.randn(4, 30)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        step()
    model.static_graph = True  # as an argument of DDP
    with pytest.raises(ValueError) as caught:
        InMemoryCheckpoints(context, model, optimizer)
    return [weight.detach().double().sum().item() for weight in model.parameters()], str(caught.value)


def hook_of_its_own() -> list[str]:
    """Let a model with a communication hook keep it."""
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

    model = DistributedDataParallel(nn.Linear(4, 4))
    model.register_comm_hook(None, allreduce_hook)
    context = PoolContext(dist.get_rank(), dist.get_world_size())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        checkpoints = InMemoryCheckpoints(context, model, torch.optim.SGD(model.parameters(), lr=0.1))
    for _ in checkpoints.iterations(3):
        model(torch.randn(2, 4)).sum().backward()
    return [str(warning.message) for warning in caught]


def test_a_model_with_a_communication_hook_of_its_own_keeps_it_and_says_what_is_not_seen(pools):
    for (message,) in pools(2).run(hook_of_its_own):
        assert message.startswith("model has a communication hook of its own: its messages are not seen")


@pytest.mark.parametrize("kind", ["", "unused"])
def test_checkpoints_change_no_bit_of_a_ddp_training(pools, kind):
    plain, found = (pools(4).run(add_gradients, f"{kind} {way}") for way in ("plain", "checkpoints"))
    assert [rank[0] for rank in plain] == [rank[0] for rank in found]
    assert all("with static_graph; it must not be" in rank[1] for rank in found)


def test_the_class_takes_at_most_eight_parameters_and_the_rest_is_one_object():
    import inspect

    assert len(inspect.signature(InMemoryCheckpoints).parameters) <= 8
    assert CheckpointOptions().num_replicas == 2 and CheckpointOptions().every == 1


def of_two_backends() -> str:
    return dist.get_backend()


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_devices_the_ranks_of_a_training_use_gloo(fleet):
    assert set(run_training(lambda context: of_two_backends(), 2, machines=fleet, timing=TIMING).results) == {"gloo"}
