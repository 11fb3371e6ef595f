"""One rank's state as bytes: what is in it, what is refused, and that it goes back bit for bit."""

import os
import random
import signal

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workbench.compression.codec import site_seed
from workbench.launch import RankFailed, Ranks
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.parallel.transformer import Dropout
from workbench.techniques.gemini.runtime import StateMismatch, TrainingState, resume_
from workbench.techniques.gemini.runtime.encoding import pack_tree, raw_bytes, unpack_tree

pytestmark = pytest.mark.timeout(240)


class Net(nn.Module):
    """Everything that a state must hold: a tied weight, a batch norm, an own generator, a channels-last weight."""

    def __init__(self, width: int = 6, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first = nn.Linear(4, width)
            self.conv = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)
            self.norm = nn.BatchNorm1d(width)
            self.second = nn.Linear(width, 4)
        self.tied = self.first
        self.drop = Dropout(0.3, seed=seed)

    def forward(self, x):
        image = x[:, None, :, None] * x[:, None, None, :]
        return self.second(self.drop(self.norm(self.first(x)))) + self.conv(image).mean((1, 2, 3))[:, None]


class Position:
    """A data position."""

    def __init__(self):
        self.epoch, self.order = 0, torch.arange(5)

    def state_dict(self):
        return {"epoch": self.epoch, "order": self.order}

    def load_state_dict(self, state):
        self.epoch, self.order = state["epoch"], state["order"]


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw with a tensor rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "two groups": lambda p: torch.optim.Adam(
        [{"params": (p := list(p))[:2], "lr": 0.1}, {"params": p[2:], "amsgrad": True}], lr=0.01
    ),
}


