"""FlexTP in a training of one's own: beside the same tensor-parallel model without it.

Where numbers are compared, a straggler migrates columns, which loses nothing; dropping columns is lossy by design. The
straggler's times are modelled, so that plans do not depend on the machine.
"""

import copy
import io
import itertools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from tests.cases import tidy
from tests.contracts.language_models import NAMES, language_model
from tests.contracts.works_with import Feature, does_not_apply, refuses, works
from tests.lost_ranks import ENDINGS, errors_of_the_rest
from workbench.parallel import ColumnParallelLinear, ProcessTensorGroup, RowParallelLinear
from workbench.parallel.gradients import clip_grad_norm_
from workbench.techniques.flextp.method import Imputation, Plan
from workbench.techniques.flextp.runtime import ModelledTimes, Policy, balance
from workbench.timeline import StragglerTrace

WIDTH, KINDS = 8, ("workbench", "parallelize_module")
MIGRATES = Policy(solution="MIG")


class Block(nn.Module):
    """Two linears that are cut, rows normalised between them, and a head that is not cut."""

    def __init__(self, up: nn.Module, down: nn.Module, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(1)
        self.up, self.down = up, down
        self.norm, self.head = nn.BatchNorm1d(WIDTH, dtype=dtype), nn.Linear(WIDTH, 2, dtype=dtype)
        self.uses_pair, self.recompute = True, lambda part, x: part(x)

    def pair(self, x):
        return self.down(torch.tanh(self.up(x)))

    def forward(self, x):
        if self.uses_pair:
            x = x + self.recompute(self.pair, x)
        return self.head(self.norm(x))


def build(kind: str, dtype: torch.dtype = torch.float64, group=None) -> tuple[Block, object]:
    """Return a model that is cut over all ranks, and what `balance` takes as its group."""
    torch.manual_seed(0)
    if kind == "workbench":
        group = group or ProcessTensorGroup()
        up = ColumnParallelLinear(WIDTH, 16, group, dtype=dtype, init_std=0.5, site="up")
        return Block(up, RowParallelLinear(16, WIDTH, group, dtype=dtype, init_std=0.5, site="down"), dtype), group
    mesh = group or init_device_mesh("cpu", (dist.get_world_size(),))
    if kind == "wholly cut":
        return parallelize_module(alone(), mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}), mesh
    block = Block(nn.Linear(WIDTH, 16, dtype=dtype), nn.Linear(16, WIDTH, dtype=dtype), dtype)
    return parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()}), mesh


def alone() -> nn.Sequential:
    """Return the cut layers as one process has them."""
    torch.manual_seed(0)
    first, second = nn.Linear(WIDTH, 16, dtype=torch.float64), nn.Linear(16, WIDTH, dtype=torch.float64)
    return nn.Sequential(first, nn.Tanh(), second)


def batch(step: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(6, WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(step))


def balanced(model: nn.Module, group, policy: Policy = MIGRATES):
    """Balance a model whose rank 1 is four times as slow as the others."""
    slow = ModelledTimes(StragglerTrace.fixed(dist.get_world_size(), {1: 4.0}))
    return balance(model, group, policy=policy, modelled=slow)


class Plain:
    """No balancer."""

    def iteration(self):
        return torch.enable_grad()


def local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if hasattr(tensor, "to_local") else tensor).detach().clone()


def locals_of(tensors) -> list[torch.Tensor]:
    return [local(tensor) for tensor in tensors if tensor is not None]


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return locals_of(parameter.grad for parameter in model.parameters())


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1, momentum=0.5)


def step_of(model, balancer, optimizer, number: int) -> None:
    optimizer.zero_grad()
    with balancer.iteration():
        model(batch(number)).square().mean().backward()
    optimizer.step()


def with_and_without(train, kinds, change, *args) -> list[list[torch.Tensor]]:
    """Return what `train(model, balancer, ...)` gives with FlexTP and without, for every kind of model."""
    outcomes = []
    for kind, is_balanced in itertools.product(kinds, (True, False)):
        model, group = build(kind)
        model = change(model, kind, group)
        balancer = balanced(model, group) if is_balanced else Plain()
        outcomes.append(train(model, balancer, *args))
        if is_balanced:
            assert balancer.plan.senders == (1,), balancer.plan
            balancer.remove()
    return outcomes


def as_it_is(model, kind, group):
    return model


