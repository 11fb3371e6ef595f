"""The training state of one rank as an image, a flat run of bytes, and going on from it bit for bit.

An image is: a mark and the bytes of two packed trees; the weights and the optimizer's tensors, which are the same on
all ranks where nothing is sharded; and what is a rank's own: buffers, random numbers, schedule, further objects.

The rule. In an image are all that a module's and an optimizer's `state_dict` hold and what else training changes in
them (see `modules` and `optimizers`), the global generators of torch, Python and NumPy, and the objects in `extra`:
what their `state_dict` holds, each value with its type. A data loader's position, a loss scaler, an average of weights,
a second optimizer, a communication hook's state, whatever hooks, closures or objects of other classes remember: give it
in `extra`. What cannot be put back is refused by a ValueError that names it, before training, or at the first
checkpoint after it appears. So are a scheduler or a hook's state that can be seen and was not given.
"""

import contextlib
import gc
import itertools
import random
import struct
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn, optim
from torch.distributed.checkpoint.stateful import Stateful
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from . import encoding
from .encoding import ALIGNMENT_BYTES, PackedTree, as_bytes, leaves, unpack_tree
from .modules import ModuleState, OptimizerState, StateMismatch, put_back, unwrapped
from .transfer import TrafficWatch

__all__ = ["StateMismatch", "TrainingState", "image_of", "parts_of", "refuse_unseen_scaler"]

GIVE_SCHEDULER = "give it as `scheduler`, or in extra, or a run that resumes would begin its schedule again"
MOST_FRAMES = 12  # between a loss scaler's step and the hook of an optimizer's

# What a communication hook may hold without having a state that training changes.
STATELESS: tuple[type, ...] = (*encoding.PLAIN, bytes, complex, type, types.ModuleType)
STATELESS += (torch.dtype, torch.device, dist.ProcessGroup, TrafficWatch)


