"""Replicas of a pipeline's stages that average their models: places, vectors of tensors, and sums among members.

A module is three vectors: its trained weights, at least in single precision; its floating-point buffers, in double
precision, in which constants keep their value; and the bytes of all other buffers, which are not averaged.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import reduce
from itertools import zip_longest
from typing import Any, Self

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import _get_default_store

from workbench.checks import require_counts
from workbench.launch.agreement import tell_all
from workbench.launch.backends import backend_of

__all__ = ["Averager", "Place", "Replica", "Ties", "average_by_definition", "require_alike"]

SAME_GRADIENT = 1e-4  # largest difference of norms and sums of equal gradients, as a share of the norm


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """A rank's place among M stages and N pipelines."""

    stage: int
    pipeline: int
    num_stages: int  # M
    num_pipelines: int  # N

    @classmethod
    def of_this_rank(cls, num_stages: int) -> Self:
        """Return this rank's place where stages of a pipeline are neighbours among all ranks, which M must divide."""
        rank, size = dist.get_rank(), dist.get_world_size()
        require_counts(1, num_stages=num_stages)
        if size % num_stages or size // num_stages < 2:
            rule = f"it must divide the number of ranks, {size}, into two pipelines or more"
            raise ValueError(f"num_stages is {num_stages}; {rule}")
        pipeline, stage = divmod(rank, num_stages)
        return cls(stage=stage, pipeline=pipeline, num_stages=num_stages, num_pipelines=size // num_stages)

    @classmethod
    def of_group(cls, group: dist.ProcessGroup | None) -> Self:
        """Return this rank's place, from the group of its stage's workers; every rank of the default group calls it."""
        groups = sorted({tuple(ranks) for ranks in tell_all(dist.get_process_group_ranks(group))})
        sizes = {len(ranks) for ranks in groups}
        if sum(map(len, groups)) != dist.get_world_size() or len(sizes) > 1 or sizes == {1}:
            raise ValueError(f"group is one of {groups}; they must hold each rank once, and equally many, at least two")
        stage, pipeline = groups.index(tuple(dist.get_process_group_ranks(group))), dist.get_rank(group)
        return cls(stage=stage, pipeline=pipeline, num_stages=len(groups), num_pipelines=sizes.pop())


def average_by_definition(models: Sequence[Tensor], members: Sequence[int]) -> list[Tensor]:
    """Return the models after one synchronisation: each member holds the mean of the members' models."""
    mean = torch.stack([models[worker] for worker in members]).mean(dim=0)
    return [mean if worker in members else model for worker, model in enumerate(models)]


class Averager:
    """Adds up tensors among some workers of a stage, the members; the other workers take no part.

    Members that meet often create a communicator of their own and keep it, as all workers together do. Otherwise the
    first member adds up the tensors of the others, and sends the sum back. Where the backend carries no tensors of the
    device, as gloo with a GPU, they go through host memory.

    `new_group` of torch names a communicator by the number that a rank has already, which differs among members here.

    Args:
        place: place of this rank; all workers of the stage make their averager together.
        device: device of the tensors.
        name: a name that is the same on all workers, and new for each training.
        timeout: limit of each wait for other workers.
    """

    def __init__(self, place: Place, device: torch.device, name: str, timeout: timedelta):
        self._place = place
        self._is_nccl = backend_of(device) == "nccl"
        self._timeout = timeout
        self.number = place.pipeline
        self._store = dist.PrefixStore(f"replicas/{name}/{place.stage}", _get_default_store())
        self.workers = tuple(range(place.num_pipelines))
        self._everyone = self._made(self.workers, "everyone")
        self._communicators: dict[tuple[int, ...], Any] = {}

    def begin_(self, flat: Tensor) -> None:
        """Replace the tensor by that of the first pipeline."""
        carried = self._carried(flat)
        self._everyone.broadcast([carried]).wait()
        flat.copy_(carried)

    def sum_(self, flat: Tensor, members: tuple[int, ...], is_kept: bool = False) -> None:
        """Replace the tensor by the sum of all members' tensors, of one shape; all get the same bits."""
        if len(members) == 1:
            return
        carried = self._carried(flat)
        if members == self.workers:
            self._everyone.allreduce([carried]).wait()
        elif is_kept:
            if members not in self._communicators:
                self._communicators[members] = self._made(members, str(members))
            self._communicators[members].allreduce([carried]).wait()
        elif self._place.pipeline == members[0]:
            other = torch.empty_like(carried)
            for worker in members[1:]:
                self._everyone.recv([other], worker, 0).wait()
                carried += other
            for worker in members[1:]:
                self._everyone.send([carried], worker, 0).wait()
        else:
            self._everyone.send([carried], members[0], 0).wait()
            self._everyone.recv([carried], members[0], 0).wait()
        flat.copy_(carried)

    def _carried(self, flat: Tensor) -> Tensor:
        return flat if self._is_nccl else flat.cpu()

    def _made(self, members: tuple[int, ...], name: str) -> Any:
        """Return a communicator of torch, whose collectives torch's types leave out."""
        store = dist.PrefixStore(name, self._store)
        number, size = members.index(self._place.pipeline), len(members)
        if self._is_nccl:
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            return dist.ProcessGroupNCCL(store, number, size, options)
        return dist.ProcessGroupGloo(store, number, size, self._timeout)

    def close(self) -> None:
        """Free the communicators; a worker that still waits for this one gets an error, with gloo at once."""
        made = [*self._communicators.values(), self._everyone] if self._is_nccl and self._everyone else []
        self._communicators, self._everyone = {}, None
        for communicator in made:
            communicator.shutdown()  # gloo shuts down by itself when there is no reference left


class Replica:
    """The tensors of a worker that are averaged: a module's trained parameters, and the buffers in its state_dict."""

    def __init__(self, module: nn.Module):
        self._module = module
        self._shapes = {name: tensor.shape for name, tensor in self._tensors().items()}
        self._trained = {name for name, weight in module.named_parameters() if weight.requires_grad}
        self.device = next(weight.device for weight in module.parameters() if weight.requires_grad)

    def begin_(self, averager: Averager) -> None:
        """Take over all parameters and buffers of the first worker."""
        weights, others = _split(self._module.parameters())
        tensors = [*others, *self._module.buffers()]
        vectors = _packed(weights, tensors, self.device)
        for vector in vectors:
            if vector.numel():
                averager.begin_(vector)
        _unpack_(weights, tensors, vectors)

    def vectors(self) -> list[Tensor]:
        """Return copies of the weights, of the floating-point buffers, and of the bytes of the other buffers."""
        return _packed(*self._parts(), self.device)

    def put_(self, vectors: Sequence[Tensor]) -> None:
        """Set the tensors to vectors as `vectors` returns them."""
        _unpack_(*self._parts(), vectors)

    def fingerprint(self) -> int:
        """Return a number that changes with any bit of a tensor."""
        hashes = (_hash(tensor) for tensor in self._tensors().values() if tensor.numel())
        return reduce(lambda total, value: (total * 31 + value) % 2**53, hashes, 0)

    def _tensors(self) -> dict[str, Tensor]:
        module = self._module
        tensors: dict[str, Tensor] = dict(module.named_parameters())
        for prefix, part in module.named_modules():
            for name, buffer in part.named_buffers(recurse=False):
                if name not in part._non_persistent_buffers_set:  # the others are caches of any shape
                    tensors[f"{prefix}.{name}" if prefix else name] = buffer
        return tensors

    def _parts(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return the present weights and buffers; refuse a module that has changed since the start."""
        tensors = self._tensors()
        for name in tensors.keys() | self._shapes.keys():
            tensor = tensors.get(name)
            is_unfrozen = tensor is not None and tensor.requires_grad and name not in self._trained
            if tensor is None or tensor.shape != self._shapes.get(name) or is_unfrozen:
                rule = "what is averaged may not change; close it, and begin with the changed module"
                raise RuntimeError(f"module's {name} was added, removed, resized or unfrozen after the start; {rule}")
        buffers = [tensor for tensor in tensors.values() if not isinstance(tensor, nn.Parameter)]
        return [tensors[name] for name in tensors if name in self._trained], buffers


def _real(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return (torch.view_as_real(tensor) if tensor.is_complex() else tensor).flatten()


def _hash(tensor: Tensor) -> int:
    return int(torch.hash_tensor(_real(tensor)).view(torch.int64))


def _split(tensors: Iterable[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the tensors of floating-point and complex numbers, and the others."""
    kinds: tuple[list[Tensor], list[Tensor]] = [], []
    for tensor in tensors:
        kinds[not (tensor.is_floating_point() or tensor.is_complex())].append(tensor)
    return kinds


def _packed(weights: Sequence[Tensor], others: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return three new vectors: the weights, the other floating-point tensors, and the bytes of the rest."""
    floats, rest = _split(others)
    dtype = reduce(torch.promote_types, (_real(weight).dtype for weight in weights), torch.float32)
    kinds = [[_real(weight).to(device, dtype) for weight in weights]]
    kinds.append([_real(tensor).to(device, torch.float64) for tensor in floats])
    kinds.append([_real(tensor).contiguous().view(torch.uint8).to(device) for tensor in rest])
    dtypes = dtype, torch.float64, torch.uint8
    return [
        torch.cat(parts) if parts else torch.empty(0, dtype=kind, device=device)
        for parts, kind in zip(kinds, dtypes, strict=True)
    ]


@torch.no_grad()
def _unpack_(weights: Sequence[Tensor], others: Sequence[Tensor], vectors: Sequence[Tensor]) -> None:
    floats, rest = _split(others)
    for tensors, vector in zip((weights, floats, rest), vectors, strict=True):
        sizes = [_real(tensor).numel() * (tensor.element_size() if tensors is rest else 1) for tensor in tensors]
        for tensor, part in zip(tensors, vector.split(sizes), strict=True):
            if tensors is rest:
                tensor.copy_(part.clone().view(tensor.dtype).view_as(tensor))
            elif tensor.is_complex():
                tensor.copy_(torch.view_as_complex(part.view(*tensor.shape, 2)))
            else:
                tensor.copy_(part.view_as(tensor))


def require_alike(module: nn.Module, place: Place) -> None:
    """Refuse, on all ranks, modules that differ among the workers of a stage, or that have nothing to average."""
    tensors = [[name, list(w.shape), str(w.dtype), w.requires_grad] for name, w in module.named_parameters()]
    tensors += [[name, list(buffer.shape), str(buffer.dtype), False] for name, buffer in module.named_buffers()]
    first: dict[int, tuple[int, list]] = {}
    for rank, (stage, held) in enumerate(tell_all([place.stage, tensors])):
        if not any(is_trained for *_, is_trained in held):
            raise ValueError(f"module of rank {rank} has no parameter that is trained; it must have one")
        other, expected = first.setdefault(stage, (rank, held))
        if held != expected:
            parts = next(pair for pair in zip_longest(expected, held) if pair[0] != pair[1])
            texts = ["nothing" if part is None else f"{part[0]} {part[1]} {part[2]}" for part in parts]
            raise ValueError(
                f"module holds {texts[0]} on rank {other} and {texts[1]} on rank {rank}; workers of a stage, here of "
                f"stage {stage}, must hold the same tensors: give `group` if ranks are laid out in another way"
            )


class Ties:
    """Weights that several stages of a pipeline share and hold copies of; every rank makes an object.

    Without `tied`, matrices that begin equal count as one weight until their gradients differ: a gradient that
    was added up over the stages is the same in all stages, but it differs between equal stages that share nothing.

    Args:
        module: this rank's stage.
        place: place of this rank.
        tied: this stage's names of shared weights, by keys that all stages with the weight use; None if unknown.
        device, name, timeout: as for an `Averager`.
    """

    def __init__(
        self,
        module: nn.Module,
        place: Place,
        tied: Mapping[str, str] | None,
        device: torch.device,
        name: str,
        timeout: timedelta,
    ):
        self._module, self._averagers = module, {}
        is_given = tied is not None
        self._sure = set((tied or {}).values())  # names of weights that are surely shared
        if tied is None:
            tied = _hashed(module.named_parameters()) if place.num_stages > 1 else {}
        shapes = {weight: [*held.shape] for weight, held in module.named_parameters(remove_duplicate=False)}
        weights = {key: [weight, shapes.get(weight)] for key, weight in tied.items()}
        held = tell_all([place.stage, place.pipeline, weights, is_given])
        for stage, pipeline, names, is_given in held:
            for key, (weight, shape) in names.items() if is_given else ():
                copies = [others[key][1] for _, number, others, _ in held if number == pipeline and key in others]
                if shape is None or len(copies) < 2 or any(other != shape for other in copies):
                    rule = "it must name a parameter, and another stage must tie one of the same shape to it"
                    raise ValueError(f"tied[{key!r}] is {weight!r} in stage {stage} of pipeline {pipeline}; {rule}")
        for key in sorted(weights):
            stages = sorted(stage for stage, number, names, _ in held if number == place.pipeline and key in names)
            if len(stages) > 1:
                number = {"stage": place.pipeline, "pipeline": stages.index(place.stage)}
                of_pipeline = Place(**number, num_stages=place.num_pipelines, num_pipelines=len(stages))
                self._averagers[tied[key]] = Averager(of_pipeline, device, f"{name}/tied/{key}", timeout)

    @torch.no_grad()
    def average_(self) -> None:
        """Replace each copy by the mean of all copies, so that all are equal bit for bit."""
        for name, averager in self._averagers.items():
            weight = self._module.get_parameter(name)
            flat = weight.detach().flatten().to(torch.promote_types(weight.dtype, torch.float32))
            averager.sum_(flat, averager.workers)
            weight.copy_((flat / len(averager.workers)).view_as(weight))

    def compare_gradients(self) -> None:
        """Refuse gradients that differ between the stages of a shared weight; forget weights that only began equal.

        Raises:
            ValueError: if the weight is tied by name or once had equal gradients, or if it is not yet clear whether it
                is shared: the gradient is zero in a stage, or only some of the gradients are equal.
        """
        for name, averager in [*self._averagers.items()]:
            weight = self._module.get_parameter(name)
            seen = torch.zeros(len(averager.workers), 2, dtype=torch.float64, device=weight.device)
            if weight.grad is not None:
                gradient = weight.grad.detach().double()
                seen[averager.number] = torch.stack([gradient.norm(), gradient.sum()])
            averager.sum_(seen, averager.workers)
            norms = seen[:, 0]
            limits = SAME_GRADIENT * torch.maximum(norms[:, None], norms[None])
            differs = ((seen[:, None] - seen[None]).abs() > limits[..., None]).any(dim=2)
            if not differs.any():
                self._sure |= {name} if norms.min() > 0 else set()
                continue
            if name in self._sure or norms.min() == 0 or differs.sum() < len(seen) * (len(seen) - 1):
                rule = "add them up over the stages that share it, before each step, and clip or skip on all alike"
                raise ValueError(
                    f"gradient of the tied weight {name} differs between its stages; {rule}; or say by tied={{}} that "
                    "it is not tied"
                )
            del self._averagers[name]
            averager.close()

    def close(self) -> None:
        """Free the communicators."""
        for averager in self._averagers.values():
            averager.close()


def _hashed(weights: Iterable[tuple[str, Tensor]]) -> dict[str, str]:
    """Return names of trained matrices that are not constant, by texts that are equal for equal matrices."""
    return {
        f"{[*weight.shape]} {weight.dtype} {_hash(weight)}": name
        for name, weight in weights
        if weight.requires_grad and weight.ndim >= 2 and weight.numel() and bool((weight != weight.flatten()[0]).any())
    }
