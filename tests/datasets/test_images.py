"""CIFAR-10 from each of its places, and the digits that stand in for it."""

import io
import os

import numpy as np
import pyarrow as pa
import pytest
from cases import refusals
from PIL import Image
from pyarrow import parquet
from sklearn.datasets import load_digits

from workbench.datasets import ImageDataset, SourceKind, cifar10, digits
from workbench.datasets.manifest import FileStatus, entry_named, verify
from workbench.datasets.source import DataSource

REAL = os.environ.get("WORKBENCH_DATA", "")


def rows() -> tuple[np.ndarray, dict]:
    """Three drawn images [N, H, W, C], and the hub's table of them."""
    images, files = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8), []
    for image in images:
        stream = io.BytesIO()
        Image.fromarray(image).save(stream, "PNG")
        files.append({"bytes": stream.getvalue(), "path": None})
    return images, {"img": files, "label": [2, 0, 9]}


def test_without_cifar_10_the_digits_stand_in_and_say_that_they_are_another_data_set(empty_machine):
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


def test_the_hubs_files_and_prepared_ones_are_read_from_the_cache_in_the_layout_of_the_folder(empty_machine, prepare):
    folder = empty_machine / "hf" / "hub" / "datasets--uoft-cs--cifar10" / "snapshots" / "c" / "plain_text"
    folder.mkdir(parents=True)
    images, table = rows()
    parquet.write_table(pa.table(table), folder / "train-00000-of-00001.parquet")
    dataset = cifar10.load("train")
    assert dataset.source.kind is SourceKind.HUB
    assert "3 of 50,000 images: accuracies are not comparable" in dataset.source.detail
    assert np.array_equal(dataset.images, images.transpose(0, 3, 1, 2)) and dataset.images.flags.c_contiguous
    assert dataset.labels.tolist() == [2, 0, 9]
    prepare("uoft-cs___cifar10/plain_text", "cifar10-test.arrow", table)
    assert np.array_equal(cifar10.load("test").images, dataset.images)


def test_a_smaller_sample_of_images_is_a_prefix_of_a_larger_one(empty_machine):
    small, large = cifar10.load("train", 20, seed=1), cifar10.load("train", 50, seed=1)
    assert np.array_equal(small.images, large.images[:20]) and np.array_equal(small.labels, large.labels[:20])
    assert not np.array_equal(cifar10.load("train", 20, seed=2).images, small.images)
    assert small.source.detail.startswith("20 images chosen from: ")


def image_dataset(**changes):
    source = DataSource(name="x", kind=SourceKind.STAND_IN, detail="", sha256="")
    fitting = {"images": np.zeros((2, 1, 8, 8), np.uint8), "labels": np.array([0, 1])}
    return ImageDataset(name="x", split="train", class_names=("a", "b"), source=source, **fitting | changes)


REFUSED = refusals(
    (lambda: image_dataset(images=np.zeros((2, 8, 8), np.uint8)), "images of x: uint8"),
    (lambda: image_dataset(labels=np.zeros(3, np.int64)), r"labels of x: \(3,\) for 2 images"),
    (lambda: image_dataset(labels=np.array([0, 2])), r"labels of x: must lie in 0 .. 1"),
    (lambda: cifar10.load("validation"), "split is 'validation'; it must be one of train, test"),
    (lambda: cifar10.load("train", limit=0), "limit is 0, must be at least 1"),
    (lambda: digits.load(instead_of="cifar10", side_pixels=20), "side_pixels is 20, must be a multiple of 8"),
)
test_images_labels_and_splits_that_do_not_fit_are_refused = pytest.mark.usefixtures("empty_machine")(REFUSED)


@pytest.mark.skipif(not REAL, reason="WORKBENCH_DATA names no folder of real data")
def test_the_real_folder_holds_a_balanced_subset_of_a_fifth():
    assert {file.split: file.rows for file in entry_named("cifar10").files} == {"train": 10_000, "test": 2_000}
    assert {check.status for check in verify("cifar10")} == {FileStatus.OK}
    dataset = cifar10.load("test")
    assert dataset.images.shape == (2000, 3, 32, 32)
    assert np.bincount(dataset.labels).tolist() == [200] * 10
    assert dataset.source.kind is SourceKind.WORKBENCH_DATA and "decoded from JPEG" in dataset.source.detail