def assert_equal_to_plain(pools, train, *args, kinds=KINDS, change=as_it_is) -> None:
    for outcomes in pools(2).run(tidy, with_and_without, train, kinds, change, *args):
        for tensors, plain in zip(outcomes[::2], outcomes[1::2], strict=True):
            assert len(tensors) == len(plain) > 0
            for tensor, expected in zip(tensors, plain, strict=True):
                torch.testing.assert_close(tensor, expected, rtol=1e-9, atol=1e-10, equal_nan=True)


def trained(model, balancer) -> list[torch.Tensor]:
    optimizer = sgd(model)
    for number in range(4):
        step_of(model, balancer, optimizer, number)
    return locals_of(model.state_dict().values())


def scaled(model, balancer) -> list[torch.Tensor]:
    """Train by a GradScaler whose third step is spoiled on all ranks, as an input is that all of them get."""
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**10)
    scales = []
    for number in range(5):
        optimizer.zero_grad()
        with balancer.iteration():
            loss = model(batch(number)).square().mean() * (float("inf") if number == 2 else 1.0)
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [1024, 1024, 512, 512, 512]
    return locals_of(model.parameters())


@works("flextp", Feature.GRADIENT_SCALING, note="torch's scaler refuses plain tensors beside DTensors.")
def test_a_training_with_a_scaler(pools):
    assert_equal_to_plain(pools, scaled, kinds=("workbench", "wholly cut"))


SAME = Policy(solution="given", plan=Plan.of_shares([0.5, 0.0], [0.0, 0.0]), imputation=Imputation.SAME)
SAME_NEXT = Policy(solution="ZERO", pruning_ratio=0.5, imputation=Imputation.SAME, iterations_per_epoch=2)


def imputed(scales: list[float]) -> list[list[torch.Tensor]]:
    """Return gradients over their scale: dropped columns have those of the step before, of the same batch."""
    model, group = build("workbench")
    balancer, by_step = balanced(model, group, SAME_NEXT), []
    for before, scale in itertools.pairwise([scales[0], *scales]):
        model.zero_grad()
        balancer.rescale_(scale / before)
        with balancer.iteration():
            (scale * model(batch(0)).square().mean()).backward()
        by_step.append([gradient / scale for gradient in gradients(model)])
    return by_step


@works(
    "flextp",
    Feature.GRADIENT_SCALING,
    note="With Imputation.SAME call `balancer.rescale_(new / old)` where the scale changes.",
)
def test_gradients_of_the_step_before_follow_the_scale(pools):
    ranks = pools(2)
    plain, rescaled = ranks.run(tidy, imputed, [1.0] * 5), ranks.run(tidy, imputed, [1.0, 1.0, 2.0, 1024.0, 1.0])
    for once, again in zip(plain, rescaled, strict=True):
        for gradient, other in zip(itertools.chain(*once), itertools.chain(*again), strict=True):
            torch.testing.assert_close(gradient, other, rtol=1e-12, atol=0)


def after_infinity(policy: Policy) -> list[bool]:
    """Return, by step, whether all gradients are finite; in the second one they are not."""
    model, group = build("workbench")
    balancer, finite = balanced(model, group, policy), []
    for number in range(4):
        model.zero_grad()
        with balancer.iteration():
            (model(batch(0)).square().mean() * (float("inf") if number == 1 else 1.0)).backward()
        finite.append(all(gradient.isfinite().all().item() for gradient in gradients(model)))
    return finite


@works("flextp", Feature.NOT_FINITE, note="A column that ranks drop hides what is not finite in it.")
def test_a_step_that_is_not_finite_does_not_spoil_the_next(pools):
    are_finite = pools(2).run(tidy, lambda: [after_infinity(policy) for policy in (SAME, SAME_NEXT, MIGRATES)])
    assert are_finite == [[[True, False, True, True]] * 3] * 2


def spoiled(model, balancer) -> list[torch.Tensor]:
    """Return output and gradients after the straggler's last weight column, which migrates, has become NaN."""
    for number in range(3):
        if number == 2 and dist.get_rank() == 1:
            with torch.no_grad():
                for parameter in (*model.up.parameters(), *model.down.parameters()):
                    if parameter.dim() == 2:
                        local_of = parameter.to_local() if hasattr(parameter, "to_local") else parameter
                        local_of.copy_(torch.full_like(local_of, torch.nan))
        model.zero_grad()
        with balancer.iteration():
            y = model(batch(number))
            y.square().mean().backward()
    assert not y.isfinite().any()
    return [y.detach(), *gradients(model)]


