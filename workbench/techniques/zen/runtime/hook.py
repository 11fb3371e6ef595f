"""Zen for a model of your own: one tensor's all-reduce, and a communication hook of DistributedDataParallel."""

import threading
import warnings
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from workbench.parallel.groups import ProcessTensorGroup
from workbench.parallel.hooks import require_ddp, require_one_plan, require_own_state, warn_if_late
from workbench.parallel.hosts import all_shards, host_groups, own_shard_of_sum, require_whole_hosts
from workbench.parallel.timeouts import group_beside, naming_lost_ranks
from workbench.parallel.wire import Wire

from .schemes import SCHEMES, SEED, Scheme, Sum, dense, zen
from .sparse import Sparse

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
        scheme: str | Sum = "Zen",
        seed: int = SEED,
        ranks_per_host: int = 1,
    ):
        size = dist.get_world_size(group)
        _check(scheme, ranks_per_host, size)
        self._state: dict[str, str | int] = {"scheme": _name_of(scheme), "seed": seed, "ranks_per_host": ranks_per_host}
        self._state["num_ranks"] = size
        self._sum = SCHEMES[scheme] if isinstance(scheme, str) else scheme
        self._seeded: dict[str, Any] = {"seed": seed} if self._sum is zen else {}
        self._is_own = isinstance(scheme, str)
        self._whole = self.wire = Wire(group)
        self._host = None
        if ranks_per_host > 1:
            self._host, between = host_groups(group, ranks_per_host)
            self.wire = Wire(between)

    def all_reduce(self, gradient: Tensor) -> Tensor:
        """Return the sum over the ranks, in the gradient's layout: [rows, ...], sparse or dense.

        Raises:
            ValueError: on all ranks, if a rank has an index out of range, or if ranks differ in shape, dtype, layout,
                scheme or seed.
        """
        return self.all_reduce_together([gradient])[0]

    def all_reduce_together(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Return the sums of several gradients, which share their messages; see `all_reduce`.

        The first heads that the ranks exchange in a call tell whether they agree.
        """
        return self.all_reduce_([tensor.clone() if tensor.layout == torch.strided else tensor for tensor in gradients])

    def all_reduce_(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Sum dense gradients in place, where only entries that are not zero are written; see `all_reduce_together`.

        Returns the sums: the dense tensors themselves, and new ones for sparse tensors.
        """
        for gradient in gradients[:1]:
            self._whole.follow(gradient.device)
            self.wire.follow(gradient.device)
        facts: dict[str, object] = {**self._state, "number of gradients": len(gradients)}
        error = ""
        for number, gradient in enumerate(gradients):
            tensor = {"dtype": gradient.dtype, "shape": tuple(gradient.shape), "layout": gradient.layout}
            facts |= {f"{name} of gradient {number}" if number else name: fact for name, fact in tensor.items()}
        is_whole = self._host is not None or (
            self._sum is dense and all(gradient.layout == torch.strided for gradient in gradients)
        )
        parts: list[Any] = []
        try:
            parts = [gradient.to_dense() if is_whole else Sparse.of(gradient) for gradient in gradients]
        except (ValueError, RuntimeError) as refusal:
            error = str(refusal)
        if error or self._host is not None or not self._is_own:
            self._whole.agree(facts, error)
        self.wire.expect(facts)
        if is_whole and self._host is None:
            return [self.wire.all_reduce_(whole) for whole in parts]
        if self._host is None:
            totals = self._summed(parts)
        else:
            shards = self._summed([Sparse.of(own_shard_of_sum(whole, self._host)) for whole in parts])
            wholes = [all_shards(shard.to_dense(), self._host) for shard in shards]
            totals = [Sparse.of(whole[: len(part)]) for whole, part in zip(wholes, parts, strict=True)]
        sums = []
        for total, part, gradient in zip(totals, parts, gradients, strict=True):
            if gradient.layout == torch.sparse_coo:
                sums.append(total.to_sparse())
                continue
            emptied = gradient.zero_() if is_whole else gradient.index_fill_(0, part.indices, 0)
            sums.append(emptied.index_copy_(0, total.indices, total.values))
        return sums

    def _summed(self, gradients: Sequence[Sparse]) -> list[Sparse]:
        if isinstance(self._sum, Scheme):
            return self._sum.together(gradients, self.wire, **self._seeded)
        return [self._sum(gradient, self.wire) for gradient in gradients]

    def state_dict(self) -> dict[str, str | int]:
        """Return the settings that a resumed training must repeat; there is no other state."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, str | int]) -> None:
        """Check that a resumed training has the same settings; ValueError names a different one."""
        if unknown := state.keys() - self._state.keys():
            raise ValueError(f"state has {', '.join(unknown)}; it must have {', '.join(self._state)} alone")
        require_own_state(state, self._state)


def _name_of(scheme: str | Sum) -> str:
    return scheme if isinstance(scheme, str) else getattr(scheme, "__name__", "a function")


def _check(scheme: str | Sum, ranks_per_host: int, num_ranks: int) -> None:
    """Raise ValueError if a scheme is unknown, or if the ranks do not fill the hosts."""
    if isinstance(scheme, str) and scheme not in SCHEMES:
        raise ValueError(f"scheme is {scheme!r}; it must be one of {', '.join(SCHEMES)}")
    require_whole_hosts(num_ranks, ranks_per_host=ranks_per_host)
    if scheme == "SparCML" and (num_ranks // ranks_per_host) & (num_ranks // ranks_per_host - 1):
        raise ValueError(f"ranks are {num_ranks // ranks_per_host}; SparCML needs a power of two")


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


def _arrived(group: dist.ProcessGroup, done: torch.futures.Future[list[Tensor]]) -> Tensor:
    with naming_lost_ranks(group, "all_reduce of a gradient that is not sparse"):
        return done.value()[0]


@dataclass(eq=False, slots=True)
class _Bucket:
    """A bucket with gradients of tables, which are summed in the background."""

    buffer: Tensor  # in the end the sum
    tables: list[Tensor]  # gradients of tables; the buffer itself if it is sparse
    others: list[Tensor]  # other gradients that share the bucket
    ready: torch.cuda.Event | None  # when a GPU has computed them
    future: torch.futures.Future[None]
    error: BaseException | None = None

    def result(self, _: torch.futures.Future[None]) -> Tensor:
        """Return the sum, or raise what stopped it, where the backward pass waits for it."""
        if self.error is not None:
            raise self.error
        return self.buffer


def _serve(inbox: "SimpleQueue[list[_Bucket] | None]", sums: SparseSynchroniser, group: ProcessTensorGroup) -> None:
    """Sum the buckets that come together, until None comes."""
    while (buckets := inbox.get()) is not None:
        try:
            for bucket in buckets:
                if bucket.ready is not None:
                    torch.cuda.set_device(bucket.buffer.device)
                    torch.cuda.current_stream().wait_event(bucket.ready)
                bucket.buffer.div_(group.size)
            totals = sums.all_reduce_([table for bucket in buckets for table in bucket.tables])
            for bucket in buckets:
                first, totals = totals[0], totals[len(bucket.tables) :]
                if bucket.buffer.layout == torch.sparse_coo:
                    bucket.buffer = first
                for gradient in bucket.others:
                    group.communicate(dist.all_reduce, gradient)
            if any(bucket.ready is not None for bucket in buckets):
                torch.cuda.current_stream().synchronize()  # raises what has failed on the GPU
        except BaseException as error:  # the training waits for the futures, and must see it
            for bucket in buckets:
                bucket.error = error
        for bucket in buckets:
            bucket.future.set_result(None)


@dataclass(eq=False, slots=True)
class _Hook:
    """The communication hook of a model: buckets with gradients of tables go to the thread, others are summed here."""

    group: dist.ProcessGroup
    tables: set[Tensor]
    inbox: "SimpleQueue[list[_Bucket] | None]"
    model: weakref.ref[DistributedDataParallel]  # a hook that holds its model is never freed
    waiting: list[_Bucket] = field(default_factory=list)  # of this pass

    def state_dict(self) -> dict[str, Any]:
        """Return nothing: no pass leaves anything to the next one."""
        return {}

    def __deepcopy__(self, memo: object) -> "_Hook":
        return self  # a copied model, such as an average of weights, has no hook

    def exchange(self, _: None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        model = self.model()
        if model is not None and not getattr(model, "_divide_by_initial_world_size", True):
            rule = "a communication hook divides by all ranks, not by those with batches left: leave it True"
            raise RuntimeError(f"divide_by_initial_world_size of join is False; {rule}")
        if bucket.index() == 0:
            self.waiting.clear()  # of a pass that was broken off
        buffer = bucket.buffer()
        is_sparse = buffer.layout == torch.sparse_coo
        pairs = [] if is_sparse else list(zip(bucket.parameters(), bucket.gradients(), strict=True))
        in_tables = [buffer] if is_sparse else [gradient for parameter, gradient in pairs if parameter in self.tables]
        if in_tables:
            devices: list[int | str | torch.device] = [buffer.device] if buffer.is_cuda else []
            ready = torch.cuda.current_stream().record_event() if buffer.is_cuda else None
            others = [gradient for parameter, gradient in pairs if parameter not in self.tables]
            self.waiting.append(_Bucket(buffer, in_tables, others, ready, torch.futures.Future(devices=devices)))
            future = self.waiting[-1].future.then(self.waiting[-1].result)
        # Tables whose buckets follow one another go together. With static_graph=True all buckets of the first pass have
        # index 0, and none of several is the last.
        is_alone = bucket.is_last() or (bucket.index() == 0 and model is not None and model.static_graph)
        if self.waiting and (is_alone or not in_tables):
            self.inbox.put(self.waiting.copy())
            self.waiting.clear()
        if not in_tables:
            size = dist.get_world_size(self.group)
            work = dist.all_reduce(buffer.div_(size), group=self.group, async_op=True)
            future = work.get_future().then(partial(_arrived, self.group))
        return future


def synchronise(
    model: DistributedDataParallel, *, scheme: str | Sum = "Zen", seed: int = SEED, ranks_per_host: int = 1
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
    background = group_beside(group)
    sums = SparseSynchroniser(background, scheme=scheme, seed=seed, ranks_per_host=ranks_per_host)
    inbox: SimpleQueue[list[_Bucket] | None] = SimpleQueue()
    arguments = inbox, sums, ProcessTensorGroup(background)
    threading.Thread(target=_serve, args=arguments, name="zen", daemon=True).start()
    weakref.finalize(model, inbox.put, None)
    model.register_comm_hook(None, _Hook(group, tables, inbox, weakref.ref(model)).exchange)
    return sums
