"""What the simulated items about checkpoints and idle spans record and draw: the paper's machines, predicted.

Source: thesis, chapter 6 (Gemini), figures 6.4, 6.5, 6.7, 6.8, 6.11, 6.12, 6.13, 6.16.
Simplified, left out: see each module. Nothing here imports torch.
"""

from .rows import calibration_of, predict_ablation, predict_frequencies, predict_models, predict_reductions
from .worked_example import WORKED_EXAMPLE, WorkedExample, example_iterations, predict_schemes

__all__ = [
    "WORKED_EXAMPLE",
    "WorkedExample",
    "calibration_of",
    "example_iterations",
    "predict_ablation",
    "predict_frequencies",
    "predict_models",
    "predict_reductions",
    "predict_schemes",
]
