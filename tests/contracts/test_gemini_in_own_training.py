"""Gemini in a user's own training: what resumes ends with the bits of the run that was never disturbed.

Most tests train one process or two ranks twice: undisturbed, by plain torch, and from a checkpoint of the middle in
objects that were made anew with other numbers. `run_training` has the failures of ranks.
"""

import os
import random
import signal
from datetime import timedelta
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.cases import tidy
from tests.contracts.works_with import Feature, refuses, works
from workbench.launch.control import Timing, run_training
from workbench.launch.machines import Machines
from workbench.techniques.gemini.measured.training import PoolContext
from workbench.techniques.gemini.runtime import CheckpointOptions, InMemoryCheckpoints, TrainingState
from workbench.techniques.gemini.runtime.checkpoints import PRELOAD

pytestmark = pytest.mark.timeout(240)
PATIENCE = timedelta(seconds=6)  # of the group whose ranks fail
HALF, ALL = 3, 6  # iterations to the checkpoint, and of the whole training


class Training:
    """A small training; subclasses change one thing that users do."""

    def __init__(self, seed: int):
        torch.manual_seed(seed), random.seed(seed), np.random.seed(seed)
        self.net = self.model = self.build()
        self.wrap()
        self.optimizer, self.extra = torch.optim.AdamW(self.model.parameters(), lr=0.01), {}
        self.prepare()

    def build(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 8))

    def wrap(self) -> None:
        pass

    def prepare(self) -> None:
        pass

    def loss(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x).square().mean()

    def step(self, iteration: int) -> None:
        self.loss(batch(iteration)).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def values(self) -> dict[str, torch.Tensor]:
        """Return what must be equal to the last bit."""
        state = {f"model/{name}": value for name, value in self.net.state_dict().items() if torch.is_tensor(value)}
        for name, parameter in self.net.named_parameters():
            kept = self.optimizer.state.get(parameter, {})
            state |= {f"optimizer/{name}/{key}": value for key, value in kept.items() if torch.is_tensor(value)}
        return {key: getattr(value, "_local_tensor", value).detach().clone() for key, value in state.items()}


def batch(iteration: int, shape: tuple[int, ...] = (4, 8)) -> torch.Tensor:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return torch.randn(shape, generator=torch.Generator().manual_seed(100 * rank + iteration))


def resumes(kind: type[Training]) -> list[str]:
    """Train to the end, and from a checkpoint in the middle; name what differs. Plain torch has no checkpoint."""
    plain = kind(0)
    for iteration in range(ALL):
        plain.step(iteration)
    first = kind(0)
    state = TrainingState(first.model, first.optimizer, extra=first.extra)
    for iteration in range(HALF):
        first.step(iteration)
        image = state.image(iteration + 1)
    second = kind(7)
    assert TrainingState(second.model, second.optimizer, extra=second.extra).load_(image) == HALF
    for iteration in range(HALF, ALL):
        second.step(iteration)
    expected, resumed = plain.values(), second.values()
    assert expected.keys() == resumed.keys()
    return [key for key, value in expected.items() if not torch.equal(value, resumed[key])]


def on_ranks(pools, kind: type[Training]) -> None:
    assert pools(2).run(tidy, resumes, kind) == [[], []]


class Scaled(Training):
    """The scale grows, and falls where a loss overflows."""

    def prepare(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=2)
        self.extra = {"scaler": self.scaler}

    def step(self, iteration):
        loss = self.loss(batch(iteration)) * (float("inf") if iteration == 4 else 1.0)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def values(self):
        return super().values() | {"scale": torch.tensor(self.scaler.get_scale())}


@works("gemini", Feature.GRADIENT_SCALING, note="Give the scaler in `extra`; one that is not given is refused.")
def test_a_scaler_in_extra_resumes_with_its_scale():
    assert resumes(Scaled) == []


