"""CIFAR-10 from each of its places, and the digits that stand in for it."""

import io
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits

from workbench.datasets import ImageDataset, SourceKind, cifar10, digits
from workbench.datasets.manifest import FileStatus, entry_named, verify
from workbench.datasets.source import DataSource

pytestmark = pytest.mark.timeout(30)

REAL = os.environ.get("WORKBENCH_DATA", "")


@pytest.fixture
def machine_without_data(tmp_path, monkeypatch) -> Path:
    """A machine with no data at all: no folder named, an empty Hugging Face cache."""
    for variable in ("WORKBENCH_DATA", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "WORKBENCH_ROOT"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path


def png(image_HWC: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(image_HWC).save(stream, "PNG")
    return stream.getvalue()


def rows() -> tuple[np.ndarray, dict]:
    """Three drawn images [N, H, W, C], and the hub's table of them."""
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    return images, {"img": [{"bytes": png(image), "path": None} for image in images], "label": [2, 0, 9]}


def test_without_cifar_10_the_digits_stand_in_and_say_that_they_are_another_data_set(machine_without_data):
    dataset = cifar10.load("test")
    assert dataset.source.kind is SourceKind.STAND_IN and not dataset.source.is_real
    assert dataset.source.as_record()["name"] == "digits/test" and dataset.name == "digits"
    assert "297 of scikit-learn's digits instead of cifar10: real images, but another data set" in dataset.source.detail
    assert dataset.images.shape == (297, 3, 32, 32)


def test_a_digits_pixels_are_repeated_in_both_directions_and_for_every_colour():
    dataset = digits.load("train", instead_of="cifar10", side_pixels=16, num_colours=2)
    # Grey 16 of 16 is 255 of 255, 8 is 127.5, rounded to the even 128.
    grey = load_digits().images[3]
    for colour in range(2):
        for place in ((0, 0), (1, 1)):
            got = dataset.images[3, colour, place[0] :: 2, place[1] :: 2]
            assert np.array_equal(got[grey == 16], np.full((grey == 16).sum(), 255))
            assert np.array_equal(got[grey == 8], np.full((grey == 8).sum(), 128))
    assert len(dataset) == 1500 and dataset.labels[3] == 3


def test_the_hubs_files_are_read_from_the_cache_in_the_layout_of_the_folder(machine_without_data):
    folder = machine_without_data / "hf" / "hub" / "datasets--uoft-cs--cifar10" / "snapshots" / "c" / "plain_text"
    folder.mkdir(parents=True)
    images, table = rows()
    parquet.write_table(pa.table(table), folder / "train-00000-of-00001.parquet")
    dataset = cifar10.load("train")
    assert dataset.source.kind is SourceKind.HUB
    assert "3 of 50,000 images: accuracies are not comparable" in dataset.source.detail
    assert np.array_equal(dataset.images, images.transpose(0, 3, 1, 2)) and dataset.images.flags.c_contiguous
    assert dataset.labels.tolist() == [2, 0, 9]


def test_what_the_datasets_library_prepared_is_read_too(machine_without_data):
    folder = machine_without_data / "hf" / "datasets" / "uoft-cs___cifar10" / "plain_text" / "0.0.0" / "abc"
    folder.mkdir(parents=True)
    images, table = rows()
    table = pa.table(table)
    with pa.OSFile(str(folder / "cifar10-test.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    assert np.array_equal(cifar10.load("test").images, images.transpose(0, 3, 1, 2))


def test_a_smaller_sample_of_images_is_a_prefix_of_a_larger_one(machine_without_data):
    small, large = cifar10.load("train", 20, seed=1), cifar10.load("train", 50, seed=1)
    assert np.array_equal(small.images, large.images[:20]) and np.array_equal(small.labels, large.labels[:20])
    assert not np.array_equal(cifar10.load("train", 20, seed=2).images, small.images)
    assert small.source.detail.startswith("20 images chosen from: ")


def test_an_unknown_split_limit_or_size_is_refused_with_the_rule(machine_without_data):
    with pytest.raises(ValueError, match="split is 'validation', must be one of train, test"):
        cifar10.load("validation")
    with pytest.raises(ValueError, match="limit is 0, must be at least 1"):
        cifar10.load("train", limit=0)
    with pytest.raises(ValueError, match="side_pixels is 20, must be a multiple of 8"):
        digits.load(instead_of="cifar10", side_pixels=20)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"images": np.zeros((2, 8, 8), np.uint8)}, r"images of x: uint8 \(2, 8, 8\), must be uint8 \[N, C, H, W\]"),
        ({"labels": np.zeros(3, np.int64)}, r"labels of x: \(3,\) for 2 images"),
        ({"labels": np.array([0, 2])}, r"labels of x: must lie in 0 .. 1"),
    ],
)
def test_images_and_labels_that_do_not_fit_are_refused(changes, told):
    source = DataSource(name="x", kind=SourceKind.STAND_IN, detail="", sha256="")
    fitting = {"images": np.zeros((2, 1, 8, 8), np.uint8), "labels": np.array([0, 1])}
    with pytest.raises(ValueError, match=told):
        ImageDataset(name="x", split="train", class_names=("a", "b"), source=source, **fitting | changes)


def test_the_manifest_has_a_fifth_of_each_split_and_says_that_it_was_jpeg():
    entry = entry_named("cifar10")
    assert {file.split: file.rows for file in entry.files} == {"train": 10_000, "test": 2_000}
    assert "decoded from JPEG" in entry.note


@pytest.mark.skipif(not REAL, reason="WORKBENCH_DATA names no folder of real data")
def test_the_real_folder_holds_a_balanced_subset():
    assert {check.status for check in verify("cifar10")} == {FileStatus.OK}
    dataset = cifar10.load("test")
    assert dataset.images.shape == (2000, 3, 32, 32)
    assert np.bincount(dataset.labels).tolist() == [200] * 10
    assert dataset.source.kind is SourceKind.WORKBENCH_DATA and "decoded from JPEG" in dataset.source.detail
