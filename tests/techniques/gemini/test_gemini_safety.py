"""Gemini in a user's own training: never other bits in silence, never endless, and useful in three lines."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from workbench.techniques.gemini import control
from workbench.techniques.gemini.control import operator, run_training
from workbench.techniques.gemini.measured import reliability, schedules
from workbench.techniques.gemini.measured.training import PoolContext
from workbench.techniques.gemini.runtime import InMemoryCheckpoints

TIMING = control.Timing(heartbeat_s=0.05, lease_s=3.0)
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
    undisturbed = reliability.undisturbed_by(fleet)(planned)
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
    for rank, messages in enumerate(run_training(train_and_change_late, 2, machines=fleet, timing=TIMING).results):
        assert messages == [
            f"rank {rank}: model/weight, model/bias changed between the end of iteration 1 and the next forward pass; "
            "unless each begins so, a run that resumes ends with other bits: use checkpoints.iterations()"
        ]


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
