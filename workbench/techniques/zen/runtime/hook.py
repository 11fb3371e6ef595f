"""Zen for a model of your own: one tensor's all-reduce, and a communication hook of DistributedDataParallel."""

import warnings
import weakref
from collections.abc import Mapping
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.checks import require_counts
from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.hooks import require_ddp, require_one_plan, warn_if_late
from workbench.parallel.timeouts import naming_lost_ranks, timeout_of

from .exchange import Sparse, Wire
from .schemes import SCHEMES, SEED, Scheme, dense, zen

__all__ = ["SparseSynchroniser", "all_reduce_sparse", "synchronise"]

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


class SparseSynchroniser:
    """Sums sparse gradients over the ranks of a group, and counts what this rank sends and receives.

    Args:
        group: None for the default group.
        scheme: a name in `SCHEMES`, or a function with the same arguments.
        seed: seed of h0, equal on all ranks; only Zen uses it.
        ranks_per_host: if above 1, each rank of a host first sums one shard of the dense tensor over the host, then
            the scheme sums each shard over the hosts (section 3.4.1). Consecutive ranks share a host. The group must
            then have all ranks, and all of them create the synchroniser together.
    """

    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        scheme: str | Scheme = "Zen",
        seed: int = SEED,
        ranks_per_host: int = 1,
    ):
        size = dist.get_world_size(group)
        _check(scheme, ranks_per_host, size)
        named = _name_of(scheme)
        self._state = {"scheme": named, "seed": seed, "ranks_per_host": ranks_per_host, "num_ranks": size}
        self._sum = SCHEMES[scheme] if isinstance(scheme, str) else scheme
        self._facts = {"scheme": named, "seed": seed}
        self._seeded = {"seed": seed} if self._sum is zen else {}
        self._whole, self._host, between = Wire(group), None, group
        if ranks_per_host > 1:
            self._host, between = _groups(group, size, ranks_per_host)
        self.wire = Wire(between)

    def all_reduce(self, gradient: Tensor) -> Tensor:
        """Return the sum over the ranks, in the gradient's layout: [rows, ...], sparse or dense.

        Raises:
            ValueError: on all ranks, if a rank has an index out of range, or if ranks differ in shape, dtype, layout,
                scheme or seed.
        """
        own, error = None, ""
        try:
            own = Sparse.of(gradient) if self._host is None and not self._is_dense(gradient) else None
            whole = gradient.to_dense() if own is None else gradient
        except (ValueError, RuntimeError) as refusal:
            error = str(refusal)
        tensor = {"dtype": gradient.dtype, "shape": tuple(gradient.shape), "layout": gradient.layout}
        self._whole.agree(self._facts | tensor, error)
        if own is not None:
            return self._sum(own, self.wire, **self._seeded).like(gradient)
        if self._host is None:
            return self.wire.all_reduce(whole)
        shard = _own_shard_of_sum(whole, self._host)
        shard = self._sum(Sparse.of(shard), self.wire, **self._seeded).to_dense()
        total = _all_shards(shard, self._host)[: len(whole)]
        return Sparse.of(total).like(gradient) if gradient.layout == torch.sparse_coo else total

    def state_dict(self) -> dict[str, str | int]:
        """Return the settings that a resumed training must repeat; there is no other state."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, str | int]) -> None:
        """Check that a resumed training has the same settings; ValueError names a different one."""
        if state.keys() != self._state.keys():
            raise ValueError(f"state has {', '.join(state) or 'nothing'}; it must have {', '.join(self._state)}")
        for name, value in self._state.items():
            if state[name] != value:
                raise ValueError(f"{name} is {value!r} and was {state[name]!r} before; sums would differ")

    def _is_dense(self, gradient: Tensor) -> bool:
        """Whether all is summed as it is."""
        return self._sum is dense and gradient.layout == torch.strided


def _name_of(scheme: str | Scheme) -> str:
    return scheme if isinstance(scheme, str) else getattr(scheme, "__name__", "a function")


def _check(scheme: str | Scheme, ranks_per_host: int, num_ranks: int) -> None:
    """Raise ValueError if a scheme is unknown, or if the ranks do not fill the hosts."""
    if isinstance(scheme, str) and scheme not in SCHEMES:
        raise ValueError(f"scheme is {scheme!r}; it must be one of {', '.join(SCHEMES)}")
    require_counts(1, ranks_per_host=ranks_per_host)
    if scheme == "SparCML" and (num_ranks // ranks_per_host) & (num_ranks // ranks_per_host - 1):
        raise ValueError(f"ranks are {num_ranks // ranks_per_host}; SparCML needs a power of two")
    if ranks_per_host > 1 and num_ranks < dist.get_world_size():  # torch's names for such groups are not unique
        rule = f"the group has {num_ranks} of {dist.get_world_size()} ranks, and hosts are made of all"
        raise ValueError(f"ranks_per_host is {ranks_per_host}; it must be 1 here: {rule}")
    if num_ranks % ranks_per_host:
        raise ValueError(f"ranks_per_host is {ranks_per_host}; it must divide the {num_ranks} ranks")


def _groups(group: dist.ProcessGroup | None, size: int, per_host: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return this rank's group on its host, and its group of the ranks on all hosts with the same shard."""
    ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
    inside = [ranks[first : first + per_host] for first in range(0, size, per_host)]
    across = [ranks[local::per_host] for local in range(per_host)]
    timeout = timeout_of(group)
    own, between = (dist.new_subgroups_by_enumeration(every, timeout=timeout)[0] for every in (inside, across))
    return own, between


