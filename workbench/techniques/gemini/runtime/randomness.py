"""The state of every random-number generator that training may draw from.

What: torch's generator of the CPU and, where CUDA is in use, of the current device; Python's; NumPy's global one; and
generators that modules of the model keep as attributes (such as this project's own dropout).
Source: none. Simplified: one CUDA device a rank.
Left out: generators that only the user's code knows: it adds them as objects with state_dict and load_state_dict.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import nn

__all__ = ["module_generators", "random_state", "restore_random_state_"]


def module_generators(model: nn.Module) -> dict[str, torch.Generator]:
    """Find the generators that a model's modules keep as attributes."""
    return {
        f"{name}.{attribute}": value
        for name, module in model.named_modules()
        for attribute, value in vars(module).items()
        if isinstance(value, torch.Generator)
    }


def random_state(generators: dict[str, torch.Generator]) -> dict[str, Any]:
    """Read the state of all generators."""
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if in_use else None,
        "python": _python_state(),
        "numpy": np.random.get_state(legacy=False),
        "modules": {name: generator.get_state() for name, generator in generators.items()},
    }


def restore_random_state_(state: dict[str, Any], generators: dict[str, torch.Generator]) -> None:
    """Put all generators where they were."""
    if state["modules"].keys() != generators.keys():
        raise ValueError(f"generators: {sorted(generators)} are not those of the state, {sorted(state['modules'])}")
    if state["cuda"] is not None and not torch.cuda.is_available():
        raise ValueError("cuda: the state has a generator of CUDA, which is not available here")
    torch.set_rng_state(state["torch"])
    if state["cuda"] is not None:
        torch.cuda.set_rng_state(state["cuda"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words.tolist()), gauss))
    np.random.set_state(state["numpy"])
    for name, generator in generators.items():
        generator.set_state(state["modules"][name])


def _python_state() -> tuple[int, np.ndarray, float | None]:
    """Read Python's generator; its 625 words as an array, since as text they would take 20 times as long to write."""
    version, words, gauss = random.getstate()
    return version, np.array(words, dtype=np.uint32), gauss
