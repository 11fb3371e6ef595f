"""A module of one's own and a step of it: its gradients and their seconds, its largest table, a batch's density."""

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


def look_at(module: nn.Module, step: Callable[[], object]) -> Live:
    """Run `step()`, one forward and backward pass of the module, some times, and time its gradients.

    Raises:
        ValueError: if the step does not call the module, or makes other gradients ready each time.
    """
    kinds = nn.Embedding, nn.EmbeddingBag
    tables = [part for part in module.modules() if isinstance(part, kinds) and part.weight.requires_grad]
    table = max(tables, key=lambda part: part.weight.numel(), default=None)
    densities = [0.0]

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
        if table is not None:
            hook = table.weight.register_post_accumulate_grad_hook(note_density)
            try:
                step()
            finally:
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
    )
