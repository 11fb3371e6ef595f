"""One random stream for every named place in a model.

What: a generator whose seed follows from a run's seed and a name. Ranks that draw
for the same name draw the same numbers, whichever layers they hold, so a model cut
over tensor or pipeline ranks starts equal to the uncut one and drops the same units.
The global generator is never touched. Codecs derive their seeds by the same rule.
"""

import torch

from workbench.compression.codec import site_seed

__all__ = ["generator_for"]


def generator_for(seed: int, site: str, device: torch.device | str = "cpu") -> torch.Generator:
    """Make the generator of one named place.

    Args:
        seed: The run's seed.
        site: Name of the place, such as "layers.3.mlp.input.weight".
        device: Where the numbers are drawn.

    Returns:
        A fresh generator, the same for equal (seed, site, device type).
    """
    return torch.Generator(device).manual_seed(site_seed(seed, site))
