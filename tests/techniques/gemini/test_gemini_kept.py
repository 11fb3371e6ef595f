"""What a rank's state holds beyond weights and usual optimizers, and what is refused by its name."""

import random
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from enum import Enum
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import (
    allreduce_hook,
    fp16_compress_hook,
    fp16_compress_wrapper,
)
from torch.nn.parallel import DistributedDataParallel

from tests.cases import refusals, tidy
from tests.techniques.gemini import own_trainings as own
from workbench.compression import DGC, ErrorFeedback, RandomK, TopK
from workbench.techniques.activation_compression import compress
from workbench.techniques.gemini.measured.training import PoolContext, shard
from workbench.techniques.gemini.runtime import InMemoryCheckpoints, StateMismatch, TrainingState
from workbench.techniques.gemini.runtime.encoding import pack_tree, unpack_tree


def small(seed: int = 0, *layers: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(4, 4), *layers, nn.Linear(4, 2))


def sgd(model: nn.Module, **options) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, **options)


# Collections and values


class Colour(Enum):
    RED = 1


@dataclass
class Position:
    epoch: int = 0


def same(a, b) -> bool:
    if torch.is_tensor(a) or isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return a == b


@pytest.mark.parametrize(
    "value",
    [
        Counter("abbb"),
        OrderedDict([("b", 1), ("a", (2, [3]))]),
        deque([1, 2], maxlen=3),
        {1, 2},
        frozenset({"a"}),
        torch.Size([2, 3]),
        np.float32(0.1),
        np.int64(2**40),
        np.bool_(True),
        np.array([1 + 2j]),
        np.arange(6).reshape(2, 3).T,
        3 - 4j,
        bytearray(b"ab"),
        torch.float16,
        torch.device("cpu"),
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor([1 + 2j]).conj(),
        torch.tensor(3, dtype=torch.bfloat16),
        torch.empty(0, 2),
        {"$": 1, 3: {"a": b"\x00\xff"}, (1, "b"): [float("inf"), 2**70, True, None]},
        nn.Parameter(torch.ones(2)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_comes_back_equal_and_in_its_own_type(value):
    unpacked = unpack_tree(pack_tree({"of": [value]}))["of"][0]
    assert type(unpacked) is type(value) and same(unpacked, value)
    if torch.is_tensor(value):
        assert unpacked.stride() == value.stride() and unpacked.requires_grad == value.requires_grad


def test_a_dtype_that_torch_does_not_have_is_refused_by_name():
    for value in (torch.ones(2, dtype=torch.int16), torch.int16):
        for name in ("int99", "tanh_"):
            packed = pack_tree([value]).replace(b"int16", name.encode())
            with pytest.raises(ValueError, match=f"dtype is '{name}'; it must be one of torch's"):
                unpack_tree(packed)


def test_defaults_limits_and_further_attributes_of_collections_come_back():
    kept = defaultdict(list, a=[1])
    state = nn.BatchNorm1d(2).state_dict()
    unpacked = unpack_tree(pack_tree([kept, state, deque(maxlen=5)]))
    unpacked[0]["b"].append(2)
    assert unpacked[0] == {"a": [1], "b": [2]} and unpacked[2].maxlen == 5
    assert unpacked[1]._metadata == state._metadata  # by which load_state_dict knows the version
    sparse = torch.sparse_coo_tensor([[2, 0]], [1.0, 2.0], (4,), check_invariants=True)
    assert torch.equal(unpack_tree(pack_tree({"g": sparse}))["g"].to_dense(), sparse.to_dense())


@pytest.mark.parametrize(
    "make", [partial(np.random.default_rng, 1), partial(np.random.RandomState, 1), partial(random.Random, 1)]
)
def test_a_generator_goes_on_where_it_was(make):
    generator = make()
    generator.random()
    again = unpack_tree(pack_tree([generator]))[0]
    assert type(again) is type(generator) and [again.random() for _ in range(3)] == [generator.random() for _ in "abc"]


def test_tensors_that_share_memory_share_it_again():
    whole = torch.arange(10.0)
    unpacked = unpack_tree(
        pack_tree({"a": whole, "b": whole, "tail": whole[4:], "odd": whole[1::2], "other": whole.clone()})
    )
    assert unpacked["a"] is unpacked["b"]
    unpacked["a"][5] = -1
    assert unpacked["tail"].tolist() == [4, -1, 6, 7, 8, 9] and unpacked["odd"].tolist() == [1, 3, -1, 7, 9]
    assert unpacked["other"].tolist() == whole.tolist()
    narrow = torch.arange(4, dtype=torch.int16)
    unpacked = unpack_tree(pack_tree([narrow, narrow.view(torch.uint8)[2:]]))
    unpacked[1][0] = 9
    assert unpacked[0].tolist() == [0, 9, 2, 3]
    # Parts of one memory that do not overlap are as small as they are.
    assert len(pack_tree([torch.zeros(10**6)[:2], torch.zeros(10**6)[-2:]])) < 1000


class Holding:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]


class Reddish(Counter):
    pass


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (Colour.RED, "of class Colour"),
        (Position(), "of class Position"),
        (Reddish(), "of class Reddish"),
        (np.datetime64("2026-01-01"), "of class datetime64"),
        (np.ma.masked_array([1]), "of class MaskedArray"),
        (defaultdict(lambda: 3), "has the default <function"),
        (torch.empty(2, device="meta"), "a tensor that is on meta"),
        (random.SystemRandom(), "of class SystemRandom"),
        (len, "of class builtin_function_or_method"),
    ],
)
def test_a_value_that_cannot_be_kept_is_refused_by_its_place_before_training(value, kind):
    model = small()
    with pytest.raises(ValueError, match=rf"state\['extra'\]\['odd'\]\['value'\]\[1\]\['inner'\] (is )?{kind}"):
        TrainingState(model, sgd(model), extra={"odd": Holding([1, {"inner": value}])})


