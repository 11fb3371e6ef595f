"""The algorithm on plain numbers and tensors; optimizers are in `method.optimizer`, which imports torch."""

from .convergence import condition, error_bound, largest_learning_rate, synchronization_matrix
from .scheduler import Certificate, Group, Scheduler, Settings, certify, connects_by_definition

__all__ = ["Certificate", "Group", "Scheduler", "Settings", "certify", "condition", "connects_by_definition"]
__all__ += ["error_bound", "largest_learning_rate", "synchronization_matrix"]
