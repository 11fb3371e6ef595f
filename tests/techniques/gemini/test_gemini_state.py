"""One rank's state as bytes and its storage: what is in it, what is refused, and that it goes back bit for bit."""

import contextlib
import os
import random
import signal
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.nn.parallel import DistributedDataParallel

from workbench.compression.codec import site_seed
from workbench.launch import RankFailed
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.parallel.transformer import Dropout
from workbench.techniques.gemini.measured.training import shard
from workbench.techniques.gemini.runtime import PersistentTier, StateMismatch, StorageCorrupt, TrainingState
from workbench.techniques.gemini.runtime.encoding import pack_tree, unpack_tree
from workbench.techniques.gemini.runtime.replicas import Slot
from workbench.techniques.gemini.runtime.storage import MARKER

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


class Batches:
    """An endless stream of batches with a position that can be stored."""

    def __init__(self, seed: int = 0):
        self.number, self.generator = 0, torch.Generator().manual_seed(seed)

    def next(self, shape: tuple[int, ...] = (2, 12)) -> torch.Tensor:
        self.number += 1
        return torch.randint(0, 64, shape, generator=self.generator)

    def state_dict(self):
        return {"number": self.number, "generator": self.generator.get_state()}

    def load_state_dict(self, state):
        self.number = state["number"]
        self.generator.set_state(state["generator"])


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


class Stepped:
    """A training whose state can be taken as bytes."""

    def __init__(self, model, optimizer, scheduler=None, **parts):
        self.model, self.optimizer, self.scheduler = model, optimizer, scheduler
        self.state = TrainingState(model, optimizer, scheduler=scheduler, **parts)

    def step(self, num_steps: int = 1):
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            self.loss().backward()
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
        return self

    def image(self, iteration: int = 3) -> bytes:
        return self.state.image(iteration).numpy().tobytes()


class Training(Stepped):
    def __init__(self, optimizer: str = "adam", seed: int = 0, **net):
        model, self.batches = Net(seed=seed, **net), Batches()
        chosen = OPTIMIZERS[optimizer](model.parameters())
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 10)
        super().__init__(model, chosen, scheduler, extra={"data": self.batches}, rank=0, world_size=2)

    def loss(self) -> torch.Tensor:
        noise = torch.rand(()) + random.random() + np.random.rand()  # every global generator counts
        return self.model(self.batches.next((8, 4)) / 32 - 1 + noise).square().mean()


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


def test_what_changes_after_an_image_was_copied_is_named_and_is_not_in_it():
    run = Training().step(2)
    image = run.state.image(2)
    kept = bytes(image.numpy())
    assert run.state.changed_since(image) == []
    run.batches.next(), torch.rand(3)  # the next iteration begins: positions and random numbers may move on
    assert run.state.changed_since(image) == []
    run.model.second.weight.data.clamp_(-0.1, 0.1)  # which raises no version of the weight
    run.optimizer.state[run.model.second.bias]["exp_avg"].zero_()
    run.model.norm.running_mean += 1
    run.scheduler.step()
    assert run.state.changed_since(image) == [
        "model/second.weight",
        "optimizer/second.bias",
        "buffer norm.running_mean",
        "settings of the optimizer, such as its learning rate",
        "extra/scheduler",
    ]
    assert bytes(image.numpy()) == kept


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_a_parameter_whose_first_gradient_comes_late_is_saved_and_loaded_with_its_state(optimizer):
    run = Training(optimizer)
    run.model.conv.requires_grad_(False)
    early = run.step(2).image(2)
    run.model.conv.requires_grad_(True)  # unfrozen
    later, end = run.step().image(3), run.step().image(4)
    for data, missing in ((later, 1), (early, 2)):
        fresh = Training(optimizer, seed=1)
        fresh.state.load_(data)
        assert fresh.model.conv.weight.requires_grad == (data == later)
        fresh.model.conv.requires_grad_(True)  # unfrozen, as in the first run
        assert fresh.step(missing).image(4) == end
        fresh.state.load_(early)  # back to where the parameter had no state
        assert fresh.model.conv.weight not in fresh.optimizer.state


def refused(saved: Training, loading: Training, message: str) -> None:
    """Offer a state to a run that it is not of, which is left as it was."""
    data = saved.step().image()
    with unchanged(loading.state), pytest.raises(StateMismatch, match=message):
        loading.state.load_(data)


@contextlib.contextmanager
def unchanged(state: TrainingState):
    """Check that what is done within leaves every tensor and the generator as they are."""
    before = state.image(0)
    yield
    assert torch.equal(state.image(0), before)


