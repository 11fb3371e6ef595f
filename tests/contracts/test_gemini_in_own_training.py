"""Gemini in a user's own training: what resumes ends with the bits of the run that was never disturbed.

Most tests train one process or two ranks twice: undisturbed, by plain torch, and from a checkpoint of the middle in
objects that were made anew with other numbers. `run_training` has the failures of ranks.
"""

import os
import signal

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.cases import refusal, tidy
from tests.contracts import gemini_trainings as own
from tests.contracts.works_with import Feature, refuses, works
from tests.techniques.gemini.own_trainings import Ddp, Sharded, Training, batch, resumes
from workbench.launch.machines import Machines
from workbench.techniques.gemini.control import Timing, run_training
from workbench.techniques.gemini.measured.training import PoolContext
from workbench.techniques.gemini.runtime import CheckpointOptions, InMemoryCheckpoints, TrainingState
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD

PATIENCE_S = 6.0  # of collectives of a training whose ranks fail


def on_ranks(pools, kind: type[Training]) -> None:
    assert pools(2).run(tidy, resumes, kind) == [[], []]


@works("gemini", Feature.GRADIENT_SCALING, note="Give the scaler in `extra`; one that is not given is refused.")
def test_a_scaler_in_extra_resumes_with_its_scale():
    assert resumes(own.Scaled) == []


class ScaledOnRanks(Ddp, own.Scaled):
    pass


def scaler_that_was_not_given() -> tuple[str, bool]:
    training = ScaledOnRanks(0)
    before = training.values()
    checkpoints = InMemoryCheckpoints(PoolContext(dist.get_rank(), 2), training.model, training.optimizer)
    with pytest.raises(ValueError) as refused:
        for iteration in checkpoints.iterations(2):
            training.step(iteration)
    unchanged = all(torch.equal(value, before[key]) for key, value in training.values().items() if "model/" in key)
    return str(refused.value), unchanged


def test_a_scaler_that_was_not_given_is_refused_by_name_before_the_first_update(pools):
    for message, unchanged in pools(2).run(tidy, scaler_that_was_not_given):
        assert message.startswith("the loss is scaled by a GradScaler; give it as an entry of extra") and unchanged


