"""Explorers, whose controls compute and then draw, exercises that check themselves, and a bar under long calls."""

import sys

from . import browser
from .exercises import Exercise, Feedback, Mistake, Standing, check, solution
from .explorer import Control, Explorer, choice, steps
from .live import show_bars

__all__ = ["Control", "Exercise", "Explorer", "Feedback", "Mistake", "Standing", "check", "choice", "solution", "steps"]

if sys.platform == "emscripten":
    browser.install()
show_bars()
