"""One rank's state as bytes and its storage: what is in it, what is refused, and that it goes back bit for bit."""

import contextlib
import json
import os
import random
import signal
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from workbench.compression.codec import site_seed
from workbench.launch import RankFailed
from workbench.models.gpt2 import GPT2, GPT2Config
from workbench.parallel.transformer import Dropout
from workbench.techniques.gemini.runtime import PersistentTier, StateMismatch, StorageCorrupt, TrainingState, resume_
from workbench.techniques.gemini.runtime.encoding import pack_tree, raw_bytes, unpack_tree
from workbench.techniques.gemini.runtime.storage import MARKER, CheckpointReader, read_marker

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
        self.state.capture(iteration)
        data = bytearray(self.state.num_bytes)
        assert self.state.read_into_(0, data) == len(data)
        return bytes(data)


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
    with unchanged(loading.state), pytest.raises(StateMismatch, match=message):
        loading.state.load_(data)


@contextlib.contextmanager
def unchanged(state: TrainingState):
    """Check that what is done within leaves every tensor and the generator as they are."""
    before, generator = {name: tensor.clone() for name, tensor in state.tensors().items()}, torch.get_rng_state()
    yield
    after = state.tensors()
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


def test_bytes_that_are_no_image_and_parts_that_cannot_be_written_are_refused_by_their_place():
    run = Training().step()
    assert resume_(run.state, None, lambda: pytest.fail("a pass was run")) == 0, "from the start nothing is loaded"
    data = run.image()
    prefix = "5 bytes are fewer than its prefix has"
    for wrong, message in ((bytes(1000), "begins with"), (data[:-1], "fewer than its header's"), (data[:5], prefix)):
        with pytest.raises(StateMismatch, match=message):
            run.state.load_(wrong)

    class Odd(Batches):
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
    run.batches.number = "x" * 40_000
    with pytest.raises(ValueError, match="raise spare_bytes"):
        run.state.capture(2)


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
    # Bytes of a permuted tensor are those of its memory, and gaps are refused.
    tensor = torch.arange(6, dtype=torch.uint8).reshape(2, 3)
    assert raw_bytes(tensor.T).tolist() == [0, 1, 2, 3, 4, 5]
    assert raw_bytes(torch.tensor(258, dtype=torch.int16)).tolist() == [2, 1]
    for gaps in (tensor[:, :2], torch.zeros(1).expand(3)):
        with pytest.raises(ValueError, match="leave gaps or overlap"):
            raw_bytes(gaps)


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
            for module in (*model.blocks, model):
                fully_shard(module)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 8)
        super().__init__(model, optimizer, scheduler, extra={"data": self.batches})

    def loss(self) -> torch.Tensor:
        ids = self.batches.next()
        return self.model(ids, ids)


def train(kind: str, images: list[bytes] | None, start: int, end: int, passes: bool = True) -> bytes:
    """Train from `start`, 0 or that of the images, to `end`; return the last image."""
    training, iteration = RankTraining(kind), 0
    if images is not None:
        seed(5)  # a new process has drawn other numbers
        image = images[torch.distributed.get_rank()]
        iteration = resume_(training.state, image, training.loss) if passes else training.state.load_(image)
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
        assert ranks.run(train, kind, half, 2, 4, False) != expected, "other bits without the throw-away passes"


def refuse_on_a_rank() -> list[str]:
    """Offer a state to a model that it is not of, and to DDP without a batch."""
    image, messages = RankTraining("ddp").step().image(1), []
    offers = ((RankTraining("fsdp2").state, lambda: pytest.fail("a pass was run")), (RankTraining("ddp").state, None))
    for state, throw_away in offers:
        with unchanged(state), pytest.raises(ValueError) as caught:
            resume_(state, image, throw_away)
        messages.append(f"{caught.type.__name__}: {caught.value}")
    return messages


