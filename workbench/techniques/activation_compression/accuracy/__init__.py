"""Does compression keep accuracy? Fine-tuning a pretrained encoder on GLUE with encoded messages.

What: `fine_tune` is one cell (task, method, seed) of tables 5, 15 and 16.
Source: "Does compressing activations help model parallel training?", sections 4.3 to 4.5.
Simplified and left out: see the modules.
"""

from workbench.techniques.activation_compression.accuracy.fine_tuning import fine_tune, fine_tune_on_ranks

__all__ = ["fine_tune", "fine_tune_on_ranks"]