def scaler_that_was_not_given() -> tuple[str, bool]:
    training = Scaled(0)
    before = training.values()
    checkpoints = InMemoryCheckpoints(PoolContext(0, 1), training.model, training.optimizer)
    with pytest.raises(ValueError) as refused:
        for iteration in checkpoints.iterations(2):
            training.step(iteration)
    unchanged = all(torch.equal(value, before[key]) for key, value in training.values().items() if "model/" in key)
    return str(refused.value), unchanged


def test_a_scaler_that_was_not_given_is_refused_by_name_before_the_first_update(pools):
    ((message, unchanged),) = pools(1).run(tidy, scaler_that_was_not_given)
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


class Ddp(Training):
    options: ClassVar[dict] = {}

    def wrap(self):
        self.model = DistributedDataParallel(self.net, bucket_cap_mb=0.001, **self.options)


class Branched(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])

    def forward(self, x, number):
        return self.parts[number](x)


class Unused(Ddp):
    options: ClassVar[dict] = {"find_unused_parameters": True}

    def build(self):
        return Branched()

    def loss(self, x):
        self.number = getattr(self, "number", -1)
        return self.model(x, dist.get_rank()).square().mean()


@works("gemini", Feature.UNUSED_PARAMETERS)
def test_parameters_without_a_gradient_in_a_pass(pools):
    on_ranks(pools, Unused)


class Unfrozen(Training):
    """The first layer is trained from the iteration before the checkpoint on; another never."""

    def prepare(self):
        self.net[0].requires_grad_(False)
        self.net[3].bias.requires_grad_(False)

    def step(self, iteration):
        if iteration == HALF - 1:
            self.net[0].requires_grad_(True)
        super().step(iteration)


@works("gemini", Feature.FROZEN_PARAMETERS)
def test_frozen_parameters_stay_frozen_and_those_that_were_unfrozen_are_trained():
    assert resumes(Unfrozen) == []


class Tied(Training):
    def build(self):
        net = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        net[2].weight = net[0].weight
        return net


@works("gemini", Feature.TIED_WEIGHTS)
def test_tied_weights_stay_one():
    assert resumes(Tied) == []


class Remembering(nn.Module):
    """Buffers that come late, change shape or are in no state_dict; and what a module keeps outside of it."""

    def __init__(self):
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.register_buffer("late", None)
        self.register_buffer("unsaved", torch.zeros(8), persistent=False)
        self.register_buffer("queue", torch.zeros(1, 8))
        self.passes, self.weights = 0, {"sum": 0.0}
        self.draws = [np.random.default_rng(3), random.Random(3), torch.Generator().manual_seed(3)]
        self.draws.append(np.random.RandomState(3))
        self.hidden = torch.zeros(8)

    def forward(self, x):
        self.passes += 1
        drawn = self.draws[0].random() + self.draws[1].random() + torch.rand((), generator=self.draws[2])
        mean = x.detach().mean(0)
        self.late = mean if self.late is None else 0.9 * self.late + mean
        self.unsaved += mean
        self.queue = torch.cat([self.queue, mean[None]])
        self.hidden = 0.5 * self.hidden + mean
        self.weights["sum"] += drawn.item() + self.draws[3].rand()
        if not hasattr(self, "registered"):
            self.register_buffer("registered", torch.ones(8))
        self.registered = self.registered * 1.1
        state = self.late + self.unsaved + self.queue.sum(0) + self.hidden + self.registered
        return self.linear(self.norm(x)) + state + drawn * self.passes + self.weights["sum"]


class Buffers(Training):
    def build(self):
        return Remembering()


class DdpBuffers(Ddp, Buffers):
    pass


@works("gemini", Feature.BUFFERS, note="Also buffers that appear later, and those that a state_dict leaves out.")
def test_buffers_and_what_modules_keep_beside_them(pools):
    assert resumes(Buffers) == []
    on_ranks(pools, DdpBuffers)