def test_another_model_dtype_optimizer_world_size_or_rank_is_refused_by_name_and_changes_nothing():
    refused(Training(), Training(width=7), r"'model/first.weight' is float32 \[6, 4\]; this run's is float32 \[7, 4\]")
    refused(Training(), Training("momentum"), "optimizer is 'Adam'; this run's is 'SGD'")
    other = Training()
    sizes = [((0, 4), "world_size is 2; this run's is 4"), ((1, 2), "rank is 0; this run's is 1")]
    for (rank, world_size), message in [*sizes, ((0, 2), r"extra is \['data', 'scheduler'\]; this run's is \[\]")]:
        other.state = TrainingState(
            other.model, OPTIMIZERS["adam"](other.model.parameters()), rank=rank, world_size=world_size
        )
        refused(Training(), other, message)
    narrow = Training()
    narrow.model.second.bfloat16()
    refused(Training(), narrow, r"'model/second.weight' is float32 \[4, 6\]; this run's is bfloat16 \[4, 6\]")


def test_bytes_that_are_no_image_and_parts_that_cannot_be_written_are_refused_by_their_place():
    run = Training().step()
    data = run.image()
    prefix = "5 bytes are fewer than its prefix has"
    for wrong, message in (
        (bytes(1000), "begins with"),
        (data[:-5000], "fewer than its prefix says"),
        (data[:5], prefix),
    ):
        with pytest.raises(StateMismatch, match=message):
            run.state.load_(wrong)

    class Odd(Batches):
        def state_dict(self):
            return {"items": [1, {"inner": object()}]}

    run = Training()
    with pytest.raises(ValueError, match=r"extra\['odd'\] is int; it must have state_dict"):
        TrainingState(run.model, run.optimizer, scheduler=run.scheduler, extra={"odd": 3})
    with pytest.raises(ValueError, match="optimizer's group 0 has other parameters"):
        TrainingState(nn.Linear(1, 1), run.optimizer)
    with pytest.raises(ValueError, match=r"state\['extra'\]\['odd'\]\['items'\]\[1\]\['inner'\] is of class object"):
        TrainingState(run.model, run.optimizer, scheduler=run.scheduler, extra={"odd": Odd()})


def test_nested_states_and_the_bytes_of_tensors_come_back_equal_with_their_kinds():
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_state_on_a_device_comes_to_locked_memory_or_through_pinned_sub_buffers_as_it_is():
    run = Training()
    run.model.cuda()
    run.batches.next = lambda shape: torch.randint(0, 64, shape, device="cuda")
    run.step(2)
    captured, plain = run.state.capture(2), run.state.image(2)
    for num_buffers in (1, 4):
        pinned = [torch.empty(64, dtype=torch.uint8, pin_memory=True) for _ in range(num_buffers)]
        out = torch.empty_like(plain)
        captured.write_(out, pinned)
        assert torch.equal(out, plain)

    def open_file(number: int, num_bytes: int) -> int:
        descriptor = os.memfd_create("slot")
        os.ftruncate(descriptor, num_bytes)
        return descriptor

    slot = Slot(1, open_file)
    for iteration, num_bytes in ((2, plain.numel()), (3, 3 * plain.numel())):  # the second does not fit
        place = slot.begin(iteration, num_bytes, locked=True)
        assert place.is_pinned()
        captured.write_(place[: plain.numel()])
        assert torch.equal(place[: plain.numel()], plain)


# Resuming on real ranks: new processes end with the same bits as a run without failure


def seed(number: int) -> None:
    """Seed every global generator; a process that was forked has a state of its own in Python's."""
    torch.manual_seed(number), random.seed(number), np.random.seed(number)


class RankTraining(Stepped):
    def __init__(self, kind: str):
        rank = torch.distributed.get_rank()
        seed(1000 + rank)
        model, self.batches = GPT2(GPT2Config.tiny(dropout=0.1)), Batches(100 + rank)
        if kind == "ddp":
            model = DistributedDataParallel(model, bucket_cap_mb=0.02)  # several buckets, as a large model has
        else:
            shard(*model.blocks, model)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        super().__init__(model, optimizer, scheduler, extra={"data": self.batches})

    def loss(self) -> torch.Tensor:
        ids = self.batches.next()
        return self.model(ids, ids)


