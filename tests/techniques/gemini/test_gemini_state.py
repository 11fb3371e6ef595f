"""One rank's state as bytes and its storage: what is in it, what is refused, and that it goes back bit for bit."""

import contextlib
import json
import os
import random
from pathlib import Path
from unittest import mock

import fsspec
import numpy as np
import pytest
import torch
import xxhash
from torch import nn

from tests.cases import tidy
from tests.techniques.gemini import own_trainings as own
from workbench.parallel.transformer import Dropout
from workbench.techniques.gemini.runtime import PersistentTier, StateMismatch, StorageCorrupt, TrainingState
from workbench.techniques.gemini.runtime.replicas import Slot
from workbench.techniques.gemini.runtime.storage import MARKER


class Net(nn.Module):
    """Everything that a state must hold: a tied weight, a batch norm, an own generator, a channels-last weight."""

    def __init__(self, width: int):
        super().__init__()
        self.first = self.tied = nn.Linear(8, width)
        self.conv = nn.Conv2d(1, 2, 3).to(memory_format=torch.channels_last)
        self.norm, self.second = nn.BatchNorm1d(width), nn.Linear(width, 4)
        self.drop = Dropout(0.3)

    def forward(self, x):
        image = x[:, None, :, None] * x[:, None, None, :]
        return self.second(self.drop(self.norm(self.first(x)))) + self.conv(image).mean((1, 2, 3))[:, None]


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw with a tensor rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01), weight_decay=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "two groups": lambda p: torch.optim.Adam(
        [{"params": (p := list(p))[:2], "lr": 0.1}, {"params": p[2:], "amsgrad": True}], lr=0.01
    ),
}


class Training(own.Training):
    """A training whose state can be taken as bytes."""

    def __init__(self, optimizer: str = "adam", seed: int = 0, width: int = 6):
        self.name, self.width = optimizer, width
        super().__init__(seed)

    def build(self):
        return Net(self.width)

    def prepare(self):
        self.batches = own.Loader()
        self.optimizer = OPTIMIZERS[self.name](self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 10)
        extra = {"data": self.batches}
        self.state = TrainingState(self.model, self.optimizer, scheduler=self.scheduler, extra=extra)

    def step(self, num_steps: int = 1):
        for _ in range(num_steps):
            self.optimizer.zero_grad()
            noise = torch.rand(()) + random.random() + np.random.rand()  # every global generator counts
            self.model(self.batches.next() + noise).square().mean().backward()
            self.optimizer.step()
            self.scheduler.step()
        return self

    def image(self, iteration: int = 3) -> bytes:
        return self.state.image(iteration).numpy().tobytes()


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


def test_groups_that_begin_with_the_same_list_come_back_each_with_its_own():
    first, fresh = Training("two groups"), Training("two groups")
    for run in (first, fresh):
        milestones = [1, 2]
        for group in run.optimizer.param_groups:
            group["milestones"] = milestones
    first.optimizer.param_groups[0]["milestones"] = [3]
    fresh.state.load_(first.image())
    assert [group["milestones"] for group in fresh.optimizer.param_groups] == [[3], [1, 2]]


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


def test_a_parameter_whose_first_gradient_comes_late_is_saved_and_loaded_with_its_state():
    run = Training()
    run.model.conv.requires_grad_(False)
    early = run.step(2).image(2)
    run.model.conv.requires_grad_(True)  # unfrozen
    later, end = run.step().image(3), run.step().image(4)
    for data, missing in ((later, 1), (early, 2)):
        fresh = Training(seed=1)
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
    refused(Training(), Training(width=7), r"'model/first.weight' is float32 \[6, 8\]; this run's is float32 \[7, 8\]")
    refused(Training(), Training("momentum"), "optimizer is 'Adam'; this run's is 'SGD'")
    other = Training()
    sizes = [((0, 4), "world_size is 1; this run's is 4"), ((1, 1), "rank is 0; this run's is 1")]
    for (rank, world_size), message in [*sizes, ((0, 1), r"extra is \['data', 'scheduler'\]; this run's is \[\]")]:
        other.state = TrainingState(other.model, OPTIMIZERS["adam"](other.model.parameters()))
        other.state.rank, other.state.world_size = rank, world_size
        refused(Training(), other, message)
    narrow = Training()
    narrow.model.second.bfloat16()
    refused(Training(), narrow, r"'model/second.weight' is float32 \[4, 6\]; this run's is bfloat16 \[4, 6\]")


