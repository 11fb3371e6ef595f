"""Generators of random numbers that are not the global ones: torch's, NumPy's and Python's, and their positions."""

import random
from typing import Any

import numpy as np
import torch

__all__ = ["GENERATORS", "generator_state", "make_generator", "restore_generator_"]

GENERATORS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)  # in the order of their codes


def generator_state(generator: Any) -> Any:
    """Return a generator's position: a tensor, or plain values and arrays."""
    match generator:
        case torch.Generator():
            return generator.get_state()
        case np.random.Generator():
            return generator.bit_generator.state
        case np.random.RandomState():
            return generator.get_state(legacy=False)
    version, words, gauss = generator.getstate()
    return version, np.array(words, dtype=np.uint32), gauss  # as text, 625 words would take 20 times as long


def restore_generator_(generator: Any, state: Any) -> None:
    """Move a generator to a position."""
    match generator:
        case torch.Generator():
            generator.set_state(state.clone())  # it ends the process for a view that begins within its memory
        case np.random.RandomState():
            generator.set_state(state)
        case np.random.Generator():
            generator.bit_generator.state = state
        case _:
            version, words, gauss = state
            generator.setstate((version, tuple(words.tolist()), gauss))


def make_generator(code: int, state: Any, device: str) -> Any:
    """Make a generator of a class of `GENERATORS` at a position."""
    kind = GENERATORS[code]
    if kind is torch.Generator:
        generator: Any = torch.Generator(device)
    elif kind is random.Random:
        generator = random.Random()
    else:
        generator = kind(getattr(np.random, state["bit_generator"])())
    restore_generator_(generator, state)
    return generator
