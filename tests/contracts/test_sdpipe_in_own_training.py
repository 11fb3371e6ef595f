"""SDPipe in a user's own training: each feature against the same loop in one process, with means by definition.

A case builds a worker's model, optimizer and one iteration, as a user writes them without SDPipe. Where all workers
wait for one another, a training under SDPipe must end as the replicas of the case whose models are averaged after each
iteration.
"""

import copy
import math
import multiprocessing
import os
import signal
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.cases import tidy
from tests.contracts.works_with import Feature, refuses, works
from workbench.launch import RankFailed
from workbench.techniques.sdpipe import Options, VarianceReducedAdam, synchronized

TOGETHER = Options(window_s=math.inf)  # every group is of all workers
STEPS = 4


@dataclass
class Case:
    """A worker's part of a training."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Any  # (iteration) -> None, the optimizer's step included
    after: Any = lambda: None  # what follows the step
    more: nn.Module | None = None  # is compared, too


def batch(worker, iteration, size=6, width=4):
    draw = torch.Generator().manual_seed(100 * iteration + worker)
    return torch.randn(size, width, generator=draw)


def network(worker, normalises=False):
    torch.manual_seed(worker)  # replicas are built unequal
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if normalises else nn.Tanh(), nn.Linear(8, 4))


def simple(worker, model=None, loss=lambda out, x: functional.mse_loss(out, x.flip(1)), optimizer=None, **more):
    """Train with SGD and momentum, unless a case says otherwise."""
    model = model or network(worker)
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def step(iteration):
        x = batch(worker, iteration)
        loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step, **more)


def accumulated(worker):
    model = network(worker)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(iteration):
        for part in range(3):
            x = batch(worker, 3 * iteration + part)
            (functional.mse_loss(model(x), x) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def clipped(worker):
    model = network(worker)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(iteration):
        functional.mse_loss(model(batch(worker, iteration)), torch.full((6, 4), 10.0 * (1 + worker))).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.5) > 0.5
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


class Branches(nn.Module):
    """The second branch is used by the second worker, the third by nobody."""

    def __init__(self, worker):
        super().__init__()
        torch.manual_seed(worker)
        self.worker, self.branches = worker, nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        return self.branches[1](self.branches[0](x)) if self.worker else self.branches[0](x)


def unused(worker):
    return simple(worker, Branches(worker))


def frozen(worker):
    model = network(worker)
    model[0].requires_grad_(False)
    return simple(worker, model)


def normalised(worker):
    model = network(worker, normalises=True)
    model[1].running_mean.fill_(3.0 * worker)
    return simple(worker, model)


def checkpointed(worker, reentrant):
    layers = network(worker, normalises=True)
    case = simple(worker, layers)

    def step(iteration):
        x = batch(worker, iteration).requires_grad_()
        functional.mse_loss(checkpoint(layers, x, use_reentrant=reentrant), x.detach()).backward()
        case.optimizer.step()
        case.optimizer.zero_grad()

    return Case(layers, case.optimizer, step)


def reentrant(worker):
    return checkpointed(worker, True)


def not_reentrant(worker):
    return checkpointed(worker, False)


def half(worker):
    model = network(worker).to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)

    def step(iteration):
        model(batch(worker, iteration).bfloat16()).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def autocast(worker):
    case = simple(worker)

    def step(iteration):
        x = batch(worker, iteration)
        with torch.autocast("cpu", torch.bfloat16):
            loss = functional.mse_loss(case.model(x), x)
        loss.backward()
        case.optimizer.step()
        case.optimizer.zero_grad()

    return Case(case.model, case.optimizer, step)


def smoothed(worker):
    model = network(worker)
    ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    ema.module.load_state_dict(network(0).state_dict())
    return simple(worker, model, after=lambda: ema.update_parameters(model), more=ema)


def scheduled(worker):
    case = simple(worker)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(case.optimizer, STEPS)
    return Case(case.model, case.optimizer, case.step, after=schedule.step)


def adapted(worker):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(network(worker), LoraConfig(target_modules=["0", "2"], r=2, init_lora_weights="gaussian"))
    return simple(worker, model)


def compiled(worker):
    return simple(worker, torch.compile(network(worker), backend="aot_eager"))


def scaled(worker, unscales=False, optimizer=torch.optim.Adam):
    """Train with a scaler; the second worker's gradients are not finite in two iterations on end."""
    model = network(worker)
    optimizer = optimizer(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=2)

    def step(iteration):
        x = batch(worker, iteration) * (math.inf if worker and iteration in (1, 2) else 1.0)
        scaler.scale(functional.mse_loss(model(x), torch.ones(6, 4))).backward()
        if unscales:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def unscaled(worker):
    return scaled(worker, unscales=True)