def infinite_on_one_rank() -> list[bool]:
    """Say for each iteration whether the update was skipped here."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    context = PoolContext(dist.get_rank(), dist.get_world_size())
    checkpoints, skipped = InMemoryCheckpoints(context, model, optimizer, extra={"scaler": scaler}), []
    for iteration in checkpoints.iterations(4):
        before = model.module.weight.detach().clone()
        factor = {1: float("inf"), 2: float("nan")}.get(iteration, 1.0) if context.rank == 1 else 1.0
        scaler.scale(model(batch(iteration)).sum() * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        skipped.append(torch.equal(before, model.module.weight))
    return skipped


@works("gemini", Feature.NOT_FINITE)
def test_inf_and_nan_of_one_rank_reach_all_beside_checkpoints(pools):
    assert pools(2).run(tidy, infinite_on_one_rank) == [[False, True, True, False]] * 2


@works("gemini", Feature.UNUSED_PARAMETERS)
def test_parameters_without_a_gradient_in_a_pass(pools):
    on_ranks(pools, own.Unused)


@works("gemini", Feature.FROZEN_PARAMETERS)
def test_frozen_parameters_stay_frozen_and_those_that_were_unfrozen_are_trained():
    assert resumes(own.Unfrozen) == []


@works("gemini", Feature.TIED_WEIGHTS)
def test_tied_weights_stay_one():
    assert resumes(own.Tied) == []


@works("gemini", Feature.BUFFERS, note="Also buffers that appear later, and those that a state_dict leaves out.")
def test_buffers_and_what_modules_keep_beside_them(pools):
    assert resumes(own.Buffers) == []
    on_ranks(pools, own.DdpBuffers)


@works(
    "gemini",
    Feature.RESUME,
    note="Give in `extra` what has a state beside model and optimizer, such as a communication hook's.",
)
def test_a_training_with_a_schedule_a_loader_and_a_communication_hook_resumes(pools):
    on_ranks(pools, own.Whole)


@works("gemini", Feature.SAVING, note="A state_dict is as without Gemini.")
def test_saving_and_loading_by_torch_is_as_without_checkpoints():
    assert resumes(own.Saved) == []
    run = own.Saved(0)
    before = {key: value.clone() for key, value in run.net.state_dict().items()}
    TrainingState(run.model, run.optimizer).image(0)
    assert list(before) == list(run.net.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in run.net.state_dict().items())


@works("gemini", Feature.CHECKPOINTING)
@pytest.mark.parametrize("kind", [own.Checkpointed, own.Reentrant])
def test_activation_checkpointing(kind):
    assert resumes(kind) == []


@works("gemini", Feature.COMPILE)
def test_a_compiled_model_resumes_and_its_checkpoint_is_one_of_the_plain_model(pools):
    assert resumes(own.Compiled) == []
    compiled, plain = own.Compiled(0), Training(7)
    compiled.step(0)
    image = TrainingState(compiled.model, compiled.optimizer).image(1)
    compiled.step(1)
    TrainingState(plain.model, plain.optimizer).load_(image)
    plain.step(1)
    assert all(torch.equal(value, plain.values()[key]) for key, value in compiled.values().items())
    on_ranks(pools, own.CompiledDdp)


@works(
    "gemini",
    Feature.ACCUMULATION,
    note="A checkpoint holds gradients that are not cleared, so that it may lie within an accumulation; "
    "`zero_grad` at the end of an iteration makes it smaller. FSDP2's gradients that are not reduced yet are refused.",
)
@pytest.mark.parametrize("kind", [own.Accumulating, own.ZeroedAtTheBeginning])
def test_a_checkpoint_in_the_middle_of_an_accumulation_has_its_gradients(pools, kind):
    on_ranks(pools, kind)


@works("gemini", Feature.CLIPPING)
def test_clipping(pools):
    on_ranks(pools, own.Clipped)


def count_to_another_number() -> str:
    rank = dist.get_rank()
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpoints = InMemoryCheckpoints(PoolContext(rank, 2), model, optimizer)
    return refusal(next, checkpoints.iterations(3 + rank))


@refuses("gemini", Feature.UNEVEN_ENDS, note="All ranks count to the same number; `iterations` compares them.")
def test_ranks_that_count_to_different_numbers_are_refused_before_the_first_iteration(pools):
    rule = (
        "total is [3, 4] on the ranks; all ranks must end with the same iteration: a checkpoint is one of all of them"
    )
    assert pools(2).run(tidy, count_to_another_number) == [rule] * 2


@works("gemini", Feature.BF16)
def test_bf16_weights_keep_their_float32_moments():
    assert resumes(own.Bf16) == []


@works("gemini", Feature.AUTOCAST)
def test_autocast():
    assert resumes(own.Autocast) == []


@works("gemini", Feature.EMA, note="Give the averaged model in `extra`.")
def test_an_average_of_weights_and_buffers():
    assert resumes(own.Averaged) == []


@works("gemini", Feature.LORA)
def test_lora_adapters_by_peft():
    assert resumes(own.Adapted) == []


@works("gemini", Feature.FSDP)
def test_sharded_models_resume_also_after_an_evaluation(pools):
    on_ranks(pools, Sharded)


def unreduced() -> str:
    training = Sharded(0)
    state = TrainingState(training.model, training.optimizer)
    training.model.set_requires_gradient_sync(False)
    training.loss(batch(0)).backward()
    return refusal(state.image, 1)


def test_sharded_gradients_that_are_not_reduced_are_refused_by_name(pools):
    for message in pools(2).run(tidy, unreduced):
        assert message.startswith("gradients of '0.weight' are not reduced yet")


@works("gemini", Feature.MODELS)
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "llama"])
def test_models_of_hugging_face(name):
    pytest.importorskip("transformers")
    assert resumes(type(name, (own.LanguageModel,), {"name": name})) == []


@pytest.fixture(scope="module")
def train():
    timing = Timing(heartbeat_s=0.05, lease_s=4.0, collective_s=PATIENCE_S)
    with Machines(preload=PRELOAD, echo=False) as machines:
        yield lambda way: run_training(fails_once, 2, args=(way,), machines=machines, timing=timing, timeout_s=200)


@pytest.fixture(scope="module")
def undisturbed(train):
    return train("")


def fails_once(context, way: str) -> list[float]:
    """Train; in the first generation the last rank fails in the middle of the third iteration."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options = CheckpointOptions(timeout_s=4.0)
    checkpoints = InMemoryCheckpoints(context, model, optimizer, options=options)
    for iteration in checkpoints.iterations(5):
        if way and context.generation == 1 and iteration == 2 and context.rank == context.world_size - 1:
            checkpoints.wait()
            if way == "raises":
                raise ArithmeticError("a batch that cannot be read")
            if way == "exits":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGSTOP)
        model(batch(iteration)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [parameter.detach().double().sum().item() for parameter in model.parameters()]


@works("gemini", Feature.RAISES, Feature.EXITS, note="All ranks start again from the newest checkpoint.")
@works(
    "gemini",
    Feature.FREEZES,
    note="A frozen rank is noticed after `Timing.collective_s`, half an hour; at a checkpoint after "
    "`CheckpointOptions.timeout_s`.",
)
@pytest.mark.parametrize("way", ["raises", "exits", "freezes"])
def test_after_a_rank_has_raised_exited_or_frozen_the_training_ends_with_the_undisturbed_bits(train, undisturbed, way):
    outcome = train(way)
    assert outcome.results == undisturbed.results and outcome.num_generations == 2
    failures = " ".join(str(event.details) for event in outcome.named("rank failed"))
    expected = {"raises": "a batch that cannot be read", "exits": "3", "freezes": "1"}
    assert expected[way] in failures, failures
