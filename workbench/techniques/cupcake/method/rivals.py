"""Simpler rules to fuse tensors: the baselines of section 5.4, and the rule of the authors' released scheduler."""

from collections.abc import Callable, Mapping, Sequence

from workbench.checks import require_counts, require_positive

from .problem import FusionProblem, iteration_time

__all__ = ["BUCKETS_MB", "GROUPS", "best_of", "buckets", "ddp_buckets", "each", "even_split", "rules", "single_split"]

MB = 2**20  # as DistributedDataParallel counts
BUCKETS_MB = (2, 4, 8, 16, 32, 64)  # section 5.4.3
GROUPS = range(2, 33)  # section 5.4.3: from 2 to 32
FIRST_MB, DDP_MB = 1, 25  # DistributedDataParallel's defaults: dist._DEFAULT_FIRST_BUCKET_BYTES and bucket_cap_mb

Fusion = tuple[int, ...]


def each(problem: FusionProblem) -> Fusion:
    """Give every tensor a group of its own, as GRACE does."""
    return tuple(range(1, problem.num_tensors + 1))


def buckets(problem: FusionProblem, bucket_mb: float, first_mb: float | None = None) -> Fusion:
    """Close a group as soon as it holds `bucket_mb` MiB, the first group at `first_mb`; the last holds the rest."""
    limit_mb = bucket_mb if first_mb is None else first_mb
    require_positive(bucket_mb=bucket_mb, first_mb=limit_mb)
    ends, held_bytes = [], 0.0
    for end, size in enumerate(problem.size_bytes, 1):
        held_bytes += size
        if held_bytes >= limit_mb * MB or end == problem.num_tensors:
            ends.append(end)
            held_bytes, limit_mb = 0.0, bucket_mb
    return tuple(ends)


def ddp_buckets(problem: FusionProblem) -> Fusion:
    """Fuse as DistributedDataParallel does by default: a first bucket of 1 MiB, then buckets of 25 MiB."""
    return buckets(problem, DDP_MB, FIRST_MB)


def even_split(problem: FusionProblem, num_groups: int) -> Fusion:
    """Split into near-equal groups, at most one per tensor."""
    require_counts(1, num_groups=num_groups)
    count = min(num_groups, problem.num_tensors)
    return tuple(problem.num_tensors * group // count for group in range(1, count + 1))


def single_split(problem: FusionProblem) -> Fusion:
    """Return the best of one group and all splits into two groups, as the authors' released scheduler does."""
    num = problem.num_tensors
    return best_of(problem, [(num,), *((end, num) for end in range(1, num))])


def best_of(problem: FusionProblem, fusions: Sequence[Fusion]) -> Fusion:
    """Return the fusion with the shortest iteration, the first if several are equal."""
    return min(fusions, key=lambda fusion: iteration_time(problem, fusion))


def rules(bucket_scale: float = 1.0) -> Mapping[str, Callable[[FusionProblem], Fusion]]:
    """Return all rules by name; a rule with several sizes takes the best size, as in the paper.

    Bucket fusion tries the sizes of section 5.4.3, multiplied by `bucket_scale`.
    """
    sizes = [bucket_scale * size for size in BUCKETS_MB]
    return {
        "Layer-wise": each,
        "Bucket fusion": lambda problem: best_of(problem, [buckets(problem, size) for size in sizes]),
        "DDP's buckets": ddp_buckets,
        "Evenly split": lambda problem: best_of(problem, [even_split(problem, count) for count in GROUPS]),
        "Single split": single_split,
    }