def scaled_sgd(worker):
    return scaled(worker, optimizer=torch.optim.SGD)


def language(worker, name):
    import transformers

    torch.manual_seed(worker)
    small = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 32}
    configs = {
        "GPT2LMHeadModel": lambda: transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32),
        "BertForMaskedLM": lambda: transformers.BertConfig(**small, intermediate_size=32),
        "T5ForConditionalGeneration": lambda: transformers.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=32, decoder_start_token_id=0
        ),
        "LlamaForCausalLM": lambda: transformers.LlamaConfig(
            **small, intermediate_size=32, num_key_value_heads=2, tie_word_embeddings=True
        ),
    }
    model = getattr(transformers, name)(configs[name]()).eval()  # without dropout, whose draws differ
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(iteration):
        words = torch.randint(1, 32, (2, 8), generator=torch.Generator().manual_seed(10 * iteration + worker))
        model(input_ids=words, labels=words).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, optimizer, step)


def gpt2(worker):
    return language(worker, "GPT2LMHeadModel")


def bert(worker):
    return language(worker, "BertForMaskedLM")


def t5(worker):
    return language(worker, "T5ForConditionalGeneration")


def llama(worker):
    return language(worker, "LlamaForCausalLM")


def held(case):
    modules = [case.model] if case.more is None else [case.model, case.more]
    return [value.clone() for module in modules for value in module.state_dict().values()]


def on_ranks(build, num_steps=(STEPS, STEPS), options=TOGETHER):
    rank = dist.get_rank()
    case = build(rank)
    with synchronized(case.model, case.optimizer, num_stages=1, options=options):
        for iteration in range(num_steps[rank]):
            case.step(iteration)
            case.after()
        before = held(case)
    return before, held(case)


@torch.no_grad()
def average_(models):
    for tensors in zip(*(model.state_dict().values() for model in models), strict=True):
        if tensors[0].is_floating_point():
            mean = torch.stack([tensor.double() for tensor in tensors]).mean(dim=0)
        else:
            mean = tensors[0].clone()
        for tensor in tensors:
            tensor.copy_(mean)


def by_definition(build, num_steps=(STEPS, STEPS)):
    cases = [build(worker) for worker in range(len(num_steps))]
    for case in cases[1:]:
        case.model.load_state_dict(cases[0].model.state_dict())
    for iteration in range(max(num_steps)):
        here = [case for case, steps in zip(cases, num_steps, strict=True) if iteration < steps]
        for case in here:
            case.step(iteration)
        average_([case.model for case in here])
        for case in here:
            case.after()
    average_([case.model for case in cases])
    return [held(case) for case in cases]


def require_equal(found, expected, **limits):
    for worker, ((_, after), theirs) in enumerate(zip(found, expected, strict=True)):
        assert len(after) == len(theirs)
        for tensor, other in zip(after, theirs, strict=True):
            assert torch.isfinite(tensor).all()
            torch.testing.assert_close(tensor, other, msg=lambda text, worker=worker: f"{worker}: {text}", **limits)


CASES = (accumulated, clipped, unused, frozen, normalised, reentrant, not_reentrant, autocast, smoothed, scheduled)