class Loader:
    def __init__(self):
        self.number, self.seen = 0, []

    def next(self):
        self.number += 1
        self.seen = [*self.seen, self.number]
        return batch(self.number)

    def state_dict(self):
        return {"number": self.number, "seen": self.seen}

    def load_state_dict(self, state):
        self.number, self.seen = state["number"], state["seen"]


class Whole(Ddp):
    """A schedule, a loader, and torch's PowerSGD, whose state pickles and has no state_dict."""

    def prepare(self):
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, ALL)
        self.power = powerSGD_hook.PowerSGDState(
            self.model.process_group, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        self.model.register_comm_hook(self.power, powerSGD_hook.powerSGD_hook)
        self.extra = {"loader": Loader(), "schedule": schedule, "power": self.power}

    def step(self, iteration):
        self.loss(self.extra["loader"].next()).backward()
        self.optimizer.step()
        self.extra["schedule"].step()
        self.optimizer.zero_grad()

    def values(self):
        errors = {f"error/{index}": error for index, error in self.power.error_dict.items()}
        assert errors, "PowerSGD began"
        return super().values() | errors


@works(
    "gemini",
    Feature.RESUME,
    note="Give in `extra` what has a state beside model and optimizer, such as a communication hook's.",
)
def test_a_training_with_a_schedule_a_loader_and_a_communication_hook_resumes(pools):
    on_ranks(pools, Whole)


class Saved(Training):
    """The whole model is saved by torch and loaded, in the middle."""

    def step(self, iteration):
        super().step(iteration)
        kept = {key: value.clone() for key, value in self.net.state_dict().items()}
        self.net.load_state_dict(kept)


@works("gemini", Feature.SAVING, note="A state_dict is as without Gemini.")
def test_saving_and_loading_by_torch_is_as_without_checkpoints():
    assert resumes(Saved) == []
    run = Saved(0)
    before = {key: value.clone() for key, value in run.net.state_dict().items()}
    TrainingState(run.model, run.optimizer).image(0)
    assert list(before) == list(run.net.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in run.net.state_dict().items())


class Checkpointed(Training):
    reentrant = False

    def build(self):
        return nn.ModuleList([super(Checkpointed, self).build() for _ in range(2)])

    def loss(self, x):
        x = x.requires_grad_()
        for block in self.model:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x.square().mean()


class Reentrant(Checkpointed):
    reentrant = True


@works("gemini", Feature.CHECKPOINTING)
@pytest.mark.parametrize("kind", [Checkpointed, Reentrant])
def test_activation_checkpointing(kind):
    assert resumes(kind) == []


class Compiled(Training):
    def wrap(self):
        self.model = torch.compile(self.net, backend="eager")


class CompiledDdp(Training):
    def wrap(self):
        self.model = torch.compile(DistributedDataParallel(self.net), backend="eager")


@works("gemini", Feature.COMPILE)
def test_a_compiled_model_resumes_and_its_checkpoint_is_one_of_the_plain_model(pools):
    assert resumes(Compiled) == []
    compiled, plain = Compiled(0), Training(7)
    compiled.step(0)
    image = TrainingState(compiled.model, compiled.optimizer).image(1)
    compiled.step(1)
    TrainingState(plain.model, plain.optimizer).load_(image)
    plain.step(1)
    assert all(torch.equal(value, plain.values()[key]) for key, value in compiled.values().items())
    on_ranks(pools, CompiledDdp)


class Accumulating(Ddp):
    """An update every second iteration: the checkpoint is taken between the two."""

    def step(self, iteration):
        if iteration % 2 == 0:
            with self.model.no_sync():
                self.loss(batch(iteration)).backward()
            return
        super().step(iteration)


class ZeroedAtTheBeginning(Ddp):
    options: ClassVar[dict] = {"gradient_as_bucket_view": True}

    def step(self, iteration):
        self.optimizer.zero_grad()
        self.loss(batch(iteration)).backward()
        self.optimizer.step()


@works(
    "gemini",
    Feature.ACCUMULATION,
    note="A checkpoint holds gradients that are not cleared, so that it may lie within an accumulation; "
    "`zero_grad` at the end of an iteration makes it smaller. FSDP2's gradients that are not reduced yet are refused.",
)
@pytest.mark.parametrize("kind", [Accumulating, ZeroedAtTheBeginning])
def test_a_checkpoint_in_the_middle_of_an_accumulation_has_its_gradients(pools, kind):
    on_ranks(pools, kind)


class Clipped(Ddp):
    def step(self, iteration):
        self.loss(batch(iteration)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.01)
        self.optimizer.step()
        self.optimizer.zero_grad()


@works("gemini", Feature.CLIPPING)
def test_clipping(pools):
    on_ranks(pools, Clipped)


def uneven(way: str) -> str:
    """Count to another number on each rank, or stop one early."""
    rank = dist.get_rank()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = CheckpointOptions(timeout_s=2.0)
    checkpoints = InMemoryCheckpoints(PoolContext(rank, 2), model, optimizer, options=options)
    if way == "totals":
        with pytest.raises(ValueError) as refused:
            next(checkpoints.iterations(3 + rank))
        return str(refused.value)
    for _ in range(3 + rank):
        with model.join():
            pass
        if checkpoints.iteration == 3:
            with pytest.raises((TimeoutError, RuntimeError)) as missing:
                checkpoints.step(), checkpoints.wait()
            return f"{type(missing.value).__name__}: {missing.value}"
        checkpoints.step()
    checkpoints.wait()
    return ""


@refuses("gemini", Feature.UNEVEN_ENDS, note="All ranks count to the same number; `iterations` compares them.")
def test_ranks_that_count_to_different_numbers_are_refused_before_the_first_iteration(pools):
    rule = (
        "total is [3, 4] on the ranks; all ranks must end with the same iteration: a checkpoint is one of all of them"
    )
    assert pools(2).run(tidy, uneven, "totals") == [rule] * 2


class Bf16(Training):
    """Weights in bfloat16, and moments in float32, which torch's own loading would round."""

    def build(self):
        return super().build().bfloat16()

    def loss(self, x):
        return super().loss(x.bfloat16())

    def prepare(self):
        self.momentum = torch.optim.Optimizer(self.net.parameters(), {"lr": 0.05})
        self.optimizer = self.momentum
        self.optimizer.step = self.update

    @torch.no_grad()
    def update(self):
        for parameter in self.net.parameters():
            state = self.optimizer.state[parameter]
            moment = state.setdefault("moment", torch.zeros(parameter.shape, dtype=torch.float32))
            moment.mul_(0.9).add_(parameter.grad)
            parameter.sub_((0.05 * moment).bfloat16())


@works("gemini", Feature.BF16)
def test_bf16_weights_keep_their_float32_moments():
    assert resumes(Bf16) == []


class Autocast(Training):
    def loss(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().loss(x)


@works("gemini", Feature.AUTOCAST)
def test_autocast():
    assert resumes(Autocast) == []


class Averaged(Training):
    """An average of weights and buffers, one of which is None at first."""

    def build(self):
        net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8))
        net.register_buffer("late", None)
        return net

    def prepare(self):
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        self.extra = {"average": self.average}

    def step(self, iteration):
        super().step(iteration)
        for net in (self.net, self.average.module):
            net.late = torch.full((2,), float(iteration)) if net.late is None else net.late
        self.net.late = self.net.late + 1
        self.average.update_parameters(self.net)

    def values(self):
        return super().values() | {f"average/{name}": value for name, value in self.average.state_dict().items()}