@works("flextp", Feature.NOT_FINITE)
def test_nan_of_a_migrated_column_arrives_on_all_ranks(pools):
    assert_equal_to_plain(pools, spoiled)


def with_unused(model, balancer) -> list[torch.Tensor]:
    all_gradients = []
    for number, is_used in enumerate([True, True, False, True, False]):
        model.zero_grad()
        model.uses_pair = is_used
        with balancer.iteration():
            model(batch(number)).square().mean().backward()
        assert (model.up.weight if hasattr(model.up, "weight") else model.up.weights[0]).grad is None or is_used
        all_gradients += gradients(model)
    return all_gradients


@works("flextp", Feature.UNUSED_PARAMETERS, note="On all ranks of the tensor group alike.")
def test_passes_without_the_cut_layers(pools):
    assert_equal_to_plain(pools, with_unused)


def frozen(model, kind, group):
    for part in (model.up, model.norm):
        part.requires_grad_(False)
    return model


@works("flextp", Feature.FROZEN_PARAMETERS, Feature.BUFFERS)  # of a batch norm
def test_frozen_weights(pools):
    assert_equal_to_plain(pools, trained, change=frozen)


def tied(first, kind, group):
    """Return a pair that is called twice, beside a second pair with the weights of the first."""
    second, _ = build(kind, group=group)
    for layer, other in ((first.up, second.up), (first.down, second.down)):
        if kind == "workbench":
            other.weights = layer.weights
        else:
            other.weight = layer.weight
    model = nn.ModuleList([first, second])
    model.forward = lambda x: first(x) + second(x) + first(x.flip(0))
    return model


@works("flextp", Feature.TIED_WEIGHTS)
def test_weights_that_layers_share(pools):
    assert_equal_to_plain(pools, trained, change=tied)


POLICIES = {
    "ZERO": Policy(solution="ZERO", iterations_per_epoch=3, patience=2),
    "Rd": Policy(solution="ZERO", selection="Rd", pruning_ratio=0.4, iterations_per_epoch=2),
    "PriDiffR": Policy(solution="ZERO", selection="PriDiffR", micro_threshold=1e-2, iterations_per_epoch=3),
    "Same": SAME_NEXT,
}


def resumed(kind: str, solution: str, stops: tuple[int, ...]) -> tuple[list[torch.Tensor], str, int]:
    """Return the weights after the last stop, having begun anew from a saved state at all stops before."""
    moves = StragglerTrace.round_robin(2, 2.5, iterations_per_epoch=2)
    times = moves if solution == "Rd" else StragglerTrace.fixed(2, {1: 4.0})
    begun, saved = 0, None
    for stop in stops:
        model, group = build(kind)
        optimizer = sgd(model)
        if saved is not None:
            state = torch.load(io.BytesIO(saved), weights_only=True)
            model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
        balancer = balance(model, group, policy=POLICIES[solution], modelled=ModelledTimes(times))
        if saved is not None:
            balancer.load_state_dict(state["balancer"])
        for number in range(begun, stop):
            step_of(model, balancer, optimizer, number)
        file, parts = io.BytesIO(), {"model": model, "optimizer": optimizer, "balancer": balancer}
        torch.save({name: part.state_dict() for name, part in parts.items()}, file)
        begun, saved = stop, file.getvalue()
    return locals_of(model.parameters()), repr(balancer.steps), balancer.state_dict()["state"]["iteration"]


@works("flextp", Feature.RESUME, note="`balancer.state_dict()` on every rank; measured times differ from run to run.")
@pytest.mark.parametrize(
    ("kind", "solution"),
    [("parallelize_module", "ZERO"), *(("workbench", name) for name in ("Rd", "PriDiffR", "Same"))],
)
def test_a_resumed_training_equals_the_uninterrupted_one_bit_for_bit(pools, kind, solution):
    stops = (9,), (1, 4, 5, 6, 9)
    for (weights, *facts), (again, *facts_again) in pools(2).run(
        tidy, lambda: [resumed(kind, solution, s) for s in stops]
    ):
        assert facts == facts_again and "iteration=" in facts[0]  # a plan was made
        assert all(torch.equal(weight, other) for weight, other in zip(weights, again, strict=True))