def test_a_state_of_another_kind_of_parallelism_is_refused_before_anything_runs(pools):
    for sharded, without in pools(2).run(refuse_on_a_rank):
        assert sharded.startswith("StateMismatch: checkpoint: 'model/word.weight' is float32 [64, 32]; this run's is")
        assert "[32, 32] of [64, 32] Shard(dim=0)" in sharded
        assert without.startswith("ValueError: throw_away is None; it must give a loss")


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
    tier.save(run.state, 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = StoredTraining(seed=9)
    image = PersistentTier(url).read(fresh.state, 1)
    assert bytes(image.numpy()) == expected
    assert resume_(fresh.state, image) == 1
    assert fresh.image(1) == expected
    assert fresh.step().image(2) == later != expected


def test_only_the_last_complete_checkpoints_are_kept_and_count(url):
    tier, run = PersistentTier(url, keep_last=2), StoredTraining().step()
    fs, root = fsspec.core.url_to_fs(url)
    fs.makedirs(f"{root}/iteration-000000002")  # begun before a crash, never completed
    for iteration in (1, 3, 4):
        tier.save(run.state, iteration)
    assert tier.iterations() == (3, 4)
    kept = {path.rsplit("/", 1)[1] for path in fs.ls(root, detail=False)}
    assert kept == {"iteration-000000003", "iteration-000000004"}
    # One without its marker, or with a changed marker, does not count.
    fs.rm_file(f"{root}/iteration-000000003/{MARKER}")
    place = f"{root}/iteration-000000004/{MARKER}"
    fs.pipe_file(place, fs.cat_file(place).replace(b"world_size", b"world_sizE"))
    assert tier.iterations() == ()
    for iteration, fault in ((4, "its checksum is wrong"), (3, "is not there: the checkpoint is incomplete")):
        with pytest.raises(StorageCorrupt, match=fault):
            tier.read(run.state, iteration)


def test_a_flipped_bit_in_any_stored_tensor_is_found_and_names_the_tensor(tmp_path):
    tier, run = PersistentTier(f"file://{tmp_path}"), StoredTraining().step()
    tier.save(run.state, 1)
    folder = tmp_path / "iteration-000000001"
    (file,) = folder.glob("*.safetensors")
    whole = file.read_bytes()
    # The file is plain safetensors, which others can read.
    tensors = load(whole)
    assert torch.equal(tensors["model/0.weight"], run.model[0].weight)
    assert torch.equal(tensors["optimizer/2.bias/exp_avg"], run.optimizer.state[run.model[2].bias]["exp_avg"])
    before = [tensor.clone() for tensor in run.state.tensors().values()]
    for entry in read_marker(fsspec.filesystem("file"), str(folder))["entries"]:
        data = bytearray(whole)
        data[entry["start"] + entry["num_bytes"] // 2] ^= 4
        file.write_bytes(data)
        with pytest.raises((StorageCorrupt, checkpoint.api.CheckpointException)) as caught:
            tier.read(run.state, 1)
        assert f"the checksum of {entry['name']!r} is wrong" in str(caught.value)
    file.write_bytes(whole[:-1])
    with pytest.raises((StorageCorrupt, checkpoint.api.CheckpointException), match="checksum of"):
        tier.read(run.state, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, run.state.tensors().values(), strict=True))


def test_another_model_or_world_size_and_a_url_that_cannot_be_written_are_refused_by_name(tmp_path):
    tier = PersistentTier(f"file://{tmp_path}")
    tier.save(StoredTraining().step().state, 1)
    with pytest.raises(StateMismatch, match=r"'model/0.weight' is float32 \[8, 4\]; this run's is float32 \[9, 4\]"):
        tier.read(StoredTraining(width=9).state, 1)
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


def on_a_rank(folder: str, kind: str) -> tuple[bool, bool, list[str]]:
    """Store, resume in a fresh model, step both; give whether image and continuation are equal, and rank 0's names."""
    rank = torch.distributed.get_rank()
    torch.manual_seed(rank)  # buffers and random numbers differ between ranks, parameters do not
    wrap = torch.nn.parallel.DistributedDataParallel if kind == "ddp" else fully_shard
    tier, run = PersistentTier(f"file://{folder}"), StoredTraining(wrap=wrap).step()
    tier.save(run.state, 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = StoredTraining(seed=9, wrap=wrap)
    image = tier.read(fresh.state, 1)
    resume_(fresh.state, image, fresh.loss)
    names = sorted(load(Path(folder, "iteration-000000001", f"{rank:05d}.safetensors").read_bytes()))
    return bytes(image.numpy()) == expected, fresh.step().image(2) == later, names


def test_ranks_of_ddp_store_equal_tensors_once_and_every_rank_its_own_buffers(pools, tmp_path):
    results = pools(2).run(on_a_rank, str(tmp_path), "ddp")
    assert all(image and continued for image, continued, _ in results)
    names = results[0][2] + results[1][2]
    shared = [name for name in names if not name.startswith("rank-")]
    assert len(shared) == len(set(shared)) == 6 * 4  # 6 parameters, each with step and two averages
    assert sorted(set(names) - set(shared)) == ["rank-0/head", "rank-1/head"]


def read_in_other_ways(folder: str) -> tuple[torch.Tensor, int]:
    """Read with torch's own load into an unsharded tensor; let only the second rank read."""
    fs, place = fsspec.filesystem("file"), f"{folder}/iteration-000000001"
    whole, run = {"model/0.weight": torch.empty(8, 4)}, StoredTraining(wrap=fully_shard)
    checkpoint.load(whole, storage_reader=CheckpointReader(fs, place, read_marker(fs, place)))
    alone = torch.distributed.get_rank() == 1
    return whole["model/0.weight"], PersistentTier(f"file://{folder}").read(run.state, 1).numel() if alone else 0


def test_shards_of_fsdp2_come_back_and_can_be_read_unsharded_and_by_one_rank_alone(pools, tmp_path):
    results = pools(2).run(on_a_rank, str(tmp_path), "fsdp2")
    assert all(image and continued for image, continued, _ in results)
    (first, none), (second, alone) = pools(2).run(read_in_other_ways, str(tmp_path), timeout_s=60)
    assert torch.equal(first, second) and none == 0 < alone
    marker = json.loads(json.loads((tmp_path / "iteration-000000001" / MARKER).read_text())["body"])
    parts = [entry for entry in marker["entries"] if entry["name"] == "model/0.weight"]
    assert [(part["offsets"], part["shape"]) for part in parts] == [([0, 0], [4, 4]), ([4, 0], [4, 4])]


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