@works("gemini", Feature.EMA, note="Give the averaged model in `extra`.")
def test_an_average_of_weights_and_buffers():
    assert resumes(Averaged) == []


class Adapted(Training):
    def build(self):
        from peft import LoraConfig, get_peft_model

        return get_peft_model(super().build(), LoraConfig(r=2, target_modules=["0", "3"], lora_dropout=0.1))


@works("gemini", Feature.LORA)
def test_lora_adapters_by_peft():
    assert resumes(Adapted) == []


class Sharded(Training):
    def wrap(self):
        for part in (self.net[0], self.net[3], self.net):
            fully_shard(part)

    def step(self, iteration):
        super().step(iteration)
        with torch.no_grad():
            self.model(batch(iteration))  # an evaluation leaves weights whole


@works("gemini", Feature.FSDP)
def test_sharded_models_resume_also_after_an_evaluation(pools):
    on_ranks(pools, Sharded)


def unreduced() -> str:
    training = Sharded(0)
    state = TrainingState(training.model, training.optimizer)
    training.model.set_requires_gradient_sync(False)
    training.loss(batch(0)).backward()
    with pytest.raises(ValueError) as refused:
        state.image(1)
    return str(refused.value)


def test_sharded_gradients_that_are_not_reduced_are_refused_by_name(pools):
    for message in pools(2).run(tidy, unreduced):
        assert message.startswith("gradients of '0.weight' are not reduced yet")


