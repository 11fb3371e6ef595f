"""Which tier serves whom after a failure, on paper: machines keep what their placement says, and some are lost.

Source: thesis, chapter 6 (Gemini), sections 6.3.1 and 6.6.2; what decides: `techniques.gemini.method.recovery`.
Simplified: one rank a machine; every replica is complete and of the same iteration.
Left out: replicas that are incomplete or corrupt.
"""

from __future__ import annotations

from collections.abc import Collection

from workbench.techniques.gemini.method.placement import Placement, replicas_kept
from workbench.techniques.gemini.method.recovery import Held, RecoveryPlan, plan_recovery

__all__ = ["plan_after"]


def plan_after(
    placed: Placement, lost: Collection[int], *, in_memory: int, in_storage: Collection[int] = ()
) -> RecoveryPlan:
    """Plan the recovery after machines were lost and replaced by others, whose memory is empty.

    Args:
        placed: who keeps whose shard.
        lost: machines whose memory is gone; nobody's for a software failure.
        in_memory: the iteration of every replica.
        in_storage: iterations that are complete in persistent storage.

    Returns:
        Where each rank's state comes from, and of which iteration.

    Raises:
        ValueError: if a machine that does not exist is lost, or an iteration is negative.
    """
    unknown = sorted(set(lost) - set(range(placed.num_machines)))
    if unknown:
        raise ValueError(f"lost is {sorted(lost)!r}; machines are 0 to {placed.num_machines - 1}")
    held = Held(iteration=in_memory)
    holdings = {
        machine: {shard: [held] for shard in shards}
        for machine, shards in enumerate(replicas_kept(placed))
        if machine not in lost
    }
    return plan_recovery(holdings, placed.num_machines, in_storage)