def refused_states() -> list[str]:
    model, group = build("workbench")
    balancer = balanced(model, group)
    state, messages = balancer.state_dict(), []
    other, _ = build("workbench", torch.float32)
    states = [
        state,
        state | {"made_for": state["made_for"] | {"num_ranks": 4}},
        state | {"made_for": state["made_for"] | {"ranks": [1 - dist.get_rank()]}},
        state | {"state": state["state"] | {"iteration": dist.get_rank()}},
        state | ({"made_for": {}} if dist.get_rank() == 1 else {}),
    ]
    of_other = balanced(other, other.up.group)
    for given, taker in zip(states, [of_other, *[balancer] * 4], strict=True):
        with pytest.raises(ValueError) as refused:
            taker.load_state_dict(given)
        messages.append(str(refused.value))
    return messages


def test_states_of_other_models_ranks_and_iterations_are_refused_on_all_ranks(pools):
    first, second = pools(2).run(tidy, refused_states)
    for messages, rank, other in ((first, 0, 1), (second, 1, 0)):
        assert "float32" in messages[0] and "float64" in messages[0]
        assert "num_ranks: 2 here, 4 there" in messages[1]
        assert f"ranks: [{rank}] here, [{other}] there" in messages[2]
        assert "of iterations [0, 1] by rank" in messages[3]
    assert "state of rank 1 is of another balancer" in first[4]


