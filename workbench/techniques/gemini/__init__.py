"""Gemini: checkpoints of every iteration in the memory of peers, and recovery from there.

Paper: "Gemini: Fast Failure Recovery in Distributed Training with In-Memory Checkpoints", chapter 6 of the thesis
(tables 2.1, 6.1, 6.2, figures 6.1 to 6.16).

Claim: persistent storage is so slow that checkpoints there are hours apart, and a failure wastes those hours. The
processors' memory of a cluster is large and its network fast: each machine keeps its own shard and those of m - 1
others, sent in the idle time of training's own traffic, so that every iteration can be checkpointed at no cost. Less
than a thirteenth of the time is wasted.

Where to find it
- algorithm 6.1 (group, mixed, ring), corollary 6.1, theorem 6.1 and the exact probability of recovering from memory:
  `method.placement`
- section 6.5.4, idle spans; algorithm 6.2; figures 6.4, 6.5 and 6.16: `method.interleaving`
- table 6.2; Eqs. 6.1 and 6.2, the time that a failure wastes, and the three policies: `method.waste`; ours: how many
  replicas, and how often, `best_checkpointing`
- section 6.6, which iteration and which tier: `method.recovery`
- on real ranks: a user's loop `runtime.checkpoints`; training's own traffic, idle spans and chunks on their way
  `runtime.transfer`; replicas with checksums and going back `runtime.replicas`; a rank's state as bytes, and the rule
  of what is kept and what is refused, `runtime.state`; persistent storage `runtime.storage`
- section 6.3.2, agents, heartbeats, root, standby machines, and the launcher that restarts: `control`
- the paper's machines and models, trainings under failures: `cost`; rows of figures and tables: `counted`, `simulated`

Three lines in your own loop: `checkpoints = InMemoryCheckpoints(context, model, optimizer)`, `for iteration in
checkpoints.iterations(total):`, and `run_training(train, num_machines)` to start it.

Simplified: machines are processes of one computer, each with its own memory, and its own network card if asked for, or
the hosts of a torchrun job; shards are of one size; every set of k machines is as likely to fail as any other; one
network, on which a chunk that has begun is not interrupted; the loop is profiled once a generation; what travels lies
in processors' memory and goes by gloo; one CUDA device a rank. In `cost` a layer is gathered twice and scattered once,
as one message each, and messages and computing do not slow each other down; trainings under failures have the text's
own round numbers, however many machines there are.
Ours: the state is copied when an iteration ends and training waits for that copy, where the paper copies beside
training; checksums, and resuming bit for bit; all ranks meet before the checkpoint before the last is overwritten, so
that a rank keeps three buffers of its own shard; replicas of a lost machine are sent again at once; checkpoints in
storage are written while training waits.
Left out: elastic training; moving shards when the number of machines changes; FSDP1.
"""

import importlib

_HOMES = {
    "CheckpointOptions": ".runtime.checkpoints",
    "InMemoryCheckpoints": ".runtime.checkpoints",
    "best_checkpointing": ".method.waste",
    "partition_checkpoint": ".method.interleaving",
    "recovery_probability": ".method.placement",
    "run_training": ".control.training",
    "wasted_time_s": ".method.waste",
}

__all__ = [*_HOMES]


def __getattr__(name: str):
    # Lazy, so that a catalogue can be listed without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name], __name__), name)