def _own_shard_of_sum(whole: Tensor, host: dist.ProcessGroup) -> Tensor:
    """Return this rank's shard of the sum of a host's tensors; gloo's reduce_scatter would send twice the bytes."""
    size, rank = dist.get_world_size(host), dist.get_rank(host)
    rows = -(-len(whole) // size)
    padded = torch.cat([whole, whole.new_zeros(rows * size - len(whole), *whole.shape[1:])])
    arrived = torch.empty_like(padded)
    with naming_lost_ranks(host, "all_to_all on a host"):
        dist.all_to_all_single(arrived, padded, group=host)
    return arrived.view(size, rows, *whole.shape[1:]).sum(dim=0) if size > 1 else padded[rank * rows :]


def _all_shards(shard: Tensor, host: dist.ProcessGroup) -> Tensor:
    shards = [torch.empty_like(shard) for _ in range(dist.get_world_size(host))]
    with naming_lost_ranks(host, "all_gather on a host"):
        dist.all_gather(shards, shard.contiguous(), group=host)
    return torch.cat(shards)


def all_reduce_sparse(tensor: Tensor, group: dist.ProcessGroup | None = None, *, seed: int = SEED) -> Tensor:
    """Return the sum of a sparse tensor over the ranks of a group, by Zen; all ranks of the group call it.

    Args:
        tensor: [rows, ...], of any float dtype, on any device; either `torch.sparse_coo` with one sparse dimension,
            whose equal indices are summed, or dense with few nonzero rows.
        group: None for the default group.
        seed: seed of the hash function, equal on all ranks.

    Returns:
        The sum, in the tensor's layout; the same bits on all ranks.

    Raises:
        ValueError: on all ranks, if ranks differ in shape, dtype or seed.

    Source: section 3.3. It also works where NCCL has no all-reduce of sparse tensors.
    """
    return SparseSynchroniser(group, seed=seed).all_reduce(tensor)


def _tables(module: nn.Module) -> tuple[set[Tensor], list[str]]:
    """Return the weights that only embeddings use, and the names of embeddings that share a weight with a layer."""
    embeddings = {name: part.weight for name, part in module.named_modules() if isinstance(part, EMBEDDINGS)}
    layers = (part for part in module.modules() if not isinstance(part, EMBEDDINGS))
    others = {weight for part in layers for weight in part.parameters(recurse=False)}
    return {*embeddings.values()} - others, [name for name, weight in embeddings.items() if weight in others]


def _refuse_shrinking(model: DistributedDataParallel | None) -> None:
    """Raise RuntimeError if `join` divides by the ranks with batches left, a number that a hook does not know."""
    if model is not None and not getattr(model, "_divide_by_initial_world_size", True):
        rule = "a communication hook divides by all ranks: leave it True"
        raise RuntimeError(f"divide_by_initial_world_size of join is False; {rule}")


def _summed(group: dist.ProcessGroup, done: torch.futures.Future[list[Tensor]]) -> Tensor:
    with naming_lost_ranks(group, "all_reduce of a gradient that is not sparse"):
        return done.value()[0]


def synchronise(
    model: DistributedDataParallel, *, scheme: str | Scheme = "Zen", seed: int = SEED, ranks_per_host: int = 1
) -> SparseSynchroniser:
    """Sum the gradients of embeddings by Zen and all others densely, from the next backward pass on; all ranks call it.

    Args:
        model: a model without another communication hook, made with `bucket_cap_mb=zen.BUCKET_MB` so that each bucket
            holds one gradient. Its embeddings may be sparse or dense. An embedding that shares its weight with another
            layer has a gradient without zeros: it is summed densely, with a warning.
        scheme: a name in `SCHEMES`, or a function with the same arguments.
        seed: seed of the hash function, equal on all ranks.
        ranks_per_host: see `SparseSynchroniser`.

    Returns:
        The synchroniser of the embeddings' gradients; its `wire` counts their bytes.

    Raises:
        ValueError: on all ranks, if the model of a rank has no embedding, if the scheme is unknown, or if ranks differ
            in scheme or seed.
    """
    require_ddp(model)
    group, size = model.process_group, dist.get_world_size(model.process_group)
    tables, shared = _tables(model.module)

    def check() -> None:
        if not any(table.requires_grad for table in tables):
            rule = "its gradients are not sparse: leave them to DistributedDataParallel"
            raise ValueError(f"model has no embedding of its own that is trained; {rule}")
        _check(scheme, ranks_per_host, size)

    require_one_plan(f"{_name_of(scheme)}, seed {seed}, {ranks_per_host} ranks a host", check=check, group=group)
    warn_if_late(model, "zen")
    if shared and dist.get_rank(group) == 0:
        rule = "its gradient has no zeros, and is summed densely; tie_word_embeddings=False would untie it"
        warnings.warn(f"{', '.join(shared)} shares its weight with a layer that is no embedding: {rule}", stacklevel=2)
    sparse = SparseSynchroniser(group, scheme=scheme, seed=seed, ranks_per_host=ranks_per_host)
    whole, of_model = ProcessTensorGroup(group), weakref.ref(model)  # a hook that holds its model is never freed

    def hook(_: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        _refuse_shrinking(of_model())
        buffer = bucket.buffer().div_(size)
        devices = [buffer.device] if buffer.is_cuda else []
        future: torch.futures.Future[Tensor] = torch.futures.Future(devices=devices)
        if buffer.layout == torch.sparse_coo:
            future.set_result(sparse.all_reduce(buffer))
            return future
        pairs = list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        if not any(parameter in tables for parameter, _ in pairs):
            work = dist.all_reduce(buffer, group=group, async_op=True)
            return work.get_future().then(partial(_summed, group))
        for parameter, gradient in pairs:  # small gradients share a bucket
            if parameter in tables:
                gradient.copy_(sparse.all_reduce(gradient))
            else:
                whole.communicate(dist.all_reduce, gradient)
        future.set_result(buffer)
        return future

    model.register_comm_hook(None, hook)
    return sparse
