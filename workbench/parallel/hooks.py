"""The common part of communication hooks of DistributedDataParallel.

It holds early buckets, checks that a plan fits model and ranks, and the effect of a backward pass on a hook's memory.
"""

import gc
import math
import sys
import warnings
import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.nn.parallel import DistributedDataParallel

__all__ = ["BUCKET_MB", "Passes", "Scaler", "require_all_handed_over", "require_ddp", "require_fp32"]
__all__ += ["require_one_plan", "require_own_state", "require_parameters", "warn_if_late"]

BUCKET_MB = 1e-4  # bucket_cap_mb by which DistributedDataParallel makes every gradient a bucket
LATE_BYTES = 2**20  # larger buckets are handed over late


class Scaler(Protocol):
    """A `torch.amp.GradScaler`, or another object that knows the scale of the loss."""

    def get_scale(self) -> float:
        """Return the scale of the loss whose gradients are exchanged next."""


class Passes:
    """The backward passes of a model whose communication hook keeps a memory of gradients.

    The memory follows the scale of the loss. A result that is not applied must leave no trace in the memory. This is
    the result of a parameter that no rank has used, whose gradient DistributedDataParallel leaves alone. With a scaler
    it is every result of a pass with a value that is not finite, since the scaler skips its step. All gradients are NaN
    then, so that the scaler skips the steps of other optimizers of the model, too.

    Args:
        model: the model with the hook.
        scaler: scaler of the loss; None where the loss is not scaled.
        put_back_: called at the end of a pass with the name of each parameter whose result is not applied.
        momentum: momentum of the memory, which counts passes. A second pass that adds to results is then refused.
    """

    def __init__(
        self,
        model: DistributedDataParallel,
        scaler: Scaler | None,
        put_back_: Callable[[str], None],
        momentum: float = 0.0,
    ):
        self._weak_model = weakref.ref(
            model
        )  # the model keeps the hook and this object, unseen by the garbage collector
        self._scaler, self._put_back_ = scaler, put_back_
        self.scale = 1.0  # scale of the loss in the last pass
        self.is_scaled = scaler is not None and getattr(scaler, "is_enabled", lambda: True)()
        self.all_finite = True  # whether all results of this pass are finite, where the loss is scaled
        trained = {name: parameter for name, parameter in model.module.named_parameters() if parameter.requires_grad}
        self._trained = trained
        self._num_references = 0  # to the classes of scalers, at the last search for a scaler
        self._may_be_unused = model.find_unused_parameters or model.static_graph
        self._used: set[Tensor] = set()  # on this rank, since gradients were exchanged
        hooked = trained.values() if self._may_be_unused else ()
        self._handles = [parameter.register_post_accumulate_grad_hook(self._used.add) for parameter in hooked]
        self._momentum = momentum
        self._results: set[Tensor] = set()  # parameters whose gradient holds the result of an earlier pass
        self._added: set[Tensor] = set()  # those of them to whose gradient this pass has added
        for parameter in trained.values() if momentum else ():
            self._handles.append(parameter.register_hook(partial(self._watch_, parameter)))

    def begin_(self) -> float:
        """Return the ratio of this pass's scale to the last one's; called before the first gradient is exchanged.

        Raises:
            ValueError: if there is a GradScaler that was not given, if the scale is not a positive number, or if the
                model joins uneven inputs in a way that is not supported.
        """
        if self._scaler is None:
            self._require_no_scaler()
        if self._model._join_config.enable:
            self._check_join()
        before = self.scale
        self.scale = float(self._scaler.get_scale()) if self._scaler is not None and self.is_scaled else 1.0
        if not 0 < self.scale < math.inf:
            raise ValueError(f"scaler.get_scale() is {self.scale}; it must be a positive number")
        self.all_finite = True
        return self.scale / before

    @property
    def _model(self) -> DistributedDataParallel:
        model = self._weak_model()
        assert model is not None  # it calls the hook that has this object
        return model

    def may_be_discarded(self, parameter: Tensor) -> bool:
        """Return whether the result of a parameter may not be applied, so that its present memory must be kept."""
        return self.is_scaled or (self._may_be_unused and parameter not in self._used)

    def end_(self) -> None:
        """Note that the last gradient of a pass has been handed over: a callback is queued behind the model's own.

        Raises:
            ValueError: if there is momentum, and gradients have been added to the results of an earlier pass.
        """
        self._used.clear()
        for name, parameter in self._trained.items() if self._momentum else ():
            if parameter in self._added:
                rule = "exchange one pass a step: run the others in no_sync(), and call zero_grad() after a step"
                raise ValueError(
                    f"momentum is {self._momentum}, and {name}.grad holds the result of another pass; {rule}"
                )
            self._results.add(parameter)
        if self.is_scaled or self._may_be_unused:
            queue = torch.autograd.Variable._execution_engine.queue_callback
            queue(lambda: queue(self._settle_))  # the model's, which ends the exchange, is queued in between

    def _settle_(self) -> None:
        discarded = [] if self.all_finite else list(self._trained)
        for name in discarded:
            if (gradient := self._trained[name].grad) is not None:
                gradient.fill_(math.nan)
        if self.all_finite and self._may_be_unused:
            num_users = self._model.reducer._get_local_used_map().tolist()  # summed over ranks in this pass
            is_view = self._model.gradient_as_bucket_view  # then a gradient that is not None is the result itself
            for (name, parameter), users in zip(self._trained.items(), num_users, strict=True):
                if not users and not (is_view and parameter.grad is not None):
                    discarded.append(name)
        for name in discarded:
            self._put_back_(name)

    def _watch_(self, parameter: Tensor, _: Tensor) -> None:
        """Note whether the gradient has been cleared since the last exchange; called before a pass adds to it."""
        if parameter in self._results:
            if parameter.grad is None or not parameter.grad.any():
                self._results.remove(parameter)
                self._added.discard(parameter)
            else:
                self._added.add(parameter)

    def close(self) -> None:
        """Stop watching the parameters, and forget the scaler."""
        self._scaler = None
        for handle in self._handles:
            handle.remove()

    def _require_no_scaler(self) -> None:
        classes = [GradScaler]
        for scaler_class in classes:
            classes += scaler_class.__subclasses__()
        num_references = sum(map(sys.getrefcount, classes))  # each instance refers to its class
        if num_references == self._num_references:
            return
        self._num_references = num_references

        def is_any_enabled() -> bool:
            return any(isinstance(user, GradScaler) and user.is_enabled() for user in gc.get_referrers(*classes))

        if is_any_enabled():
            gc.collect()  # the scaler may belong to a training that has ended
        if is_any_enabled():
            raise ValueError(
                "a GradScaler is enabled, but the exchange of gradients was not told: give it as scaler=, so that what "
                "is remembered follows its scale; for a model whose loss is not scaled scaler=GradScaler(enabled=False)"
            )

    def _check_join(self) -> None:
        model = self._model
        if not model._divide_by_initial_world_size:
            raise ValueError("join(divide_by_initial_world_size=False): compressed gradients are divided by all ranks")
        if self._may_be_unused:
            rule = "a rank that has joined cannot know which parameters no rank used"
            raise ValueError(f"join() with find_unused_parameters=True or static_graph=True: {rule}")
        if self.is_scaled and not model._join_config.throw_on_early_termination:
            rule = "a rank that has joined no longer knows the scale of the others' losses"
            raise ValueError(f"join() with scaler=: {rule}")