def train(kind: str, images: list[bytes] | None, start: int, end: int, keeps_order: bool = True) -> bytes:
    """Train from `start`, 0 or that of the images, to `end`; return the last image."""
    training, iteration = RankTraining(kind), 0
    if images is not None:
        seed(5)  # a new process has drawn other numbers
        if not keeps_order:
            training.state._restore_order_ = lambda order: None
        iteration = training.state.load_(images[torch.distributed.get_rank()])
    assert iteration == start
    for done in range(start + 1, end + 1):
        last = training.step().image(done)  # the first one fixes the layout
    return last


@pytest.mark.parametrize(("kind", "num_ranks"), [("ddp", 4), ("fsdp2", 2)])
def test_resumed_ranks_end_with_every_bit_of_parameters_optimizer_schedule_and_random_numbers(pools, kind, num_ranks):
    # An image holds all of these, and the data position: it is compared byte for byte.
    ranks = pools(num_ranks)
    half, expected = (ranks.run(train, kind, None, 0, end) for end in (2, 4))
    with pytest.raises(RankFailed):  # the first rank is killed, as by a failure: new processes follow
        ranks.run(lambda: torch.distributed.get_rank() or os.kill(os.getpid(), signal.SIGKILL))
    assert ranks.run(train, kind, half, 2, 4) == expected
    assert len(set(expected)) == num_ranks, "each rank has its own random numbers"
    if kind == "ddp":
        assert ranks.run(train, kind, half, 2, 4, False) != expected, "other bits with buckets laid out anew"


def refuse_on_a_rank() -> str:
    """Offer a state to a model that is sharded, and it is not."""
    image, state = RankTraining("ddp").step().image(1), RankTraining("fsdp2").state
    with unchanged(state), pytest.raises(StateMismatch) as caught:
        state.load_(image)
    return str(caught.value)


def test_a_state_of_another_kind_of_parallelism_is_refused_before_anything_runs(pools):
    for message in pools(2).run(refuse_on_a_rank):
        assert message.startswith("checkpoint: 'model/word.weight' is float32 [64, 32]; this run's is float32 [32, 32]")
        assert "of [64, 32] Shard(dim=0)" in message


class StoredTraining(Stepped):
    def __init__(self, seed: int = 0, width: int = 8, wrap=lambda model: model):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = wrap(nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 5)))
        super().__init__(model, torch.optim.AdamW(model.parameters(), lr=0.01))

    def loss(self) -> torch.Tensor:
        return self.model(torch.randn(8, 4)).square().mean()


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/run"
    else:
        yield "memory://gemini-run"
        fsspec.filesystem("memory").rm("/gemini-run", recursive=True)