def test_bytes_that_are_no_image_objects_without_a_state_and_optimizers_of_other_models_are_refused():
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

    with pytest.raises(ValueError, match=r"extra\['odd'\] is int; it must have state_dict"):
        TrainingState(run.model, run.optimizer, scheduler=run.scheduler, extra={"odd": 3})
    with pytest.raises(ValueError, match="optimizer's group 0 has other parameters"):
        TrainingState(nn.Linear(1, 1), run.optimizer)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
def test_a_state_on_a_device_comes_to_locked_memory_or_through_pinned_sub_buffers_as_it_is():
    run = Training()
    run.model.cuda()
    run.batches.next = lambda: torch.rand((4, 8), device="cuda")
    run.step(2)
    plain = run.state.image(2)
    for num_buffers in (1, 4):
        pinned = [torch.empty(64, dtype=torch.uint8, pin_memory=True) for _ in range(num_buffers)]
        out = torch.empty_like(plain)
        run.state.copied(2, lambda _, out=out: out, pinned)
        assert torch.equal(out, plain)

    def open_file(number: int, num_bytes: int) -> int:
        descriptor = os.memfd_create("slot")
        os.ftruncate(descriptor, num_bytes)
        return descriptor

    slot = Slot(1, open_file)
    for iteration, num_bytes in ((2, plain.numel()), (3, 3 * plain.numel())):  # the second does not fit
        place = slot.begin(iteration, num_bytes, locked=True)
        assert place.is_pinned()
        run.state.copied(2, lambda num_bytes, place=place: place[:num_bytes])
        assert torch.equal(place[: plain.numel()], plain)


# On real ranks, whose processes draw other numbers


class Deep(own.Ddp):
    """Layers in several buckets, as a large model has."""

    def build(self):
        return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Tanh()) for _ in range(6)))


def resumes_without_the_order_of_buckets() -> list[str]:
    with mock.patch.object(TrainingState, "_restore_order_"):
        return own.resumes(Deep)


def test_resumed_ranks_end_with_every_bit_because_buckets_are_laid_out_as_before(pools):
    assert pools(4).run(tidy, own.resumes, Deep) == [[]] * 4
    assert all(pools(4).run(tidy, resumes_without_the_order_of_buckets)), "other bits with buckets laid out anew"


def refuse_on_a_rank() -> str:
    """Offer a state to a model that is sharded, and it is not."""
    run, sharded = own.Ddp(0), own.Sharded(7)
    state = TrainingState(sharded.model, sharded.optimizer)
    with unchanged(state), pytest.raises(StateMismatch) as caught:
        state.load_(TrainingState(run.model, run.optimizer).image(1))
    return str(caught.value)


def test_a_state_of_another_kind_of_parallelism_is_refused_before_anything_runs(pools):
    for message in pools(2).run(tidy, refuse_on_a_rank):
        assert message.startswith("checkpoint: 'model/0.weight' is float32 [16, 8]; this run's is float32 [8, 8]")
        assert "of [16, 8] Shard(dim=0)" in message


@pytest.fixture(params=["file", "memory"])
def url(request, tmp_path):
    if request.param == "file":
        yield f"file://{tmp_path}/run"
    else:
        yield "memory://gemini-run"
        fsspec.filesystem("memory").rm("/gemini-run", recursive=True)


def test_a_stored_state_comes_back_bit_for_bit_into_a_fresh_run(url):
    tier, run = PersistentTier(url), Training().step()
    assert tier.iterations() == ()
    tier.save(run.state.image(1), 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = Training(seed=9)
    image = PersistentTier(url).read(fresh.state, 1)
    assert bytes(image.numpy()) == expected
    assert fresh.state.load_(image) == 1
    assert fresh.image(1) == expected
    assert fresh.step().image(2) == later != expected


def test_only_the_last_complete_checkpoints_are_kept_and_count(url):
    tier, run = PersistentTier(url, keep_last=2), Training().step()
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
    tier, run = PersistentTier(f"file://{tmp_path}"), Training().step()
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


def test_another_world_size_and_a_url_that_cannot_be_written_are_refused_by_name(tmp_path):
    tier = PersistentTier(f"file://{tmp_path}")
    tier.save(Training().step().state.image(1), 1)
    other = Training().state
    other.world_size = 2
    with pytest.raises(StateMismatch, match="world_size is 1; this run's is 2"):
        tier.read(other, 1)
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match=r"url is 'file://.*/file/run'; it must be writable: NotADirectoryError"):
        PersistentTier(f"file://{tmp_path}/file/run")
    with pytest.raises(ValueError, match="url is 'nowhere://run'; it must be writable: ValueError: Protocol not known"):
        PersistentTier("nowhere://run")
    with pytest.raises(ValueError, match="keep_last is 0"):
        PersistentTier("memory://x", keep_last=0)
    assert (tmp_path / "file").read_text() == "not a folder"


