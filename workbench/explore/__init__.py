"""Explorers, whose controls compute and then draw, exercises that check themselves, and a bar under long calls."""

import importlib
import sys
from typing import Any

from . import browser
from .exercises import Exercise, Feedback, Mistake, Standing, check, solution
from .explorer import Control, Explorer, choice, steps
from .live import show_bars

__all__ = [
    "Control",
    "Exercise",
    "Explorer",
    "Feedback",
    "Mistake",
    "Standing",
    "advise",
    "check",
    "choice",
    "solution",
]
__all__ += ["steps"]

if sys.platform == "emscripten":
    browser.install()
show_bars()


def __getattr__(name: str) -> Any:
    """Load the advisor, which needs all techniques, when it is asked for."""
    if name != "advise":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.advisor").advise
