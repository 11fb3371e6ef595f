"""SDPipe in a user's own training: each feature against the same loop in one process, with means by definition.

A builder makes a worker's guest of `tests.contracts.trainings`. Where all workers wait for one another, a training
under SDPipe must end as replicas of that guest whose models are averaged after each iteration.
"""

import copy
import math
import os
import signal
import warnings
from datetime import timedelta
from functools import partial
from types import MappingProxyType

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tests.cases import refusal, tidy
from tests.contracts.language_models import NAMES, language_model
from tests.contracts.trainings import STEPS, Guest, state_of, train
from tests.contracts.works_with import Feature, refuses, works
from tests.lost_ranks import PATIENCE_S, processes
from workbench.techniques.sdpipe import Options, VarianceReducedAdam, synchronized

TOGETHER = Options(window_s=math.inf)  # every group is of all workers


def batch(worker, iteration, size=6, width=4):
    draw = torch.Generator().manual_seed(100 * iteration + worker)
    return torch.randn(size, width, generator=draw)


def network(worker, normalises=False):
    torch.manual_seed(worker)  # replicas are built unequal
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8) if normalises else nn.Tanh(), nn.Linear(8, 4))


def simple(worker, model=None, optimizer=None, forward=None, breaks=False):
    """Learn to turn the input around; where it breaks, the second worker's loss is not finite in two steps on end."""
    model = model or network(worker)

    def loss(iteration):
        x = batch(worker, iteration) * (math.inf if breaks and worker and iteration in (10, 20) else 1.0)
        output = (forward or model)(x.to(next(model.parameters()).dtype).requires_grad_())
        return functional.mse_loss(output.float(), x.detach().flip(1))

    return Guest(model, loss, optimizer)


def step(guest, iteration):
    guest.optimizer.zero_grad()
    guest.loss(iteration).backward()
    guest.optimizer.step()


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
    model = network(worker, normalises=True)
    return simple(worker, model, forward=partial(checkpoint, model, use_reentrant=reentrant))


def half(worker):
    model = network(worker).to(torch.bfloat16)
    return simple(worker, model, torch.optim.AdamW(model.parameters(), lr=0.05))


def adapted(worker):
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(network(worker), LoraConfig(target_modules=["0", "2"], r=2, init_lora_weights="gaussian"))
    return simple(worker, model)


def compiled(worker):
    return simple(worker, torch.compile(network(worker), backend="aot_eager"))


def scaled(worker, optimizer=torch.optim.Adam):
    model = network(worker)
    return simple(worker, model, optimizer(model.parameters(), lr=0.05), breaks=True)


def language(worker, name):
    model = language_model(name, seed=worker)

    def loss(iteration):
        words = torch.randint(1, 32, (2, 8), generator=torch.Generator().manual_seed(iteration + worker))
        return model(input_ids=words, labels=words).loss

    return Guest(model, loss, torch.optim.SGD(model.parameters(), lr=0.1))


def held(guest):
    averages = [tensor for seen in guest.seen if isinstance(seen, list) for tensor in seen]
    return state_of(guest.model) + averages


def on_ranks(build, how, num_steps=(STEPS, STEPS)):
    rank = dist.get_rank()
    guest = build(rank)
    with synchronized(guest.model, guest.optimizer, num_stages=1, options=TOGETHER):
        for _ in train(guest, steps=num_steps[rank], **how):
            pass
        before = held(guest)
    return before, held(guest)


@torch.no_grad()
def average_(models):
    for tensors in zip(*(model.state_dict().values() for model in models), strict=True):
        if tensors[0].is_floating_point():
            mean = torch.stack([tensor.double() for tensor in tensors]).mean(dim=0)
        else:
            mean = tensors[0].clone()
        for tensor in tensors:
            tensor.copy_(mean)


def by_definition(build, how, num_steps=(STEPS, STEPS)):
    guests = [build(worker) for worker in range(len(num_steps))]
    for guest in guests[1:]:
        guest.model.load_state_dict(guests[0].model.state_dict())
    loops = [train(guest, steps=steps, **how) for guest, steps in zip(guests, num_steps, strict=True)]
    while here := [guest for guest, loop in zip(guests, loops, strict=True) if next(loop, None) is not None]:
        average_([guest.model for guest in here])
    average_([guest.model for guest in guests])
    return [held(guest) for guest in guests]


def require_equal(pools, build, how=MappingProxyType({}), num_steps=(STEPS, STEPS), plain=None, **limits):
    by_worker = pools(len(num_steps)).run(tidy, on_ranks, build, how, num_steps)
    for worker, ((_, tensors), expected) in enumerate(
        zip(by_worker, by_definition(plain or build, how, num_steps), strict=True)
    ):
        for tensor, other in zip(tensors, expected, strict=True):
            assert torch.isfinite(tensor).all()
            torch.testing.assert_close(tensor, other, msg=lambda text, worker=worker: f"{worker}: {text}", **limits)
    return by_worker