def sealed(body):
    text = json.dumps(body)
    return json.dumps({"checksum": xxhash.xxh3_128_hexdigest(text.encode()), "body": text})


MARKERS = (
    "[1]",
    "[" * 100_000,
    sealed([1]),
    sealed({"iteration": 2}),
    sealed({"parts": 3}),
    sealed({"parts": [["0" * 32] * 3]}),
    sealed({"parts": [["0" * 32, "../../secret"]]}),
    sealed({"parts": [[["0" * 32], {}]]}),
)


def test_a_marker_of_another_shape_is_passed_over(tmp_path):
    tier, state = PersistentTier(f"file://{tmp_path}"), Training().state
    tier.save(state.image(1), 1)
    (tmp_path / "iteration-000000002").mkdir()
    for text in MARKERS:
        (tmp_path / f"iteration-000000002/{MARKER}").write_text(text)
        assert tier.iterations() == (1,)
        with pytest.raises(StorageCorrupt, match="iteration-000000002/complete.json: its checksum is wrong"):
            tier.read(state, 2)


def test_pipes_links_and_folders_in_the_place_of_files_are_passed_over_and_named(tmp_path):
    tier, state = PersistentTier(f"file://{tmp_path}/run"), Training().state
    tier.save(state.image(1), 1)
    good, run_folder = tmp_path / "run/iteration-000000001", tmp_path / "run"
    for iteration, make in {2: os.mkfifo, 3: Path.mkdir, 4: lambda path: path.symlink_to(good / MARKER)}.items():
        folder = run_folder / f"iteration-{iteration:09d}"
        folder.mkdir()
        make(folder / MARKER)
    (run_folder / "iteration-000000005").symlink_to(good)
    (run_folder / "iteration-000000006").write_text("no folder")
    (run_folder / f"iteration-{'9' * 5000}"[:250]).mkdir()  # more digits than a number of iterations has
    with pytest.warns(UserWarning) as warned:
        assert tier.iterations() == (1,)
    said = "\n".join(sorted(str(warning.message) for warning in warned))
    for iteration in range(2, 7):
        place = f"iteration-{iteration:09d}" + (f"/{MARKER}" if iteration < 5 else "")
        assert f"{run_folder}/{place} is passed over: it is no " in said
    part = next(path for path in good.iterdir() if path.name != MARKER)
    part.unlink()
    os.mkfifo(part)
    with pytest.warns(UserWarning), pytest.raises(StorageCorrupt, match=f"{part.name} is no regular file"):
        tier.read(state, 1)


def resumes_from_storage(folder: str, kind: type[own.Training]) -> list[str]:
    tier = PersistentTier(f"file://{folder}")

    def through(image: torch.Tensor, state: TrainingState) -> torch.Tensor:
        tier.save(image, own.HALF)
        torch.distributed.barrier()  # the first rank has written the marker
        loaded = tier.read(state, own.HALF)
        assert torch.equal(loaded, image)
        return loaded

    return own.resumes(kind, through)


@pytest.mark.parametrize(("kind", "num_parts"), [(own.Ddp, 3), (own.Sharded, 4)])
def test_ranks_store_equal_weights_once_and_every_rank_its_own_rest(pools, tmp_path, kind, num_parts):
    assert pools(2).run(tidy, resumes_from_storage, str(tmp_path), kind) == [[], []]
    # weights once or twice, and two ranks' own
    parts = [path.name for path in (tmp_path / f"iteration-{own.HALF:09d}").iterdir()]
    assert len(parts) - 1 == num_parts and MARKER in parts