# Models


class Compressed(own.Training):
    def wrap(self):
        compress(self.net, self.codec, layers=["0"])


@pytest.mark.parametrize("codec", [ErrorFeedback(RandomK(0.5)), DGC(0.25)])
def test_a_compressed_model_resumes_with_its_streams_and_errors(codec):
    assert own.resumes(type("Trained", (Compressed,), {"codec": codec})) == []


class ByHooks(nn.Module):
    """A gain that only hooks put into the state_dict and take out of it."""

    def __init__(self, loads: bool = True):
        super().__init__()
        self.kept = type("Kept", (), {"gain": 1.0})()
        self.register_state_dict_post_hook(self.save)
        if loads:
            self.register_load_state_dict_pre_hook(self.load)

    @staticmethod
    def save(module, state, prefix, _):
        state[f"{prefix}gain"] = torch.tensor(module.kept.gain)

    @staticmethod
    def load(module, state, prefix, *_):
        module.kept.gain = state.pop(f"{prefix}gain").item()

    def forward(self, x):
        self.kept.gain = 1.5 * self.kept.gain
        return x * self.kept.gain


class Hooked(own.Training):
    def build(self):
        return nn.Sequential(nn.Linear(8, 8), ByHooks(), nn.Linear(8, 8))


def test_what_hooks_add_to_a_state_dict_is_restored_by_them():
    assert own.resumes(Hooked) == []


class WithoutLoading(nn.Linear):
    def get_extra_state(self):
        return {"calls": 1}


def add_an_entry(module, state, prefix, _):
    state[f"{prefix}more"] = torch.ones(1)


def late(change):
    """Refuse at the first checkpoint after a change."""
    model = small()
    state = TrainingState(model, sgd(model))
    state.image(0)
    change(model)
    state.image(1)


def with_inner_optimizer():
    model = small()
    optimizer = sgd(model)
    optimizer.inner = sgd(model, momentum=0.9)
    TrainingState(model, optimizer)


