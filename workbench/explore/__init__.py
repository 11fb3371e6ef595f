"""Explorers, whose controls compute and then draw, and exercises that check themselves."""

from .exercises import Exercise, Feedback, Mistake, Standing, check, solution
from .explorer import Control, Explorer, choice, steps

__all__ = ["Control", "Exercise", "Explorer", "Feedback", "Mistake", "Standing", "check", "choice", "solution", "steps"]