class Training:
    def __init__(self, optimizer: str = "adam", seed: int = 0, **net):
        self.model, self.position = Net(seed=seed, **net), Position()
        self.optimizer = OPTIMIZERS[optimizer](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        self.state = TrainingState(
            self.model, self.optimizer, scheduler=self.scheduler, extra={"data": self.position}, rank=0, world_size=2
        )

    def step(self, num_steps: int = 1):
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            noise = torch.rand(()) + random.random() + np.random.rand()  # every global generator counts
            self.model(torch.randn(8, 4) + noise).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
            self.position.epoch += 1
        return self

    def image(self, iteration: int = 3) -> bytearray:
        self.state.capture(iteration)
        data = bytearray(self.state.num_bytes)
        assert self.state.read_into_(0, data) == len(data)
        return data


@pytest.fixture(autouse=True)
def _seeded():
    python, numpy = random.getstate(), np.random.get_state()
    with torch.random.fork_rng():
        torch.manual_seed(site_seed(0, "gemini state"))
        yield
    random.setstate(python)
    np.random.set_state(numpy)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_run_that_loads_a_state_goes_on_bit_for_bit_as_the_one_that_saved_it(optimizer):
    first = Training(optimizer).step(3)
    data = first.image()
    later = first.step(3).image(6)
    assert later != data
    torch.manual_seed(99), random.seed(99), np.random.seed(99)
    for run in (Training(optimizer, seed=1), first):  # a fresh run, and the same run going back
        assert run.state.load_(data) == 3
        assert run.image() == data
        assert run.step(3).image(6) == later


def test_every_chunk_size_reads_the_same_bytes_and_reading_copies_no_tensor():
    run = Training().step()
    whole = run.image()
    for size in (1, 7, 64, 1000, len(whole)):
        data = bytearray()
        for offset in range(0, len(whole), size):
            views = run.state.views(offset, min(size, len(whole) - offset))
            data += b"".join(view.numpy().tobytes() for view in views)
        assert data == whole, size
    entry = next(entry for entry in run.state.layout.entries if entry.name == "model/second.weight")
    (view,) = run.state.views(entry.offset, entry.num_bytes)
    assert view.data_ptr() == run.model.second.weight.data_ptr()
    with pytest.raises(ValueError, match=r"they must be within \[0, "):
        run.state.views(len(whole) - 1, 2)


def test_the_layout_names_each_tensor_once_at_its_place_and_stays_fixed():
    run = Training().step()
    layout = run.state.capture(1)
    entries = {entry.name: entry for entry in layout.entries}
    # 8 parameters (the tied module counts once), each with step, exp_avg and exp_avg_sq of Adam
    assert len(entries) == len(layout.entries) == 8 * 4
    assert all(entry.offset % 64 == 0 for entry in layout.entries)
    assert layout.entries[-1].offset + layout.entries[-1].num_bytes == layout.num_bytes
    assert run.step().state.capture(2) is layout
    weight = entries["model/second.weight"]
    assert (weight.dtype, weight.shape, weight.num_bytes) == ("float32", (4, 6), 4 * 6 * 4)
    run.model.second.bias.grad = None
    del run.optimizer.state[run.model.second.bias]
    with pytest.raises(StateMismatch, match="second.bias/step' is in this run and not in it|second.bias"):
        run.state.capture(3)


def refused(saved: Training, loading: Training, message: str) -> None:
    """Offer a state to a run that it is not of, which is left as it was."""
    data = saved.step().image()
    before = {name: tensor.clone() for name, tensor in loading.state.tensors().items()}
    generator = torch.get_rng_state()
    with pytest.raises(StateMismatch, match=message):
        loading.state.load_(data)
    after = loading.state.tensors()
    assert after.keys() == before.keys() and torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_another_model_dtype_optimizer_world_size_or_rank_is_refused_by_name_and_changes_nothing():
    refused(Training(), Training(width=7), r"'model/first.weight' is float32 \[6, 4\]; this run's is float32 \[7, 4\]")
    refused(Training(), Training("momentum"), "optimizer is 'Adam'; this run's is 'SGD'")
    other = Training()
    refused(Training("amsgrad"), other, "max_exp_avg_sq' is in it and not in this run")
    assert not other.optimizer.state, "a fresh optimizer stays fresh"
    sizes = [((0, 4), "world_size is 2; this run's is 4"), ((1, 2), "rank is 0; this run's is 1")]
    for (rank, world_size), message in [*sizes, ((0, 2), r"extra are \['data', 'scheduler'\]; this run's are \[\]")]:
        other.state = TrainingState(other.model, other.optimizer, rank=rank, world_size=world_size)
        refused(Training(), other, message)
    narrow = Training()
    narrow.model.second.bfloat16()
    refused(Training(), narrow, r"'model/second.weight' is float32 \[4, 6\]; this run's is bfloat16 \[4, 6\]")


def test_bytes_that_are_no_image_or_a_part_of_one_are_refused():
    run = Training().step()
    assert resume_(run.state, None, lambda: pytest.fail("a pass was run")) == 0, "from the start nothing is loaded"
    data = run.image()
    prefix = "5 bytes are fewer than its prefix has"
    for wrong, message in ((bytes(1000), "begins with"), (data[:-1], "fewer than its header's"), (data[:5], prefix)):
        with pytest.raises(StateMismatch, match=message):
            run.state.load_(wrong)


def test_a_part_that_cannot_be_written_is_refused_by_its_place():
    class Odd(Position):
        def state_dict(self):
            return {"items": [1, {"inner": object()}]}

    run = Training()
    with pytest.raises(ValueError, match=r"extra\['odd'\] is int; it must have state_dict"):
        TrainingState(run.model, run.optimizer, extra={"odd": 3})
    with pytest.raises(ValueError, match="optimizer's group 0 has other parameters"):
        TrainingState(nn.Linear(1, 1), run.optimizer)
    state = TrainingState(run.model, run.optimizer, extra={"odd": Odd()})
    with pytest.raises(ValueError, match=r"state\['extra'\]\['odd'\]\['items'\]\[1\]\['inner'\] is of class object"):
        state.capture(0)
    with pytest.raises(RuntimeError, match="nothing has been captured|layout is fixed by"):
        run.state.views(0, 1)
    run.step().state.capture(1)
    run.position.order = torch.zeros(10_000)
    with pytest.raises(ValueError, match="raise spare_bytes"):
        run.state.capture(2)


def test_nested_states_come_back_equal_with_their_kinds():
    tree = {
        "plain": [1, 2.5, -0.0, float("inf"), 2**70, True, None, "text", "$"],
        "tuple": (1, (2,)),
        "$": 1,
        3: {"a": b"\x00\xff"},
        (1, "b"): [],
        "tensor": torch.tensor([1.5, 2.5], dtype=torch.bfloat16),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 2),
        "array": np.arange(6, dtype=np.uint32).reshape(2, 3),
    }
    found = unpack_tree(pack_tree(tree))
    assert list(found) == list(tree)
    for name in ("tensor", "scalar", "empty"):
        assert torch.equal(found[name], tree[name]) and found[name].dtype == tree[name].dtype
    assert np.array_equal(found["array"], tree["array"]) and found["array"].dtype == np.uint32
    plain = ("plain", "tuple", "$", 3, (1, "b"))
    assert [found[name] for name in plain] == [tree[name] for name in plain]
    assert str(found["plain"][2]) == "-0.0" and type(found["tuple"][1]) is tuple


def test_bytes_of_a_permuted_tensor_are_those_of_its_memory_and_gaps_are_refused():
    tensor = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    assert raw_bytes(tensor.T).tolist() == [0, 1, 2, 3, 4, 5]
    assert raw_bytes(torch.tensor(258, dtype=torch.int16)).tolist() == [2, 1]
    with pytest.raises(ValueError, match="leave gaps or overlap"):
        raw_bytes(tensor[:, :2])
    with pytest.raises(ValueError, match="leave gaps or overlap"):
        raw_bytes(torch.zeros(1).expand(3))