def warn_if_late(model: DistributedDataParallel, technique: str) -> None:
    """Warn if a model has large buckets, which reach a hook late in the backward pass."""
    if model.bucket_bytes_cap > LATE_BYTES:
        mib = model.bucket_bytes_cap / 2**20
        warnings.warn(
            f"DistributedDataParallel hands gradients over in buckets of {mib:g} MiB, late in the backward pass; "
            f"make it with bucket_cap_mb={technique}.BUCKET_MB",
            stacklevel=3,
        )


def require_ddp(model: object) -> None:
    """Raise ValueError if a model is no DistributedDataParallel with communication hooks."""
    if not isinstance(model, DistributedDataParallel):
        rule = "it must be a DistributedDataParallel, made with bucket_cap_mb=BUCKET_MB of the technique"
        raise ValueError(f"model is a {type(model).__name__}; {rule}")
    if model._use_python_reducer:
        raise ValueError("torch._dynamo.config.optimize_ddp is 'python_reducer', which calls no communication hooks")


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
    answers: list[tuple[str, str]] = [("", "")] * len(ranks)
    dist.all_gather_object(answers, (plan, error), group=group)

    def named(at_fault: Callable[[str, str], bool]) -> str:
        return ", ".join(str(rank) for rank, answer in zip(ranks, answers, strict=True) if at_fault(*answer))

    if errors := [error for _, error in answers if error]:
        raise ValueError(f"rank {named(lambda _, error: error == errors[0])}: {errors[0]}")
    if differing := named(lambda plan, _: plan != answers[0][0]):
        rule = "it must be one plan, made once and given to all ranks"
        raise ValueError(f"the plan of rank {ranks[0]} differs from that of rank {differing}; {rule}")


def require_own_state(state: Mapping[str, object], current: Mapping[str, object]) -> None:
    """Raise ValueError naming the first field of `current` that differs in a saved state, before anything is loaded."""
    for field, value in current.items():
        saved = state.get(field, "missing")
        if saved != value:
            rule = "a rank loads the state that it saved itself, with the same plan"
            raise ValueError(f"{field} of the state is {saved!s:.80}, here it is {value!s:.80}; {rule}")


def require_all_handed_over(model: DistributedDataParallel) -> None:
    """Raise ValueError naming a trained parameter whose gradient does not reach the hook, or is sparse."""
    embeddings = (part for part in model.module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag))
    sparse = {embedding.weight for embedding in embeddings if embedding.sparse}
    for name, parameter in model.module.named_parameters():
        if parameter.requires_grad and parameter in sparse:
            rule = "it must be dense: make its embedding with sparse=False, or have Zen exchange the gradients"
            raise ValueError(f"{name} has a sparse gradient; {rule}")
        if parameter.requires_grad and name in model.parameters_to_ignore:
            raise ValueError(
                f"{name} is trained, but ignored by DistributedDataParallel; freeze it, or have it exchanged"
            )


def require_fp32(module: nn.Module) -> None:
    """Raise ValueError naming a trained parameter that is not float32."""
    for name, parameter in module.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            raise ValueError(f"{name} is {parameter.dtype}; parameters must be float32, as autocast leaves them")


def require_parameters(module: nn.Module, num_elements: Mapping[str, int], name_of_model: str = "") -> None:
    """Raise ValueError if a model's trained parameters are not those of a plan, or not in FP32."""
    require_fp32(module)
    sizes = {name: p.numel() for name, p in module.named_parameters() if p.requires_grad}
    for name in sorted(sizes.keys() | num_elements.keys()):
        size, planned = sizes.get(name), num_elements.get(name)
        if size != planned:
            difference = f"{size or 'none'} elements in the model and {planned or 'none'} in the plan"
            of_what = f", {name_of_model}" if name_of_model else ""
            raise ValueError(f"the plan is of another model{of_what}: {name} has {difference}")
