"""Straggler-tolerant tensor parallelism: ZERO-resizing, migration and SEMI-migration.

Paper: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control" (figures 2-11, table I).

Claim: where one rank of a tensor-parallel group is slow, all wait for it at every all-reduce. It need not multiply all
of its columns: it can drop some at a small loss of accuracy, hand some to others at none, or do both. The paper's
efficiency is better by 18.5 % with equal ranks and by 77.6 % with unequal ones.

Where to find it
- section III-A and figure 2, products of fewer columns, forward and backward, and their lineage: `method.resizing`; the
  worked example: `method.worked_example`
- Eq. 1, how many a straggler drops: `method.planners.pruning_ratio`; its bound: `method.planners.speedup_bound`
- section III-B, which ones (Rd, Pri, PriDiff in two readings): `method.resizing`, `runtime.policy`
- section IV-A, broadcast-reduce and scatter-gather: `runtime.division`; virtual renumbering: `method.plan.receivers_of`
- Eq. 2, how one straggler divides its columns: `method.planners.split_of_one`; Eq. 3, how many of several migrate:
  `method.planners.num_senders`; both together: `plan_semi`; their costs: `method.plan.Costs`, `runtime.pre_test`
- algorithms 1 and 2: `method.planners.plan_for`; at run time: `balance`, `runtime.balancer.Balancer`
- table I and figures 5 to 11 on eight V100s: `cost`, such as `migration_epoch_time_s`
- ours: all ranks at one level, `method.planners.levelled_plan`; the certified best division, `method.optimum`; who
  wins where, `simulated.map_rows`

One line for your own tensor-parallel model, of the workbench's parallel linears or cut by torch's parallelize_module:
`balancer = balance(model, group)`, and each step of training in `with balancer.iteration():`. That runs on ranks;
before any starts, `check_policy(policy, num_ranks)` refuses a policy and `check_model(build, num_ranks)` a model.

Simplified: one pair of shares (dropped, migrated) a rank for all layers, but for PriDiff's ratios by layer. Stragglers
are slow in the products of parallel linears alone. A rank is a straggler only if it is a tenth slower than the fastest;
Eq. 1 is taken of un-resized times, since with printed ones its ratio swings. All receivers take as many of a sender's
columns. The model of an iteration has ranks wait once, at its end, overlaps nothing, and gives alloc of Eq. 2 no cost.
The pre-test has one sender and straight lines; a cost that falls with the share is made level. Rank 0 plans for all.
Broadcast-reduce sends columns of gradients back one by one; scatter-gather sends each receiver its own columns on
ranks, and all of them in `cost`, which has one rate for all products, launches nothing, and takes table I for ViT-1B's.
Reconstructed, since the text at hand lost them: the formulas of Eq. 1 to 3, PriDiff's ratio by layer and its threshold
of candidate columns, and the bodies of both algorithms. They follow the words around them.
The accuracy study trains small models with AdamW, flips of images and no shifts, and scores them once, at the end.
The timing study trains on one fixed batch of random numbers; an epoch is an iteration times the iterations of CIFAR-10.
Left out: pipelines around the tensor group; fully_shard on top of parallelize_module, which is refused;
receivers of different speeds; renewing the costs during training.
"""

import importlib

_HOMES = {
    "Plan": "method.plan",
    "Policy": "runtime.policy",
    "Solution": "method.plan",
    "balance": "runtime.balancer",
    "check_model": "runtime.balancer",
    "check_policy": "runtime.policy",
    "migration_epoch_time_s": "cost",
    "plan_semi": "method.planners",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str):
    # Lazy, so that a catalogue can be listed without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
