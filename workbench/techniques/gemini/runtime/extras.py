"""Objects that a user adds to the training state: anything with state_dict and load_state_dict.

Source: the protocol is torch.distributed.checkpoint.stateful.Stateful's. Simplified, left out: nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

__all__ = ["HasState", "checked_extras"]


class HasState(Protocol):
    """Anything whose state can be taken and put back."""

    def state_dict(self) -> dict[str, Any]:
        """Give the state: tensors, arrays, plain values and collections of them."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any:
        """Put back what `state_dict` gave."""


def checked_extras(extra: Mapping[str, HasState] | None, scheduler: HasState | None) -> dict[str, HasState]:
    """Join the schedule, under the name "scheduler", and the user's objects."""
    objects = dict(extra or {})
    if scheduler is not None:
        if "scheduler" in objects:
            raise ValueError("extra: 'scheduler' is given twice, here and as scheduler")
        objects["scheduler"] = scheduler
    for name, item in objects.items():
        if not (hasattr(item, "state_dict") and hasattr(item, "load_state_dict")):
            raise ValueError(f"extra: {name!r} is a {type(item).__name__} without state_dict and load_state_dict")
    return objects
