"""Which technique helps? One question to the cost models of all, beside the best plain setting and the records."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .advice import Advice, Advised, advise

__all__ = ["Advice", "Advised", "advise"]


def __getattr__(name: str) -> Any:
    # Lazy, so that ranks of the blind test do not load the catalogue.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.advice"), name)