@works("sdpipe", Feature.ACCUMULATION, Feature.UNUSED_PARAMETERS, Feature.FROZEN_PARAMETERS, Feature.CHECKPOINTING)
@works("sdpipe", Feature.AUTOCAST)
@works("sdpipe", Feature.CLIPPING, note="Each replica clips its own gradient before models are averaged.")
@works(
    "sdpipe",
    Feature.BUFFERS,
    note="Equal at the start; then floating-point ones of the state_dict are averaged, of others the group's first "
    "member's hold. Those that are not in the state_dict stay each replica's own.",
)
@works("sdpipe", Feature.EMA, note="It follows the averaged weights; each replica keeps its own.")
@pytest.mark.parametrize("build", CASES, ids=lambda build: build.__name__)
def test_a_training_ends_as_replicas_that_are_averaged_after_each_iteration(pools, build):
    require_equal(pools(2).run(tidy, on_ranks, build), by_definition(build))


@works("sdpipe", Feature.BF16, note="The mean is computed in single precision.")
def test_the_mean_of_weights_in_bf16_is_rounded_once(pools):
    require_equal(pools(3).run(tidy, on_ranks, half, (STEPS,) * 3), by_definition(half, (STEPS,) * 3), rtol=0, atol=0)


@works("sdpipe", Feature.LORA)
def test_adapters_are_averaged_and_the_frozen_base_is_the_first_workers(pools):
    require_equal(pools(2).run(tidy, on_ranks, adapted), by_definition(adapted))


@works("sdpipe", Feature.COMPILE)
def test_a_compiled_model_is_averaged(pools):
    require_equal(pools(2).run(tidy, on_ranks, compiled), by_definition(simple))


@works("sdpipe", Feature.MODELS, Feature.TIED_WEIGHTS)
@pytest.mark.parametrize("build", [gpt2, bert, t5, llama], ids=lambda build: build.__name__)
def test_language_models_with_tied_weights_are_averaged(pools, build):
    require_equal(pools(2).run(tidy, on_ranks, build, (2, 2)), by_definition(build, (2, 2)))


@works(
    "sdpipe",
    Feature.GRADIENT_SCALING,
    note="A replica whose step is skipped takes part with its own weights; each has its own scale.",
)
@pytest.mark.parametrize("build", [scaled, unscaled, scaled_sgd], ids=lambda build: build.__name__)
def test_a_step_that_a_scaler_skips_is_a_step_without_update_and_nobody_is_held_up(pools, build):
    require_equal(pools(2).run(tidy, on_ranks, build, (6, 6)), by_definition(build, (6, 6)))


def poisoned():
    case = simple(dist.get_rank())
    with synchronized(case.model, case.optimizer, num_stages=1, options=TOGETHER):
        case.step(0)
        case.model(batch(0, 1)).sum().backward()
        if dist.get_rank():
            case.model[0].weight.grad[0, 0] = math.nan
        case.optimizer.step()
        return case.model[0].weight.isnan()


@works("sdpipe", Feature.NOT_FINITE, note="Weights that are not finite reach a replica with the first common group.")
def test_weights_that_are_not_finite_reach_all_members_of_a_group(pools):
    for isnan in pools(2).run(tidy, poisoned):
        assert isnan.nonzero().tolist() == [[0, 0]]


@works("sdpipe", Feature.UNEVEN_ENDS, note="Replicas that have ended wait in `close`, and end with the mean of all.")
def test_replicas_with_fewer_batches_end_with_the_mean_of_all(pools):
    found = pools(2).run(tidy, on_ranks, normalised, (2, 5))
    require_equal(found, by_definition(normalised, (2, 5)))
    assert not torch.equal(found[0][0][0], found[1][0][0])  # before the end


def saved(num_steps):
    """Take a checkpoint in the middle, after unequal numbers of steps; the last worker has ended before."""
    rank = dist.get_rank()
    case, averaged = normalised(rank), None
    with synchronized(case.model, case.optimizer, num_stages=1, options=Options(window_s=0.0, history=1000)) as sdpipe:
        for iteration in range(num_steps[rank]):
            case.step(iteration)
        own = held(case)
        if rank < 2:
            with sdpipe.averaged():
                averaged = held(case)
                with pytest.raises(RuntimeError, match="step inside `averaged`"):
                    case.optimizer.step()
            for tensor, other in zip(held(case), own, strict=True):
                assert torch.equal(tensor, other)
            case.step(num_steps[rank])
    return own, averaged