@works("sdpipe", Feature.ACCUMULATION, Feature.UNUSED_PARAMETERS, Feature.FROZEN_PARAMETERS, Feature.CHECKPOINTING)
@works("sdpipe", Feature.AUTOCAST, Feature.LORA)
@works("sdpipe", Feature.CLIPPING, note="Each replica clips its own gradient before models are averaged.")
@works(
    "sdpipe",
    Feature.BUFFERS,
    note="Equal at the start; then floating-point ones of the state_dict are averaged, of others the group's first "
    "member's hold. Those that are not in the state_dict stay each replica's own.",
)
@works("sdpipe", Feature.EMA, note="It follows the averaged weights; each replica keeps its own.")
@pytest.mark.parametrize(
    ("build", "how"),
    [
        *((build, {}) for build in (unused, frozen, normalised, adapted)),
        *((partial(checkpointed, reentrant=reentrant), {}) for reentrant in (True, False)),
        *((simple, how) for how in ({"parts": 3}, {"most": 0.01}, {"narrow": True}, {"averages": True})),
    ],
)
def test_a_training_ends_as_replicas_that_are_averaged_after_each_iteration(pools, build, how):
    require_equal(pools, build, how)


@works("sdpipe", Feature.BF16, note="The mean is computed in single precision.")
def test_the_mean_of_weights_in_bf16_is_rounded_once(pools):
    require_equal(pools, half, num_steps=(STEPS,) * 3, rtol=0, atol=0)


@works("sdpipe", Feature.COMPILE)
def test_a_compiled_model_is_averaged(pools):
    require_equal(pools, compiled, plain=simple)


@works("sdpipe", Feature.MODELS, Feature.TIED_WEIGHTS)
@pytest.mark.parametrize("name", NAMES)
def test_language_models_with_tied_weights_are_averaged(pools, name):
    require_equal(pools, partial(language, name=name), num_steps=(2, 2))


@works(
    "sdpipe",
    Feature.GRADIENT_SCALING,
    note="A replica whose step is skipped takes part with its own weights; each has its own scale.",
)
@pytest.mark.parametrize(
    ("build", "how"), [(scaled, {}), (scaled, {"most": 0.1}), (partial(scaled, optimizer=torch.optim.SGD), {})]
)
def test_a_step_that_a_scaler_skips_is_a_step_without_update_and_nobody_is_held_up(pools, build, how):
    require_equal(pools, build, {"scales": True, **how}, (6, 6))


def poisoned():
    case = simple(dist.get_rank())
    with synchronized(case.model, case.optimizer, num_stages=1, options=TOGETHER):
        step(case, 0)
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
    by_worker = require_equal(pools, normalised, num_steps=(2, 5))
    assert not torch.equal(by_worker[0][0][0], by_worker[1][0][0])  # before the end


def saved(num_steps):
    """Take a checkpoint in the middle, after unequal numbers of steps; the last worker has ended before."""
    rank = dist.get_rank()
    case, averaged = normalised(rank), None
    with synchronized(case.model, case.optimizer, num_stages=1, options=Options(window_s=0.0, history=1000)) as sdpipe:
        for iteration in range(num_steps[rank]):
            step(case, iteration)
        before = held(case)
        if rank < 2:
            with sdpipe.averaged():
                averaged = held(case)
                with pytest.raises(RuntimeError, match="step inside `averaged`"):
                    case.optimizer.step()
            for tensor, other in zip(held(case), before, strict=True):
                assert torch.equal(tensor, other)
            step(case, num_steps[rank])
    return before, averaged


@works("sdpipe", Feature.SAVING, note="`with sdpipe.averaged():` on all ranks; the module then holds the mean of all.")
def test_a_checkpoint_holds_the_mean_of_all_replicas_which_then_go_on_with_their_own_weights(pools):
    (first, averaged), (second, other), (third, _) = pools(3).run(tidy, saved, (2, 4, 3))
    assert len(first) > 4 and not torch.equal(first[0], second[0])
    for replicas, mean, same in zip(zip(first, second, third, strict=True), averaged, other, strict=True):
        assert torch.equal(mean, same)
        right = torch.stack(replicas).double().mean(dim=0).to(mean.dtype) if mean.is_floating_point() else replicas[0]
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
        case = simple(rank, model, optimizer)
        for iteration in range(first, first + num_steps):
            step(case, iteration)
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


