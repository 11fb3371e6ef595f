"""A module of one's own and a step of it: gradients and their seconds, sequences, the largest table and its density."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from workbench.models.gradients import measure
from workbench.timeline.gradients import Gradients

__all__ = ["Live", "look_at"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Live:
    """What was seen of a module while its step ran."""

    gradients: Gradients  # with seconds as measured here
    config: dict[str, Any]  # of Hugging Face; empty for other modules
    embedding: tuple[int, int] | None  # rows and width of its largest table
    density: float  # share of those rows that a step touches, the most of all steps
    tokens: tuple[int, int] | None  # sequences of a step, and tokens of each, that its largest embedding looks up
    frozen_bytes: int  # of parameters without gradients


def look_at(module: nn.Module, step: Callable[[], object]) -> Live:
    """Run `step()`, one forward and backward pass of the module, some times, and time its gradients.

    Raises:
        ValueError: if the step does not call the module, or makes other gradients ready each time.
    """
    kinds = nn.Embedding, nn.EmbeddingBag
    embeddings = [part for part in module.modules() if isinstance(part, kinds)]
    largest = max(embeddings, key=lambda part: part.weight.numel(), default=None)
    trained = [part for part in embeddings if part.weight.requires_grad]
    table = max(trained, key=lambda part: part.weight.numel(), default=None)
    densities = [0.0]
    looked_up: list[tuple[int, int]] = []

    def note_tokens(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if inputs and inputs[0].dim() == 2:
            looked_up.append((inputs[0].shape[0], inputs[0].shape[1]))

    def note_density(weight: Tensor) -> None:
        grad = weight.grad
        assert grad is not None
        touched = grad.coalesce().indices().shape[1] if grad.is_sparse else int(grad.ne(0).any(dim=1).sum())
        densities.append(touched / len(weight))

    before = {parameter: parameter.grad for parameter in module.parameters()}
    if not before:
        raise ValueError(f"model is a {type(module).__name__} without parameters; it must have some")
    for parameter in before:
        parameter.grad = None  # gradients of earlier steps would be counted, too
    try:
        device = max(str(parameter.device) for parameter in before)  # "cuda:0" where tables lie on the CPU
        gradients = measure(module, step, device=device)
        hooks = [] if largest is None else [largest.register_forward_pre_hook(note_tokens)]
        if table is not None:
            hooks.append(table.weight.register_post_accumulate_grad_hook(note_density))
        try:
            if hooks:
                step()
        finally:
            for hook in hooks:
                hook.remove()
    finally:
        for parameter, grad in before.items():
            parameter.grad = grad
    config: Any = getattr(module, "config", None)
    return Live(
        gradients=gradients,
        config=config.to_dict() if hasattr(config, "to_dict") else {},
        embedding=None if table is None else (table.num_embeddings, table.embedding_dim),
        density=max(densities) or 1.0,
        tokens=looked_up[-1] if looked_up else None,
        frozen_bytes=sum(p.numel() * p.element_size() for p in before if not p.requires_grad),
    )