@works("sdpipe", Feature.SAVING, note="`with sdpipe.averaged():` on all ranks; the module then holds the mean of all.")
def test_a_checkpoint_holds_the_mean_of_all_replicas_which_then_go_on_with_their_own_weights(pools):
    (first, averaged), (second, other), (third, _) = pools(3).run(tidy, saved, (2, 4, 3))
    assert len(first) > 4 and not torch.equal(first[0], second[0])
    for own, mean, same in zip(zip(first, second, third, strict=True), averaged, other, strict=True):
        assert torch.equal(mean, same)
        right = torch.stack(own).double().mean(dim=0).to(mean.dtype) if mean.is_floating_point() else own[0]
        torch.testing.assert_close(mean, right)


def resumed(state, num_steps, first=0):
    """Train for some steps, from a state or from the beginning; return the state, as a file holds it, and the model."""
    rank = dist.get_rank()
    model = network(rank, normalises=True)
    optimizer = VarianceReducedAdam(model.parameters(), num_workers=3, lr=0.05)
    with synchronized(model, optimizer, num_stages=1, options=TOGETHER) as sdpipe:
        if state is not None:
            model.load_state_dict(state[rank][0])
            optimizer.load_state_dict(state[rank][1])
            sdpipe.load_state_dict(state[rank][2])
        case = simple(rank, model, optimizer=optimizer)
        for iteration in range(first, first + num_steps):
            case.step(iteration)
        states = copy.deepcopy([model.state_dict(), optimizer.state_dict(), sdpipe.state_dict()])
    return states, held(case)


@works(
    "sdpipe",
    Feature.RESUME,
    note="Call `synchronized`, load the module's state of this rank, then `sdpipe.load_state_dict`. Where the groups "
    "are the same, as with an infinite window, the numbers are.",
)
def test_a_resumed_training_has_the_bits_of_one_without_a_break(pools):
    whole = pools(3).run(tidy, resumed, None, 6)
    half_way = [states for states, _ in pools(3).run(tidy, resumed, None, 3)]
    for (_, tensors), (_, expected) in zip(pools(3).run(tidy, resumed, half_way, 3, 3), whole, strict=True):
        assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, expected, strict=True))


def with_a_wrong_state():
    rank = dist.get_rank()
    case, messages = simple(rank), []
    with synchronized(case.model, case.optimizer, num_stages=1, options=TOGETHER) as sdpipe:
        state = sdpipe.state_dict()
        others = {"place": state["place"] | {"num_pipelines": 5}, "history": 3, "window_s": 1.0, "weights": 7}
        for name, value in others.items():
            with pytest.raises(ValueError) as refused:
                sdpipe.load_state_dict(state | ({name: value} if rank else {}))
            messages.append(str(refused.value))
    return messages


@works("sdpipe", Feature.RESUME)
def test_the_state_of_another_world_or_of_other_weights_is_refused_by_all(pools):
    for messages in pools(2).run(tidy, with_a_wrong_state):
        for message, name in zip(messages, ("place", "history", "window_s", "weights"), strict=True):
            assert message.startswith(f"state of rank 1 has {name} ")


def sharded():
    model = network(0)
    fully_shard(model)
    synchronized(model, torch.optim.SGD(model.parameters(), lr=0.1), num_stages=1)


@refuses("sdpipe", Feature.FSDP, note="A worker must hold its stage's weights whole.")
def test_a_sharded_module_is_refused(pools):
    with pytest.raises(RankFailed, match=r"module's 0.weight is a DTensor, as of fully_shard; each worker must hold"):
        pools(2).run(tidy, sharded)


def unfrozen():
    case = frozen(dist.get_rank())
    with synchronized(case.model, case.optimizer, num_stages=1, options=TOGETHER):
        case.step(0)
        case.model[0].requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"module's 0\.(weight|bias) was added, removed, resized or unfrozen"):
            case.step(1)
        case.model[0].requires_grad_(False)


@works("sdpipe", Feature.FROZEN_PARAMETERS, note="Unfreezing one later is refused: close SDPipe, and begin anew.")
def test_a_parameter_that_is_unfrozen_later_is_refused(pools):
    pools(2).run(tidy, unfrozen)