def small_model(name: str) -> nn.Module:
    import transformers as hf

    start = {"decoder_start_token_id": 0}
    sizes = {"vocab_size": 32, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    match name:
        case "gpt2":
            return hf.GPT2LMHeadModel(hf.GPT2Config(vocab_size=32, n_positions=8, n_embd=16, n_layer=2, n_head=2))
        case "bert":
            return hf.BertForMaskedLM(hf.BertConfig(**sizes, intermediate_size=16, max_position_embeddings=8))
        case "t5":
            return hf.T5ForConditionalGeneration(
                hf.T5Config(vocab_size=32, d_model=16, d_kv=8, d_ff=16, num_layers=2, num_heads=2, **start)
            )
    return hf.LlamaForCausalLM(hf.LlamaConfig(**sizes, intermediate_size=16, max_position_embeddings=8))


class LanguageModel(Training):
    name = ""

    def build(self):
        return small_model(self.name).train()

    def step(self, iteration):
        ids = (batch(iteration).abs() * 8).long() % 32
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


@works("gemini", Feature.MODELS)
@pytest.mark.parametrize("name", ["gpt2", "bert", "t5", "llama"])
def test_models_of_hugging_face(name):
    pytest.importorskip("transformers")
    assert resumes(type(name, (LanguageModel,), {"name": name})) == []


@pytest.fixture(scope="module")
def machines():
    with Machines(preload=PRELOAD, echo=False) as machines:
        yield machines


def fails_once(context, way: str) -> list[float]:
    """Train; in the first generation the last rank fails in the middle of the third iteration."""
    torch.manual_seed(0)
    group = dist.new_group(timeout=PATIENCE)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)), process_group=group)
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


@works("gemini", Feature.RAISES, Feature.EXITS, note="The ranks start again from the newest checkpoint.")
@works(
    "gemini", Feature.FREEZES, note="The others wait for at most `CheckpointOptions.timeout_s`; then all start again."
)
@pytest.mark.parametrize("way", ["raises", "exits", "freezes"])
def test_after_a_rank_has_raised_exited_or_frozen_the_training_ends_with_the_undisturbed_bits(machines, way):
    usual = {"machines": machines, "timing": Timing(heartbeat_s=0.05, lease_s=2.0), "timeout_s": 200}
    undisturbed = run_training(fails_once, 2, args=("",), **usual)
    outcome = run_training(fails_once, 2, args=(way,), **usual)
    assert outcome.results == undisturbed.results
    assert outcome.num_generations == 2
    failures = " ".join(str(event.details) for event in outcome.named("rank failed"))
    expected = {"raises": "a batch that cannot be read", "exits": "3", "freezes": "1"}
    assert expected[way] in failures, failures
