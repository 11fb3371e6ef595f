"""Explorers, whose controls compute and then draw, exercises that check themselves, and a bar under long calls."""

from .exercises import Exercise, Feedback, Mistake, Standing, check, solution
from .explorer import Control, Explorer, choice, steps
from .live import show_bars

__all__ = ["Control", "Exercise", "Explorer", "Feedback", "Mistake", "Standing", "check", "choice", "solution", "steps"]

show_bars()