def errors_that_the_loop_catches():
    rank = dist.get_rank()
    guest, lost = simple(rank), []

    def closure():
        if rank and iteration in (1, 3):
            raise ArithmeticError("a batch that cannot be read")
        guest.optimizer.zero_grad()
        guest.loss(iteration).backward()

    with synchronized(guest.model, guest.optimizer, num_stages=1, options=TOGETHER) as sdpipe:
        for iteration in range(4):
            try:
                guest.optimizer.step(closure)
            except ArithmeticError:
                lost.append(iteration)
            if iteration == 1:
                with sdpipe.averaged():
                    pass
    return [len(group.members) for group in sdpipe.log.groups], lost, state_of(guest.model)


def test_a_worker_that_goes_on_after_an_error_in_its_update_holds_nobody_up(pools):
    (groups, _, weights), (others_groups, lost, others_weights) = pools(2).run(tidy, errors_that_the_loop_catches)
    assert groups == others_groups == [2] * 4 and lost == [1, 3]
    assert all(map(torch.equal, weights, others_weights))


def updates_of_another_module(is_late):
    guest, head = simple(dist.get_rank()), nn.Linear(4, 1)
    if not is_late:
        guest.optimizer.add_param_group({"params": head.parameters()})
    with synchronized(guest.model, guest.optimizer, num_stages=1, options=TOGETHER) as sdpipe:
        step(guest, 0)
        guest.optimizer.add_param_group({"params": head.parameters()})
        message = refusal(step, guest, 1)
        sdpipe.fail()
    return message


@pytest.mark.parametrize("is_late", [False, True])
def test_an_optimizer_of_more_than_the_module_is_refused_since_nobody_would_average_it(pools, is_late):
    call = updates_of_another_module if is_late else partial(refusal, updates_of_another_module)
    for message in pools(2).run(tidy, call, is_late):
        assert message.startswith("optimizer has parameters that the module lacks, of the sizes [[1], [1, 4]]")


def sharded():
    model = network(0)
    fully_shard(model)
    synchronized(model, torch.optim.SGD(model.parameters(), lr=0.1), num_stages=1)


@refuses("sdpipe", Feature.FSDP, note="A worker must hold its stage's weights whole.")
def test_a_sharded_module_is_refused(pools):
    for message in pools(2).run(tidy, refusal, sharded):
        assert "module's 0.weight is a DTensor, as of fully_shard; each worker must hold" in message


def unfrozen():
    case = frozen(dist.get_rank())
    with synchronized(case.model, case.optimizer, num_stages=1, options=TOGETHER):
        step(case, 0)
        case.model[0].requires_grad_(True)
        with pytest.raises(RuntimeError, match=r"module's 0\.(weight|bias) was added, removed, resized or unfrozen"):
            step(case, 1)
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
    assert all(message in text for text in pools(4).run(tidy, refusal, of_two_stages, 2, False, 1.0, True))


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
                    step(case, iteration)
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


def in_a_process(report, rank, folder, where, how, failing):
    """Train; one process ends or stops in the loop, or where the others count on it in an exchange."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", world_size=3, rank=rank)
    case, group = simple(rank), dist.new_group(timeout=timedelta(seconds=60 if how == "exits" else 10))

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
                    step(case, iteration)
            report(f"ended {warned[-1].message}")
        except RuntimeError as error:
            report(str(error))


def reported(*args, failing):
    """Run three processes of which one ends or stops; return what the others reported."""
    with processes([(in_a_process, rank, *args, failing) for rank in range(3)]) as pipes:
        return [pipe.recv() for rank, pipe in enumerate(pipes) if rank != failing and pipe.poll(PATIENCE_S)]


@works("sdpipe", Feature.EXITS, note="Outside of an exchange the others go on; without rank 0 they end.")
@pytest.mark.parametrize(
    ("where", "failing", "message"),
    [
        ("loop", 1, "ended the mean is of pipelines [0, 2] only: worker 1 of stage 0 has ended its process"),
        ("loop", 0, "the scheduler with it"),
        ("exchange", 1, "averaging with workers [0, 1, 2] failed; worker 1 of stage 0 has ended its process"),
    ],
)
def test_others_go_on_without_a_process_that_has_ended_or_name_it(where, failing, message, tmp_path):
    first, second = reported(tmp_path, where, "exits", failing=failing)
    assert message in first and message in second


@works("sdpipe", Feature.FREEZES, note="The others wait for as long as the timeout of the group, and name it.")
@pytest.mark.parametrize(
    ("where", "what"), [("loop", "no group for 10 s"), ("exchange", "averaging with workers [0, 1, 2] failed")]
)
def test_a_process_that_stands_still_is_named_within_the_timeout_of_the_group(where, what, tmp_path):
    first, second = reported(tmp_path, where, "freezes", failing=1)
    silent = f"{what}; silent: worker 1 of stage 0 for "
    assert silent in first and silent in second
