"""Images to learn from: normalised, varied alike on every rank, learnt by a cut Vision Transformer."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from tests.cases import refusals
from workbench.datasets import digits
from workbench.models import ViTConfig, ViTForImageClassification
from workbench.parallel import ProcessTensorGroup, TensorGroup, VirtualTensorGroup
from workbench.parallel.pipeline import VirtualPipeline
from workbench.study.images import DEVIATION, MEAN, Augmentation, ImageBatch, ImageExamples, accuracy
from workbench.study.loop import Recipe, TrainingRun, train

RECIPE = Recipe(epochs=8, batch=50, learning_rate=1e-2, drop_last=True)
CONFIG = ViTConfig(hidden_size=16, num_layers=1, num_heads=2, mlp_size=32, image_size=8, patch_size=4)


def few(split: str, count: int) -> ImageExamples:
    dataset = digits.load(split, instead_of="cifar10", side_pixels=8, num_colours=3)
    return ImageExamples.of(dataset.sample(count, 0))


def numbered_batch() -> ImageBatch:
    """Two images of one colour and 3 x 3 pixels: 1 to 9, and 11 to 19."""
    pixels = torch.arange(1.0, 10.0).view(1, 1, 3, 3)
    return ImageBatch(inputs=torch.cat([pixels, pixels + 10]), labels=torch.tensor([0, 1]))


def pipeline(group: TensorGroup) -> VirtualPipeline:
    return VirtualPipeline([ViTForImageClassification(CONFIG, group)], loss=functional.cross_entropy)


def test_a_batch_is_normalised_by_the_published_constants():
    pixels = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    pixels[1] = 255
    batch = ImageExamples(images=pixels, labels=torch.tensor([4, 7])).batch(np.array([1, 0]))
    assert batch.labels.tolist() == [7, 4]
    for colour in range(3):  # white is (1 - mean) / deviation, black is -mean / deviation
        white, black = (1 - MEAN[colour]) / DEVIATION[colour], -MEAN[colour] / DEVIATION[colour]
        torch.testing.assert_close(batch.inputs[0, colour], torch.full((8, 8), white))
        torch.testing.assert_close(batch.inputs[1, colour], torch.full((8, 8), black))


def test_a_flip_mirrors_whole_images_about_half_of_the_time():
    augment, flipped = Augmentation(shift_pixels=0), 0
    images = numbered_batch().inputs
    for step in range(100):
        for before, after in zip(images, augment(numbered_batch(), step).inputs, strict=True):
            is_flipped = torch.equal(after[0], before[0].flip(1))
            assert is_flipped or torch.equal(after, before)
            flipped += is_flipped
    # 200 draws of probability 1/2: mean 100, deviation 7.
    assert 65 < flipped < 135


def test_a_shift_moves_an_image_by_whole_pixels_and_leaves_zeros_behind():
    augment, moves = Augmentation(flips=False, shift_pixels=1), set()
    for step in range(100):
        (after,) = augment(numbered_batch(), step).inputs[0]
        grown = torch.zeros(5, 5)
        grown[1:4, 1:4] = numbered_batch().inputs[0, 0]
        fitting = [(y, x) for y in range(3) for x in range(3) if torch.equal(grown[y : y + 3, x : x + 3], after)]
        assert len(fitting) == 1
        moves.add(fitting[0])
    assert len(moves) == 9  # up, down, sideways by at most one pixel


def test_equal_seeds_and_steps_vary_alike_and_others_do_not():
    before = torch.get_rng_state()
    batch = few("train", 50).batch(range(50))
    first, again, next_step, other_seed = (
        Augmentation(seed=seed)(batch, step).inputs for seed, step in ((1, 7), (1, 7), (1, 8), (2, 7))
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, next_step) and not torch.equal(first, other_seed)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_vision_transformer_learns_the_digits():
    model, test = pipeline(VirtualTensorGroup(2)), few("test", 297)
    assert accuracy(model, test, RECIPE) < 0.25  # ten classes: a tenth, by chance
    run = train(model, few("train", 1500), RECIPE, augment=Augmentation(flips=False, shift_pixels=0))
    assert (run.num_steps, run.num_examples) == (8 * 30, 8 * 1500)
    assert accuracy(model, test, RECIPE) > 0.75


def trained(group_of: Callable[[], TensorGroup]) -> TrainingRun:
    recipe, augment = replace(RECIPE, epochs=3), Augmentation(shift_pixels=1)
    return train(pipeline(group_of()), few("train", 100), recipe, augment=augment)


def test_real_ranks_learn_as_one_process_does(pools):
    alone = trained(lambda: VirtualTensorGroup(1))
    for run in pools(2).run(trained, ProcessTensorGroup):
        assert run.losses == pytest.approx(alone.losses, rel=1e-3)


def blank(*shape: int, labels: int) -> Callable[[], ImageExamples]:
    return lambda: ImageExamples(images=torch.zeros(shape, dtype=torch.uint8), labels=torch.zeros(labels))


test_images_and_shifts_that_do_not_fit_are_refused = refusals(
    (blank(2, 3, 8, 8, labels=1), "labels has 1 rows; it must have 2"),
    (blank(2, 1, 8, 8, labels=2), r"shape of images is \(2, 1, 8, 8\); it must be \[N, 3, H, W\]"),
    (lambda: Augmentation(shift_pixels=-1), "shift_pixels is -1; it must be at least 0"),
)
