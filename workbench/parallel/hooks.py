"""What communication hooks of DistributedDataParallel share: early buckets, plans that fit model and ranks."""

import warnings
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

__all__ = ["BUCKET_MB", "require_ddp", "require_fp32", "require_one_plan", "require_parameters", "warn_if_late"]

BUCKET_MB = 1e-4  # of DistributedDataParallel: every gradient is a bucket of its own
LATE_BYTES = 2**20  # a larger bucket is handed over late


def warn_if_late(model: DistributedDataParallel, technique: str) -> None:
    """Warn if a model hands its gradients over in large buckets, which a hook that chooses for itself gets late."""
    if model.bucket_bytes_cap > LATE_BYTES:
        mib = model.bucket_bytes_cap / 2**20
        warnings.warn(
            f"DistributedDataParallel hands gradients over in buckets of {mib:g} MiB, late in the backward pass; "
            f"make it with bucket_cap_mb={technique}.BUCKET_MB",
            stacklevel=3,
        )


def require_ddp(model: object) -> None:
    """Raise ValueError if a model is not wrapped."""
    if not isinstance(model, DistributedDataParallel):
        rule = "it must be a DistributedDataParallel, made with bucket_cap_mb=BUCKET_MB of the technique"
        raise ValueError(f"model is a {type(model).__name__}; {rule}")


def require_one_plan(
    plan: str, *, check: Callable[[], None] = lambda: None, group: dist.ProcessGroup | None = None
) -> None:
    """Raise ValueError on every rank if one rank's `check` does, or if plans differ; all ranks of the group call it.

    A rank that raised by itself would leave the others waiting. The error names the ranks and the rule.
    """
    try:
        check()
        error = ""
    except ValueError as refusal:
        error = str(refusal)
    ranks = dist.get_process_group_ranks(group)
    told: list[tuple[str, str]] = [("", "")] * len(ranks)
    dist.all_gather_object(told, (plan, error), group=group)

    def named(at_fault: Callable[[str, str], bool]) -> str:
        return ", ".join(str(rank) for rank, one in zip(ranks, told, strict=True) if at_fault(*one))

    if errors := [error for _, error in told if error]:
        raise ValueError(f"rank {named(lambda _, error: error == errors[0])}: {errors[0]}")
    if differing := named(lambda plan, _: plan != told[0][0]):
        rule = "it must be one plan, made once and given to all ranks"
        raise ValueError(f"the plan of rank {ranks[0]} differs from that of rank {differing}; {rule}")


def require_fp32(module: nn.Module) -> None:
    """Raise ValueError naming a parameter that is trained in another dtype."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ValueError(f"{name} is {parameter.dtype}; parameters must be float32, as autocast leaves them")


def require_parameters(module: nn.Module, num_elements: Mapping[str, int], name_of_model: str = "") -> None:
    """Raise ValueError if a model's trained parameters are not those of a plan, or not in FP32."""
    require_fp32(module)
    found = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    for name in sorted(found.keys() | num_elements.keys()):
        ours, planned = found.get(name), num_elements.get(name)
        if ours != planned:
            sizes = f"{ours or 'none'} elements in the model and {planned or 'none'} in the plan"
            of_what = f", {name_of_model}" if name_of_model else ""
            raise ValueError(f"the plan is of another model{of_what}: {name} has {sizes}")