class Stage(nn.Module):
    """The first stage embeds words, the last one scores them with the same weight."""

    def __init__(self, index, seed):
        super().__init__()
        torch.manual_seed(seed)
        words, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
        head.weight.data.copy_(words.weight.data)
        self.part, self.is_last = (head if index else words), bool(index)
        self.own = nn.Parameter(torch.ones(4 * (1 + index)))

    def forward(self, x):
        return self.part(x) * self.own


def words_of(number, iteration):
    return torch.randint(8, (5,), generator=torch.Generator().manual_seed(10 * iteration + number))


def of_two_stages(num_steps, sums, window_s, tied):
    """Train a pipeline of two stages by hand; return the tied weight after each iteration."""
    number, index = divmod(dist.get_rank(), 2)
    group, _ = dist.new_subgroups(2)
    part, seen = Stage(index, seed=number), []
    optimizer = torch.optim.Adam(part.parameters(), lr=0.1)
    names = {"words": "part.weight"} if tied else None
    with synchronized(part, optimizer, num_stages=2, tied=names, options=Options(window_s=window_s)) as sdpipe:
        for iteration in range(num_steps):
            words = words_of(number, iteration)
            x = part(words) if index == 0 else torch.empty(5, 4, requires_grad=True)
            if index == 0:
                dist.send(x.detach(), group_dst=1, group=group)
                gradient = torch.empty(5, 4)
                dist.recv(gradient, group_src=1, group=group)
                x.backward(gradient)
            else:
                dist.recv(x.data, group_src=0, group=group)
                functional.cross_entropy(part(x), words.flip(0)).backward()
                dist.send(x.grad, group_dst=0, group=group)
            if sums:
                dist.all_reduce(part.part.weight.grad, group=group)
            optimizer.step()
            optimizer.zero_grad()
            seen.append(part.part.weight.detach().clone())
        members = [len(group.members) for group in sdpipe.log.groups]
    return seen, part.part.weight.detach().clone(), members


def in_one_process(num_steps, tied):
    """Train both pipelines, and average after each iteration; return the first pipeline's words."""
    pipelines = [[Stage(0, seed=0), Stage(1, seed=0)] for _ in range(2)]
    for first, last in pipelines:
        last.part.weight = first.part.weight if tied else last.part.weight
    models = [nn.ModuleList(stages) for stages in pipelines]
    optimizers = [torch.optim.Adam(model.parameters(), lr=0.1) for model in models]
    for iteration in range(num_steps):
        for number, ((first, last), optimizer) in enumerate(zip(pipelines, optimizers, strict=True)):
            words = words_of(number, iteration)
            functional.cross_entropy(last(first(words)), words.flip(0)).backward()
            optimizer.step()
            optimizer.zero_grad()
        average_(models)
    return pipelines[0][0].part.weight.detach()


@works(
    "sdpipe",
    Feature.TIED_WEIGHTS,
    note="Between stages: equal weights whose gradients are equal, or those named by `tied=`, are averaged over the "
    "stages, too. The sum of their gradients is yours, as without SDPipe.",
)
@pytest.mark.parametrize("tied", [False, True])
def test_weights_that_two_stages_share_are_trained_as_one_and_stay_equal_with_any_groups(pools, tied):
    for _, weight, _ in pools(4).run(tidy, of_two_stages, 6, True, math.inf, tied):
        torch.testing.assert_close(weight, in_one_process(6, True))
    results = pools(4).run(tidy, of_two_stages, 12, True, 0.0, tied)
    for first, last in (results[:2], results[2:]):
        for weight, other in zip(first[0], last[0], strict=True):
            assert torch.equal(weight, other)
    assert any(members != results[1][2] for _, _, members in results) or {1} == set(results[1][2])
    assert all(torch.equal(weight, results[0][1]) for _, weight, _ in results)


@works("sdpipe", Feature.TIED_WEIGHTS)
def test_weights_that_only_begin_equal_are_two_or_refused_where_they_are_said_to_be_one(pools):
    results = pools(4).run(tidy, of_two_stages, 6, False, math.inf, False)
    torch.testing.assert_close(results[0][1], in_one_process(6, False))
    message = "gradient of the tied weight part.weight differs between its stages; add them up over the stages"
    with pytest.raises(RankFailed, match=message):
        pools(4).run(tidy, of_two_stages, 2, False, 1.0, True)