class HookState:
    """The attributes of a communication hook's state without a state_dict, such as torch's PowerSGDState."""

    def __init__(self, state: Any):
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        """Return all but process groups."""
        slots = [name for kind in type(self._state).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [name for name in (*slots, *getattr(self._state, "__dict__", {})) if hasattr(self._state, name)]
        values = {name: getattr(self._state, name) for name in names}
        return {name: value for name, value in values.items() if not isinstance(value, dist.ProcessGroup)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, value in state_dict.items():
            setattr(self._state, name, put_back(getattr(self._state, name, None), value))


def checked_extras(given: Mapping[str, Any], model: nn.Module) -> dict[str, Stateful]:
    """Return objects with state_dict and load_state_dict for those given, or refuse them."""
    hook_states = [id(item) for item in _hook_objects(model)]
    objects: dict[str, Stateful] = {}
    for name, item in given.items():
        if isinstance(item, nn.Module):
            objects[name] = ModuleState(item, f"extra/{name}")
        elif hasattr(item, "state_dict") and hasattr(item, "load_state_dict"):
            objects[name] = item
        elif id(item) in hook_states and not isinstance(item, dict | list | set):
            objects[name] = HookState(item)
        else:
            kind = type(item).__name__
            raise ValueError(f"extra[{name!r}] is {kind}; it must have state_dict and load_state_dict")
    return objects


def refuse_unseen(model: nn.Module, optimizer: optim.Optimizer, given: Mapping[str, Any]) -> None:
    """Raise ValueError if a state of the training is seen that was not given: of a hook, or a scheduler."""
    known = {id(item) for item in (optimizer, *given.values())}
    for item in _hook_objects(model):
        has_none = hasattr(item, "state_dict") and not item.state_dict()
        if id(item) not in known and not has_none:
            rule = "give it as an entry of extra, or a run that resumes would begin with an empty one"
            what = f"the communication hook of {type(model).__name__} has a state, a {type(item).__name__}"
            raise ValueError(f"{what}; {rule}")
    schedulers = [part for part in _parts(given) if isinstance(part, LRScheduler)]
    for name, item in _optimizers(optimizer, given):
        is_scheduled = hasattr(item.step, "_wrapped_by_lr_sched")
        if is_scheduled and not any(part.optimizer is item for part in schedulers):
            raise ValueError(f"{name} {type(item).__name__} has a learning-rate scheduler; {GIVE_SCHEDULER}")


def refuse_unseen_plateau(optimizer: optim.Optimizer, given: Mapping[str, Any]) -> None:
    """Raise ValueError for a ReduceLROnPlateau that was not given: torch leaves no mark of it on its optimizer.

    The garbage collector finds it, which takes too long for every checkpoint.
    """
    known = set(map(id, _parts(given)))
    for name, item in _optimizers(optimizer, given):
        holders = gc.get_referrers(item)
        holders += gc.get_referrers(*(holder for holder in holders if type(holder) is dict))  # an object's attributes
        if any(issubclass(type(holder), ReduceLROnPlateau) and id(holder) not in known for holder in holders):
            raise ValueError(f"{name} {type(item).__name__} has a ReduceLROnPlateau; {GIVE_SCHEDULER}")


def _optimizers(optimizer: optim.Optimizer, given: Mapping[str, Any]) -> list[tuple[str, optim.Optimizer]]:
    """Return the optimizer, and those that were given, each with its name in an error."""
    more = [(f"extra[{name!r}]", item) for name, item in given.items() if isinstance(item, optim.Optimizer)]
    return [("optimizer", optimizer), *more]


def _parts(given: Mapping[str, Any]) -> list[Any]:
    """Return the objects, and what they have as attributes."""
    return [part for item in given.values() for part in (item, *getattr(item, "__dict__", {}).values())]


def refuse_unseen_scaler(given: Mapping[str, Any]) -> None:
    """Raise ValueError if this update of an optimizer comes from a loss scaler that was not given."""
    for frame, _ in itertools.islice(traceback.walk_stack(sys._getframe(1)), MOST_FRAMES):
        scaler = frame.f_locals.get("self")
        is_scaler = isinstance(scaler, torch.amp.GradScaler) and scaler.is_enabled()
        if is_scaler and not any(part is scaler for part in _parts(given)):
            rule = "give it as an entry of extra, or a run that resumes would begin with its first scale"
            raise ValueError(f"the loss is scaled by a {type(scaler).__name__}; {rule}")


def _hook_objects(model: nn.Module) -> Iterator[Any]:
    """Give all that a DDP model's communication hooks hold and that may be a state: arguments, cells of closures."""
    seen: set[int] = set()

    def walk(item: Any) -> Iterator[Any]:
        if id(item) in seen:
            return
        seen.add(id(item))
        parts: Sequence[Any] = ()
        if isinstance(item, partial):
            parts = (item.func, item.args, *item.keywords.values())
        elif isinstance(item, tuple):
            parts = item
        elif hasattr(item, "__self__") and callable(item):
            parts = (item.__self__, getattr(item, "__func__", None))
        elif hasattr(item, "__code__"):
            for cell in item.__closure__ or ():
                with contextlib.suppress(ValueError):  # not assigned yet
                    parts = (*parts, cell.cell_contents)
        elif not isinstance(item, STATELESS):
            values = [*item, *item.values()] if isinstance(item, dict) else item
            values = list(values) if isinstance(values, list | set) else [item]
            if not values or not all(isinstance(value, nn.Parameter | str) for value in values):  # parameters by name
                yield item
        for part in parts:
            yield from walk(part)

    if isinstance(model, DistributedDataParallel):
        seen.update(map(id, (model, *model.modules())))
        for hook, state in model._comm_hooks:
            yield from walk(state)
            yield from walk(hook)


MARK = b"GEMINI-3"
PREFIX = struct.Struct("<8sQQ")  # mark, bytes of the shared part, bytes of the rank's own
FIRST_CAPTURES = 5  # in which a DDP model may still lay out its buckets anew
PAGE_BYTES = 4096  # images are whole pages, so that their size changes rarely


def _prefix(*sizes: int) -> Tensor:
    return as_bytes(PREFIX.pack(MARK, *sizes).ljust(ALIGNMENT_BYTES, b"\0"))


def image_of(shared: Tensor, local: Tensor) -> Tensor:
    """Put the parts of an image together."""
    num_bytes = ALIGNMENT_BYTES + shared.numel() + local.numel()
    padding = torch.zeros(-num_bytes % PAGE_BYTES, dtype=torch.uint8)
    return torch.cat([_prefix(shared.numel(), local.numel()), shared, local, padding])


def parts_of(image: Tensor) -> tuple[Tensor, Tensor]:
    """Return the shared and the own part of an image."""
    if image.numel() < PREFIX.size:
        raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its prefix has, {PREFIX.size}")
    mark, shared_bytes, own_bytes = PREFIX.unpack(image[: PREFIX.size].numpy().tobytes())
    if mark != MARK:
        raise StateMismatch(f"checkpoint: it begins with {mark!r} and not with {MARK!r}")
    middle, end = ALIGNMENT_BYTES + shared_bytes, ALIGNMENT_BYTES + shared_bytes + own_bytes
    if image.numel() < end:
        raise StateMismatch(f"checkpoint: {image.numel()} bytes are fewer than its prefix says, {end}")
    return image[ALIGNMENT_BYTES:middle], image[middle:end]


class TrainingState:
    """One rank's training state."""

    def __init__(
        self,
        model: nn.Module,  # plain, DistributedDataParallel, or sharded by `fully_shard`; compiled or not
        optimizer: torch.optim.Optimizer,  # of the model's parameters
        *,
        scheduler: Stateful | None = None,
        extra: Mapping[str, Stateful] | None = None,  # more objects by name, such as the data position
    ):
        self.model, self.optimizer = getattr(model, "_orig_mod", model), optimizer
        self.given = dict(extra or {})  # objects with a state
        if scheduler is not None and self.given.setdefault("scheduler", scheduler) is not scheduler:
            raise ValueError("extra has 'scheduler'; it must not, because a scheduler is given besides")
        self._extra = checked_extras(self.given, self.model)
        self._module = ModuleState(self.model)
        self._update = OptimizerState(optimizer, self._module.parameters, {id(item) for item in self.given.values()})
        if getattr(self.model, "static_graph", False):
            rule = "it must not be, because a run that resumes would add gradients in another order"
            raise ValueError(f"model is {type(self.model).__name__} with static_graph; {rule}")
        self._order: list[str] = []  # of a DDP model's parameters in its buckets
        self._ready: dict[str, None] = {}  # a DDP model's parameters, in the order of its first backward pass
        tables = [part for part in self.model.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
        self._sparse = {id(table.weight) for table in tables if table.sparse}
        if self._sparse and isinstance(self.model, DistributedDataParallel):
            self._note_order()
        self._num_captured = 0
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        PackedTree(self._own(0))  # so that what cannot be kept is refused now

    @torch.no_grad()
    def copied(self, iteration: int, place: Callable[[int], Tensor], pinned: Sequence[Tensor] = ()) -> Tensor:
        """Copy the state to `place(num_bytes)` on the host, uint8; see `PackedTree.write_`."""
        if not self._num_captured:
            refuse_unseen_plateau(self.optimizer, self.given)
        self._num_captured += 1
        if isinstance(self.model, DistributedDataParallel) and (
            # It lays out its buckets anew after its first backward pass: now, as the next forward pass would do.
            self.model.reducer._rebuild_buckets() or self._num_captured <= FIRST_CAPTURES
        ):
            self._order = self._order_of(self.model)
        local = self._own(iteration)  # first: it refuses what has changed meanwhile
        packed = PackedTree(self._shared()), PackedTree(local)
        end = ALIGNMENT_BYTES + sum(tree.num_bytes for tree in packed)
        image = place(end + -end % PAGE_BYTES)
        image[:ALIGNMENT_BYTES] = _prefix(*(tree.num_bytes for tree in packed))
        for tree, part in zip(packed, parts_of(image), strict=True):
            tree.write_(part, pinned)
        image[end:] = 0
        return image

    def image(self, iteration: int) -> Tensor:
        """Return a copy of the state, uint8."""
        return self.copied(iteration, partial(torch.empty, dtype=torch.uint8))

    @torch.no_grad()
    def load_(self, image: Any) -> int:
        """Check a verified image as a whole and put it back in place; return its iteration."""
        parts = parts_of(as_bytes(image))
        shared, local = unpack_tree(parts[0], copy=False), unpack_tree(parts[1])
        live = self._own(0)
        for field, value in local["about"].items():
            _refuse_unless(value == live["about"][field], f"{field} is {value!r}", repr(live["about"][field]))
        self._module.check(shared["kinds"], local["model"], local["first_buffers"])
        names = sorted(local["extra"]), sorted(live["extra"])
        _refuse_unless(names[0] == names[1], f"extra is {names[0]}", names[1])
        self._update.check(local["optimizer"])
        generators = self._module.generators
        _refuse_unless(local["generators"] == generators, f"generators are {local['generators']}", generators)
        _refuse_unless(local["random"]["cuda"] is None or torch.cuda.is_available(), "its tensors were on CUDA", "not")
        self._restore_order_(local["order"])
        for name, value in local["extra"].items():
            self._extra[name].load_state_dict(value)
        self._update.restore_(shared["optimizer"], local["optimizer"])
        self._module.restore_(shared["model"], local["model"])
        position = local["random"]  # last: all before may draw numbers
        torch.set_rng_state(position["torch"].clone())
        if position["cuda"] is not None:
            torch.cuda.set_rng_state(position["cuda"])
        encoding.restore_generator_(random, position["python"])
        np.random.set_state(position["numpy"])
        return local["iteration"]

    def changed_since(self, image: Tensor) -> list[str]:
        """Name the weights, buffers, settings and floating-point values that differ from an image of this state.

        The model's state_dict is not asked for: FSDP2 would shard weights that a forward pass is about to use.
        """
        shared, local = (unpack_tree(part, copy=False) for part in parts_of(image))
        now = self._shared()
        changed = [f"model/{name}" for name in _differing(shared["model"], now["model"])]
        changed += [f"optimizer/{name}" for name in _differing(shared["optimizer"], now["optimizer"])]
        changed += [f"buffer {name}" for name in _differing(local["model"]["buffers"], self._module.buffers())]
        if not _equal(local["optimizer"]["groups"], self._update.groups()):
            changed.append("settings of the optimizer, such as its learning rate")
        extras = local["extra"], {name: item.state_dict() for name, item in self._extra.items()}
        # Positions in data, which may move on, are whole numbers.
        floats = ({name: list(filter(_is_float, leaves(tree))) for name, tree in extra.items()} for extra in extras)
        return changed + [f"extra/{name}" for name in _differing(*floats)]

    def _shared(self) -> dict[str, Any]:
        return {"model": self._module.weights(), "kinds": self._module.kinds(), "optimizer": self._update.tensors()}

    def _own(self, iteration: int) -> dict[str, Any]:
        refuse_unseen(self.model, self.optimizer, self.given)
        return {
            "iteration": iteration,
            "about": {
                "model": type(unwrapped(self.model)).__name__.removeprefix("FSDP"),
                "optimizer": type(self.optimizer).__name__,
                "world_size": self.world_size,
                "rank": self.rank,
            },
            "order": self._order,
            "first_buffers": self._module.first_buffers,
            "generators": self._module.generators,
            "model": self._module.rest(),
            "optimizer": self._update.rest(),
            "extra": {name: item.state_dict() for name, item in self._extra.items()},
            "random": {
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state() if torch.cuda.is_initialized() else None,
                "python": encoding.generator_state(random),
                "numpy": np.random.get_state(legacy=False),
            },
        }

    def _note_order(self) -> None:
        """Note in which order gradients become ready in the next backward pass."""
        hooks: list[Any] = []

        def note(name: str, _: Tensor) -> None:
            self._ready[name] = None
            if len(self._ready) == len(hooks):
                for hook in hooks:
                    hook.remove()

        for name, parameter in self._module.parameters.items():
            if parameter.requires_grad:
                hooks.append(parameter.register_post_accumulate_grad_hook(partial(note, name)))

    def _order_of(self, model: DistributedDataParallel) -> list[str]:
        """Return the names of a model's parameters in the order of their buckets."""
        names = {id(parameter): name for name, parameter in self._module.parameters.items()}
        try:
            buckets = model.reducer._get_zeros_like_grad_buckets()
        except RuntimeError:  # the bucket of a sparse gradient is empty until the next pass
            if not self._ready:
                rule = "make its checkpoints before the first, or after the second"
                raise ValueError(f"model has sparse gradients, and one backward pass behind it; {rule}") from None
            return [*self._ready]
        return [names[id(parameter)] for bucket in buckets for parameter in bucket.parameters()]

    def _restore_order_(self, order: Sequence[str]) -> None:
        """Let a fresh DDP model lay out its buckets as the run before did; every rank calls it.

        DDP adds the gradients of a bucket in an order that depends on their places, and takes the places from the order
        in which gradients become ready in its first backward pass: so they become ready here, as zeros.
        """
        model = self.model
        if not isinstance(model, DistributedDataParallel) or model.find_unused_parameters or not order:
            return
        model.reducer.prepare_for_backward([])
        with torch.enable_grad():
            for name in order:
                weight = self._module.parameters[name]
                is_sparse = id(weight) in self._sparse
                no_words = torch.empty(0, dtype=torch.int64, device=weight.device)
                zero = functional.embedding(no_words, weight, sparse=True) if is_sparse else 0 * weight
                zero.sum().backward()
        model.reducer._rebuild_buckets()
        model.zero_grad(set_to_none=True)


def _refuse_unless(is_right: bool, stored: str, live: Any) -> None:
    if not is_right:
        raise StateMismatch(f"checkpoint: {stored}; this run's is {live}")


def _is_float(value: Any) -> bool:
    return value.is_floating_point() if isinstance(value, Tensor) else isinstance(value, float)


def _differing(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Name the entries of two dictionaries that are not equal to the last bit."""
    return [name for name in {**before, **after} if not _equal(before.get(name), after.get(name))]


def _equal(before: Any, after: Any) -> bool:
    if isinstance(before, Tensor) and isinstance(after, Tensor):
        live = after.detach().cpu()
        if (before.shape, before.dtype) != (live.shape, live.dtype):
            return False
        return torch.equal(*(tensor.contiguous().reshape(-1).view(torch.uint8) for tensor in (before, live)))
    if isinstance(before, Mapping) and isinstance(after, Mapping):
        return before.keys() == after.keys() and not _differing(before, after)
    if isinstance(before, list | tuple) and isinstance(after, list | tuple):
        return len(before) == len(after) and all(map(_equal, before, after))
    return before == after
