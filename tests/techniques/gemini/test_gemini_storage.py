"""Persistent storage: what is stored, that it is complete and verified, what is refused, and torch's own async_save."""

import json
from pathlib import Path

import fsspec
import pytest
import torch
from safetensors.torch import load
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.fsdp import fully_shard

from workbench.techniques.gemini.runtime import PersistentTier, StateMismatch, StorageCorrupt, TrainingState, resume_
from workbench.techniques.gemini.runtime.storage import MARKER, CheckpointReader, read_marker

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(3)
        yield


class Training:
    def __init__(self, seed: int = 0, width: int = 8, wrap=lambda model: model):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 5))
        self.model = wrap(model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        self.state = TrainingState(self.model, self.optimizer)

    def step(self) -> "Training":
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        return self

    def loss(self) -> torch.Tensor:
        return self.model(torch.randn(8, 4)).square().mean()

    def image(self, iteration: int) -> bytes:
        self.state.capture(iteration)
        data = bytearray(self.state.num_bytes)
        self.state.read_into_(0, data)
        return bytes(data)


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
    tier.save(run.state, 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = Training(seed=9)
    image = PersistentTier(url).read(fresh.state, 1)
    assert bytes(image.numpy()) == expected
    assert resume_(fresh.state, image) == 1
    assert fresh.image(1) == expected
    assert fresh.step().image(2) == later != expected


def test_only_the_last_complete_checkpoints_are_kept(url):
    tier, run = PersistentTier(url, keep_last=2), Training().step()
    fs, root = fsspec.core.url_to_fs(url)
    fs.makedirs(f"{root}/iteration-000000002")  # begun before a crash, never completed
    for iteration in (1, 3, 4):
        tier.save(run.state, iteration)
    assert tier.iterations() == (3, 4)
    kept = {path.rsplit("/", 1)[1] for path in fs.ls(root, detail=False)}
    assert kept == {"iteration-000000003", "iteration-000000004"}


def test_a_checkpoint_without_its_marker_or_with_a_changed_one_does_not_count(url):
    tier, run = PersistentTier(url, keep_last=3), Training().step()
    for iteration in (1, 2, 3):
        tier.save(run.state, iteration)
    fs, root = fsspec.core.url_to_fs(url)
    fs.rm_file(f"{root}/iteration-000000003/{MARKER}")
    place = f"{root}/iteration-000000002/{MARKER}"
    fs.pipe_file(place, fs.cat_file(place).replace(b"world_size", b"world_sizE"))
    assert tier.iterations() == (1,)
    for iteration, fault in ((2, "its checksum is wrong"), (3, "is not there: the checkpoint is incomplete")):
        with pytest.raises(StorageCorrupt, match=fault):
            tier.read(run.state, iteration)


def test_a_flipped_bit_in_any_stored_tensor_is_found_and_names_the_tensor(tmp_path):
    tier, run = PersistentTier(f"file://{tmp_path}"), Training().step()
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


def test_another_model_or_world_size_is_refused_by_name(tmp_path):
    tier = PersistentTier(f"file://{tmp_path}")
    tier.save(Training().step().state, 1)
    with pytest.raises(StateMismatch, match=r"'model/0.weight' is float32 \[8, 4\]; this run's is float32 \[9, 4\]"):
        tier.read(Training(width=9).state, 1)
    run = Training()
    with pytest.raises(StateMismatch, match="world_size is 1; this run's is 2"):
        tier.read(TrainingState(run.model, run.optimizer, rank=0, world_size=2), 1)


def test_a_url_that_cannot_be_written_is_refused_before_training(tmp_path):
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
    tier, run = PersistentTier(f"file://{folder}"), Training(wrap=wrap).step()
    tier.save(run.state, 1)
    expected, later = run.image(1), run.step().image(2)
    fresh = Training(seed=9, wrap=wrap)
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


def resharded_on_a_rank(folder: str) -> torch.Tensor:
    """Read with torch's own load into an unsharded tensor."""
    fs = fsspec.filesystem("file")
    place = f"{folder}/iteration-000000001"
    whole = {"model/0.weight": torch.empty(8, 4)}
    checkpoint.load(whole, storage_reader=CheckpointReader(fs, place, read_marker(fs, place)))
    return whole["model/0.weight"]


def read_on_one_rank(folder: str) -> int:
    """Let only the second rank read, as when the first has a replica in memory."""
    run = Training(wrap=fully_shard)
    if torch.distributed.get_rank() == 0:
        return 0
    return PersistentTier(f"file://{folder}").read(run.state, 1).numel()


def test_shards_of_fsdp2_come_back_and_can_be_read_unsharded_and_by_one_rank_alone(pools, tmp_path):
    results = pools(2).run(on_a_rank, str(tmp_path), "fsdp2")
    assert all(image and continued for image, continued, _ in results)
    assert torch.equal(*pools(2).run(resharded_on_a_rank, str(tmp_path)))
    first, second = pools(2).run(read_on_one_rank, str(tmp_path), timeout_s=60)
    assert first == 0 < second
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
