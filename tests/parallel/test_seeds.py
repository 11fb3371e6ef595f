"""Random streams of named places: one rule for layers and codecs."""

import torch

from workbench.compression.codec import site_seed
from workbench.parallel import generator_for


def test_layers_and_codecs_derive_the_same_seed_from_the_same_name():
    for seed, site in [(0, ""), (3, "layers.1.mlp.output")]:
        assert generator_for(seed, site).initial_seed() == site_seed(seed, site)


def test_another_seed_or_name_gives_other_numbers():
    draws = [torch.rand(2, generator=generator_for(*place)) for place in [(0, "a"), (0, "b"), (1, "a"), (0, "a")]]
    assert torch.equal(draws[0], draws[3])
    assert not torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