def test_a_stored_state_comes_back_bit_for_bit_into_a_fresh_run(url):
    tier, run = PersistentTier(url), StoredTraining().step()
    assert tier.iterations() == ()
    tier.save(run.state.image(1), 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = StoredTraining(seed=9)
    image = PersistentTier(url).read(fresh.state, 1)
    assert bytes(image.numpy()) == expected
    assert fresh.state.load_(image) == 1
    assert fresh.image(1) == expected
    assert fresh.step().image(2) == later != expected


def test_only_the_last_complete_checkpoints_are_kept_and_count(url):
    tier, run = PersistentTier(url, keep_last=2), StoredTraining().step()
    fs, root = fsspec.core.url_to_fs(url)
    fs.makedirs(f"{root}/iteration-000000002")  # begun before a crash, never completed
    for iteration in (1, 3, 4):
        tier.save(run.state.image(iteration), iteration)
    assert tier.iterations() == (3, 4)
    kept = {path.rsplit("/", 1)[1] for path in fs.ls(root, detail=False)}
    assert kept == {"iteration-000000003", "iteration-000000004"}
    # One without its marker, or with a changed marker, does not count.
    fs.rm_file(f"{root}/iteration-000000003/{MARKER}")
    place = f"{root}/iteration-000000004/{MARKER}"
    fs.pipe_file(place, fs.cat_file(place).replace(b"parts", b"partS"))
    assert tier.iterations() == ()
    for iteration, fault in ((4, "its checksum is wrong"), (3, "is not there: the checkpoint is incomplete")):
        with pytest.raises(StorageCorrupt, match=fault):
            tier.read(run.state, iteration)


def test_a_flipped_bit_or_a_missing_byte_in_any_stored_part_is_found_and_names_the_file(tmp_path):
    tier, run = PersistentTier(f"file://{tmp_path}"), StoredTraining().step()
    tier.save(run.state.image(1), 1)
    parts = [path for path in (tmp_path / "iteration-000000001").iterdir() if path.name != MARKER]
    assert len(parts) == 2  # what all ranks share, and the rank's own
    for part in parts:
        whole = part.read_bytes()
        flipped = bytearray(whole)
        flipped[len(whole) // 2] ^= 4
        for damaged in (flipped, whole[:-1]):
            part.write_bytes(damaged)
            with pytest.raises(StorageCorrupt, match=f"{part.name}: its checksum is not its name"):
                tier.read(run.state, 1)
        part.unlink()
        with pytest.raises(StorageCorrupt, match=f"{part.name}: .*No such file"):
            tier.read(run.state, 1)
        part.write_bytes(whole)
    assert bytes(tier.read(run.state, 1).numpy()) == run.image(1)


def test_another_model_or_world_size_and_a_url_that_cannot_be_written_are_refused_by_name(tmp_path):
    tier = PersistentTier(f"file://{tmp_path}")
    tier.save(StoredTraining().step().state.image(1), 1)
    with pytest.raises(StateMismatch, match=r"'model/0.weight' is float32 \[8, 4\]; this run's is float32 \[9, 4\]"):
        state = StoredTraining(width=9).state
        state.load_(tier.read(state, 1))
    run = StoredTraining()
    with pytest.raises(StateMismatch, match="world_size is 1; this run's is 2"):
        tier.read(TrainingState(run.model, run.optimizer, rank=0, world_size=2), 1)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"url is 'file://.*/file/run'; it must be writable: NotADirectoryError"):
        PersistentTier(f"file://{tmp_path}/file/run")
    with pytest.raises(ValueError, match="url is 'nowhere://run'; it must be writable: ValueError: Protocol not known"):
        PersistentTier("nowhere://run")
    with pytest.raises(ValueError, match="keep_last is 0"):
        PersistentTier("memory://x", keep_last=0)
    assert (tmp_path / "file").read_text() == "not a folder"


def on_a_rank(folder: str, kind: str) -> tuple[bool, bool]:
    """Store, resume in a fresh model, step both; give whether image and continuation are equal."""
    torch.manual_seed(torch.distributed.get_rank())  # buffers and random numbers differ, parameters do not
    wrap = torch.nn.parallel.DistributedDataParallel if kind == "ddp" else shard
    tier, run = PersistentTier(f"file://{folder}"), StoredTraining(wrap=wrap).step()
    tier.save(run.state.image(1), 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = StoredTraining(seed=9, wrap=wrap)
    image = tier.read(fresh.state, 1)
    fresh.state.load_(image)
    return bytes(image.numpy()) == expected, fresh.step().image(2) == later


@pytest.mark.parametrize(("kind", "num_parts"), [("ddp", 3), ("fsdp2", 4)])
def test_ranks_store_equal_weights_once_and_every_rank_its_own_rest(pools, tmp_path, kind, num_parts):
    assert pools(2).run(on_a_rank, str(tmp_path), kind) == [(True, True)] * 2
    # weights once or twice, and two ranks' own
    parts = [path.name for path in (tmp_path / "iteration-000000001").iterdir()]
    assert len(parts) - 1 == num_parts and MARKER in parts


def saved_while_changing(folder: Path, wait_for_staging: bool, **options) -> list[bool]:
    """Save tensors with torch's async_save, change them as soon as it allows, and say which were stored unchanged."""
    state = {f"weight.{index}": torch.zeros(500_000) for index in range(4)}
    response = checkpoint.async_save(state, checkpoint_id=folder, no_dist=True, **options)
    if wait_for_staging:
        response.staging_completion.result()
    for tensor in state.values():
        tensor.fill_(1.0)
    getattr(response, "upload_completion", response).result()
    found = {name: torch.full_like(tensor, 7.0) for name, tensor in state.items()}
    checkpoint.load(found, checkpoint_id=folder, no_dist=True)
    return [not tensor.any() for tensor in found.values()]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_async_save_of_torch_stores_the_values_before_the_change_so_that_it_can_be_compared_with(tmp_path):
    # DESIGN's trap: some versions stored later values of CPU tensors. This version copies before it returns...
    assert all(saved_while_changing(tmp_path / "plain", wait_for_staging=False))
    # ...or, if it copies in a thread, when its staging is complete; whoever does not wait stores a mixture.
    stager = DefaultStager(StagingOptions(False, False, True, False))
    assert all(saved_while_changing(tmp_path / "staged", wait_for_staging=True, async_stager=stager))
    stager.close()