def with_scheduler():
    model = small()
    optimizer = sgd(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    TrainingState(model, optimizer)


def with_scheduler_of_the_second_optimizer():
    model, second = small(), sgd(nn.Linear(2, 2))
    torch.optim.lr_scheduler.StepLR(second, 1)
    first = sgd(model)
    scheduler = torch.optim.lr_scheduler.StepLR(first, 1)
    TrainingState(model, first, scheduler=scheduler, extra={"second": second})


def with_plateau(gives=False):
    model = small()
    optimizer = sgd(model)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    TrainingState(model, optimizer, scheduler=plateau if gives else None).image(0)


def test_a_plateau_that_is_given_is_kept():
    with_plateau(gives=True)


def state_of(model):
    TrainingState(model, sgd(model))


REFUSED = refusals(
    (lambda: state_of(small(0, ByHooks(loads=False))), r"state_dict of model has \['1.gain'\]; load_state_dict must"),
    (lambda: state_of(small(0, WithoutLoading(4, 4))), r"model has \['1._extra_state'\]; load_state_dict must"),
    (lambda: state_of(nn.Sequential(nn.LazyLinear(3), small())), "'model/0.weight' has no shape yet"),
    (lambda: late(lambda m: setattr(m[0], "weight", nn.Parameter(torch.ones(4, 4)))), "'model/0.weight' was replaced"),
    (lambda: late(lambda m: m.append(nn.Linear(2, 2))), "'model/2.weight' is new or gone"),
    (lambda: late(lambda m: m[0].register_state_dict_post_hook(add_an_entry)), r"\['0.more'\]; load_state_dict must"),
    (with_inner_optimizer, "SGD has the optimizer SGD as 'inner', which is in no state_dict"),
    (with_scheduler, "optimizer SGD has a learning-rate scheduler; give it as `scheduler`"),
    (with_plateau, "optimizer SGD has a ReduceLROnPlateau; give it as `scheduler`"),
    (with_scheduler_of_the_second_optimizer, r"extra\['second'\] SGD has a learning-rate scheduler; give it as"),
)
test_what_cannot_be_put_back_is_refused_by_name = pytest.mark.filterwarnings("ignore:Lazy modules")(REFUSED)


# Optimizers


class Own(torch.optim.Optimizer):
    """State of many kinds, an entry of the state_dict and an attribute of its own."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 0.1, "turns": Counter()})
        self.count, self.slow = 0, torch.zeros(())

    def step(self, closure):
        loss = closure().detach()
        self.count += 1
        shared = self.state["shared"]
        shared["norm"] = 0.5 * shared.get("norm", 0.0) + float(loss)
        self.slow = 0.5 * self.slow + loss
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            state["history"] = [*state.get("history", []), parameter.grad.clone()][-3:]
            state["best"] = np.float32(min(state.get("best", np.float32(9)), np.float32(float(loss))))
            update = sum(state["history"]) * (shared["norm"] + float(self.slow) + state["best"]) / self.count
            parameter.data.sub_(0.1 * update)

    def state_dict(self):
        return super().state_dict() | {"slow": self.slow}

    def load_state_dict(self, state):
        self.slow = state.pop("slow")
        super().load_state_dict(state)


class Growing(torch.optim.SGD):
    """The second layer is added after the first iteration."""

    def __init__(self, model):
        super().__init__(model[0].parameters(), lr=0.1, momentum=0.9)
        self.later = [model[3].weight]

    def step(self, closure=None):
        super().step(closure)
        if len(self.param_groups) == 1:
            self.add_param_group({"params": self.later, "lr": 0.05})


class Optimized(own.Training):
    def prepare(self):
        self.optimizer = self.make(self.net)

    def step(self, iteration):
        def closure():
            self.optimizer.zero_grad()
            loss = self.loss(own.batch(iteration))
            loss.backward()
            return loss

        self.optimizer.step(closure)
        self.optimizer.zero_grad()


MAKE = {
    "lbfgs": lambda net: torch.optim.LBFGS(net.parameters(), line_search_fn="strong_wolfe", max_iter=3),
    "own": lambda net: Own(net.parameters()),
    "growing": Growing,
}


@pytest.mark.parametrize("make", MAKE.values(), ids=MAKE)
def test_optimizers_of_all_kinds_resume(make):
    assert own.resumes(type("Trained", (Optimized,), {"make": staticmethod(make)})) == []


def test_a_checkpoint_with_fewer_groups_than_the_run_is_refused():
    model = small()
    image = TrainingState(model, torch.optim.SGD(model[0].parameters(), lr=0.1)).image(0)
    both = torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[1].parameters()}], lr=0.1)
    with pytest.raises(StateMismatch, match="optimizer parameter groups differ"):
        TrainingState(model, both).load_(image)


# Communication hooks


class Residual:
    """A hook's state with a state_dict; and one whose hook is its method."""

    def __init__(self):
        self.errors = {}

    def hook(self, _, bucket):
        return allreduce_hook(None, bucket)

    def state_dict(self):
        return {"errors": self.errors}

    def load_state_dict(self, state):
        self.errors = state["errors"]


def closing_over(kept):
    def hook(_, bucket):
        return kept and allreduce_hook(None, bucket)

    return hook


def hooked(state, hook, **extra) -> str:
    """Return the refusal of a model with this hook; "" for none."""
    model = DistributedDataParallel(small())
    model._comm_hooks.append((hook, state))
    try:
        TrainingState(model, sgd(model), extra=extra)
    except ValueError as refusal:
        return str(refusal)
    return ""


def refusals_of_hooks() -> None:
    group, residual = torch.distributed.group.WORLD, Residual()
    power = powerSGD_hook.PowerSGDState(group)
    for state, hook in (
        (None, allreduce_hook),
        (group, fp16_compress_hook),
        (None, fp16_compress_wrapper(allreduce_hook)),
        (None, closing_over(group)),
        (None, closing_over(TopK(0.5))),  # nothing is remembered
    ):
        assert hooked(state, hook) == "", hook
    for state, hook, kind in (
        (power, powerSGD_hook.powerSGD_hook, "PowerSGDState"),
        (power, fp16_compress_wrapper(powerSGD_hook.powerSGD_hook), "PowerSGDState"),
        (residual, Residual.hook, "Residual"),
        (None, residual.hook, "Residual"),
        ((group, residual), allreduce_hook, "Residual"),
        (None, partial(allreduce_hook, residual), "Residual"),
        (None, closing_over(residual), "Residual"),
        (None, closing_over({}), "dict"),
        (None, closing_over(ErrorFeedback(TopK(0.5))), "ErrorFeedback"),
    ):
        assert f"communication hook of DistributedDataParallel has a state, a {kind}; give it" in hooked(state, hook)
    assert hooked(power, powerSGD_hook.powerSGD_hook, power=power) == ""
    assert hooked(None, residual.hook, residual=residual) == ""
    assert "extra['kept'] is dict; it must have state_dict" in hooked({}, allreduce_hook, kept={})
    model = DistributedDataParallel(small(), static_graph=True)
    with pytest.raises(ValueError, match="with static_graph; it must not be, because a run that resumes would add"):
        TrainingState(model, sgd(model))


def test_a_communication_hooks_state_is_refused_by_name_where_it_was_not_given(pools):
    pools(2).run(tidy, refusals_of_hooks)


def step_by_hand() -> int:
    """Take checkpoints of a sharded model between its passes, which look for late changes."""
    torch.manual_seed(0)
    model = small()
    shard(model[0], model)
    optimizer = sgd(model)
    checkpoints = InMemoryCheckpoints(PoolContext(torch.distributed.get_rank(), 2), model, optimizer)
    for _ in range(3):
        model(torch.ones(2, 4)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        checkpoints.step()
    checkpoints.close()
    return checkpoints.iteration


def test_looking_for_late_changes_leaves_a_sharded_model_to_its_forward_pass(pools):
    assert pools(2).run(tidy, step_by_hand) == [3, 3]