# Resuming on real ranks: new processes end with the same bits as a run without failure


def seed(number: int) -> None:
    """Seed every global generator; a process that was forked has a state of its own in Python's."""
    torch.manual_seed(number), random.seed(number), np.random.seed(number)


class Batches:
    """An endless stream of batches with a position that can be stored."""

    def __init__(self, rank: int):
        self.generator = torch.Generator().manual_seed(100 + rank)

    def next(self) -> torch.Tensor:
        return torch.randint(0, 64, (2, 12), generator=self.generator)

    def state_dict(self):
        return {"generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.generator.set_state(state["generator"])


class RankTraining:
    """One rank's training of a tiny GPT-2."""

    def __init__(self, kind: str):
        rank = torch.distributed.get_rank()
        seed(1000 + rank)
        model = GPT2(GPT2Config.tiny(dropout=0.1))
        if kind == "ddp":
            model = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets, as a large model has
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
        self.model, self.batches = model, Batches(rank)
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 8)
        self.state = TrainingState(model, self.optimizer, scheduler=self.scheduler, extra={"data": self.batches})

    def loss(self) -> torch.Tensor:
        ids = self.batches.next()
        return self.model(ids, ids)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        self.scheduler.step()

    def image(self, iteration: int) -> bytes:
        self.state.capture(iteration)
        data = bytearray(self.state.num_bytes)
        self.state.read_into_(0, data)
        return bytes(data)


def train(kind: str, images: list[bytes] | None, start: int, end: int, passes: bool = True) -> bytes:
    """Train from `start`, 0 or that of the images, to `end`; return the last image."""
    training, iteration = RankTraining(kind), 0
    if images is not None:
        seed(5)  # a new process has drawn other numbers
        image = images[torch.distributed.get_rank()]
        iteration = resume_(training.state, image, training.loss) if passes else training.state.load_(image)
    assert iteration == start
    for done in range(start + 1, end + 1):
        training.step()
        last = training.image(done)  # the first one fixes the layout
    return last


def without_and_with_a_failure(ranks: Ranks, kind: str, passes: bool = True) -> tuple[list[bytes], list[bytes]]:
    """Train 8 iterations at once, and 4 and then 4 in new processes: the last images of all ranks."""

    def train_anew(*args):
        with pytest.raises(RankFailed):  # the first rank is killed, as by a failure
            ranks.run(lambda: torch.distributed.get_rank() or os.kill(os.getpid(), signal.SIGKILL))
        return ranks.run(train, kind, *args)

    expected = train_anew(None, 0, 8)
    return expected, train_anew(train_anew(None, 0, 4), 4, 8, passes)


@pytest.mark.parametrize(("kind", "num_ranks"), [("ddp", 2), ("ddp", 4), ("fsdp2", 2), ("fsdp2", 4)])
def test_resumed_ranks_end_with_every_bit_of_parameters_optimizer_schedule_and_random_numbers(pools, kind, num_ranks):
    # An image holds all of these, and the data position: it is compared byte for byte.
    expected, resumed = without_and_with_a_failure(pools(num_ranks), kind)
    assert [len(image) for image in resumed] == [len(image) for image in expected]
    assert resumed == expected
    assert len(set(resumed)) == num_ranks  # each rank has its own random numbers


def test_without_the_throw_away_passes_ddp_on_four_ranks_ends_with_other_bits(pools):
    expected, resumed = without_and_with_a_failure(pools(4), "ddp", passes=False)
    assert resumed != expected


def refuse_on_a_rank() -> list[str]:
    """Offer a state to a model that it is not of, and to DDP without a batch; a run from the start runs no pass."""
    training = RankTraining("ddp")
    training.step()
    image, messages, passes = training.image(1), [], []
    sharded, without = RankTraining("fsdp2").state, RankTraining("ddp").state
    for state, throw_away in ((sharded, lambda: passes.append(1)), (without, None)):
        before = [tensor.clone() for tensor in state.tensors().values()]
        with pytest.raises(ValueError) as caught:
            resume_(state, image, throw_away)
        messages.append(f"{type(caught.value) is StateMismatch}: {caught.value}")
        assert resume_(state, None, lambda: passes.append(1)) == 0
        assert all(torch.equal(a, b) for a, b in zip(before, state.tensors().values(), strict=True))
    assert not passes
    return messages


def test_a_state_of_another_kind_of_parallelism_is_refused_before_anything_runs(pools):
    for sharded, without in pools(2).run(refuse_on_a_rank):
        assert sharded.startswith("True: checkpoint: 'model/word.weight' is float32 [64, 32]; this run's is float32")
        assert "[32, 32] of [64, 32] Shard(dim=0)" in sharded
        assert without.startswith("False: throw_away is None; it must give a loss")
