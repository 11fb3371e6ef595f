"""Zen for a model of your own: one tensor's all-reduce, and a communication hook of DistributedDataParallel."""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts
from workbench.parallel.hooks import require_one_plan, warn_if_late

from .exchange import Sparse, Wire
from .schemes import SCHEMES, SEED, Scheme, zen

__all__ = ["SparseSynchroniser", "all_reduce_sparse", "synchronise"]

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


class SparseSynchroniser:
    """Sums sparse gradients over the ranks of a group, and counts what this rank sends and receives.

    Args:
        group: None for the default group.
        scheme: of `SCHEMES`, or a function like those.
        seed: of h0, equal on all ranks; for Zen alone.
        ranks_per_host: with more than 1, ranks of a host first sum densely, each a shard of the tensor, and each shard
            is summed over the hosts by the scheme (section 3.4.1); consecutive ranks share a host. All ranks of the
            default group make the synchroniser together.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        scheme: str | Scheme = "Zen",
        seed: int = SEED,
        ranks_per_host: int = 1,
    ):
        if isinstance(scheme, str) and scheme not in SCHEMES:
            raise ValueError(f"scheme is {scheme!r}; it must be one of {', '.join(SCHEMES)}")
        require_counts(1, ranks_per_host=ranks_per_host)
        size = dist.get_world_size(group)
        if size % ranks_per_host:
            raise ValueError(f"ranks_per_host is {ranks_per_host}; it must divide the {size} ranks")
        self._sum = SCHEMES[scheme] if isinstance(scheme, str) else scheme
        self._seeded = {"seed": seed} if self._sum is zen else {}
        self._host, between = None, group
        if ranks_per_host > 1:
            self._host, between = _groups(group, size, ranks_per_host)
        self.wire = Wire(between)

    def all_reduce(self, gradient: Tensor) -> Tensor:
        """Return the sum over the ranks, in the gradient's layout: [rows, ...], sparse or dense.

        Raises:
            ValueError: on all ranks, if they disagree in shape, dtype or seed.
        """
        if self._host is None:
            return self._sum(Sparse.of(gradient), self.wire, **self._seeded).like(gradient)
        whole = gradient.to_dense() if gradient.layout == torch.sparse_coo else gradient
        shard = _own_shard_of_sum(whole, self._host)
        shard = self._sum(Sparse.of(shard), self.wire, **self._seeded).to_dense()
        total = _all_shards(shard, self._host)[: len(whole)]
        return Sparse.of(total).like(gradient) if gradient.layout == torch.sparse_coo else total


def _groups(group: dist.ProcessGroup | None, size: int, per_host: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return this rank's group on its host, and that of the ranks of other hosts with its shard."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    inside = [ranks[first : first + per_host] for first in range(0, size, per_host)]
    across = [ranks[local::per_host] for local in range(per_host)]
    own, _ = dist.new_subgroups_by_enumeration(inside)
    between, _ = dist.new_subgroups_by_enumeration(across)
    return own, between


def _own_shard_of_sum(whole: Tensor, host: dist.ProcessGroup) -> Tensor:
    """Return this rank's shard of the sum of a host's tensors; gloo's own reduce-scatter sends all of them twice."""
    size, rank = dist.get_world_size(host), dist.get_rank(host)
    rows = -(-len(whole) // size)
    padded = torch.cat([whole, whole.new_zeros(rows * size - len(whole), *whole.shape[1:])])
    arrived = torch.empty_like(padded)
    dist.all_to_all_single(arrived, padded, group=host)
    return arrived.view(size, rows, *whole.shape[1:]).sum(dim=0) if size > 1 else padded[rank * rows :]


def _all_shards(shard: Tensor, host: dist.ProcessGroup) -> Tensor:
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(host))]
    dist.all_gather(shards, shard.contiguous(), group=host)
    return torch.cat(shards)


def all_reduce_sparse(tensor: Tensor, group: dist.ProcessGroup | None = None, *, seed: int = SEED) -> Tensor:
    """Return the sum of a sparse tensor over the ranks of a group, by Zen; all ranks of the group call it.

    Args:
        tensor: [rows, ...], of any float dtype, on any device; `torch.sparse_coo` with one sparse dimension, equal
            indices of which are summed, or dense with few rows that are not zero.
        group: None for the default group.
        seed: of the hash function, equal on all ranks.

    Returns:
        The sum, in the tensor's layout; the same bits on all ranks.

    Raises:
        ValueError: on all ranks, if they disagree in shape, dtype or seed.

    Source: section 3.3. It also works where NCCL has no all-reduce of sparse tensors.
    """
    return SparseSynchroniser(group, seed=seed).all_reduce(tensor)


def synchronise(
    model: DistributedDataParallel, *, scheme: str | Scheme = "Zen", seed: int = SEED, ranks_per_host: int = 1
) -> SparseSynchroniser:
    """Sum the gradients of a model's embeddings by Zen from the next backward pass on, the others densely.

    Args:
        model: whose backward pass has no other communication hook; made with `bucket_cap_mb=zen.BUCKET_MB`, so that
            each gradient travels alone. Its embeddings may be sparse or dense; all ranks call it.
        scheme: of `SCHEMES`, or a function like those.
        seed: of the hash function, equal on all ranks.
        ranks_per_host: see `SparseSynchroniser`.

    Returns:
        What sums the embeddings' gradients: its `wire` counts their bytes.

    Raises:
        ValueError: if the model has no embedding, or ranks disagree about scheme or seed.
    """
    tables = {module.weight for module in model.module.modules() if isinstance(module, EMBEDDINGS)}
    if not any(table.requires_grad for table in tables):
        raise ValueError("model has no embedding that is trained; its gradients are not sparse")
    named = scheme if isinstance(scheme, str) else "a function"
    require_one_plan(f"{named}, seed {seed}, {ranks_per_host} ranks a host")
    warn_if_late(model, "zen")
    sparse = SparseSynchroniser(model.process_group, scheme=scheme, seed=seed, ranks_per_host=ranks_per_host)
    size = dist.get_world_size(model.process_group)

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer, parameters = bucket.buffer(), bucket.parameters()
        if len(parameters) > 1 or parameters[0] not in tables:
            work = dist.all_reduce(buffer.div_(size), group=model.process_group, async_op=True)
            return work.get_future().then(lambda done: done.value()[0])
        gradient = buffer if buffer.layout == torch.sparse_coo else bucket.gradients()[0]
        total = sparse.all_reduce(gradient).div_(size)
        future: torch.futures.Future[Tensor] = torch.futures.Future(
            devices=[buffer.device] if buffer.device.type == "cuda" else []
        )
        future.set_result(total if buffer.layout == torch.sparse_coo else total.view(-1))
        return future

    model.register_comm_hook(None, hook)
    return sparse
