"""Explorers and exercises: controls that compute, then draw, and answers that are checked."""

from .controls import Control, choice, steps
from .exercises import Exercise, Feedback, Mistake, Standing, check, solution
from .explorer import Explorer

__all__ = ["Control", "Exercise", "Explorer", "Feedback", "Mistake", "Standing", "check", "choice", "solution", "steps"]