def raising(failing, num_steps=STEPS):
    """Train; one rank raises in the loop."""
    rank = dist.get_rank()
    case = simple(rank)
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with synchronized(case.model, case.optimizer, num_stages=1, options=TOGETHER):
                for iteration in range(num_steps):
                    if (rank, iteration) == (failing, 2):
                        raise KeyError("mine")
                    case.step(iteration)
    except (KeyError, RuntimeError) as error:
        return type(error).__name__, str(error)
    return held(case), [str(warning.message) for warning in warned]


@works(
    "sdpipe", Feature.RAISES, note="The others go on without its pipeline; without rank 0, which they name, they end."
)
def test_others_go_on_without_a_rank_that_raises_or_name_the_first_one(pools):
    results = pools(3).run(tidy, raising, 2)
    assert results[2][0] == "KeyError"
    for tensors, warned in results[:2]:
        assert warned == ["the mean is of pipelines [0, 1] only: worker 2 of stage 0 has failed"]
        assert all(torch.equal(tensor, other) for tensor, other in zip(tensors, results[0][0], strict=True))
    for rank, (kind, message) in enumerate(pools(3).run(tidy, raising, 0, 10**9)):
        assert kind == ("KeyError" if rank == 0 else "SchedulerLost")
        assert rank == 0 or "rank 0 has ended, and the scheduler with it" in message


def in_a_process(rank, folder, where, how, failing, reports):
    """Train; one process ends or stops in the loop, or where the others count on it in an exchange."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", world_size=3, rank=rank)
    case, group = simple(rank), dist.new_group(timeout=timedelta(seconds=5))

    def end(*_):
        os._exit(7) if how == "exits" else os.kill(os.getpid(), signal.SIGSTOP)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        try:
            with synchronized(case.model, case.optimizer, group=group, options=TOGETHER) as sdpipe:
                for iteration in range(STEPS):
                    if (rank, iteration) == (failing, 2):
                        sdpipe._mean = end
                        end() if where == "loop" else None
                    case.step(iteration)
            reports.put(f"ended {warned[-1].message}")
        except RuntimeError as error:
            reports.put(str(error))


@pytest.fixture(scope="module")
def processes():
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "workbench.techniques.sdpipe.runtime.averaging"])
    return context


def reported(context, *args, failing):
    """Run three processes of which one ends or stops; return what the others reported."""
    reports = context.SimpleQueue()
    started = [context.Process(target=in_a_process, args=(rank, *args, failing, reports)) for rank in range(3)]
    try:
        for process in started:
            process.start()
        for process in started[:failing] + started[failing + 1 :]:
            process.join(100)
        return [reports.get() for _ in range(2)]
    finally:
        for process in started:
            process.kill()
            process.join()


@works("sdpipe", Feature.EXITS, note="Outside of an exchange the others go on; without rank 0 they end.")
@pytest.mark.parametrize(
    ("where", "failing", "message"),
    [
        ("loop", 1, "ended the mean is of pipelines [0, 2] only: worker 1 of stage 0 has ended its process"),
        ("loop", 0, "the scheduler with it"),
        ("exchange", 1, "averaging with workers [0, 1, 2] failed; worker 1 of stage 0 has ended its process"),
    ],
)
def test_others_go_on_without_a_process_that_has_ended_or_name_it(processes, where, failing, message, tmp_path):
    for report in reported(processes, tmp_path, where, "exits", failing=failing):
        assert message in report


@works("sdpipe", Feature.FREEZES, note="The others wait for as long as the timeout of the group, and name it.")
@pytest.mark.parametrize(
    ("where", "what"), [("loop", "no group for 5 s"), ("exchange", "averaging with workers [0, 1, 2] failed")]
)
def test_a_process_that_stands_still_is_named_within_the_timeout_of_the_group(processes, where, what, tmp_path):
    for report in reported(processes, tmp_path, where, "freezes", failing=1):
        assert f"{what}; silent: worker 1 of stage 0 for " in report
