"""Straggler-tolerant tensor parallelism: ZERO-resizing, migration and SEMI-migration.

Paper: "Accelerating Heterogeneous Tensor Parallelism via Flexible Workload Control" (figures 2-11, table I).

Claim: where one rank of a tensor-parallel group is slow, all wait for it at every all-reduce. It need not multiply all
of its columns: it can drop some at a small loss of accuracy, hand some to others at none, or do both. The paper's
efficiency is better by 18.5 % with equal ranks and by 77.6 % with unequal ones.

Where to find it
- section III-A and figure 2, products of fewer columns, forward and backward: `method.resizing`; the worked example:
  `method.worked_example`; which columns were dropped: `method.lineage`
- Eq. 1, how many a straggler drops: `method.ratio.pruning_ratio`; its bound: `method.ratio.speedup_bound`
- section III-B, which ones (Rd, Pri, PriDiffE, PriDiffR): `method.priority`
- section IV-A, broadcast-reduce, scatter-gather, virtual renumbering: `method.migration`, `runtime.delivery`
- Eq. 2, how one straggler divides its columns: `method.semi.split_of_one`; Eq. 3, how many of several migrate:
  `method.semi.num_senders`; both together: `plan_semi`; the costs they ask for: `method.costs`, `runtime.pre_test`
- algorithms 1 and 2 at run time: `balance`, `runtime.balancer.Balancer`
- table I and figures 5 to 11 on eight V100s: `cost`, such as `migration_epoch_time_s`
- ours: all ranks at one level, `method.levelling`; the certified best division, `method.optimum`; who wins where,
  `cost.winner_map`

One line for your own tensor-parallel model: `balancer = balance(model, group)`, and each step of training in
`with balancer.iteration():`. That runs on ranks; before any starts, `check_policy(policy, num_ranks)` refuses a policy
and `check_model(build, num_ranks)` a model.

Simplified: one pair of shares (dropped, migrated) a rank for all layers, but for PriDiff's ratios by layer; stragglers
are slow in the products of parallel linears, and in nothing else. The accuracy study trains small models with AdamW,
flips of images and no shifts, and scores them once, at the end.
Left out: pipelines around the tensor group.
"""

from __future__ import annotations

import importlib

__all__ = [
    "Plan",
    "Policy",
    "Solution",
    "balance",
    "check_model",
    "check_policy",
    "migration_epoch_time_s",
    "plan_semi",
]

_HOMES = {
    "Plan": "method.plan",
    "Policy": "runtime.policy",
    "Solution": "method.solution",
    "balance": "runtime.balance",
    "check_model": "runtime.balance",
    "check_policy": "runtime.planning",
    "migration_epoch_time_s": "cost",
    "plan_semi": "method.semi",
}


def __getattr__(name: str):
    # Lazy, so that a catalogue can be listed without importing torch.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