def saved(kind: str) -> list[dict]:
    """Return names and shapes of the whole model's state before and after balancing, and whether it loads."""
    model, group = build(kind)
    options, x = StateDictOptions(full_state_dict=True), batch(9)
    shapes = [{name: tuple(value.shape) for name, value in model.state_dict().items()}]
    balancer = balanced(model, group)
    trained(model, balancer)
    shapes.append({name: tuple(value.shape) for name, value in model.state_dict().items()})
    model.eval()
    with torch.no_grad():
        expected = model(x)
    state = get_model_state_dict(model, options=options)
    one_process, _ = build(kind)
    one_process = one_process.eval()
    if kind == "parallelize_module":
        dtype = torch.float64
        one_process = Block(nn.Linear(WIDTH, 16, dtype=dtype), nn.Linear(16, WIDTH, dtype=dtype), dtype).eval()
        if dist.get_rank() == 0:
            one_process.load_state_dict(state)  # a plain checkpoint of the whole model
            torch.testing.assert_close(one_process(x).detach(), expected, rtol=1e-9, atol=1e-10)
        set_model_state_dict(model, state, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
    else:
        one_process.load_state_dict(model.state_dict())
        torch.testing.assert_close(one_process(x).detach(), expected)
    step_of(model.train(), balancer, sgd(model), 5)  # what was loaded is followed
    return shapes


@works("flextp", Feature.SAVING)
def test_a_balanced_model_is_saved_as_it_was_without(pools):
    for states in pools(2).run(tidy, lambda: [saved(kind) for kind in KINDS]):
        assert all(before == after for before, after in states)


def recomputed(model, balancer, several: bool) -> list[torch.Tensor]:
    optimizer = sgd(model)
    if several:
        plain = model.forward
        model.forward = lambda x: checkpoint(plain, x, use_reentrant=False)
        model.norm = nn.Identity()  # its running mean would move twice, as without FlexTP
    model.recompute = lambda part, x: checkpoint(part, x, use_reentrant=False)
    for number in range(4):
        step_of(model, balancer, optimizer, number)
    return locals_of(model.parameters())


def reentrant() -> str:
    model, group = build("workbench")
    model.recompute = lambda part, x: checkpoint(part, x, use_reentrant=True)
    balancer = balanced(model, group)
    with pytest.raises(RuntimeError) as refused, balancer.iteration():
        model(batch(0).requires_grad_()).sum().backward()
    return str(refused.value)


@works("flextp", Feature.CHECKPOINTING, note="With use_reentrant=False; reentrant is refused by name.")
def test_activation_checkpointing(pools):
    for several in (False, True):
        assert_equal_to_plain(pools, recomputed, several)
    for message in pools(2).run(tidy, reentrant):
        assert "was not balanced forward; FlexTP takes checkpoint(..., use_reentrant=False) alone" in message


def dropping(is_recomputed: bool) -> list[torch.Tensor]:
    """Return the weights of a training that drops columns."""
    model, group = build("workbench")
    if is_recomputed:
        model.recompute = lambda part, x: checkpoint(part, x, use_reentrant=False)
    balancer = balanced(model, group, SAME_NEXT)
    weights = trained(model, balancer)
    assert balancer.plan.dropped > 0
    return weights


def test_recomputation_drops_the_same_columns_once_more(pools):
    for once, twice in pools(2).run(tidy, lambda: [dropping(is_recomputed) for is_recomputed in (False, True)]):
        assert all(torch.equal(weight, other) for weight, other in zip(once, twice, strict=True))


def compiled(kind: str, when: str) -> list[list[torch.Tensor]]:
    """Return gradients of a compiled model with FlexTP, and of a plain one."""
    outcomes = []
    for is_balanced in (True, False):
        model, group = build(kind)
        call = torch.compile(model, backend="eager") if is_balanced and when == "before" else model
        if when == "before":
            call(batch(9)).sum().backward()
        balancer = balanced(model, group) if is_balanced else Plain()
        if is_balanced and when == "in place after":
            model.compile(backend="eager")
        steps = []
        for number in range(3):
            model.zero_grad()
            with balancer.iteration():
                call(batch(number)).square().mean().backward()
            steps += gradients(model)
        assert not is_balanced or (balancer.plan.senders == (1,) and all(p.has_multiplied for p in balancer._products))
        outcomes.append(steps)
    torch.compiler.reset()
    return outcomes


@works("flextp", Feature.COMPILE, note="Products of cut layers stay outside of the compiled graphs.")
@pytest.mark.parametrize(("kind", "when"), [("workbench", "before"), ("parallelize_module", "in place after")])
def test_compiled_models(pools, kind, when):
    for steps, expected in pools(2).run(tidy, compiled, kind, when):
        torch.testing.assert_close(steps, expected, rtol=1e-9, atol=1e-10)


def whole_graph() -> str:
    model, group = build("workbench")
    balancer = balanced(model, group)
    with pytest.raises(Exception) as refused, balancer.iteration():
        torch.compile(model, backend="eager", fullgraph=True)(batch(0))
    torch.compiler.reset()
    return str(refused.value)


def test_a_single_graph_is_refused_by_name(pools):
    for message in pools(2).run(tidy, whole_graph):
        assert "FlexTP times and divides a product anew in each iteration" in message


def accumulated(model, balancer) -> list[torch.Tensor]:
    """Accumulate within an iteration, then over two of them."""
    optimizer = sgd(model)
    for number in range(4):
        optimizer.zero_grad()
        with balancer.iteration():
            for part in batch(number).split(3):
                model(part).square().mean().backward()
        with balancer.iteration():
            model(batch(number + 10)).square().mean().backward()
        optimizer.step()
    return locals_of(model.parameters())


@works("flextp", Feature.ACCUMULATION)
def test_accumulated_gradients(pools):
    assert_equal_to_plain(pools, accumulated)


def _grads(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters()]


def clipped_shards(clip) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the norm of joined gradients, the norm that `clip` returns, and that of the clipped gradients."""
    model, group = build("workbench")
    balancer = balanced(model, group)
    for number in range(3):
        model.zero_grad()
        with balancer.iteration():
            model(batch(number)).square().sum().backward()
    assert balancer.plan.senders == (1,)

    def joined() -> torch.Tensor:
        whole = [part.full_weight(gradient=True) for part in (model.up, model.down)]
        whole += [part.full_bias(gradient=True) for part in (model.up, model.down)]
        rest = [p.grad for part in (model.norm, model.head) for p in part.parameters()]
        return torch.cat([gradient.detach().flatten() for gradient in (*whole, *rest)]).norm()

    return joined(), clip(model.parameters(), 0.1), joined()


@works("flextp", Feature.CLIPPING)
def test_gradients_of_shards_are_clipped_by_the_norm_of_the_whole(pools):
    ways = nn.utils.clip_grad_norm_, clip_grad_norm_  # torch's, and by one message
    for norms in pools(2).run(tidy, lambda: [clipped_shards(clip) for clip in ways]):
        for before, returned, afterwards in norms:
            torch.testing.assert_close(returned, before, rtol=1e-9, atol=0)
            assert afterwards.item() == pytest.approx(0.1, rel=1e-4)  # torch adds 1e-6 to the norm it divides by


def with_one_infinite_shard() -> list[float]:
    """Return scales after steps, of which the second has an infinite gradient in a shard of rank 1 alone."""
    model, group = build("workbench")
    optimizer, scaler, scales = sgd(model), torch.amp.GradScaler("cpu", init_scale=1024.0), []
    balancer = balanced(model, group)
    for number in range(3):
        optimizer.zero_grad()
        with balancer.iteration():
            scaler.scale(model(batch(number)).square().mean()).backward()
        if number == 1 and dist.get_rank() == 1:
            model.up.weights[0].grad[0, 0] = float("inf")
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales


@works("flextp", Feature.GRADIENT_SCALING)
def test_all_ranks_skip_a_step_in_which_one_has_an_infinite_gradient(pools):
    assert pools(2).run(tidy, with_one_infinite_shard) == [[1024.0, 512.0, 512.0]] * 2


def narrow(kind: str, is_autocast: bool) -> list[tuple]:
    """Return gradients with FlexTP without a straggler, with one, and without FlexTP."""
    all_gradients, dtype = [], torch.float32 if is_autocast else torch.bfloat16
    for slow in (1.0, 4.0, None):
        model, group = build(kind, dtype)
        model.norm = nn.Identity()
        times = ModelledTimes(StragglerTrace.fixed(2, {1: slow or 1.0}))
        balancer = Plain() if slow is None else balance(model, group, policy=MIGRATES, modelled=times)
        for number in range(3):
            model.zero_grad()
            with balancer.iteration(), torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
                model(batch(number, dtype)).float().square().mean().backward()
        all_gradients.append(gradients(model))
        assert slow != 4.0 or balancer.plan.senders == (1,)
    return all_gradients


@works("flextp", Feature.BF16, Feature.AUTOCAST)
@pytest.mark.parametrize(("kind", "is_autocast"), [*zip(KINDS, (False, True), strict=True)])
def test_narrow_numbers(pools, kind, is_autocast):
    for without_straggler, with_straggler, plain in pools(2).run(tidy, narrow, kind, is_autocast):
        for undisturbed, slowed, expected in zip(without_straggler, with_straggler, plain, strict=True):
            assert kind == "parallelize_module" or torch.equal(undisturbed, expected)  # DTensor adds the bias unrounded
            # A migrated part of a sum is rounded by itself: each of a few roundings is half a unit of 2^-8.
            for numbers in (undisturbed, slowed):
                torch.testing.assert_close(numbers, expected, rtol=2**-6, atol=2**-6 * expected.abs().max().item())


def averaged(model, balancer) -> list[torch.Tensor]:
    mean, optimizer = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5)), sgd(model)
    for number in range(4):
        step_of(model, balancer, optimizer, number)
        mean.update_parameters(model)
    with balancer.iteration(), torch.no_grad():
        y = mean(batch(9))
    return [y, *locals_of(mean.parameters())]


def averaged_of_dtensors(model, balancer) -> list[torch.Tensor]:
    mean = AveragedModel(model, avg_fn=lambda average, now, _: (average + now) / 2)
    optimizer = sgd(model)
    for number in range(4):
        step_of(model, balancer, optimizer, number)
        mean.update_parameters(model)
    return [mean(batch(9)).detach(), *locals_of(mean.parameters())]


@works("flextp", Feature.EMA)
def test_averages_of_weights(pools):
    assert_equal_to_plain(pools, averaged, kinds=["workbench"])
    assert_equal_to_plain(pools, averaged_of_dtensors, kinds=["parallelize_module"])


def adapted(model, kind, group):
    import peft

    torch.manual_seed(2)
    return peft.get_peft_model(model, peft.LoraConfig(target_modules=["head"], r=2, init_lora_weights=False))


@works("flextp", Feature.LORA, note="On layers that are not cut; the cut ones are frozen, and balanced.")
def test_adapters_of_a_layer_that_is_not_cut(pools):
    pytest.importorskip("peft")
    assert_equal_to_plain(pools, trained, change=adapted)


def fully_sharded() -> list[str]:
    """Shard after and before balancing, a model of either kind."""
    messages, world = [], dist.get_world_size()
    for kind, is_before in itertools.product(KINDS, (True, False)):
        grid = init_device_mesh("cpu", (1, world), mesh_dim_names=("data", "tensor"))
        model, group = build(kind)
        if kind == "parallelize_module":
            block = Block(nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH), torch.float32)
            model = parallelize_module(block, grid["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            group = grid["tensor"]
        balancer = None if is_before else balanced(model, group)
        fully_shard(model, mesh=grid["data"])
        with pytest.raises(ValueError) as refused:
            if is_before:
                balanced(model, group)
            else:
                with balancer.iteration():
                    pass
        messages.append(str(refused.value))
    return messages


@refuses("flextp", Feature.FSDP, note="On top of tensor parallelism: a rank would hold no whole columns.")
def test_fully_shard_is_refused(pools):
    for messages in pools(2).run(tidy, fully_sharded):
        assert all("tensor-parallel alone, without fully_shard" in message for message in messages)


class Linear(nn.Linear):
    """GPT-2's Conv1D as the linear that it is: parallelize_module cuts no other."""

    @classmethod
    def of(cls, conv) -> nn.Linear:
        linear = nn.Linear(*conv.weight.shape)
        linear.weight.data, linear.bias.data = conv.weight.data.T.contiguous(), conv.bias.data
        return linear


STYLES = {  # of the perceptrons
    "gpt2": ["transformer.h.*.mlp.c_fc", "transformer.h.*.mlp.c_proj"],
    "bert": ["bert.encoder.layer.*.intermediate.dense", "bert.encoder.layer.*.output.dense"],
    "llama": ["model.layers.*.mlp.gate_proj", "model.layers.*.mlp.up_proj", "model.layers.*.mlp.down_proj"],
    "t5": [f"{side}.block.*.layer.*.DenseReluDense.{end}" for end in ("wi", "wo") for side in ("encoder", "decoder")],
}
ENDS = ("c_proj", "output.dense", "down_proj", "wo")  # of the names of layers that are cut by their inputs


def of_language_model(name: str) -> list[list[torch.Tensor]]:
    """Return gradients on two ranks with a straggler, and of one process."""
    single, mesh = language_model(name).double(), init_device_mesh("cpu", (2,))
    if name == "gpt2":
        mlp = single.transformer.h[0].mlp
        mlp.c_fc, mlp.c_proj = Linear.of(mlp.c_fc), Linear.of(mlp.c_proj)
    styles = {layer: RowwiseParallel() if layer.endswith(ENDS) else ColwiseParallel() for layer in STYLES[name]}
    model = parallelize_module(copy.deepcopy(single), mesh, styles)
    balancer, ids = balanced(model, mesh), torch.randint(50, (2, 6), generator=torch.Generator().manual_seed(0))
    for _ in range(3):
        model.zero_grad()
        with balancer.iteration():
            model(input_ids=ids, labels=ids).loss.backward()
    single(input_ids=ids, labels=ids).loss.backward()
    assert balancer.plan.senders == (1,)
    both = [[grad for grad in _grads(module) if grad is not None] for module in (model, single)]
    return [[grad.full_tensor() if hasattr(grad, "full_tensor") else grad for grad in grads] for grads in both]


@works("flextp", Feature.MODELS, note="GPT-2's Conv1D as nn.Linear: parallelize_module cuts no other.")
def test_language_models_equal_those_of_one_process(pools):
    pytest.importorskip("transformers")
    for of_models in pools(2).run(tidy, lambda: [of_language_model(name) for name in NAMES]):
        for on_ranks, expected in of_models:
            torch.testing.assert_close(on_ranks, expected, rtol=1e-7, atol=1e-9)


does_not_apply(
    "flextp",
    Feature.UNEVEN_ENDS,
    why="Ranks of a tensor group get the same batches; one that ends early is a lost rank for the others.",
)


def one_step(group, kept) -> None:
    if not kept:
        ranks = ProcessTensorGroup(group)
        up, down = ColumnParallelLinear(8, 16, ranks, site="up"), RowParallelLinear(16, 8, ranks, site="down")
        kept["model"] = nn.Sequential(up, nn.Tanh(), down)
        kept["balancer"] = balanced(kept["model"], ranks)
    with kept["balancer"].iteration():
        kept["model"](batch(0, torch.float32)).sum().backward()


@works("flextp", Feature.RAISES, Feature.EXITS, Feature.FREEZES, note="Ranks that are left end with `RankLost`.")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_lost_rank_is_named(ending):
    (heard,) = errors_of_the_rest(one_step)[ending].values()
    assert "rank 1 does not answer, having raised, ended or stopped" in heard
