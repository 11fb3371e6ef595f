"""Carrying on from a checkpoint so that nothing differs from a run that never stopped, bit for bit.

    keep(state, slot, iteration)                                      # after every optimizer step
    iteration = resume_(state, slot.latest().data, throw_away)        # in new processes

What: DistributedDataParallel sums gradients in buckets. It lays them out in the order of the parameters, and again, in
the order in which gradients became ready, after its first backward pass. A new process that loaded a state and went on
would do its first backward pass in the first layout, sum in another order and differ in the last bits from the run that
was interrupted (on two ranks a sum has one order, so nothing shows; on four it does). So a resumed process runs two
backward passes whose result is thrown away, one that rebuilds the buckets and one in the new ones, and loads the state
after them. A run from iteration 0 must not: the run that it is compared with did not.
FSDP2 has a fixed order and needs none.
Source: thesis, chapter 6 (Gemini), section 6.6; bit for bit is this project's own requirement.
Simplified: the passes run on any batch; what they change (buffers, random numbers, the data position) is loaded after.
Left out: a change of the number of ranks; operations that are not deterministic by themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from workbench.techniques.gemini.runtime.layout import as_bytes
from workbench.techniques.gemini.runtime.replicas import Slot
from workbench.techniques.gemini.runtime.state import TrainingState

__all__ = ["CHUNK_BYTES", "THROW_AWAY_PASSES", "keep", "resume_", "throw_away_passes"]

CHUNK_BYTES = 32 * 2**20  # Section 6.7.4: sub-buffers of 32 MB
THROW_AWAY_PASSES = 2  # The first backward pass rebuilds DDP's buckets, the second runs in them


def keep(state: TrainingState, slot: Slot, iteration: int, chunk_bytes: int = CHUNK_BYTES) -> None:
    """Write the state of an iteration into a slot, chunk by chunk, straight from the live tensors."""
    if chunk_bytes < 1:
        raise ValueError(f"chunk_bytes: {chunk_bytes} must be at least 1")
    state.capture(iteration)
    slot.begin(iteration, state.num_bytes)
    for offset in range(0, state.num_bytes, chunk_bytes):
        size = min(chunk_bytes, state.num_bytes - offset)
        state.read_into_(offset, slot.view(offset, size))
        slot.commit(offset, size)
    slot.complete()


def resume_(
    state: TrainingState, image, throw_away: Callable[[], Tensor] | None = None, num_passes: int = THROW_AWAY_PASSES
) -> int:
    """Put a stored state into a new process so that training goes on bit for bit."""
    if image is None:
        return 0
    image = as_bytes(image)
    state.check(image)
    if isinstance(state.model, DistributedDataParallel):
        throw_away_passes(state, throw_away, num_passes)
    return state.load_(image)


def throw_away_passes(state: TrainingState, throw_away: Callable[[], Tensor] | None, num_passes: int) -> None:
    """Run backward passes and drop their gradients, so that DistributedDataParallel settles its buckets."""
    if num_passes and throw_away is None:
        raise ValueError("throw_away: DistributedDataParallel needs it, or its first sums are taken in another order")
    for _ in range(num_passes):
        with torch.enable_grad():
            throw_away().backward()
        state.optimizer.zero_grad(set_to_none=True)
